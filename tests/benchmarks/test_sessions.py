"""What the real sessions of this machine are counted by."""

from dataclasses import replace

import pytest

from benchmarks.sessions import Seen, injected_sleep_s, summary
from pytest_dtfperf.baselines.verdict import Verdict
from pytest_dtfperf.records.record import Record
from pytest_dtfperf.records.stored import SessionInfo
from tests.baselines.examples import entry_of
from tests.records.samples import make_comparison, measurement, run, spec

RED = Seen(
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


def test_a_session_is_what_its_folder_says() -> None:
    """Verdict, runs, the shortest window and the change come from the record, the exit code and the time from the session."""
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
    seen = Seen.of(session, record, is_slow=True)
    assert (seen.verdict, seen.is_red, seen.is_slow) == ("REGRESSED", True, True)
    assert (seen.runs, seen.disturbed, seen.window_s, seen.wall_s, seen.change) == (2, 1, 2.2, 12.5, -0.09)


def test_red_is_counted_by_the_exit_code() -> None:
    """The summary counts sessions that failed, each verdict, and the runs they took."""
    assert summary("same", [GREEN, GREEN, RED]) == (
        "same: 3 sessions, 1 red; PASSED 2, REGRESSED 1; runs 1 to 4, mean 2.0; 10.7 s each"
    )
    assert summary("same", []) == "same: no sessions"


def test_a_broken_session_is_shown() -> None:
    """One that has compared nothing is a line all the same."""
    line = replace(GREEN, verdict=None, change=None, exit_code=None).line()
    assert line.split()[:3] == ["20260131T021503Z-9f3c1a", "same", "-"]
    assert not replace(GREEN, exit_code=None).is_red


def test_the_sleep_is_a_tenth_of_a_step() -> None:
    """Two devices of 64 images each at 1280 images/sec make ten steps a second, so that a tenth of a step is 10 ms."""
    assert injected_sleep_s(entry_of([1280, 1280])) == pytest.approx(0.010)
