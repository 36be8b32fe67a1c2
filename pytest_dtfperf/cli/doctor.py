"""`dtfperf doctor`: check each host of a cluster, and show the results side by side."""

import argparse
import sys
from dataclasses import asdict
from types import TracebackType
from typing import TYPE_CHECKING, Self

from pytest_dtfperf.cli.options import (
    DONE,
    FAILED,
    Commands,
    Shape,
    add_cluster,
    add_command,
    add_json,
    count_columns,
    is_colour_wanted,
    is_terminal,
    load_cluster,
)
from pytest_dtfperf.cli.output import print_json
from pytest_dtfperf.clusters.named import BACKENDS
from pytest_dtfperf.errors import UsageError

if TYPE_CHECKING:
    from pytest_dtfperf.clusters.named import ClusterConfig

_CLEAR = "\r\x1b[K"

DOCTOR = """\
Allocate a cluster's hosts as a test would, check all of them at the same time, and release them.

The table shows for each host whether it can be reached, its Python, TensorFlow (which is imported), devices, memory, load and
clock. For the network between hosts it shows open ports, round trips and bandwidth, and whether the hosts share files.
Problems are listed below the table, each with what to do.

    dtfperf doctor --cluster=daint --gpus=8
    dtfperf doctor --cluster=daint --hosts=nid[00012-00015]
"""
ENDS = {DONE: "no problems", FAILED: "there is a problem, or no hosts could be allocated"}
SHAPE: Shape = {
    "cluster": "its name",
    "hosts": [
        {
            "name": "as in clusters.toml or the batch system",
            "address": "the address that tasks use",
            "missing": "why the other fields are missing; null: none is",
            "python": "its version; null, as all further fields, if unknown",
            "tensorflow": "the version that was imported",
            "gpus": "a list of their names, as nvidia-smi lists them",
            "cores": "the cores that a process may use",
            "memory_bytes": "of the machine",
            "load": "runnable processes, averaged over a minute",
            "clock_offset_s": "seconds that its clock is ahead of this machine's",
            "clock_uncertainty_s": "largest error of clock_offset_s",
            "interface": "the interface that tasks use; null: no interface has that address",
            "interface_gbps": "its speed in Gbit/s, if the kernel knows it",
            "ports_tried": "connections that other hosts tried",
            "ports_reached": "those that were accepted",
            "round_trip_s": "median over its links",
            "sends_bits_per_s": "median over its links",
            "receives_bits_per_s": "median over its links",
            "protection": "the protection of the tasks' ports",
            "files": "number of hosts that share the folder, itself included",
        }
    ],
    "findings": [{"message": "the problem, and where it is", "advice": "what to do", "wrong": "false: only a remark"}],
}


def add_parser(commands: "Commands[argparse.ArgumentParser]") -> None:
    doctor = add_command(commands, "doctor", help="check each host of a cluster before it is measured", text=DOCTOR, ends=ENDS)
    add_cluster(doctor, required=True, text="a cluster of clusters.toml")
    doctor.add_argument("--gpus", metavar="N", type=int, help="check the hosts that N devices need; by default all")
    doctor.add_argument("--hosts", metavar="NAME,..", help="check only these hosts of an SSH or Slurm cluster")
    add_json(doctor, SHAPE)
    doctor.set_defaults(run=run_doctor)


def run_doctor(args: argparse.Namespace) -> int:
    config = load_cluster(args)
    if args.gpus is not None and args.gpus < 1:
        raise UsageError(f"--gpus must be 1 or more, not {args.gpus}")
    if args.hosts is not None and args.gpus is not None:
        raise UsageError("--gpus and --hosts both choose hosts: give one of them")
    if BACKENDS[config.backend].is_simulated:
        raise UsageError(f"cluster {config.name} is simulated: it has no hosts to check")
    return check_cluster(config, args.gpus, args.hosts, as_json=args.json)


def check_cluster(config: "ClusterConfig", gpus: int | None, hosts: str | None = None, *, as_json: bool = False) -> int:
    from pytest_dtfperf.clusters.capacity import select_hosts
    from pytest_dtfperf.doctor.examination import examine, read_expectations
    from pytest_dtfperf.doctor.findings import list_findings
    from pytest_dtfperf.doctor.table import format_report, make_rows

    with DoctorProgress() as progress:
        if hosts is not None:
            chosen = select_hosts(config, hosts)
            if chosen is None:
                progress.show(f"{config.name} does not allocate hosts by name: checking all")
            config = chosen or config
        seen = examine(config, gpus, progress.show)
    found = list_findings(seen, read_expectations(config))
    if as_json:
        print_json({"cluster": seen.cluster, "hosts": make_rows(seen), "findings": [asdict(finding) for finding in found]})
        return FAILED if any(finding.wrong for finding in found) else DONE
    print(format_report(seen, found, width=count_columns(sys.stdout), colour=is_colour_wanted(sys.stdout)), end="")
    return FAILED if any(finding.wrong for finding in found) else DONE


class DoctorProgress:
    """Progress on stderr: one line on a terminal, which is erased; in a log, a line for each new state."""

    def __init__(self) -> None:
        self._line = is_terminal(sys.stderr)
        self._shown = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.clear()

    def clear(self) -> None:
        """Erase the progress before permanent output."""
        if self._line and self._shown:
            print(_CLEAR, end="", file=sys.stderr, flush=True)
            self._shown = ""

    def show(self, status: str) -> None:
        about = status.partition(",")[0]  # rounds of one check count as one state
        if self._line:
            print(
                f"{_CLEAR}dtfperf: {status}"[: count_columns(sys.stderr) + len(_CLEAR) - 1], end="", file=sys.stderr, flush=True
            )
        elif about != self._shown:
            print(f"dtfperf: {about}", file=sys.stderr, flush=True)
        self._shown = about
