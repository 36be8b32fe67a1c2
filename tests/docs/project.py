"""Make the project for the commands of pages: the files of `dtfperf init`, sessions of two nights, and a toy training."""

import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from pytest_dtfperf.baselines.checks import ask
from pytest_dtfperf.baselines.entry import Entry
from pytest_dtfperf.baselines.store import BaselineStore
from pytest_dtfperf.baselines.terms import ComparisonPolicy
from pytest_dtfperf.cli import main
from pytest_dtfperf.datamodel.fingerprint import Hardware
from pytest_dtfperf.datamodel.probes import HostProbe, Reading
from pytest_dtfperf.explain.step_breakdown import compute_step_breakdown
from pytest_dtfperf.records.host_readings import HostReading, append_host_readings
from pytest_dtfperf.records.session import SessionFolder
from pytest_dtfperf.records.stored import Budget
from tests.baselines.examples import HARDWARE, SYSTEM, entry_of, measurement_of
from tests.docs.pages import REPOSITORY
from tests.explain.made import load_real_traces
from tests.plugin import zygote
from tests.plugin.conftest import ENDS_S, LIGHT, WITHOUT, WITHOUT_DRAWING, Ended, PerfTests

# This machine, with a training that takes no time. Other clusters of the pages are in perf_tests/clusters.toml.
TOYS = """
[local]
backend = "local"
dedicated = false
entry = "tests.plugin.toy_training:run"
devices_per_host = 2
device = "cpu"

[local.training]
batch_size = 10
warmup_steps = 1
steps = 4
repeats = 2
"""
# Two short measurements in place of the longer tests of `dtfperf init`.
TESTS = """
import pytest


@pytest.mark.dtfperf(gpus=[1], variable_update=["parameter_server"])
def test_throughput(train, baseline, gpus, num_ps, variable_update):
    baseline.check(train(model={model!r}, gpus=gpus, num_ps=num_ps, variable_update=variable_update))
"""
NIGHTS = ("20260130T021503Z-a81b22", "20260131T021503Z-9f3c1a")  # the sessions that pages name
MEASUREMENT = "1a2b3c"  # a measurement that pages name: one of the last night
OURS = ("inception3", "alexnet")


@dataclass
class Project:
    """A project in `folder`, for the commands of a page. `names` maps names of the pages to names here."""

    folder: Path
    names: Mapping[str, str]

    @property
    def clusters(self) -> Path:
        return self.folder / "perf_tests" / "clusters.toml"

    def runs_programs(self, name: str) -> bool:
        """Whether it is a file of tests that train what is the reader's own, for which there are no toys.

        Those of docs/examples train in tests/real.
        """
        path = self.folder / name
        return path.is_file() and (path.name in self.examples or "command=" in path.read_text())

    @property
    def examples(self) -> set[str]:
        return {path.name for path in (REPOSITORY / "docs" / "examples").glob("test_*.py")}

    def pytest(self, *arguments: str, **environment: str) -> Ended:
        return self._run(["-m", "pytest", *WITHOUT, *WITHOUT_DRAWING, *arguments], environment)

    def dtfperf(self, *arguments: str, **environment: str) -> Ended:
        """The pytest that it starts is a fork, too."""
        words = ["-m", "pytest_dtfperf.cli", *(self.names.get(each, each) for each in arguments)]
        return self._run(words, {**LIGHT, **environment}, starts_forks=True)

    def python(self, code: str) -> Ended:
        """Run as a file of the project."""
        (self.folder / "snippet.py").write_text(code)
        return self._run(["-c", "import runpy; runpy.run_module('snippet', run_name='__main__', alter_sys=True)"], {})

    def copy(self, folder: Path, clusters: str = "") -> "Project":
        """One of its own, with the tables of clusters that a page describes, which stand in for those of the same name."""
        shutil.copytree(self.folder, folder)
        copied = Project(folder, self.names)
        if clusters:
            copied.clusters.write_text(
                _remove_clusters(copied.clusters.read_text(), re.findall(r"(?m)^\[([\w-]+)\]", clusters)) + clusters
            )
        return copied

    def _run(self, arguments: Sequence[str], environment: Mapping[str, str], *, starts_forks: bool = False) -> Ended:
        environ = PerfTests(self.folder, draws=True).environ(
            {
                "XDG_RUNTIME_DIR": str(self.folder / "runtime"),
                "HOME": str(self.folder / "home"),
                "COLUMNS": "80",
                "TOY_STEP_S": "0.001",
                "AWS_EC2_METADATA_DISABLED": "true",
                "AWS_DEFAULT_REGION": "us-east-2",
                "SLURM_CONF": str(self.folder / "no-slurm.conf"),
                **environment,
            }
        )
        accounts = ("AWS_PROFILE", "AWS_ACCESS", "AWS_SECRET", "AWS_SESSION", "SLURM_JOB")
        environ = {name: value for name, value in environ.items() if not name.startswith(accounts)}
        return Ended(*zygote.run(arguments, self.folder, environ, timeout_s=ENDS_S, starts_forks=starts_forks))


def make(folder: Path) -> Project:
    """What all pages have a copy of."""
    assert main(["init", str(folder)]) == 0
    with (folder / "pytest.ini").open("a") as ini:
        ini.write("dtfperf_explain = never\n")
    for name in ("runtime", "home"):
        (folder / name).mkdir()
    for model in ("inception3", "mnist"):
        (folder / "perf_tests" / f"test_{model}.py").write_text(TESTS.format(model=model))
    names = {MEASUREMENT: _nights(folder)}
    project = Project(folder, names)
    project.clusters.write_text(TOYS + _remove_clusters((REPOSITORY / "perf_tests" / "clusters.toml").read_text(), ["local"]))
    assert (
        main(["history", "import", str(folder / "perf_results"), "--history", str(folder / "perf_results" / "history.sqlite")])
        == 0
    )
    for path in (REPOSITORY / "docs" / "examples").glob("*.py"):
        shutil.copy(path, folder)
    return project


def _remove_clusters(clusters: str, names: Iterable[str]) -> str:
    """Return the file without the tables of these clusters and the comments above them."""
    tables = re.split(r"(?m)^(?=(?:#.*\n)*\[)", clusters)
    return "".join(table for table in tables if not re.search(rf"(?m)^\[(?:{'|'.join(map(re.escape, names))})[\].]", table))


def _nights(folder: Path) -> str:
    """Write two sessions of the same trainings, with step breakdowns, and baselines. Return the id of the last measurement."""
    entries: list[Entry] = [entry_of([100, 100.5, 99.5, 100], model=model, gpus=8) for model in OURS]
    BaselineStore(folder / "baselines").update(SYSTEM, entries)
    breakdown = compute_step_breakdown(load_real_traces("parameter_server"))
    for night in NIGHTS:
        session = SessionFolder.create(
            folder / "perf_results",
            cluster="local",
            command=["pytest", "perf_tests"],
            versions={"python": "3.11.7"},
            session_id=night,
            started=datetime.strptime(night[:16], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC),
            budget=Budget(false_alarms=0.05, tests=2),
        )
        for model, entry in zip(OURS, entries, strict=True):
            measured = measurement_of([100.1, 99.9, 100, 100.2], model=model, gpus=8)
            measured = replace(measured, runs=[replace(run, step_breakdown=breakdown) for run in measured.runs])
            record = session.add(f"perf_tests/test_{model}.py::test_throughput", measured)
            session.add_judgement(record.id, ask("baseline", ComparisonPolicy(margin=0.05), measured, entry=entry))
        probe = HostProbe(readings={"memory": Reading(per_s=10e9, spread=0.01, repeats=5)})
        append_host_readings(session, HostReading.list_probed("nid00017", Hardware.from_json(HARDWARE), probe))
        session.finish(exit_code=0, wall_s=60.0, verdicts={"PASSED": 2})
    return record.id
