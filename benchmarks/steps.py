"""Steps as a program of its own reports them by `Steps`, against those that our own loop measures, of the same training.

    python -m benchmarks.steps                     # mnist
    python -m benchmarks.steps --model resnet20 --batch 32 --steps 60 --rounds 8

One process trains one graph, as an external command (`main` with `--program`). Its steps are timed in blocks, in the order
ours, theirs, theirs, ours, and so on: a block of ours by the loop that our own tasks measure with, and written as the report
they send; a block of theirs by `with steps:` in a loop as programs have it, and reported to the launcher.
Both reports become a run as every run is made of its tasks' reports. Processes differ among themselves by some percent, and
that is in neither. The process has half of the machine's cores, so that whoever listens to it takes none of them. Compared are
the steps of each process, by their median and by their mean, of which rates are made; the median of these ratios has the
interval that holds the true one 19 times of 20.
"""

import argparse
import json
import socket
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median

from benchmarks.cells import cluster_of
from benchmarks.timestamps import line
from pytest_dtfperf.clusters.local import Local
from pytest_dtfperf.clusters.protocol import Resources
from pytest_dtfperf.datamodel.task_report import TaskReport
from pytest_dtfperf.launch.launcher import Launcher
from pytest_dtfperf.launch.summary import summarise
from pytest_dtfperf.node.wire import Connection
from pytest_dtfperf.spec import Spec, TaskOrder

WARMUP_STEPS = 10
BLOCK = 10  # steps: a third of a second of mnist, so that what changes more slowly meets both alike
ROOT = Path(__file__).parents[1]
_WORDS = ("--program", "--batch={batch_size}", "--steps={steps}", "--warmup={warmup_steps}", "--threads={threads}")
CHIEF = "worker:0"


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    if options.steps % BLOCK:
        sys.exit(f"--steps must be a multiple of {BLOCK}, not {options.steps}")
    return _program(options) if options.program else _compare(options)


def blocks(steps: int) -> Iterator[bool]:
    """Who times each block of a process: True is our own loop. Both begin as often as the other, and follow each other."""
    for number in range(steps // BLOCK):
        yield from (True, False) if number % 2 == 0 else (False, True)


def _compare(options: argparse.Namespace) -> int:
    ours = _spec(options)
    # One device is half of the machine: who listens has the other half, and trains nothing.
    config = replace(cluster_of(ours.replace(gpus=2)), entry="pytest_dtfperf.training.command:run")
    medians: list[float] = []
    means: list[float] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        Local(config).allocate(Resources(devices=1)) as allocation,
        Launcher(allocation, config) as launcher,
    ):
        written = Path(folder, "ours.json")
        command = ("python", "-m", "benchmarks.steps", f"--model={options.model}", f"--report={written}", *_WORDS)
        theirs = Spec(
            model=f"{options.model}-reported", command=command, command_dir=str(ROOT), role_flags=(), batch_size=options.batch,
            gpus=1, variable_update="independent", steps=options.steps, warmup_steps=options.warmup,
        )  # fmt: skip
        for number in range(options.rounds):
            run = launcher.run(theirs, log_dir=Path(folder))
            reported = run.step_s[CHIEF]
            report = TaskReport.from_json(json.loads(written.read_text()))
            written.unlink()
            own = summarise(ours, [report], hosts={CHIEF: "localhost"}, launch_s={}, wall_s=run.wall_s)
            measured = own.step_s[CHIEF]
            assert len(measured) == len(reported) == options.steps
            medians.append(median(reported) / median(measured))
            means.append(fmean(reported) / fmean(measured))
            summary = f"{1e3 * median(measured):.3f} ms, {medians[-1]:.4f} in the median, {means[-1]:.4f} in the mean"
            print(f"{number + 1} of {options.rounds}: {summary}", file=sys.stderr, flush=True)
    print(f"{ours.label}: steps as reported / as measured by our own loop, {options.steps} of each in a process")
    print(f"median step {line(medians)}")
    print(f"mean step   {line(means)}")
    return 0


def _program(options: argparse.Namespace) -> int:
    from pytest_dtfperf.steps import Steps
    from pytest_dtfperf.training.devices import keep_freed_memory
    from pytest_dtfperf.training.graph import GraphTraining
    from pytest_dtfperf.training.measured_steps import MeasuredSteps, run_measured_steps
    from pytest_dtfperf.training.task import TaskProgress

    keep_freed_memory()  # as our own tasks do
    order = _order(options, options.steps)
    training = GraphTraining(order)
    training.serve()
    training.build()
    training.initialise()
    to_agent, _agent = socket.socketpair()  # holds what a task says meanwhile
    connection = Connection(to_agent)
    progress = TaskProgress(order, connection)
    steps = Steps(images_per_step=options.batch, warmup=options.warmup)

    def by_steps(count: int) -> None:
        for _ in range(count):
            with steps:
                training.step()  # returns when the loss is there

    by_steps(options.warmup)
    of_block = _order(options, BLOCK)
    measured: list[MeasuredSteps] = []
    for by_our_loop in blocks(options.steps):
        if by_our_loop:
            measured.append(run_measured_steps(of_block, training, connection.counters, progress))
        else:
            by_steps(BLOCK)
    training.shut_down()
    report = TaskReport(
        job=order.job,
        index=order.index,
        num_devices=order.num_devices,
        step_s=[seconds for each in measured for seconds in each.step_s],
        elapsed_s=sum(each.elapsed_s for each in measured),
        loss=[loss for each in measured for loss in each.loss],
    )
    options.report.write_text(json.dumps(report.to_json()))
    return 0


def _order(options: argparse.Namespace, steps: int) -> TaskOrder:
    spec = _spec(options).replace(steps=steps)
    return TaskOrder(run="benchmark", job="worker", index=0, spec=spec, cluster={}, threads=options.threads)


def _spec(options: argparse.Namespace) -> Spec:
    return Spec(
        model=options.model, batch_size=options.batch, gpus=1, variable_update="independent", steps=options.steps,
        warmup_steps=options.warmup,
    )  # fmt: skip


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Reported steps against our own loop's, within processes of this machine.")
    parser.add_argument("--model", default="mnist")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument(
        "--steps", type=int, default=120, help=f"of each in a process, a multiple of {BLOCK} (default %(default)s)"
    )
    parser.add_argument("--warmup", type=int, default=WARMUP_STEPS)
    parser.add_argument("--rounds", type=int, default=12, help="processes (default %(default)s)")
    parser.add_argument("--program", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--report", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, default=1, help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
