"""How long a run takes to start after one of another stack, beside one of the same stack: agents of both are warm.

    python -m benchmarks.switch [MODEL] [RUNS]     # of a training on this machine; mnist, 12 runs of each kind

Runs alternate in pairs, A A B B, so that as many follow the same stack as another one, and a drift affects both.
"""

import statistics
import sys
import tempfile

from pytest_dtfperf.compare.variants import parse_variant
from pytest_dtfperf.session import Session, Settings
from pytest_dtfperf.session.stacks import ComparedStack, StackRunner


def measure_starts(model: str, runs: int) -> dict[str, list[float]]:
    """Return the seconds of each start, from the order to the first step, after the same and after another stack."""
    found: dict[str, list[float]] = {"same": [], "other": []}
    with tempfile.TemporaryDirectory() as results:
        settings = Settings(steps=3, history="never", explain="never")
        with Session.open("local", results=results, settings=settings) as session:
            runner = StackRunner(session, "switch")
            spec = session.spec(model)
            variants = [parse_variant("one:"), parse_variant("two: environment=DTFPERF_SWITCH=1")]
            for each in variants:
                runner.add(each)
            sides = [ComparedStack(each, runner.prepare(each, spec)) for each in variants]
            with session.measuring(spec, "benchmarks.switch"):
                for side in sides:
                    runner.build(side)
                    runner.start_agents(side.variant.name, spec)
                    runner.run(side, 1)  # its agents import TensorFlow before it
                for number in range(2 * runs):
                    run = runner.run(sides[number // 2 % 2], 2 * runs)
                    found["other" if number % 2 == 0 else "same"].append(run.wall_s - run.elapsed_s)
    return found


def main() -> None:
    model, runs = [*sys.argv[1:], *("mnist", "12")[len(sys.argv) - 1 :]]
    found = measure_starts(model, int(runs))
    same, other = (statistics.median(found[each]) for each in ("same", "other"))
    print(f"start after the same stack {same:.3f} s, after another one {other:.3f} s: {other / same:.3f} times as long")


if __name__ == "__main__":
    main()
