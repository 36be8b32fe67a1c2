"""Estimated durations of trainings, from measurements and baselines, or none."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_dtfperf.baselines.verdict import Verdict
from pytest_dtfperf.records.record import Record
from pytest_dtfperf.records.session import SessionFolder
from pytest_dtfperf.report.time_estimates import (
    MOST_SESSIONS,
    ROUGH,
    START_S,
    ClusterPast,
    Duration,
    EstimateBasis,
    load_earlier_sessions,
    sum_durations,
)
from pytest_dtfperf.spec import Spec
from tests.records.samples import record, run, spec

TEST = "perf_tests/test_inception3.py::test_throughput"


def make_spec(**changes: Any) -> Spec:
    return spec(warmup_steps=0, steps=10, **changes)


def make_record(what: Spec, *wall_s: float, test: str = TEST, **changes: Any) -> Record:
    """Return a record with runs of these durations, of which ten steps take ten seconds."""
    times = {"elapsed_s": 10.0, "step_s": {"worker:0": [1.0] * 10}, "startup_s": {}}
    runs = [run(8.0, **times, wall_s=seconds) for seconds in wall_s]
    made = record(what, 8.0, test=test, **changes)
    return replace(made, measurement=replace(made.measurement, runs=runs))


def test_estimate_uses_measured_durations() -> None:
    """A measured training has the usual number of runs with the durations of its earlier runs."""
    past = ClusterPast([[make_record(make_spec(), 11.0, 12.0, 16.0)], [make_record(make_spec(), 12.0)]], {})
    found = past.training(make_spec(), (2, 10))
    assert found
    assert (found.least_s, found.likely_s, found.most_s) == (2 * 11.0, 2 * 12.0, 10 * 16.0)
    assert found.basis is EstimateBasis.MEASURED


@pytest.mark.parametrize("changes, seconds", [({"steps": 20}, 22.0), ({"warmup_steps": 5}, 17.0), ({"steps": 1}, 3.0)])
def test_estimate_depends_on_steps(changes: dict[str, int], seconds: float) -> None:
    """The duration of steps is proportional to their number; the start takes the same time."""
    found = ClusterPast([[make_record(make_spec(), 12.0)]], {}).training(make_spec().replace(**changes), (1, 1))
    assert found
    assert found.likely_s == pytest.approx(seconds)


def test_similar_training_gives_a_wide_estimate() -> None:
    """The nearest size of the same network gives an estimate with a wide range."""
    near, far = make_record(make_spec(gpus=4), 20.0), make_record(make_spec(gpus=64), 99.0)
    found = ClusterPast([[near, far]], {}).training(make_spec(gpus=8), (1, 1))
    assert found
    assert (found.least_s, found.likely_s, found.most_s) == (20.0 / ROUGH, 20.0, 20.0 * ROUGH)
    assert found.basis is EstimateBasis.SIMILAR


@pytest.mark.parametrize("sessions, start_s", [([], START_S), ([[make_record(make_spec(model="alexnet"), 17.0)]], 7.0)])
def test_baseline_gives_an_estimate(sessions: list[list[Record]], start_s: float) -> None:
    """A baseline's rate gives the duration of steps; the start is that of other trainings, or a default."""
    found = ClusterPast(sessions, {make_spec().key: [4.0]}).training(make_spec(), (2, 10))
    assert found
    assert found.likely_s == 2 * (start_s + 10 * 8 / 4.0)
    assert found.basis is EstimateBasis.BASELINE


@pytest.mark.parametrize(
    "records",
    [
        [],
        [make_record(make_spec(model="alexnet"), 12.0)],
        [make_record(make_spec(), 12.0, verdict=Verdict.INVALID)],
        [make_record(make_spec(), 12.0, injected_slowdowns={"worker:0": 1.0})],
        [make_record(make_spec(batch_size=64), 12.0)],
    ],
    ids=["nothing", "another network", "invalid", "an injected slow-down", "other batches"],
)
def test_unknown_training_has_no_estimate(records: list[Record]) -> None:
    """A training without measurements and baselines has no estimate."""
    assert ClusterPast([records], {}).training(make_spec(), (2, 10)) is None


def test_estimate_of_a_test_is_the_sum_of_its_runs() -> None:
    """A test has the duration of all its runs in a session, between the shortest and the longest."""
    one, two = make_record(make_spec(), 11.0, 12.0), make_record(make_spec(gpus=2), 7.0)
    past = ClusterPast([[one, two], [make_record(make_spec(), 20.0), make_record(make_spec(), 5.0, test="other")]], {})
    assert past.test(TEST) == Duration(least_s=20.0, likely_s=25.0, most_s=30.0)
    assert past.test("nobody ran it") is None


@pytest.mark.parametrize("runs, seconds", [(1, 10.0 + 7.0), (4, 40.0 + 28.0)])
def test_estimate_of_a_test_depends_on_its_runs(runs: int, seconds: float) -> None:
    """A test with another number of runs has a proportional duration."""
    one, two = make_record(make_spec(), 9.0, 11.0), make_record(make_spec(gpus=2), 7.0)
    found = ClusterPast([[one, two]], {}).test(TEST, lambda _: runs)
    assert found
    assert found.likely_s == seconds


def test_durations_are_summed() -> None:
    """Durations are summed; the sum of none is 0."""
    one = Duration(least_s=1.0, likely_s=2.0, most_s=3.0)
    assert sum_durations([one, one]) == Duration(least_s=2.0, likely_s=4.0, most_s=6.0)
    assert sum_durations([]).most_s == 0.0


def test_latest_sessions_of_the_cluster_are_loaded(tmp_path: Path) -> None:
    """Only the latest sessions of the same cluster are loaded, and damaged ones are ignored."""
    for day in range(1, 8):
        cluster = "other" if day == 5 else "local"
        name = f"202601{day:02}T021503Z-9f3c1a"
        folder = SessionFolder.create(tmp_path, cluster=cluster, command=[], versions={}, session_id=name)
        folder.add(f"test_{day}", make_record(make_spec(), 12.0).measurement)
    (tmp_path / "20260107T021503Z-9f3c1a" / "measurements.jsonl").write_text("{}\n")
    found = [each.test for session in load_earlier_sessions(tmp_path, "local") for each in session]
    assert found == ["test_3", "test_4", "test_6"]
    assert len(found) == MOST_SESSIONS


@pytest.mark.parametrize(
    "name, value", [("wall_s", "long"), ("elapsed_s", None), ("startup_s", {"warmup": "x"}), ("step_s", 5)]
)
def test_session_with_invalid_times_is_ignored(tmp_path: Path, name: str, value: object) -> None:
    """A session with times that are no numbers is ignored, and the others are loaded."""
    for day in (1, 2):
        session_id = f"2026010{day}T021503Z-9f3c1a"
        folder = SessionFolder.create(tmp_path, cluster="local", command=[], versions={}, session_id=session_id)
        folder.add(f"test_{day}", make_record(make_spec(), 12.0).measurement)
    damaged = json.loads((folder.path / "measurements.jsonl").read_text())
    damaged["runs"][0][name] = value
    (folder.path / "measurements.jsonl").write_text(json.dumps(damaged) + "\n")
    assert [each.test for session in load_earlier_sessions(tmp_path, "local") for each in session] == ["test_1"]
