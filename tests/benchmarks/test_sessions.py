"""Tests of the counts of real sessions on this machine."""

from dataclasses import replace

import pytest

from benchmarks.sessions import SessionResult, injected_sleep_s, summary
from pytest_dtfperf.baselines.verdict import Verdict
from pytest_dtfperf.records.record import Record
from pytest_dtfperf.records.stored import SessionInfo
from tests.baselines.examples import entry_of
from tests.records.samples import make_comparison, measurement, run, spec

RED = SessionResult(
    id="20260131T021503Z-9f3c1a",
    verdict="REGRESSED",
    exit_code=1,
    runs=4,
    disturbed=1,
    images_per_sec=1900.0,
    change=-0.091,
    window_s=2.31,
    wall_s=16.0,
    is_slow=True,
)
GREEN = replace(RED, verdict="PASSED", exit_code=0, runs=1, disturbed=0, change=0.004, wall_s=8.0, is_slow=False)


def test_session_row_is_made_from_its_files() -> None:
    """Verdict, runs, shortest window and change come from the record, the exit code and the time from the session."""
    measured = replace(
        measurement(spec(), [100, 90]),
        runs=[run(100, elapsed_s=2.5), run(90, elapsed_s=2.2, disturbances=["somebody"])],
    )
    checks = (make_comparison(110.0, -0.09),)
    record = Record(id="a1", test="test_x.py::test_y", measurement=measured, checks=checks, verdict=Verdict.REGRESSED)
    session = SessionInfo(
        id="20260131T021503Z-9f3c1a", cluster="local", started="2026-01-31T02:15:03+00:00", command=[], versions={},
        exit_code=1, wall_s=12.5,
    )  # fmt: skip
    results = SessionResult.from_record(session, record, is_slow=True)
    assert (results.verdict, results.is_red, results.is_slow) == ("REGRESSED", True, True)
    assert (results.runs, results.disturbed, results.window_s, results.wall_s, results.change) == (2, 1, 2.2, 12.5, -0.09)


def test_summary_counts_sessions() -> None:
    """The summary counts failed sessions, verdicts and runs, and has a line for no sessions."""
    assert summary("same", [GREEN, GREEN, RED]) == (
        "same: 3 sessions, 1 red; PASSED 2, REGRESSED 1; runs 1 to 4, mean 2.0; 10.7 s each"
    )
    assert summary("same", []) == "same: no sessions"


def test_session_without_a_verdict_is_a_line() -> None:
    """A session without a verdict or exit code has a line and is not red."""
    line = replace(GREEN, verdict=None, change=None, exit_code=None).line()
    assert line.split()[:3] == ["20260131T021503Z-9f3c1a", "same", "-"]
    assert not replace(GREEN, exit_code=None).is_red


def test_injected_sleep_is_a_tenth_of_a_step() -> None:
    """Two devices with 64 images each at 1280 images/sec have steps of 100 ms, and the sleep is 10 ms."""
    assert injected_sleep_s(entry_of([1280, 1280])) == pytest.approx(0.010)
