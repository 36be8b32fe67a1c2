"""`dtfperf launch`: run any program as parameter servers and workers on the hosts of a cluster, and show its output."""

import argparse
import math
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_dtfperf.cli.doctor import DoctorProgress
from pytest_dtfperf.cli.options import (
    DONE,
    FAILED,
    Commands,
    ExitCodes,
    add_cluster,
    add_command,
    add_json,
    is_colour_wanted,
    load_cluster,
)
from pytest_dtfperf.cli.output import print_json, print_remark
from pytest_dtfperf.clusters.capacity import count_devices, predict_device, predict_devices_per_worker
from pytest_dtfperf.clusters.named import BACKENDS
from pytest_dtfperf.clusters.placement import Roles
from pytest_dtfperf.errors import RunFailed, UsageError
from pytest_dtfperf.formats import format_count
from pytest_dtfperf.spec import Spec
from pytest_dtfperf.spec.command import ROLE_FLAGS, TF_CONFIG, program_name

if TYPE_CHECKING:
    from pytest_dtfperf.clusters.named import ClusterConfig

TEXT = f"""\
Run a program as parameter servers and workers on a cluster's hosts, and show the output of all tasks. The command ends when
the workers have ended, or the chief if there is one. It measures nothing and has no time limit.

    dtfperf launch --num-workers=2 train.py --steps=1000                        # two processes on this machine
    dtfperf launch --cluster=daint --num-ps=2 --num-workers=4 train.py
    dtfperf launch --cluster=daint --chief --num-ps=2 --num-workers=4 --evaluator train.py
    dtfperf launch --cluster=lab --num-ps=1 --num-workers=2 --separate-ps --flags train.py --batch_size=64

TF_CONFIG in the environment gives each task its role and the addresses of all, as TensorFlow's resolvers read it. --flags
appends these flags to the command instead, and --role-flags appends your own:

    {" ".join(ROLE_FLAGS)}

The program, its interpreter and its files must be on the hosts, in the same folder. Logs are written to --logs. Ctrl-C ends
all tasks. Details: docs/launch.md.
"""
ENDS: ExitCodes = {
    DONE: "all workers succeeded",
    FAILED: "the cluster failed",
    "any other": "that of the first task that failed (128 + N: killed by signal N)",
}
SHAPE = {
    "task": "worker:0",
    "line": "a line of its output; null: lines came too fast to be shown",
    "left_out": "number of lines that only its log has",
}
COLOURS = (36, 33, 32, 35, 34, 31)  # of a terminal: cyan, yellow, green, magenta, blue, red


def add_parser(commands: "Commands[argparse.ArgumentParser]") -> None:
    parser = add_command(commands, "launch", help="run any program as ps and worker tasks on a cluster", text=TEXT, ends=ENDS)
    add_cluster(parser)
    parser.add_argument("--num-workers", metavar="N", type=int, default=1, help="number of workers; by default 1")
    parser.add_argument("--num-ps", metavar="N", type=int, default=0, help="number of parameter servers; by default 0")
    parser.add_argument("--chief", action="store_true", help="add a chief; the run ends when the chief has ended")
    parser.add_argument("--evaluator", action="store_true", help="add an evaluator, which does not train")
    text = "with a chief or an evaluator: end tasks that run so long after the end of the training; by default 10"
    parser.add_argument("--grace", metavar="SECONDS", type=float, default=10.0, help=text)
    parser.add_argument("--separate-ps", action="store_true", help="parameter servers on hosts of their own")
    roles = parser.add_mutually_exclusive_group()
    roles.add_argument("--flags", action="store_true", help="append the flags above to the command")
    roles.add_argument(
        "--role-flags", metavar="FLAGS", help="append these, as '--type={job} --rank={index} --peers={worker_hosts}'"
    )
    text = "a variable for each task, with placeholders in braces: RANK={index}; can be repeated"
    parser.add_argument("--environment", metavar="NAME=VALUE", action="append", default=[], help=text)
    text = "the folder of logs; by default a new folder in dtfperf_launches"
    parser.add_argument("--logs", metavar="DIR", type=Path, help=text)
    add_json(parser, SHAPE, lines="line of a task, as it comes")
    parser.add_argument("program", nargs=argparse.REMAINDER, metavar="PROGRAM ...", help="the program with its arguments")
    parser.set_defaults(run=run_launch, cluster="local")


def run_launch(args: argparse.Namespace) -> int:
    from pytest_dtfperf.records.session import new_session_id
    from pytest_dtfperf.session import preflight
    from pytest_dtfperf.session.allocation_manager import AllocationManager
    from pytest_dtfperf.session.signals import raise_exit

    args.program = args.program[1:] if args.program[:1] == ["--"] else args.program
    if not args.program:
        raise UsageError("which program? dtfperf launch --num-workers=2 train.py --steps=1000")
    for name in ("num_workers", "num_ps"):
        least = 1 if name == "num_workers" else 0
        if getattr(args, name) < least:
            raise UsageError(f"--{name.replace('_', '-')} must be {least} or more, not {getattr(args, name)}")
    if not 0 <= args.grace < math.inf:
        raise UsageError(f"--grace must be a number of seconds, 0 or more, not {args.grace:g}")
    roles = Roles(args.chief, args.evaluator, args.grace if args.chief or args.evaluator else 0.0)
    config = _load_config(load_cluster(args), args, args.num_workers + roles.extra_tasks)
    spec = _make_spec(args, config, args.num_workers + roles.extra_tasks)
    _check_devices(args, config, spec)
    preflight.check_program(spec, config)
    session = new_session_id()
    logs = args.logs or Path("dtfperf_launches") / session
    preflight.check_folders([preflight.logs(logs), preflight.runtime(), preflight.temporary()])
    show = _print_lines if args.json else LaunchOutput(_parse_names(args)).show
    with DoctorProgress() as progress, raise_exit():

        def show_lines(task: str, lines: Sequence[str], left_out: int) -> None:
            progress.clear()
            show(task, lines, left_out)

        allocations = AllocationManager(config, session=session, on_status=progress.show)
        try:
            with allocations.measuring(spec, "dtfperf launch"):
                launcher = allocations.get_launcher()
                progress.show(f"{_parse_count(args)} on {' '.join(launcher.hosts)}")
                unwritten = launcher.launch(spec, log_dir=logs, on_output=show_lines, roles=roles)
        except RunFailed as failure:
            progress.clear()
            print_remark(str(failure))
            return failure.culprit.code or FAILED
        finally:
            allocations.release()
    print_remark(unwritten or f"logs: {logs}")
    return DONE


def _parse_count(args: argparse.Namespace) -> str:
    """Return the counts of tasks, such as `2 parameter servers and 4 workers and a chief`, without a comma."""
    conditions = {
        format_count(args.num_ps, "parameter server"): args.num_ps,
        format_count(args.num_workers, "worker"): args.num_workers,
        "a chief": args.chief,
        "an evaluator": args.evaluator,
    }
    return " and ".join(word for word, is_there in conditions.items() if is_there)


def _parse_names(args: argparse.Namespace) -> list[str]:
    counts = {"chief": int(args.chief), "ps": args.num_ps, "worker": args.num_workers, "evaluator": int(args.evaluator)}
    return [f"{job}:{index}" for job, count in counts.items() for index in range(count)]


def _load_config(config: "ClusterConfig", args: argparse.Namespace, workers: int) -> "ClusterConfig":
    """Return the cluster with the placement of servers; the local one has as many devices as workers."""
    if args.separate_ps:
        config = replace(config, ps_on_worker_hosts=False)
    if BACKENDS[config.backend].is_local and config.devices_per_host is None and predict_device(config) == "cpu":
        config = replace(config, devices_per_host=workers * config.devices_per_worker)
    return config


def _make_spec(args: argparse.Namespace, config: "ClusterConfig", workers: int) -> Spec:
    program = list(args.program)
    if program[0].endswith(".py"):
        program = ["python", *program]
    given = _make_role_flags(args.role_flags) if args.role_flags else None
    return Spec(
        model=program_name(program),
        batch_size=0,
        gpus=workers * predict_devices_per_worker(config),
        num_ps=args.num_ps,
        variable_update="parameter_server" if args.num_ps else "independent",
        command=tuple(program),
        command_dir=os.getcwd(),
        environment=tuple(args.environment),
        role_flags=tuple(given) if given else None if args.flags else TF_CONFIG,
    )


def _check_devices(args: argparse.Namespace, config: "ClusterConfig", spec: Spec) -> None:
    """Raise `UsageError` if the cluster has too few devices or hosts, as far as that is known without an allocation."""
    from pytest_dtfperf.session import allocation_manager

    if why := allocation_manager.explain_lack_of_hosts({"gpus": spec.gpus, "num_ps": spec.num_ps}, config):
        raise UsageError(f"{why}. Lower --num-workers or --num-ps, or leave out --separate-ps")
    there = count_devices(config)
    if there is not None and spec.gpus > there:
        raise UsageError(
            f"{_parse_count(args)} need {format_count(spec.gpus, 'device')}, but cluster {config.name!r} has {there}. "
            "Lower --num-workers, or raise devices_per_host in clusters.toml"
        )


def _make_role_flags(text: str) -> list[str]:
    """Split the flags as a shell does. Raises `UsageError`."""
    try:
        return shlex.split(text)
    except ValueError as exc:
        raise UsageError(f"--role-flags={text}: {str(exc).lower()}; quote it as for a shell") from exc


def _print_lines(task: str, lines: Sequence[str], left_out: int) -> None:
    for line in lines:
        print_json({"task": task, "line": line, "left_out": 0})
    if left_out:
        print_json({"task": task, "line": None, "left_out": left_out})


class LaunchOutput:
    """Lines on stdout, prefixed by the names of their tasks."""

    def __init__(self, tasks: Sequence[str]) -> None:
        width, coloured = max(map(len, tasks)), is_colour_wanted(sys.stdout)
        self._begins = {
            task: f"\x1b[{COLOURS[number % len(COLOURS)]}m{task:{width}} |\x1b[0m " if coloured else f"{task:{width}} | "
            for number, task in enumerate(tasks)
        }

    def show(self, task: str, lines: Sequence[str], left_out: int) -> None:
        begin = self._begins[task]
        for line in lines:
            print(f"{begin}{line}")
        if left_out:
            print(f"{begin}({format_count(left_out, 'line')} more, which came too fast to be shown)")
        sys.stdout.flush()
