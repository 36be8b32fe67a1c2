"""What `dtfperf init` writes: paths and contents. Asks this machine for its GPUs, and Slurm for its nodes."""

import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from jinja2 import Environment, StrictUndefined

from pytest_dtfperf.cli.project import configuration_file
from pytest_dtfperf.clusters.slurm import keys
from pytest_dtfperf.errors import UsageError
from pytest_dtfperf.formats import counted, printable
from pytest_dtfperf.node import probes
from pytest_dtfperf.node.files import read_file

# What a cluster is called where nobody says.
BACKENDS: Mapping[str, str] = {"local": "local", "ssh": "lab", "slurm": "cluster", "ec2": "cloud"}
# Where a job of the night is written.
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
_MOST_NAMED = 6  # groups of nodes that were not chosen
Kind = tuple[str, int]  # of a node's GPUs: their type, "" where it has none, and how many


@dataclass(frozen=True)
class Wanted:
    """What somebody has answered."""

    backend: str
    cluster: str
    hosts: Sequence[str] = ()
    nightly: Sequence[str] = ()


@dataclass(frozen=True)
class File:
    path: str  # below the project
    content: str | None  # None: it is not to be written
    note: str = ""  # what to do by hand with what was written
    if_kept: str = ""  # what to do by hand where it was not


@dataclass(frozen=True)
class Site:
    """What sinfo shows of Slurm's nodes; the usual where there is no sinfo."""

    nodes: int = 2
    gpus_per_node: int | None = None
    partition: str | None = None
    gres: str | None = None  # where the partition has GPUs of several kinds: the chosen one
    chosen: str = ""  # what it was chosen from


def files_of(wanted: Wanted, folder: Path) -> list[File]:
    """All that belongs into a project. Raises `UsageError`."""
    if not NAME.fullmatch(wanted.cluster):
        raise UsageError(f"--cluster takes letters, digits, - and _, not {wanted.cluster!r}")
    if wanted.backend != "local" and wanted.cluster == "local":
        raise UsageError("--cluster=local is this machine: give the other a name of its own")
    for host in wanted.hosts:
        if not HOST.fullmatch(host):
            raise UsageError(f"--hosts: {host!r} is no host's name")
    site = _site() if wanted.backend == "slurm" or "sbatch" in wanted.nightly else Site()
    content = rendered("clusters.toml", wanted=wanted, gpus=_gpus(), site=site, region=_region())
    _, _, table = content.partition(f"[{wanted.cluster}]\n")
    if_kept = f"to train on {wanted.cluster}, add\n\n[{wanted.cluster}]\n{table}" if wanted.backend != "local" else ""
    return [
        *_perf_tests(folder),
        File("perf_tests/clusters.toml", content, note=site.chosen if wanted.backend == "slurm" else "", if_kept=if_kept),
        *_ini(folder),
        File(".gitignore", f"{IGNORED}\n", if_kept="" if _ignores(folder) else f"it should have {IGNORED}"),
        *(_night(kind, wanted.cluster, site) for kind in wanted.nightly),
    ]


def _gpus() -> Sequence[probes.Gpu]:
    try:
        return probes.gpus()
    except probes.GpusUnknown as exc:
        raise UsageError(
            f"the GPUs of this machine cannot be listed: {exc}. To begin without them set CUDA_VISIBLE_DEVICES= (empty)"
        ) from exc


def rendered(name: str, **shown: object) -> str:
    template = resources.files("pytest_dtfperf.cli.init").joinpath("templates", name).read_text(encoding="utf-8")
    return _environment().from_string(template).render(**shown)


def _environment() -> Environment:
    """With signs of its own: GitHub's and bash's files are full of jinja2's usual ones."""
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


def perf_tests_folder() -> Path:
    """Those of this repository: in the installed package, or in the checkout that it is imported from."""
    package = Path(__file__).parent / "perf_tests"
    return package if package.is_dir() else Path(__file__).parents[3] / "perf_tests"


def _perf_tests(folder: Path) -> list[File]:
    """None beside tests that are there: a conftest.py of theirs would lack what ours need."""
    source, there = perf_tests_folder(), [*(folder / "perf_tests").glob("*.py")]
    ours = {name: (source / name).read_text(encoding="utf-8") for name in PERF_TESTS}
    if ours.keys() <= {path.name for path in there} or all(_has(path, ours.get(path.name)) for path in there):
        return [File(f"perf_tests/{name}", content) for name, content in ours.items()]
    return [File("perf_tests/", None, if_kept="it has tests of its own, and got none of ours")]


def _has(path: Path, content: str | None) -> bool:
    """Whether an earlier call has written it, though it may have been broken off before it had written the others."""
    try:
        return content is not None and read_file(path) == content.encode()
    except OSError:
        return False


def _ini(folder: Path) -> list[File]:
    """Where pytest has a file of the project's already, that one is left as it is: what we say is what holds without it."""
    found = configuration_file(folder)
    return [] if found else [File("pytest.ini", INI)]


def _ignores(folder: Path) -> bool:
    try:
        return "perf_results" in read_file(folder / ".gitignore").decode(errors="replace")
    except OSError:
        return True


def _night(kind: str, cluster: str, site: Site) -> File:
    note = {
        "github": "its head says which variables it wants of the repository",
        "gitlab": "its head says what it wants of .gitlab-ci.yml and of the runner",
        "sbatch": "edit its head: nodes, time, account",
        "cron": "edit its paths, and add it with crontab -e",
    }[kind]
    return File(NIGHTS[kind], rendered(kind, cluster=cluster, nodes=site.nodes), note=note)


def _region() -> str:
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"


def _site() -> Site:
    """Return the nodes to begin with: those of the default partition, or of another where that one alone has GPUs.

    A partition may have nodes of several kinds, each a line of sinfo's: those that have most GPUs together are taken.
    """
    if not shutil.which("sinfo"):
        return Site(chosen="there is no sinfo here, so that partition, nodes and GPUs are examples")
    command = ["sinfo", "--noheader", "--format=%P|%D|%G"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=SINFO_S, check=True)
    except subprocess.TimeoutExpired:
        return Site(chosen=f"sinfo has not answered for {SINFO_S:g} s, so that partition, nodes and GPUs are examples")
    except (OSError, subprocess.CalledProcessError) as exc:
        words = printable(" ".join((getattr(exc, "stderr", "") or str(exc)).split()))
        return Site(chosen=f"sinfo failed, so that partition, nodes and GPUs are examples: {words}")
    partitions, default = _partitions(done.stdout)
    if not partitions:
        return Site(chosen="sinfo names no partition, so that partition, nodes and GPUs are examples")
    with_gpus = [name for name, kinds in partitions.items() if any(count for _, count in kinds)]
    among = [default] if default in with_gpus or (default and not with_gpus) else with_gpus or [*partitions]
    name, kind = max(
        ((name, kind) for name in among for kind in partitions[name]),
        key=lambda each: (each[1][1] * partitions[each[0]][each[1]], partitions[each[0]][each[1]]),
    )
    others = [_group(*each) for each in _groups(partitions) if each[:2] != (name, kind)]
    more = [f"and {len(others) - _MOST_NAMED} more"] if len(others) > _MOST_NAMED else []
    also = f"; there are also {', '.join([*others[:_MOST_NAMED], *more])}" if others else ""
    nodes, (type_, count) = partitions[name][kind], kind
    gres = f"gpu:{type_}:{count}" if type_ and sum(each[1] > 0 for each in partitions[name]) > 1 else None
    return Site(nodes, count, name, gres, f"chosen of what sinfo shows: {_group(name, kind, nodes)}{also}")


def _partitions(shown: str) -> tuple[dict[str, Counter[Kind]], str]:
    """Return how many nodes of each kind each partition has, and the default one's name, "" where there is none.

    Nodes with GPUs of several kinds (parts of GPUs, MIG) are of each of these.
    """
    found: dict[str, Counter[Kind]] = {}
    default = ""
    for row in (line.split("|") for line in shown.splitlines()):
        if len(row) != 3 or not row[1].strip().isdecimal():
            continue
        name = row[0].strip().rstrip("*")
        default = name if row[0].strip().endswith("*") else default
        counts: Counter[str] = Counter()
        for type_, count in keys.gpus_of(row[2]):
            counts[type_] += count
        for kind in [*((type_, count) for type_, count in counts.items() if count)] or [("", 0)]:
            found.setdefault(name, Counter())[kind] += int(row[1])
    return found, default


def _groups(partitions: Mapping[str, Counter[Kind]]) -> Iterator[tuple[str, Kind, int]]:
    for name, kinds in partitions.items():
        for kind, nodes in kinds.items():
            yield name, kind, nodes


def _group(name: str, kind: Kind, nodes: int) -> str:
    """`normal, 8 nodes of 4 GPUs (a100)`."""
    type_, count = kind
    each = f"of {counted(count, 'GPU')}{f' ({type_})' if type_ else ''}" if count else "without GPUs"
    return printable(f"{name}, {counted(nodes, 'node')} {each}")
