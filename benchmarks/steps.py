"""Steps as a program of its own reports them by `Steps`, against those that our own loop measures of the same training.

    python -m benchmarks.steps                     # mnist
    python -m benchmarks.steps --model resnet20 --batch 32 --steps 60 --rounds 12

Both train the same graph on one device with the same threads, turn by turn: ours as a spec, and the program (`main` with
`--program`) as an external command that makes that graph, runs it in a loop of its own, and times each step by `with steps:`.
Compared are the medians of a run's steps, run by run; the median of these ratios has the interval that holds the true one 19
times of 20.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks.cells import cluster_of
from benchmarks.stamps import line
from pytest_dtfperf.clusters.local import Local
from pytest_dtfperf.clusters.protocol import Resources
from pytest_dtfperf.launch.run import Launcher
from pytest_dtfperf.spec import Spec, TaskOrder

WARMUP_STEPS = 10
ROOT = Path(__file__).parents[1]
_WORDS = ("--program", "--batch={batch_size}", "--steps={steps}", "--warmup={warmup_steps}", "--threads={threads}")


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    return _program(options) if options.program else _compare(options)


def _compare(options: argparse.Namespace) -> int:
    ours = _spec(options)
    command = ("python", "-m", "benchmarks.steps", f"--model={options.model}", *_WORDS)
    theirs = Spec(
        model=f"{options.model}-reported", command=command, command_dir=str(ROOT), role_flags=(), batch_size=options.batch,
        gpus=1, variable_update="independent", steps=options.steps, warmup_steps=options.warmup,
    )  # fmt: skip
    config = cluster_of(ours)
    ratios: list[float] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        Local(config).allocate(Resources(devices=1)) as allocation,
        Launcher(allocation, config) as launcher,
    ):

        def step_s(spec: Spec) -> float:
            found = launcher.run(spec, log_dir=Path(folder)).step_s["worker:0"]
            assert len(found) == options.steps
            return median(found)

        for number in range(options.rounds):
            first, second = (theirs, ours) if number % 2 else (ours, theirs)  # neither always meets the warmer machine
            found = {spec: step_s(spec) for spec in (first, second)}
            ratios.append(found[theirs] / found[ours])
            print(f"{number + 1} of {options.rounds}: {1e3 * found[ours]:.3f} ms", file=sys.stderr, flush=True)
    print(f"{ours.label}: steps as reported / as measured by our own loop")
    print(line(ratios))
    return 0


def _program(options: argparse.Namespace) -> int:
    from pytest_dtfperf.steps import Steps
    from pytest_dtfperf.training.graph import GraphTraining
    from pytest_dtfperf.training.memory import keep_freed_memory

    keep_freed_memory()  # as our own tasks do
    order = TaskOrder(run="benchmark", job="worker", index=0, spec=_spec(options), cluster={}, threads=options.threads)
    training = GraphTraining(order)
    training.serve()
    training.build()
    training.initialise()
    steps = Steps(images_per_step=options.batch, warmup=options.warmup)
    for _ in range(options.warmup + options.steps):
        with steps:
            training.step()  # returns when the loss is there
    training.shut_down()
    return 0


def _spec(options: argparse.Namespace) -> Spec:
    return Spec(
        model=options.model, batch_size=options.batch, gpus=1, variable_update="independent", steps=options.steps,
        warmup_steps=options.warmup,
    )  # fmt: skip


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Reported steps against our own loop's, on this machine.")
    parser.add_argument("--model", default="mnist")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--warmup", type=int, default=WARMUP_STEPS)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--program", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, default=1, help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
