"""The zygote of pytest, the plugin and `dtfperf`: what their programs import, it has, and has read what they would read.

python -m tests.plugin.warm LISTENER LINE    serves the first of a run on this line, and who else connects to this socket
"""

import contextlib
import dataclasses
import gc
import importlib
import importlib.metadata
import inspect
import io
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.plugin.serving import Kind, be_like, execute, serve
from tests.plugin.zygote import COMMANDS, HIDDEN, may_fork, searched_before

IMPORTED = (
    "scipy.optimize",
    "scipy.special",
    "pytest_dtfperf.baselines.audit",
    "pytest_dtfperf.baselines.calibrate",
    "pytest_dtfperf.clusters.local",
    "pytest_dtfperf.clusters.slurm.cluster",
    "pytest_dtfperf.clusters.ssh.cluster",
    "pytest_dtfperf.doctor.diagnosis",
    "pytest_dtfperf.doctor.table",
    "pytest_dtfperf.explain.causes",
    "pytest_dtfperf.history.enter",
    "pytest_dtfperf.history.store",
    "pytest_dtfperf.history.watching",
    "pytest_dtfperf.nightly.night",
    "pytest_dtfperf.plugin.fixture_objects",
    "pytest_dtfperf.plugin.session_finish",
    "pytest_dtfperf.qualify.isolation",
    "pytest_dtfperf.qualify.qualification",
    "pytest_dtfperf.report.page.build",
    "pytest_dtfperf.report.session_exports",
    "pytest_dtfperf.report.site.build",
    "pytest_dtfperf.session.bisection",
    "pytest_dtfperf.session.session",
    "pytest_dtfperf.session.sweep",
    "pytest_dtfperf.simulated.backend",
    "pytest_dtfperf.stats.comparison",
    "pytest_dtfperf.stats.sequential",
    "pytest_dtfperf.training.models.sequential",
    "sqlalchemy.dialects.sqlite",
    "xdist.dsession",
)


def _may(request: Mapping[str, Any]) -> bool:
    return may_fork(sys.executable, request["argv"], request["env"], os.environ)


def _run_as(request: Mapping[str, Any], streams: Sequence[int]) -> None:
    more = searched_before(request["env"], os.environ) or []
    be_like(request, streams)
    kind, what, *arguments = request["argv"]
    sys.path[:1] = ["" if kind == "-c" else request["cwd"], *more]  # as Python has it
    if xdist := sys.modules.get("xdist.plugin"):
        vars(xdist)["_sys_path"][:] = sys.path  # a copy for its workers
    sys.argv = ["-c" if kind == "-c" else what, *arguments]
    sys.orig_argv = [sys.executable, *request.get("orig_argv", request["argv"])]
    sys.executable = request.get("executable", sys.executable)
    hidden: dict[str, Any] = dict.fromkeys(filter(None, request["env"].get(HIDDEN, "").split(",")))
    sys.modules.update(hidden)  # None: Python's own mark for a module that is not there


def remember_installed() -> None:
    """Read once what is installed: pytest asks all packages for their plugins and files, and again for each `-p`."""
    for name in ("entry_points", "files", "metadata"):
        read = vars(importlib.metadata.Distribution)[name].fget
        setattr(importlib.metadata.PathDistribution, name, property(_read_once(read)))


def _read_once(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    known: dict[str, Any] = {}

    def read_cached(installed: Any) -> Any:
        path = str(installed._path)
        if path not in known:
            known[path] = read(installed)
        return known[path]

    return read_cached


def remember_codecs() -> None:
    """Make the checks and readers of all imported classes of JSON data, which a session makes at their first use."""
    codec, classes = importlib.import_module("pytest_dtfperf.codec"), [importlib.import_module("pytest_dtfperf.codec").JsonData]
    for each in classes:  # which grows
        classes += each.__subclasses__()
        if dataclasses.is_dataclass(each):
            codec._check_of(each), codec._readers(each), codec._read_names(each)


def warm_up() -> None:
    """A session of no tests in a folder of perf tests: its imports stay."""
    remember_installed()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        Path(folder, "pytest.ini").write_text("[pytest]\n")
        Path(folder, "clusters.toml").write_text('[local]\nbackend = "local"\n')
        pytest.main(["-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-p", "no:benchmark", "--rootdir", folder, folder])
    commands = importlib.import_module(COMMANDS)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        commands.main(["--help"])
    for name in IMPORTED:
        importlib.import_module(name)
    assert not {"matplotlib", "pandas"} & sys.modules.keys(), "who draws nothing imports them nevertheless"
    importlib.import_module("pytest_dtfperf.baselines.references").references()  # read and checked once, and kept
    page = importlib.import_module("pytest_dtfperf.report.page.html")
    for template in Path(page.__file__ or "").parent.glob("templates/*.html"):
        page.load_environment().get_template(template.name)  # likewise compiled
    validation = importlib.import_module("pytest_dtfperf.baselines.files")
    stored = importlib.import_module("pytest_dtfperf.records.stored")
    for content in ("baseline", stored.Record, stored.SessionInfo):
        validation._validator(content)  # likewise made
    remember_codecs()
    inspect.getmodule(warm_up.__code__)  # where each module's file is: who shows a failure would look it up for all modules
    gc.freeze()  # or every session would collect what is not its own, and copy it by doing so


if __name__ == "__main__":
    warm_up()
    if program := serve(Kind(_may, _run_as), *map(int, sys.argv[1:])):
        execute(*program)
