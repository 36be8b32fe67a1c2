"""What the stamps of every measured step cost: steps and whole runs with and without them, on this machine.

    python -m benchmarks.stamps                       # mnist on two workers and two parameter servers
    python -m benchmarks.stamps --model resnet50 --batch 2 --steps 40 --rounds 5

In a run of which every fourth step is stamped, each of these is compared with the two that are two steps from it: with or
without stamps every second step may be longer (by 0.6 % with mnist on two cores, November 2026), so that neighbours differ.
Runs of which all steps are stamped and runs of which none is, turn by turn, tell the CPU seconds of all workers. Medians of
ratios, with the interval that holds the true median 19 times of 20, whatever they are distributed by: it is between two of
the ratios (the sign test's).
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from math import comb
from pathlib import Path
from statistics import median

from benchmarks.cells import cluster_of
from pytest_dtfperf.clusters.local import Local
from pytest_dtfperf.clusters.protocol import Resources
from pytest_dtfperf.launch.run import Launcher
from pytest_dtfperf.measurement import Run
from pytest_dtfperf.spec import Spec

ERROR = 0.05
EVERY = 4  # steps of which one is stamped
WARMUP_STEPS = EVERY  # so it is the last of each of the measured fours


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    spec = Spec(
        model=options.model, batch_size=options.batch, gpus=2, num_ps=2, variable_update=options.variable_update,
        steps=options.steps, warmup_steps=WARMUP_STEPS,
    )  # fmt: skip
    config = cluster_of(spec)
    steps: list[float] = []
    cpu: list[float] = []
    rates: list[float] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        Local(config).allocate(Resources(devices=spec.gpus)) as allocation,
        Launcher(allocation, config) as launcher,
    ):

        def trained(every: int) -> Run:
            return launcher.run(spec, log_dir=Path(folder), stamp_every=every)

        for number in range(options.rounds):
            steps += _of_the_like(trained(EVERY).step_s["worker:0"])
            first, second = (1, 0) if number % 2 else (0, 1)  # neither always meets the warmer machine
            runs = {every: trained(every) for every in (first, second)}
            cpu.append(_cpu_s(runs[1]) / _cpu_s(runs[0]))
            rates.append(runs[1].images_per_sec / runs[0].images_per_sec)
            print(f"{number + 1} of {options.rounds}", file=sys.stderr, flush=True)
    print(f"{spec.label}: with stamps / without")
    for what, ratios in (("seconds of a step", steps), ("CPU seconds of a run", cpu), ("images/sec of a run", rates)):
        print(f"{what:<22} {line(ratios)}")
    return 0


def _of_the_like(step_s: Sequence[float]) -> list[float]:
    """Each stamped step by the mean of those two before and two after it."""
    return [2 * step_s[at] / (step_s[at - 2] + step_s[at + 2]) for at in range(EVERY - 1, len(step_s) - 2, EVERY)]


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
    parser = argparse.ArgumentParser(description="What stamps cost, on this machine.")
    parser.add_argument("--model", default="mnist")
    parser.add_argument("--batch", type=int, default=64, metavar="N", help="images per device and step (default %(default)s)")
    parser.add_argument("--variable-update", default="parameter_server", metavar="M")
    parser.add_argument("--steps", type=int, default=100, metavar="N", help="of each run (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=10, metavar="N", help="of three runs each (default %(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
