"""What users rely on is read under the names that earlier versions had for it."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_dtfperf.baselines.entry import Calibrated
from pytest_dtfperf.clusters import locks, named
from pytest_dtfperf.errors import AllocationError, ClusterFileError, UsageError
from pytest_dtfperf.measurement import Evaluation, Score
from pytest_dtfperf.records.stored import line_of, record_of
from pytest_dtfperf.session import resolve
from pytest_dtfperf.stats.noise import Noise
from tests.records.samples import record, run, spec

EVALUATION = Evaluation(step=20, trained_s=1.5, score=Score(images=100, loss=0.5, total_loss=0.6, top_1=0.9, top_5=0.99))


def test_the_slow_downs_variable() -> None:
    """DTFPERF_PLANT is read where there is no DTFPERF_SLOWDOWN, and what is wrong in it is refused likewise."""
    assert resolve.read_slowdowns({"DTFPERF_PLANT": "worker:1=0.2"}) == {"worker:1": 0.2}
    assert resolve.read_slowdowns({"DTFPERF_PLANT": "worker:1=0.2", "DTFPERF_SLOWDOWN": "worker:0=0.1"}) == {"worker:0": 0.1}
    with pytest.raises(UsageError, match="DTFPERF_SLOWDOWN takes tasks and seconds per step"):
        resolve.read_slowdowns({"DTFPERF_PLANT": "worker"})


def test_the_locks_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DTFPERF_LEASES is read where there is no DTFPERF_LOCKS, and is named where it is wrong."""
    monkeypatch.setenv("DTFPERF_LEASES", str(tmp_path))
    assert locks.find_lock_folder() == tmp_path
    monkeypatch.setenv("DTFPERF_LEASES", str(tmp_path / "none"))
    with pytest.raises(AllocationError, match=r"^DTFPERF_LEASES = '.*/none' is no folder"):
        locks.find_lock_folder()
    monkeypatch.setenv("DTFPERF_LOCKS", str(tmp_path))
    assert locks.find_lock_folder() == tmp_path
    assert os.environ["DTFPERF_LEASES"]


def test_the_heartbeats_key(tmp_path: Path) -> None:
    """`lease_s` of clusters.toml is `heartbeat_timeout_s`; both in one table are refused."""
    file = tmp_path / "clusters.toml"
    file.write_text('[lab]\nbackend = "local"\nlease_s = 7\n')
    assert named.load(file)["lab"].heartbeat_timeout_s == 7
    file.write_text('[lab]\nbackend = "local"\nlease_s = 7\nheartbeat_timeout_s = 8\n')
    with pytest.raises(ClusterFileError, match="'lease_s'"):
        named.load(file)


def test_keys_of_files_stay() -> None:
    """What is called otherwise by now has the keys in measurements.jsonl that it always had, and is read by them."""
    measured = record(spec(), 10.0, injected_slowdowns={"worker:0": 0.1})
    runs = [run(10.0, evaluations=[EVALUATION], reported_rates={"worker:0": "10"})]
    written = line_of(replace(measured, measurement=replace(measured.measurement, runs=runs)))
    line = json.loads(written)
    assert line["planted"] == {"worker:0": 0.1}
    (one,) = line["runs"]
    assert (one["said"], one["looks"][0]["step"]) == ({"worker:0": "10"}, 20)
    found = record_of(written, "here").measurement
    assert found.injected_slowdowns == {"worker:0": 0.1}
    assert (found.runs[0].evaluations, found.runs[0].reported_rates) == ([EVALUATION], {"worker:0": "10"})


def test_a_calibrations_key_stays() -> None:
    """So has the noise of a baseline file."""
    noise = Noise(run=0.01, degrees_of_freedom=20, session=0.03)
    calibrated = Calibrated(noise=noise, sessions=6, date="2026-01-30T00:00:00Z")
    assert calibrated.to_json()["freedom"] == 20
    assert Calibrated.from_json(calibrated.to_json()) == calibrated
