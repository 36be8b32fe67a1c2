"""`dtfperf doctor`: look at every host of a cluster, side by side."""

import argparse
import sys
from types import TracebackType
from typing import TYPE_CHECKING, Self

from pytest_dtfperf.cli.terms import DONE, FAILED, Commands, add_cluster, add_command, cluster_of, colour, columns, is_terminal
from pytest_dtfperf.errors import UsageError

if TYPE_CHECKING:
    from pytest_dtfperf.clusters.named import ClusterConfig

_CLEAR = "\r\x1b[K"

DOCTOR = """\
Borrows a cluster's hosts as a test would, looks at all of them side by side, and gives them back.

Shows of every host whether it can be reached, its Python, TensorFlow (imported for trial), devices, memory, load and clock; of
the network between the hosts the ports that are open, round trips and bandwidth; and whether they share files. Below the table
stands what is wrong, and how to go on.

    dtfperf doctor --cluster=daint --gpus=8
    dtfperf doctor --cluster=daint --hosts=nid[00012-00015]

Exit codes: 0 nothing is wrong; 1 something is, or no hosts could be had; 2 wrong arguments.
"""


def add(commands: "Commands[argparse.ArgumentParser]") -> None:
    doctor = add_command(commands, "doctor", help="look at every host of a cluster: is it fit to be measured?", text=DOCTOR)
    add_cluster(doctor, required=True, text="which cluster of clusters.toml")
    doctor.add_argument("--gpus", metavar="N", type=int, help="look at the hosts that so many devices need; by default at all")
    doctor.add_argument("--hosts", metavar="NAME,..", help="look at these alone, of an SSH or a Slurm cluster")
    doctor.set_defaults(run=_doctor)


def _doctor(args: argparse.Namespace) -> int:
    config = cluster_of(args)
    if args.gpus is not None and args.gpus < 1:
        raise UsageError(f"--gpus must be 1 or more, not {args.gpus}")
    if args.hosts is not None and args.gpus is not None:
        raise UsageError("--gpus and --hosts both say which hosts to look at: give one of them")
    return run(config, args.gpus, args.hosts)


def run(config: "ClusterConfig", gpus: int | None, hosts: str | None = None) -> int:
    from pytest_dtfperf.doctor.examine import examine, expected
    from pytest_dtfperf.doctor.findings import findings
    from pytest_dtfperf.doctor.lending import alone
    from pytest_dtfperf.doctor.table import show

    with Progress() as progress:
        config = config if hosts is None else alone(config, hosts, progress.show)
        seen = examine(config, gpus, progress.show)
    found = findings(seen, expected(config))
    print(show(seen, found, width=columns(sys.stdout), colour=colour(sys.stdout)), end="")
    return FAILED if any(finding.wrong for finding in found) else DONE


class Progress:
    """What is going on, on stderr: on a terminal one line that goes away again, in a log a line for all that is new."""

    def __init__(self) -> None:
        self._line = is_terminal(sys.stderr)
        self._shown = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.clear()

    def clear(self) -> None:
        """Make room for what stays on the terminal."""
        if self._line:
            print(_CLEAR, end="", file=sys.stderr, flush=True)

    def show(self, words: str) -> None:
        about = words.partition(",")[0]  # the rounds of one thing are one thing
        if self._line:
            print(f"{_CLEAR}dtfperf: {words}"[: columns(sys.stderr) + len(_CLEAR) - 1], end="", file=sys.stderr, flush=True)
        elif about != self._shown:
            print(f"dtfperf: {about}", file=sys.stderr, flush=True)
        self._shown = about
