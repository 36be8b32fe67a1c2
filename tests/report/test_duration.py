"""How long trainings will take: what the numbers rest on, and that nothing is said where they would rest on nothing."""

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


def ten_steps(**changes: Any) -> Spec:
    return spec(warmup_steps=0, steps=10, **changes)


def took(what: Spec, *wall_s: float, test: str = TEST, **changes: Any) -> Record:
    """A measurement whose runs took so long, ten seconds of it for ten steps."""
    times = {"elapsed_s": 10.0, "step_s": {"worker:0": [1.0] * 10}, "startup_s": {}}
    runs = [run(8.0, **times, wall_s=seconds) for seconds in wall_s]
    made = record(what, 8.0, test=test, **changes)
    return replace(made, measurement=replace(made.measurement, runs=runs))


def test_what_was_measured_takes_as_long_again() -> None:
    """A training that sessions have measured takes as many runs as usual, each as long as those did."""
    past = ClusterPast([[took(ten_steps(), 11.0, 12.0, 16.0)], [took(ten_steps(), 12.0)]], {})
    found = past.training(ten_steps(), (2, 10))
    assert found
    assert (found.least_s, found.likely_s, found.most_s) == (2 * 11.0, 2 * 12.0, 10 * 16.0)
    assert found.basis is EstimateBasis.MEASURED


@pytest.mark.parametrize("changes, seconds", [({"steps": 20}, 22.0), ({"warmup_steps": 5}, 17.0), ({"steps": 1}, 3.0)])
def test_other_numbers_of_steps_are_made_up_for(changes: dict[str, int], seconds: float) -> None:
    """More steps take as much longer as they take; getting ready takes what it took."""
    found = ClusterPast([[took(ten_steps(), 12.0)]], {}).training(ten_steps().but(**changes), (1, 1))
    assert found
    assert found.likely_s == pytest.approx(seconds)


def test_what_is_similar_tells_roughly() -> None:
    """The same network on other devices is a rough ground, the nearest first, and the range says how rough."""
    near, far = took(ten_steps(gpus=4), 20.0), took(ten_steps(gpus=64), 99.0)
    found = ClusterPast([[near, far]], {}).training(ten_steps(gpus=8), (1, 1))
    assert found
    assert (found.least_s, found.likely_s, found.most_s) == (20.0 / ROUGH, 20.0, 20.0 * ROUGH)
    assert found.basis is EstimateBasis.SIMILAR


@pytest.mark.parametrize("sessions, start_s", [([], START_S), ([[took(ten_steps(model="alexnet"), 17.0)]], 7.0)])
def test_a_baseline_tells_how_long_steps_take(sessions: list[list[Record]], start_s: float) -> None:
    """With a baseline alone, its rate gives the steps; the start is that of other trainings there, if there were any."""
    found = ClusterPast(sessions, {ten_steps().key: [4.0]}).training(ten_steps(), (2, 10))
    assert found
    assert found.likely_s == 2 * (start_s + 10 * 8 / 4.0)
    assert found.basis is EstimateBasis.BASELINE


@pytest.mark.parametrize(
    "records",
    [
        [],
        [took(ten_steps(model="alexnet"), 12.0)],
        [took(ten_steps(), 12.0, verdict=Verdict.INVALID)],
        [took(ten_steps(), 12.0, injected_slowdowns={"worker:0": 1.0})],
        [took(ten_steps(batch_size=64), 12.0)],
    ],
    ids=["nothing", "another network", "invalid", "an injected slow-down", "other batches"],
)
def test_without_any_ground_nothing_is_said(records: list[Record]) -> None:
    """Where neither sessions nor baselines tell anything of a training, its time is unknown and never 0."""
    assert ClusterPast([records], {}).training(ten_steps(), (2, 10)) is None


def test_a_test_takes_what_its_measurements_took() -> None:
    """A test's time is that of all its runs in a session, between the shortest and the longest there was."""
    one, two = took(ten_steps(), 11.0, 12.0), took(ten_steps(gpus=2), 7.0)
    past = ClusterPast([[one, two], [took(ten_steps(), 20.0), took(ten_steps(), 5.0, test="other")]], {})
    assert past.test(TEST) == Duration(least_s=20.0, likely_s=25.0, most_s=30.0)
    assert past.test("nobody ran it") is None


@pytest.mark.parametrize("runs, seconds", [(1, 10.0 + 7.0), (4, 40.0 + 28.0)])
def test_a_test_takes_longer_with_more_runs(runs: int, seconds: float) -> None:
    """Where this session makes another number of runs than earlier ones, a test takes as long as those."""
    one, two = took(ten_steps(), 9.0, 11.0), took(ten_steps(gpus=2), 7.0)
    found = ClusterPast([[one, two]], {}).test(TEST, lambda _: runs)
    assert found
    assert found.likely_s == seconds


def test_a_total_adds_up() -> None:
    """Of several, one after the other, all three numbers add up; of none they are 0."""
    one = Duration(least_s=1.0, likely_s=2.0, most_s=3.0)
    assert sum_durations([one, one]) == Duration(least_s=2.0, likely_s=4.0, most_s=6.0)
    assert sum_durations([]).most_s == 0.0


def test_the_latest_sessions_of_the_cluster_are_read(tmp_path: Path) -> None:
    """Only sessions of the same cluster count, the latest of them, and one that is damaged is passed over."""
    for day in range(1, 8):
        cluster = "other" if day == 5 else "local"
        name = f"202601{day:02}T021503Z-9f3c1a"
        folder = SessionFolder.create(tmp_path, cluster=cluster, command=[], versions={}, session_id=name)
        folder.add(f"test_{day}", took(ten_steps(), 12.0).measurement)
    (tmp_path / "20260107T021503Z-9f3c1a" / "measurements.jsonl").write_text("{}\n")
    found = [each.test for session in load_earlier_sessions(tmp_path, "local") for each in session]
    assert found == ["test_3", "test_4", "test_6"]
    assert len(found) == MOST_SESSIONS


@pytest.mark.parametrize(
    "name, value", [("wall_s", "long"), ("elapsed_s", None), ("startup_s", {"warmup": "x"}), ("step_s", 5)]
)
def test_times_that_are_none_are_passed_over(tmp_path: Path, name: str, value: object) -> None:
    """A session whose times are no numbers tells nothing, and keeps no other session from being read."""
    for day in (1, 2):
        session_id = f"2026010{day}T021503Z-9f3c1a"
        folder = SessionFolder.create(tmp_path, cluster="local", command=[], versions={}, session_id=session_id)
        folder.add(f"test_{day}", took(ten_steps(), 12.0).measurement)
    damaged = json.loads((folder.path / "measurements.jsonl").read_text())
    damaged["runs"][0][name] = value
    (folder.path / "measurements.jsonl").write_text(json.dumps(damaged) + "\n")
    assert [each.test for session in load_earlier_sessions(tmp_path, "local") for each in session] == ["test_1"]
