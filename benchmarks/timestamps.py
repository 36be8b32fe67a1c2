"""What the timestamps of every measured step cost: steps and whole runs with and without them, on this machine.

    python -m benchmarks.timestamps                       # mnist on two workers and two parameter servers
    python -m benchmarks.timestamps --gpus 1 --num-ps 1   # where two cores are enough for all tasks: steps scatter less
    python -m benchmarks.timestamps --model resnet50 --batch 2 --steps 40 --rounds 5

Within a run, four steps at a time: of the first two and the next two, one half is timestamped on every worker, drawn by lot for
each four. So what else makes steps longer, every second one or later ones, falls to either. Runs of which all steps are
timestamped and runs of which none is, in turns, show the CPU seconds of all workers. Medians of ratios, with the interval that
holds the true median 19 times of 20, whatever they are distributed by: it is between two of the ratios (the sign test's).
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from math import comb
from pathlib import Path
from random import Random
from statistics import median

from benchmarks.cells import cluster_of
from pytest_dtfperf.clusters.local import Local
from pytest_dtfperf.clusters.protocol import Resources
from pytest_dtfperf.datamodel.measurement import Run
from pytest_dtfperf.launch.launcher import Launcher
from pytest_dtfperf.spec import Spec
from pytest_dtfperf.spec.tables import VARIABLE_UPDATES, VariableUpdate

ERROR = 0.05
BLOCK = 2  # steps that are all timestamped or none is: few, for what else makes them longer lasts
WARMUP_STEPS = 10
# Those with parameter servers and sessions: a function of TensorFlow 2's strategies has timestamps in all steps or in none.
MODES = [name for name, mode in VARIABLE_UPDATES.items() if mode.parameter_servers and mode.engine == VariableUpdate.engine]


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    spec = Spec(
        model=options.model,
        batch_size=options.batch,
        gpus=options.gpus,
        num_ps=options.num_ps,
        variable_update=options.variable_update,
        steps=options.steps,
        warmup_steps=WARMUP_STEPS,
    )
    config = cluster_of(spec)
    steps: list[float] = []
    cpu: list[float] = []
    rates: list[float] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        Local(config).allocate(Resources(devices=spec.gpus)) as allocation,
        Launcher(allocation, config) as launcher,
    ):

        def train(timestamped: Sequence[bool]) -> Run:
            return launcher.run(spec, log_dir=Path(folder), timestamped=timestamped)

        for number in range(options.rounds):
            lots = draw_lots(options.steps, Random(number))
            steps += by_lot(train([True] * WARMUP_STEPS + lots).step_s["worker:0"], lots)
            first, second = (True, False) if number % 2 else (False, True)  # neither always meets the warmer machine
            runs = {timestamped: train([timestamped]) for timestamped in (first, second)}
            cpu.append(_cpu_s(runs[True]) / _cpu_s(runs[False]))
            rates.append(runs[True].images_per_sec / runs[False].images_per_sec)
            print(f"{number + 1} of {options.rounds}", file=sys.stderr, flush=True)
    print(f"{spec.label}: with timestamps / without")
    for what, ratios in ((f"seconds of {BLOCK} steps", steps), ("CPU seconds of a run", cpu), ("images/sec of a run", rates)):
        print(f"{what:<22} {line(ratios)}")
    return 0


def draw_lots(steps: int, lot: Random) -> list[bool]:
    """Whether a step is timestamped: of each two blocks one is. What is left over after the last two is not."""
    halves = [lot.choice((True, False)) for _ in range(steps // (2 * BLOCK))]
    timestamped = [of_block for first in halves for of_block in (first, not first) for _ in range(BLOCK)]
    return timestamped + [False] * (steps - len(timestamped))


def by_lot(step_s: Sequence[float], timestamped: Sequence[bool]) -> list[float]:
    """Seconds of each timestamped block by those of its neighbour, which is not."""
    ratios = []
    for begin in range(0, len(step_s) - 2 * BLOCK + 1, 2 * BLOCK):
        first, second = (sum(step_s[at : at + BLOCK]) for at in (begin, begin + BLOCK))
        ratios.append(first / second if timestamped[begin] else second / first)
    return ratios


def _cpu_s(run: Run) -> float:
    """Of the workers in the measured window: that of parameter servers is over their life."""
    return sum(seconds for task, seconds in run.cpu_s.items() if task.startswith("worker"))


def line(ratios: Sequence[float]) -> str:
    """Median and interval."""
    low, high = interval(ratios)
    return f"{median(ratios):.4f}  ({low:.4f} to {high:.4f}, {len(ratios)} ratios)"


def interval(ratios: Sequence[float]) -> tuple[float, float]:
    """Of the median: so many ratios from each end that fewer lie beyond it with a probability of `ERROR` / 2 at most."""
    ordered, count = sorted(ratios), len(ratios)
    beyond, probability = 0, 0.5**count
    while beyond + 1 < count / 2 and probability + comb(count, beyond + 1) / 2**count <= ERROR / 2:
        beyond += 1
        probability += comb(count, beyond) / 2**count
    return ordered[beyond], ordered[-1 - beyond]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="What timestamps cost, on this machine.")
    parser.add_argument("--model", default="mnist")
    parser.add_argument("--batch", type=int, default=64, metavar="N", help="images per device and step (default %(default)s)")
    parser.add_argument("--gpus", type=int, default=2, metavar="N", help="workers (default %(default)s)")
    parser.add_argument("--num-ps", type=int, default=2, metavar="N", help="parameter servers (default %(default)s)")
    parser.add_argument("--variable-update", default="parameter_server", choices=MODES)
    parser.add_argument("--steps", type=int, default=400, metavar="N", help="of each run (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=10, metavar="N", help="of three runs each (default %(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
