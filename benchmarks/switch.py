"""How long a run takes to start after one of another stack, beside one of the same stack, and what idle agents cost.

Agents of both stacks are warm. The CPU time of the idle ones is counted while the other stack trains.

    python -m benchmarks.switch [MODEL] [RUNS]     # of a training on this machine; mnist, 12 runs of each kind

Runs alternate in pairs, A A B B, so that as many follow the same stack as another one, and a drift affects both.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from pytest_dtfperf.compare.variants import parse_variant
from pytest_dtfperf.node.processes import inspect, iterate_processes
from pytest_dtfperf.session import Session, Settings
from pytest_dtfperf.session.stacks import ComparedStack, StackRunner

MARK = "DTFPERF_SWITCH=1"  # a variable of the second stack


def measure_starts(model: str, runs: int) -> dict[str, list[float]]:
    """Return the seconds of each start after the same and another stack, and the cores that idle agents used.

    A start is from the order to the first step.
    """
    found: dict[str, list[float]] = {"same": [], "other": [], "idle": []}
    with tempfile.TemporaryDirectory() as results:
        settings = Settings(steps=3, history="never", explain="never")
        with Session.open("local", results=results, settings=settings) as session:
            spec = session.spec(model)
            variants = [parse_variant("one:"), parse_variant(f"two: environment={MARK}")]
            runner = StackRunner(session, "switch", variants)
            sides = [ComparedStack(each, runner.prepare(each, spec)) for each in variants]
            with session.measuring(spec, "benchmarks.switch"):
                for side in sides:
                    runner.build(side)
                    runner.start_agents(side.variant.name, spec)
                    runner.run(side, 1)  # its agents import TensorFlow before it
                for number in range(2 * runs):
                    run = runner.run(sides[number // 2 % 2], 2 * runs)
                    found["other" if number % 2 == 0 else "same"].append(run.wall_s - run.elapsed_s)
                first = sides[0]
                idle = find_idle_processes()
                began_s, before_s = time.monotonic(), sum_cpu(idle)
                for _ in range(runs):
                    runner.run(first, runs)
                found["idle"] = [(sum_cpu(idle) - before_s) / (time.monotonic() - began_s)]
                assert idle, "the second stack has agents"
    return found


def find_idle_processes() -> list[int]:
    """Return the processes of the second stack."""
    found = []
    for each in iterate_processes():
        try:
            if MARK.encode() in Path(f"/proc/{each.pid}/environ").read_bytes().split(b"\0"):
                found.append(each.pid)
        except OSError:  # it has ended, or belongs to another user
            continue
    return found


def sum_cpu(pids: Sequence[int]) -> float:
    return sum(process.cpu_s + process.reaped_cpu_s for process in map(inspect, pids) if process)


def main() -> None:
    model, runs = [*sys.argv[1:], *("mnist", "12")[len(sys.argv) - 1 :]]
    found = measure_starts(model, int(runs))
    same, other = (statistics.median(found[each]) for each in ("same", "other"))
    print(f"start after the same stack {same:.3f} s, after another one {other:.3f} s: {other / same:.3f} times as long")
    print(f"idle agents of the other stack used {found['idle'][0]:.2%} of a core")


if __name__ == "__main__":
    main()
