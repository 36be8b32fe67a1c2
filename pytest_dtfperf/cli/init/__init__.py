"""`dtfperf init`: write perf tests, a cluster file and a nightly job into a project."""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from jinja2 import Environment, StrictUndefined

from pytest_dtfperf.cli.options import DONE, USAGE, Commands, Shape, add_command, add_json
from pytest_dtfperf.cli.output import print_json, write_new_file
from pytest_dtfperf.cli.project import find_configuration_file
from pytest_dtfperf.clusters.slurm import keys
from pytest_dtfperf.errors import UsageError
from pytest_dtfperf.formats import format_count, printable
from pytest_dtfperf.node import probes
from pytest_dtfperf.node.files import read_file

# The default name of each kind of cluster.
BACKENDS: Mapping[str, str] = {"local": "local", "ssh": "lab", "slurm": "cluster", "ec2": "cloud"}
# The default file of the nightly job.
NIGHTS: Mapping[str, str] = {
    "github": ".github/workflows/perf-nightly.yml",
    "gitlab": ".gitlab/perf-nightly.yml",
    "sbatch": "perf-nightly.sbatch",
    "cron": "perf-nightly.crontab",
}
PERF_TESTS = ("__init__.py", "conftest.py", "digits.py", "test_inception3.py", "test_mnist.py")
INI = """\
[pytest]
dtfperf_clusters_file = perf_tests/clusters.toml
dtfperf_baselines = baselines
dtfperf_perf_results = perf_results
"""
IGNORED = "/perf_results/"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
HOST = re.compile(r"[A-Za-z0-9_.@:,\[\]-]+")
SINFO_S = 10.0
_MOST_NAMED = 6  # other groups of nodes that a message lists
GpuKind = tuple[str, int]  # of a node's GPUs: their type, "" without one, and their number


@dataclass(frozen=True)
class InitAnswers:
    """The answers to the questions."""

    backend: str
    cluster: str
    hosts: Sequence[str] = ()
    nightly: Sequence[str] = ()


@dataclass(frozen=True)
class ProjectFile:
    """A file of the project, and what is to be written to it."""

    path: str  # relative to the project
    content: str | None  # None: not to be written
    note: str = ""  # manual step after the file was written
    if_kept: str = ""  # manual step if an existing file was kept


@dataclass(frozen=True)
class SlurmSite:
    """Slurm's nodes as sinfo lists them; defaults without sinfo."""

    nodes: int = 2
    gpus_per_node: int | None = None
    partition: str | None = None
    gres: str | None = None  # if the partition has GPUs of several kinds: the chosen one
    chosen: str = ""  # description of the choice


def list_project_files(wanted: InitAnswers, folder: Path) -> list[ProjectFile]:
    """Return all files of the project. Raises `UsageError`."""
    if not NAME.fullmatch(wanted.cluster):
        raise UsageError(f"--cluster takes letters, digits, - and _, not {wanted.cluster!r}")
    if wanted.backend != "local" and wanted.cluster == "local":
        raise UsageError("--cluster=local is this machine: give the other a name of its own")
    for host in wanted.hosts:
        if not HOST.fullmatch(host):
            raise UsageError(f"--hosts: {host!r} is no host's name")
    site = _find_slurm_site() if wanted.backend == "slurm" or "sbatch" in wanted.nightly else SlurmSite()
    content = render_template("clusters.toml", wanted=wanted, gpus=_list_gpus(), site=site, region=_get_region())
    _, _, table = content.partition(f"[{wanted.cluster}]\n")
    if_kept = f"to train on {wanted.cluster}, add\n\n[{wanted.cluster}]\n{table}" if wanted.backend != "local" else ""
    return [
        *_list_perf_tests(folder),
        ProjectFile(
            "perf_tests/clusters.toml", content, note=site.chosen if wanted.backend == "slurm" else "", if_kept=if_kept
        ),
        *_make_ini(folder),
        ProjectFile(".gitignore", f"{IGNORED}\n", if_kept="" if _ignores_results(folder) else f"it should have {IGNORED}"),
        *(_make_nightly_file(kind, wanted.cluster, site) for kind in wanted.nightly),
    ]


def _list_gpus() -> Sequence[probes.Gpu]:
    try:
        return probes.list_gpus()
    except probes.GpusUnknown as exc:
        raise UsageError(
            f"the GPUs of this machine cannot be listed: {exc}. To begin without them set CUDA_VISIBLE_DEVICES= (empty)"
        ) from exc


def render_template(name: str, **shown: object) -> str:
    template = resources.files("pytest_dtfperf.cli.init").joinpath("templates", name).read_text(encoding="utf-8")
    return _make_environment().from_string(template).render(**shown)


def _make_environment() -> Environment:
    """Return an environment with its own delimiters, as files of GitHub and bash contain those of jinja2."""
    return Environment(
        variable_start_string="<<",
        variable_end_string=">>",
        block_start_string="<%",
        block_end_string="%>",
        comment_start_string="<#",
        comment_end_string="#>",
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def find_perf_tests_folder() -> Path:
    """Return the folder of the perf tests: in the installed package, or in the checkout."""
    package = Path(__file__).parent / "perf_tests"
    return package if package.is_dir() else Path(__file__).parents[3] / "perf_tests"


def _list_perf_tests(folder: Path) -> list[ProjectFile]:
    """Return the perf tests; none if there are others, as their conftest.py would lack what these need."""
    source, there = find_perf_tests_folder(), [*(folder / "perf_tests").glob("*.py")]
    sources = {name: (source / name).read_text(encoding="utf-8") for name in PERF_TESTS}
    if sources.keys() <= {path.name for path in there} or all(_has_content(path, sources.get(path.name)) for path in there):
        return [ProjectFile(f"perf_tests/{name}", content) for name, content in sources.items()]
    return [ProjectFile("perf_tests/", None, if_kept="it has other tests; none were added")]


def _has_content(path: Path, content: str | None) -> bool:
    """Return whether the file has this content, because an interrupted call may have written it before the others."""
    try:
        return content is not None and read_file(path) == content.encode()
    except OSError:
        return False


def _make_ini(folder: Path) -> list[ProjectFile]:
    """Return pytest.ini, unless the project has a configuration of pytest: the defaults hold there."""
    found = find_configuration_file(folder)
    return [] if found else [ProjectFile("pytest.ini", INI)]


def _ignores_results(folder: Path) -> bool:
    try:
        return "perf_results" in read_file(folder / ".gitignore").decode(errors="replace")
    except OSError:
        return True


def _make_nightly_file(kind: str, cluster: str, site: SlurmSite) -> ProjectFile:
    note = {
        "github": "its first lines name the variables that it needs in the repository",
        "gitlab": "its first lines describe what it needs in .gitlab-ci.yml and from the runner",
        "sbatch": "edit its head: nodes, time, account",
        "cron": "edit its paths, and add it with crontab -e",
    }[kind]
    return ProjectFile(NIGHTS[kind], render_template(kind, cluster=cluster, nodes=site.nodes), note=note)


def _get_region() -> str:
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"


def _find_slurm_site() -> SlurmSite:
    """Return the first choice of nodes: the default partition's, or another's if only that has GPUs.

    A partition may have nodes of several kinds, each in a line of sinfo: the kind with most GPUs in total is chosen.
    """
    if not shutil.which("sinfo"):
        return SlurmSite(chosen="there is no sinfo here, so that partition, nodes and GPUs are examples")
    command = ["sinfo", "--noheader", "--format=%P|%D|%G"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=SINFO_S, check=True)
    except subprocess.TimeoutExpired:
        return SlurmSite(chosen=f"sinfo has not answered for {SINFO_S:g} s, so that partition, nodes and GPUs are examples")
    except (OSError, subprocess.CalledProcessError) as exc:
        reason = printable(" ".join((getattr(exc, "stderr", "") or str(exc)).split()))
        return SlurmSite(chosen=f"sinfo failed, so that partition, nodes and GPUs are examples: {reason}")
    partitions, default = _parse_partitions(done.stdout)
    if not partitions:
        return SlurmSite(chosen="sinfo names no partition, so that partition, nodes and GPUs are examples")
    with_gpus = [name for name, kinds in partitions.items() if any(count for _, count in kinds)]
    among = [default] if default in with_gpus or (default and not with_gpus) else with_gpus or [*partitions]
    name, kind = max(
        ((name, kind) for name in among for kind in partitions[name]),
        key=lambda each: (each[1][1] * partitions[each[0]][each[1]], partitions[each[0]][each[1]]),
    )
    others = [_format_group(*each) for each in _list_groups(partitions) if each[:2] != (name, kind)]
    more = [f"and {len(others) - _MOST_NAMED} more"] if len(others) > _MOST_NAMED else []
    also = f"; there are also {', '.join([*others[:_MOST_NAMED], *more])}" if others else ""
    nodes, (type_, count) = partitions[name][kind], kind
    gres = f"gpu:{type_}:{count}" if type_ and sum(each[1] > 0 for each in partitions[name]) > 1 else None
    return SlurmSite(nodes, count, name, gres, f"chosen of what sinfo shows: {_format_group(name, kind, nodes)}{also}")


def _parse_partitions(shown: str) -> tuple[dict[str, Counter[GpuKind]], str]:
    """Return the number of nodes of each kind by partition, and the name of the default partition ("" if there is none).

    Nodes with GPUs of several kinds (parts of GPUs, MIG) count for each of these.
    """
    found: dict[str, Counter[GpuKind]] = {}
    default = ""
    for row in (line.split("|") for line in shown.splitlines()):
        if len(row) != 3 or not row[1].strip().isdecimal():
            continue
        name = row[0].strip().rstrip("*")
        default = name if row[0].strip().endswith("*") else default
        counts: Counter[str] = Counter()
        for type_, count in keys.count_gpus(row[2]):
            counts[type_] += count
        for kind in [*((type_, count) for type_, count in counts.items() if count)] or [("", 0)]:
            found.setdefault(name, Counter())[kind] += int(row[1])
    return found, default


def _list_groups(partitions: Mapping[str, Counter[GpuKind]]) -> Iterator[tuple[str, GpuKind, int]]:
    for name, kinds in partitions.items():
        for kind, nodes in kinds.items():
            yield name, kind, nodes


def _format_group(name: str, kind: GpuKind, nodes: int) -> str:
    """Return `normal, 8 nodes of 4 GPUs (a100)`."""
    type_, count = kind
    each = f"of {format_count(count, 'GPU')}{f' ({type_})' if type_ else ''}" if count else "without GPUs"
    return printable(f"{name}, {format_count(nodes, 'node')} {each}")


TEXT = """\
Write perf tests of InceptionV3 and of the deep MNIST network into a project, and a cluster file with this machine, in sizes for
its processors or GPUs, and with the cluster of --backend. Existing files stay as they are.

    dtfperf init && pytest perf_tests
    dtfperf init --backend=slurm --cluster=daint           # with the partition, nodes and GPUs that sinfo shows
    dtfperf init --backend=ssh --cluster=lab --hosts=alice,bob
    dtfperf init --nightly=github --nightly=sbatch         # or gitlab, cron

Without --backend, the command asks for the backend if it runs on a terminal.
"""
ENDS = {DONE: "all files exist", USAGE: "wrong arguments, or a file that cannot be written"}
SHAPE: Shape = {
    "files": [
        {
            "file": "its path in the project",
            "written": "false: it existed, and was not changed",
            "note": "what is left to do by hand",
        }
    ]
}


def add_parser(commands: "Commands[argparse.ArgumentParser]") -> None:
    parser = add_command(commands, "init", help="write perf tests and a cluster file into a project", text=TEXT, ends=ENDS)
    parser.add_argument(
        "folder", nargs="?", type=Path, default=Path(), metavar="DIR", help="the project's folder; by default this one"
    )
    parser.add_argument("--backend", choices=BACKENDS, help="backend of a cluster besides this machine")
    parser.add_argument("--cluster", metavar="NAME", help="its name, as in pytest --cluster=NAME")
    parser.add_argument(
        "--hosts", metavar="NAMES", help="with --backend=ssh: names of the hosts, as for ssh, separated by commas"
    )
    text = "also write a nightly job; can be repeated"
    parser.add_argument("--nightly", choices=sorted(NIGHTS), action="append", default=[], help=text)
    add_json(parser, SHAPE)
    parser.set_defaults(run=run_init)


def run_init(args: argparse.Namespace) -> int:
    backend = args.backend or _ask_for_backend()
    if args.hosts and backend != "ssh":
        raise UsageError("--hosts is for --backend=ssh: other backends find their hosts themselves")
    if args.cluster and backend == "local":
        raise UsageError("--cluster names what --backend adds; this machine is always called local")
    hosts = [name for name in re.split(r",(?![^\[]*\])", args.hosts or "") if name]  # not at the commas of node[1,4]
    if backend == "ssh" and not hosts:
        raise UsageError("--backend=ssh needs hosts: --hosts=alice,bob, with names that ssh knows")
    wanted = InitAnswers(backend, args.cluster or BACKENDS[backend], hosts, tuple(dict.fromkeys(args.nightly)))
    written = [_write_file(args.folder, file) for file in list_project_files(wanted, args.folder)]
    if args.json:
        print_json({"files": [{"file": each.path, "written": each.is_new, "note": each.note} for each in written]})
    else:
        _print_written(written, wanted, args.folder)
    return DONE


@dataclass(frozen=True)
class WrittenFile:
    """The result of writing a file."""

    path: str
    is_new: bool  # False: an existing file was kept
    note: str


def _write_file(folder: Path, file: ProjectFile) -> WrittenFile:
    """Write a file. Raises `UsageError` if it cannot be written; files before it stay."""
    is_new = file.content is not None and write_new_file(folder / file.path, file.content.encode())
    return WrittenFile(file.path, is_new, file.note if is_new else file.if_kept)


def _ask_for_backend() -> str:
    """Return the backend that the user chooses; without a terminal, local."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return "local"
    print(f"Backend of a cluster besides this machine: {', '.join(BACKENDS)}? [local] ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline().strip() or "local"
    if answer not in BACKENDS:
        raise UsageError(f"{answer!r} is no backend: {', '.join(BACKENDS)}")
    return answer


def _print_written(written: Sequence[WrittenFile], wanted: InitAnswers, folder: Path) -> None:
    for each in written:
        note = f": {each.note}" if each.note else ""
        print(f"{'written' if each.is_new else 'kept   '}  {printable(each.path)}{note}")
    option = "" if wanted.backend == "local" else f" --cluster={wanted.cluster}"
    steps = {
        **({f"cd {shlex.quote(printable(str(folder)))}": "go to the project"} if folder != Path() else {}),
        **({f"dtfperf doctor{option}": "check the hosts"} if option else {}),
        f"pytest perf_tests{option} --dry-run": "show what would be measured",
        f"pytest perf_tests{option}": "measure",
        f"pytest perf_tests{option} --update-baselines=new": "accept the rates as baselines",
    }
    longest = max(map(len, steps))
    print("\nNext:\n", *(f"    {command:{longest}}  # {why}" for command, why in steps.items()), sep="\n")
