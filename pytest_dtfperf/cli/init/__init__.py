"""`dtfperf init`: a working start in a project: perf tests, the clusters they train on, and a night of them."""

import argparse
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_dtfperf.cli.init.files import BACKENDS, NIGHTS, File, Wanted, files_of
from pytest_dtfperf.cli.output import print_json, write_new
from pytest_dtfperf.cli.terms import DONE, USAGE, Commands, Shape, add_command, add_json
from pytest_dtfperf.errors import UsageError
from pytest_dtfperf.formats import printable

TEXT = """\
Writes perf tests of InceptionV3 and of the deep MNIST network into a project, and the clusters that they can train on: this
machine, with sizes for the processors or GPUs that it has, and with --backend another. What is there already stays as it is.

    dtfperf init && pytest perf_tests
    dtfperf init --backend=slurm --cluster=daint           # partition, nodes and GPUs: what sinfo says, where there is one
    dtfperf init --backend=ssh --cluster=lab --hosts=alice,bob
    dtfperf init --nightly=github --nightly=sbatch         # or gitlab, cron

Asks for the backend where it is not given and there is somebody to ask.
"""
ENDS = {DONE: "all of it is there now", USAGE: "wrong arguments, or a file that cannot be written"}
SHAPE: Shape = {
    "files": [
        {"file": "its path below the project", "written": "false: there was one, which stays", "note": "what to do by hand"}
    ]
}


def add(commands: "Commands[argparse.ArgumentParser]") -> None:
    parser = add_command(commands, "init", help="a working start in a project", text=TEXT, ends=ENDS)
    parser.add_argument("folder", nargs="?", type=Path, default=Path(), metavar="DIR", help="the project; by default here")
    parser.add_argument("--backend", choices=BACKENDS, help="what to train on besides this machine")
    parser.add_argument("--cluster", metavar="NAME", help="what it is called, as in pytest --cluster=NAME")
    parser.add_argument(
        "--hosts", metavar="NAMES", help="with --backend=ssh: as in ssh's own configuration, with commas between"
    )
    text = "a job of the night, too; may be given several times"
    parser.add_argument("--nightly", choices=sorted(NIGHTS), action="append", default=[], help=text)
    add_json(parser, SHAPE)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    backend = args.backend or _asked()
    if args.hosts and backend != "ssh":
        raise UsageError("--hosts goes with --backend=ssh: other backends find their hosts themselves")
    if args.cluster and backend == "local":
        raise UsageError("--cluster names what --backend adds; this machine is always called local")
    hosts = [name for name in re.split(r",(?![^\[]*\])", args.hosts or "") if name]  # not at the commas of node[1,4]
    if backend == "ssh" and not hosts:
        raise UsageError("which hosts? --hosts=alice,bob, as one types `ssh alice`")
    wanted = Wanted(backend, args.cluster or BACKENDS[backend], hosts, tuple(dict.fromkeys(args.nightly)))
    written = [_written(args.folder, file) for file in files_of(wanted, args.folder)]
    if args.json:
        print_json({"files": [{"file": each.path, "written": each.is_new, "note": each.note} for each in written]})
    else:
        _print(written, wanted, args.folder)
    return DONE


@dataclass(frozen=True)
class Written:
    path: str
    is_new: bool  # False: there was one, which stays
    note: str


def _written(folder: Path, file: File) -> Written:
    """Raises `UsageError` where it cannot be written; what was written before it stays."""
    is_new = file.content is not None and write_new(folder / file.path, file.content.encode())
    return Written(file.path, is_new, file.note if is_new else file.if_kept)


def _asked() -> str:
    """The backend; without a terminal, this machine alone."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return "local"
    print(f"What to train on besides this machine: {', '.join(BACKENDS)}? [local] ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline().strip() or "local"
    if answer not in BACKENDS:
        raise UsageError(f"{answer!r} is no backend: {', '.join(BACKENDS)}")
    return answer


def _print(written: Sequence[Written], wanted: Wanted, folder: Path) -> None:
    for each in written:
        note = f": {each.note}" if each.note else ""
        print(f"{'written' if each.is_new else 'kept   '}  {printable(each.path)}{note}")
    option = "" if wanted.backend == "local" else f" --cluster={wanted.cluster}"
    steps = {
        **({f"cd {shlex.quote(printable(str(folder)))}": "where the rest is called"} if folder != Path() else {}),
        **({f"dtfperf doctor{option}": "are its hosts fit to be measured?"} if option else {}),
        f"pytest perf_tests{option} --dry-run": "what would be measured",
        f"pytest perf_tests{option}": "measure it",
        f"pytest perf_tests{option} --update-baselines=new": "accept it, for later nights to be compared with",
    }
    longest = max(map(len, steps))
    print("\nNext:\n", *(f"    {command:{longest}}  # {why}" for command, why in steps.items()), sep="\n")
