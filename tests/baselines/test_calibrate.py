"""The noise of each case from measurements of several sessions: which measurements are one case, and which are left out."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_dtfperf.baselines.calibrate import SessionMeasurement, calibrate, find_smallest_margin, group_cases
from pytest_dtfperf.baselines.entry import Entry
from pytest_dtfperf.baselines.store import BaselineStore
from pytest_dtfperf.baselines.terms import share
from pytest_dtfperf.baselines.verdict import FALSE_ALARMS
from pytest_dtfperf.errors import UsageError
from pytest_dtfperf.stats.comparison import runs_needed
from pytest_dtfperf.stats.noise import Noise, estimate_variance_components
from tests.baselines.examples import HARDWARE, MISPLACED, SOFTWARE, calibrated_of, entry_of, measurement_of

SESSIONS = ([100.0, 101.0, 99.0], [102.0, 103.5, 101.0], [98.0, 99.0, 97.5])


def seen_of(rates: Sequence[float], session: int = 1, *, is_valid: bool = True, **measured: Any) -> SessionMeasurement:
    """Return one measurement of the session of that day of January."""
    day = f"{session:02}"
    return SessionMeasurement(
        session=f"202601{day}T000000Z-9f3c1a",
        started=f"2026-01-{day}T00:00:00+00:00",
        measurement=measurement_of(rates, **measured),
        is_valid=is_valid,
    )


def sessions(**measured: Any) -> list[SessionMeasurement]:
    return [seen_of(rates, number, **measured) for number, rates in enumerate(SESSIONS, start=1)]


def test_noise_is_estimated_over_all_sessions() -> None:
    """The noise of a case is estimated over its sessions, dated by the last, and belongs to the comparable entry."""
    entry = entry_of([100, 101])
    (found,) = calibrate(group_cases(sessions()), lambda _: [entry_of([1, 1], gpus=8), entry])
    assert found.calibrated is not None
    assert Noise(
        run=found.calibrated.run, degrees_of_freedom=found.calibrated.degrees_of_freedom, session=found.calibrated.session
    ) == estimate_variance_components(SESSIONS)
    assert (found.calibrated.sessions, found.calibrated.date) == (3, "2026-01-03T00:00:00+00:00")
    assert (found.entry, found.message) == (entry, "")


def test_measurements_of_one_session_are_one_group() -> None:
    """Two measurements of the same training in one session are one group."""
    (case,) = group_cases([seen_of([100, 101], 1), seen_of([99, 98], 1), seen_of([100, 100.5], 2)])
    assert list(case.rates.values()) == [[100, 101, 99, 98], [100, 100.5]]


def test_unreliable_runs_are_left_out_and_counted() -> None:
    """Disturbed runs, runs of invalid measurements and runs on wrong hosts are left out and counted."""
    (case,) = group_cases(
        [
            seen_of([100, 50, 101], 1, disturbed=[1]),
            seen_of([7, 8], 2, is_valid=False),
            seen_of([55, 56], 3, placement=MISPLACED),
            seen_of([60, 61], 4, disturbed=[0, 1]),
            seen_of([99, 100], 5),
        ]
    )
    assert list(case.rates.values()) == [[100, 101], [99, 100]]
    assert (case.runs, case.left_out) == (4, 7)


def test_incomparable_measurements_are_different_cases() -> None:
    """Measurements with other hardware, hosts, steps or programs are different cases."""
    other = [
        seen_of([50, 51], 2, hardware={**HARDWARE, "cores": 4}),
        seen_of([50, 51], 2, hosts=2),
        seen_of([50, 51], 2, steps=7),
    ]
    cases = group_cases([seen_of([100, 101], 1), *other])
    assert [case.runs for case in cases] == [2, 2, 2, 2]
    assert len(group_cases([seen_of([1, 2], 1, program="a" * 12), seen_of([1, 2], 2, program="b" * 12)])) == 2


def test_changed_software_is_noted_once() -> None:
    """Another minor version of software is part of the noise and noted once."""
    newer = {**SOFTWARE, "tensorflow": "2.22.0"}
    (case,) = group_cases([seen_of([100, 101], 1), seen_of([100, 101], 2, software=newer), seen_of([1, 2], 3, software=newer)])
    assert case.changes == ["tensorflow 2.21.0 -> 2.22.0"]


def test_injected_slowdown_is_refused() -> None:
    """A session with an injected slow-down is refused, with its id and the task."""
    with pytest.raises(UsageError, match=r"session 20260102T000000Z-9f3c1a has an injected slow-down of worker:1"):
        group_cases([seen_of([1, 2], 1), seen_of([1, 2], 2, injected_slowdowns={"worker:1": 0.1})])


@pytest.mark.parametrize("number", [0, 1])
def test_fewer_than_two_sessions_are_refused(number: int) -> None:
    """Fewer than two sessions are refused, with any number of measurements."""
    with pytest.raises(UsageError, match=f"{number} sessions? with measurements: .* at least 2"):
        group_cases([seen_of([1, 2], 1)] * 2 * number)


def test_case_with_too_few_runs_does_not_affect_others() -> None:
    """A case with one session is reported as insufficient, and the others are calibrated."""
    cases = group_cases([*sessions(), seen_of([5, 6], 1, gpus=4)])
    good, poor = calibrate(cases, lambda _: [entry_of([100, 101]), entry_of([5, 6], gpus=4)])
    assert good.entry is not None
    assert (poor.entry, poor.calibrated) == (None, None)
    assert poor.message.startswith("2 runs in 1 sessions are too few for noise")


WITHOUT_ENTRY: dict[str, tuple[Entry, str]] = {
    "none at all": (entry_of([1, 2], gpus=16), "it has no baseline yet; accept one (--update-baselines=new)"),
    "of other hardware": (entry_of([1, 2], hardware={**HARDWARE, "cores": 8}), "it has no baseline yet"),
    "of other steps": (entry_of([1, 2], steps=7), "its baseline measured 7 steps, these sessions 100"),
}


@pytest.mark.parametrize("entry, words", WITHOUT_ENTRY.values(), ids=WITHOUT_ENTRY)
def test_case_without_an_entry_shows_noise_and_remedy(entry: Entry, words: str) -> None:
    """A case without a stored entry has its noise, its smallest margin and a message with the remedy."""
    (found,) = calibrate(group_cases(sessions()), lambda _: [entry])
    assert found.calibrated is not None
    assert found.entry is None
    assert found.message.startswith(words)
    assert found.margin is not None


def test_smallest_margin_needs_ten_runs() -> None:
    """The smallest margin needs at most ten runs and a smaller one more; noise between sessions widens or prevents it."""
    samples, noise = [100.0, 102.0, 98.0], Noise(run=0.02, degrees_of_freedom=10)
    margin = find_smallest_margin(samples, noise, tests=4)
    assert margin is not None
    needed = [runs_needed(3, noise, each, share(FALSE_ALARMS, tests=4, red=0, check=0)) for each in (margin, margin - 0.001)]
    assert needed[0] is not None
    assert needed[0] <= 10
    assert needed[1] is None or needed[1] > 10
    wider = find_smallest_margin(samples, replace(noise, session=0.01), tests=4)
    assert wider is not None
    assert wider > margin
    assert find_smallest_margin(samples, replace(noise, session=0.5), tests=4) is None


def test_calibration_keeps_newly_accepted_samples(tmp_path: Path) -> None:
    """A calibration writes only the noise: newer samples and all other entries stay as they are."""
    store = BaselineStore(tmp_path)
    old, other = entry_of([100, 101]), entry_of([5, 6], gpus=4)
    store.update("mine", [old, other])
    newer = entry_of([110, 111], date="2026-02-01T00:00:00Z")
    store.update("mine", [newer])
    (change,) = store.calibrate("mine", [(old, calibrated_of())])
    assert change.new == replace(newer, noise=calibrated_of())
    assert store.entries("mine") == [other, change.new] or store.entries("mine") == [change.new, other]


def test_calibration_does_not_restore_a_removed_entry(tmp_path: Path) -> None:
    """The noise of an entry that was removed in between is not written."""
    store = BaselineStore(tmp_path)
    store.update("mine", [entry_of([5, 6], gpus=4)])
    before = (tmp_path / "mine.json").read_bytes()
    assert store.calibrate("mine", [(entry_of([100, 101]), calibrated_of())]) == []
    assert (tmp_path / "mine.json").read_bytes() == before


def test_violated_conditions_are_named() -> None:
    """Differing sessions and runs that depend on the run before are named; a quiet case has neither."""
    quiet = [100.0, 100.4, 99.8, 100.1]
    (same,) = group_cases([seen_of(quiet, session) for session in range(1, 6)])
    assert same.broken_conditions == []
    modes = [[rate * (0.9 if session % 2 else 1.0) for rate in quiet] for session in range(1, 6)]
    (differing,) = group_cases([seen_of(rates, session) for session, rates in enumerate(modes, start=1)])
    assert [words.split(" (")[0] for words in differing.broken_conditions] == ["all runs of a session have something in common"]
    falling = [100.0 - 0.5 * run for run in range(10)]
    (alike,) = group_cases([seen_of(falling, session) for session in range(1, 6)])
    assert [words.split(" (")[0] for words in alike.broken_conditions] == ["runs resemble the run before them in their session"]
