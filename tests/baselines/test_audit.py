from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from pytest_dtfperf.baselines.audit import (
    BEATEN,
    MISSING,
    OLD,
    TIGHT,
    UNOWNED,
    AuditFinding,
    AuditInputs,
    Sighting,
    audit,
    label_of,
)
from pytest_dtfperf.baselines.entry import Entry
from tests.baselines.examples import HARDWARE, calibrated_of, entry_of, measurement_of, spec_of

SYSTEM = "cpu-amd-epyc-9b45-2c"
TEST = "test_x.py::test_y"  # which examples come from
QUIET = [100.0, 100.1, 99.9, 100.2, 99.8]


def run_audit(
    entries: Sequence[Entry] = (),
    *,
    sightings: Sequence[Sighting] = (),
    tests: Sequence[str] | None = (f"{TEST}[gpus1]",),
    margins: Mapping[str, float] = {},
    now: str = "2026-03-01T00:00:00+00:00",
) -> list[AuditFinding]:
    return audit(
        AuditInputs(
            entries={SYSTEM: entries},
            margins=margins,
            sightings=sightings,
            tests=tests,
            now=datetime.fromisoformat(now).astimezone(UTC),
            max_age_days=180,
            beaten=3,
        )
    )


def make_sighting(rate: float, day: int, *, test: str = f"{TEST}[gpus2]", margin: float | None = None, **made: Any) -> Sighting:
    return Sighting(
        session=f"202602{day:02d}T000000Z-9f3c1a",
        test=test,
        measurement=measurement_of([rate, rate], **made),
        margin=margin,
    )


def list_kinds(findings: Sequence[AuditFinding]) -> list[str]:
    return [finding.kind for finding in findings]


def test_good_baseline_has_no_findings() -> None:
    """A recent, quiet baseline of an existing test, which is not exceeded, has no findings."""
    assert run_audit([entry_of(QUIET)], sightings=[make_sighting(100, day) for day in (1, 2, 3)]) == []


def test_case_without_an_entry_is_found_once() -> None:
    """A compared case without an entry is one finding, unless its test does not exist."""
    two = [make_sighting(100, 1), make_sighting(100, 2)]
    (missing,) = run_audit(sightings=two)
    assert (missing.kind, missing.system, missing.case) == (MISSING, SYSTEM, "trivial b32 gpus=2 num_ps=1 parameter_server")
    assert "session 20260202T000000Z-9f3c1a had nothing to compare it with" in missing.message
    assert run_audit([entry_of(QUIET)], sightings=two) == []
    assert run_audit(sightings=[make_sighting(100, 1, test="test_gone.py::test_z")]) == []
    assert list_kinds(run_audit(sightings=two, tests=None)) == [MISSING], "any test may exist if the tests are unknown"


def test_entry_of_other_hardware_or_program_does_not_count() -> None:
    """A case is missing if its entries are of other hardware or another program."""
    stored = [entry_of(QUIET, program="0123456789ab")]
    assert list_kinds(run_audit(stored, sightings=[make_sighting(100, 1, program="ba9876543210")])) == [MISSING]
    assert list_kinds(run_audit(stored, sightings=[make_sighting(100, 1, hardware=HARDWARE | {"memory_gib": 64})])) == [MISSING]
    assert (
        run_audit(
            stored, sightings=[make_sighting(100, 1, program="ba9876543210"), make_sighting(100, 2, program="0123456789ab")]
        )
        == []
    )


@pytest.mark.parametrize(
    "tests, owned",
    [([TEST], True), ([f"{TEST}[gpus64-ps8]"], True), (["test_x.py::test_yes"], False), ([], False), (None, True)],
    ids=["the function", "the function with other parameters", "another function", "no test", "tests unknown"],
)
def test_entry_without_a_collected_test_is_found(tests: Sequence[str] | None, owned: bool) -> None:
    """An entry without a collected test function is found; parameters of the test do not count."""
    assert list_kinds(run_audit([entry_of(QUIET)], tests=tests)) == ([] if owned else [UNOWNED])


@pytest.mark.parametrize("now, old", [("2026-07-30T00:00:00+00:00", False), ("2026-08-01T00:00:00+00:00", True)])
def test_old_entry_is_found(now: str, old: bool) -> None:
    """An entry that is older than the limit is found, with its age."""
    findings = run_audit([entry_of(QUIET, date="2026-01-31T02:15:03Z")], now=now)
    assert list_kinds(findings) == ([OLD] if old else [])
    assert all("measured 181 days ago" in finding.message for finding in findings)


BEATINGS: dict[str, tuple[list[Sighting], bool]] = {
    "by all of the last": ([make_sighting(100, 1), make_sighting(110, 2), make_sighting(111, 3), make_sighting(108, 4)], True),
    "but once": ([make_sighting(110, 1), make_sighting(104, 2), make_sighting(110, 3)], False),
    "too seldom": ([make_sighting(110, 1), make_sighting(110, 2)], False),
    "twice in one session": ([make_sighting(110, 1), make_sighting(110, 2), make_sighting(110, 2)], False),
    "within a wider margin": ([make_sighting(110, day, margin=0.15) for day in (1, 2, 3)], False),
    "on something else": ([make_sighting(110, day, hardware=HARDWARE | {"cores": 4}) for day in (1, 2, 3)], False),
}


@pytest.mark.parametrize("sightings, beaten", BEATINGS.values(), ids=BEATINGS)
def test_exceeded_baseline_is_found(sightings: list[Sighting], beaten: bool) -> None:
    """A baseline is found if each of the last sessions exceeded it by more than the margin."""
    findings = [each for each in run_audit([entry_of(QUIET)], sightings=sightings) if each.kind == BEATEN]
    assert bool(findings) == beaten
    assert all("the last 3 sessions were +8.0 % to +11.0 % faster, margin 5.0 %" in finding.message for finding in findings)


def test_sessions_before_the_baseline_are_ignored() -> None:
    """Faster sessions before the baseline was accepted are no finding."""
    earlier = [replace(make_sighting(110, day), session=f"202601{day:02d}T000000Z-9f3c1a") for day in (1, 2, 3)]
    assert run_audit([entry_of(QUIET)], sightings=earlier) == []


NOISES: dict[str, tuple[Entry, dict[str, Any], str]] = {
    "quiet": (entry_of(QUIET), {}, ""),
    "noisy runs": (entry_of([100, 120, 80, 110, 90]), {}, "noise 16.0 %: to see a loss of twice the margin takes more than"),
    "a margin of its own": (entry_of(QUIET), {"sightings": [make_sighting(100, 1, margin=0.005)]}, "margin 0.5 %, noise 1.0 %"),
    "a margin of its system": (entry_of(QUIET), {"margins": {SYSTEM: 0.01}}, "margin 1.0 %, noise 1.0 %"),
    "calibrated to be quiet": (replace(entry_of(QUIET), noise=calibrated_of(0.005, 0.001)), {}, ""),
    "sessions that differ": (
        replace(entry_of(QUIET), noise=replace(calibrated_of(), run=0.005, degrees_of_freedom=20, session=0.03)),
        {},
        "margin 5.0 %, noise 0.5 %: to see a loss of twice the margin takes more than any number of runs",
    ),
}


@pytest.mark.parametrize("entry, more, words", NOISES.values(), ids=NOISES)
def test_margin_below_the_noise_is_found(entry: Entry, more: dict[str, Any], words: str) -> None:
    """A margin is found if the noise of its case needs more than ten runs for it."""
    findings = run_audit([entry], **more)
    assert list_kinds(findings) == ([TIGHT] if words else [])
    assert all(words in finding.message for finding in findings)


LABELS = {
    "as usual": ({}, "trivial b32 gpus=2 num_ps=1 parameter_server"),
    "unusual": (
        {"data_format": "NCHW", "optimizer": "momentum", "momentum": 0.5},
        "trivial b32 gpus=2 num_ps=1 parameter_server data_format=NCHW optimizer=momentum momentum=0.5",
    ),
}


@pytest.mark.parametrize("changes, label", LABELS.values(), ids=LABELS)
def test_label_has_no_default_values(changes: dict[str, Any], label: str) -> None:
    """The label of a key has no default values."""
    assert label_of(spec_of(**changes).key) == label
