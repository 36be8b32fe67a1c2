"""What `dtfperf init` writes: paths and contents. Asks this machine for its GPUs, and Slurm for its nodes."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from jinja2 import Environment, StrictUndefined

from pytest_dtfperf.cli.project import configuration_file
from pytest_dtfperf.errors import UsageError
from pytest_dtfperf.node import probes

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
    """What Slurm says of its nodes; the usual where it is not there."""

    nodes: int = 2
    gpus_per_node: int | None = None
    partition: str | None = None


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
        File("perf_tests/clusters.toml", content, if_kept=if_kept),
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
        return content is not None and path.read_bytes() == content.encode()
    except OSError:
        return False


def _ini(folder: Path) -> list[File]:
    """Where pytest has a file of the project's already, that one is left as it is: what we say is what holds without it."""
    found = configuration_file(folder)
    return [] if found else [File("pytest.ini", INI)]


def _ignores(folder: Path) -> bool:
    try:
        return "perf_results" in (folder / ".gitignore").read_text(encoding="utf-8", errors="replace")
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
    """Of the default partition."""
    if not shutil.which("sinfo"):
        return Site()
    command = ["sinfo", "--noheader", "--format=%P|%D|%G"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SINFO_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return Site()
    rows = [line.split("|") for line in done.stdout.splitlines()]
    default = next((row for row in rows if len(row) == 3 and row[0].endswith("*") and row[1].isdigit()), None)
    if default is None:
        return Site()
    gpus = re.search(r"gpu:(?:[^:,()]+:)?(\d+)", default[2])
    return Site(int(default[1]), int(gpus[1]) if gpus else 0, default[0].rstrip("*"))
