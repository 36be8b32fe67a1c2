"""Tests of `dtfperf nightly` on simulated hosts: a slow host, a slow link and a drift, from verdicts to alerts."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_dtfperf.baselines.verdict import Verdict
from pytest_dtfperf.history import store
from pytest_dtfperf.history.database import Database
from pytest_dtfperf.history.where import parse_address
from pytest_dtfperf.records.record import Record
from pytest_dtfperf.records.session import session_folders
from tests.nightly.test_nightly import clean
from tests.nightly.test_notify import webhook
from tests.plugin import zygote
from tests.plugin.conftest import LIGHT

CLUSTER = """
[sim]
backend = "simulated"
hosts = {hosts}
gpus_per_host = {gpus}
rates = {{ inception3 = {rate}, resnet50 = 219.0, vgg16 = 100.0 }}
link = "25gbit"
noise = 0.02
seed = {night}
"""
# One host trains inception3, all of them resnet50, and all but the last vgg16: the slow host, the last, is in one training.
TESTS = """
import pytest

TRAININGS = {{
    "one host": dict(model="inception3", gpus={gpus}, num_ps=0, variable_update="replicated"),
    "all hosts": dict(model="resnet50", gpus={gpus} * {hosts}, num_ps=0, variable_update="collective_all_reduce"),
    "most hosts": dict(model="vgg16", gpus={gpus} * ({hosts} - 1), num_ps={hosts} // 2, variable_update="parameter_server"),
}}

@pytest.mark.parametrize("training", TRAININGS.values(), ids=TRAININGS)
def test_rate(train, baseline, training):
    baseline.check(train(batch_size=32, steps=20, warmup_steps=3, **training))
"""
DRIFTS, HOST_SLOWS, LINK_SLOWS, NIGHTS = 4, 8, 12, 16  # a step is found in its fourth night
DRIFT = 0.985  # the rate of a night as a part of that before
HOSTS, GPUS = 4, 2


@dataclass(frozen=True)
class Project:
    """Hold a folder with perf tests and a simulated cluster."""

    folder: Path
    hosts: int
    gpus: int

    def run_night(self, night: int, webhook_url: str) -> int:
        """Run a night, the first of which accepts its rates, and return its exit code."""
        rate = 142 * DRIFT ** max(0, night - DRIFTS + 1)
        cluster = CLUSTER.format(hosts=self.hosts, gpus=self.gpus, rate=rate, night=night)
        if night >= HOST_SLOWS:
            cluster += f"slow_hosts = [{{ host = {self.hosts - 1}, slowdown = 1.5 }}]\n"
        if night >= LINK_SLOWS:
            cluster += f'slow_links = [{{ host = {self.hosts - 2}, link = "2gbit" }}]\n'
        (self.folder / "perf_tests" / "clusters.toml").write_text(cluster)
        argv = ["-m", "pytest_dtfperf.cli", "nightly", "--cluster=sim", f"--results={self.folder / 'results'}", "--deadline=60"]
        argv += ["--repeats=3", "--baselines=baselines", *(["--update-baselines=new"] if night == 0 else [])]
        variables = clean(os.environ) | zygote.SEARCH_PATH | LIGHT | {"DTFPERF_NOTIFY": webhook_url}
        code, output = zygote.run_as_one(argv, self.folder, variables, timeout_s=1800.0, starts_forks=True)
        assert "SIMULATED: nothing is trained" in output, output
        return code

    @property
    def records(self) -> list[Mapping[str, Record]]:
        """Return the measurements of each night, by model."""
        return [
            {record.spec.model: record for record in folder.measurements()}
            for folder in session_folders(self.folder / "results")
        ]

    def read_events(self) -> Sequence[Mapping[str, Any]]:
        address = parse_address(self.folder / "results" / "history.simulated.sqlite", self.folder)
        assert address
        with Database.open(address).reading() as connection:
            return store.read_events(connection)


def list_causes(record: Record) -> list[tuple[str, str]]:
    assert record.explanation, record.unexplained
    return [(str(each.kind), str(each.location)) for each in record.explanation.causes]


def test_nights_report_a_drift_a_slow_host_and_a_slow_link(tmp_path: Path) -> None:
    """Each fault fails its trainings from its first night on, with its host as the cause, and has one event and one alert."""
    (tmp_path / "perf_tests").mkdir()
    (tmp_path / "perf_tests" / "test_rates.py").write_text(TESTS.format(hosts=HOSTS, gpus=GPUS))
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    project = Project(tmp_path, HOSTS, GPUS)
    with webhook() as server:
        codes = [project.run_night(night, server.url) for night in range(NIGHTS)]
    assert codes == [0] * HOST_SLOWS + [1] * (NIGHTS - HOST_SLOWS)
    nights, folders = project.records, session_folders(tmp_path / "results")
    slow_host, slow_link = f"sim-{HOSTS - 1:04}", f"sim-{HOSTS - 2:04}"

    assert {str(night["resnet50"].verdict) for night in nights[1:HOST_SLOWS]} == {Verdict.PASSED}
    assert {str(night["resnet50"].verdict) for night in nights[HOST_SLOWS:]} == {Verdict.REGRESSED}
    assert {str(night["vgg16"].verdict) for night in nights[1:LINK_SLOWS]} == {Verdict.PASSED}
    assert {str(night["vgg16"].verdict) for night in nights[LINK_SLOWS:]} == {Verdict.REGRESSED}
    assert nights[DRIFTS]["inception3"].verdict is Verdict.PASSED
    assert nights[-1]["inception3"].verdict is Verdict.REGRESSED
    for night in nights[HOST_SLOWS:LINK_SLOWS]:
        assert list_causes(night["resnet50"]) == [("compute", slow_host)]
    for night in nights[LINK_SLOWS:]:
        assert list_causes(night["vgg16"]) == [("link", slow_link)]
        assert sorted(list_causes(night["resnet50"])) == [("compute", slow_host), ("link", slow_link)]

    drift, host, link = project.read_events()
    found = [(each["kind"], sorted(member["label"].split()[0] for member in each["members"])) for each in (drift, host, link)]
    assert found == [("drift", ["inception3"]), ("step", ["resnet50"]), ("step", ["resnet50", "vgg16"])]
    assert (host["first_bad"], link["first_bad"]) == (folders[HOST_SLOWS].id, folders[LINK_SLOWS].id)
    assert drift["first_bad"] in {folder.id for folder in folders[DRIFTS - 3 : DRIFTS + 4]}
    assert drift["members"][0]["change"] < -0.05

    new = [[(each["kind"], each["name"].split()[0]) for each in posted["new"]] for posted in server.posted]
    assert sorted(each for posted in new for each in posted) == [
        ("REGRESSED", "inception3"), ("REGRESSED", "resnet50"), ("REGRESSED", "vgg16"),
    ]  # fmt: skip
    assert not any(posted["resolved"] for posted in server.posted)
