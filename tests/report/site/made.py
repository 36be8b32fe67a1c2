"""Invented histories as the database returns them, larger or stranger than those of real nights."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from pytest_dtfperf.datamodel.fingerprint import Fingerprint, Hardware
from pytest_dtfperf.history.rows import Row
from pytest_dtfperf.history.series import Series
from pytest_dtfperf.history.watching import HistoryData

BEGAN = datetime(2020, 1, 1, 2, 15, tzinfo=UTC)
CONTENT = Fingerprint(hardware=Hardware(cpu="any", cores=2))


def session(night: int, **changes: Any) -> Row:
    started = BEGAN + timedelta(days=night)
    row: Row = {
        "id": f"{started:%Y%m%dT%H%M%SZ}-{night:06x}", "started": started.isoformat(), "cluster": "local", "wall_s": 60.0,
        "exit_code": 0, "command": ["pytest", "perf_tests"], "versions": {"tensorflow": "2.21.0"}, "verdicts": {"PASSED": 2},
        "commit": "c0ffee" * 6, "usd": None, "folder": "/nowhere", "content": "0" * 64, "watched": True,
    }  # fmt: skip
    return row | changes


def point(session: Row, number: int = 0, rate: float = 100.0, **changes: Any) -> Row:
    """Return a measurement of a session."""
    row = {
        "session": session["id"], "id": f"{number:012x}", "spec_key": f"key {number}", "label": f"training {number}",
        "model": "mnist", "gpus": 1, "system": "cpu-any-2c", "hosts": 1, "fingerprint": "f", "mean_log": 4.6,
        "images_per_sec": rate, "runs": 2, "spread": 0.01, "noise_run": None, "noise_session": None, "verdict": "PASSED",
        "baseline": 99.0, "change": 0.01, "started": session["started"], "cluster": session["cluster"],
        "commit": session["commit"], "versions": session["versions"],
    }  # fmt: skip
    return row | changes


def series(points: Sequence[Row]) -> Series:
    first = points[0]
    return Series(first["label"], first["system"], first["spec_key"], first["hosts"], list(points))


def event(number: int, members: Sequence[Series], night: int, **changes: Any) -> Row:
    """Return a change with its first bad night at that number in each series."""
    points = members[0].points
    row: Row = {
        "id": number, "kind": "step", "state": "confirmed", "found": points[-1]["session"], "found_at": points[-1]["started"],
        "last_good": points[night - 1]["session"], "last_good_at": points[night - 1]["started"],
        "first_bad": points[night]["session"], "first_bad_at": points[night]["started"], "differences": ["kernel 6.1 -> 6.2"],
        "members": [
            {
                "series": each.name, "label": each.label, "system": each.system, "kind": "step", "change": -0.03, "low": -0.04,
                "high": -0.02, "first_bad": points[night]["session"], "last_good": points[night - 1]["session"],
            }
            for each in members
        ],
        "promise": {"share": 0.05, "nights": 90, "series": len(members), "is_noise_known": True},
    }  # fmt: skip
    return row | changes


def make_measurement_rows(session: Row) -> list[Row]:
    """Return the row of a measurement in a session without a folder."""
    rest = {"position": 0, "test": "t.py::test_a", "reason": "made up", "efficiency": 0.9, "step_breakdown": None}
    return [point(session) | rest]


def make_history_data(
    sessions: Sequence[Row],
    all_series: Sequence[Series] = (),
    events: Sequence[Row] = (),
    *,
    contents: Mapping[str, Fingerprint] | None = None,
) -> HistoryData:
    by_name = {row["id"]: row for row in sessions}
    return HistoryData(
        sessions=sessions,
        all_series=all_series,
        events=events,
        fingerprints={"f": CONTENT, **(contents or {})},
        promise={"share": 0.05, "nights": 90, "series": len(all_series)},
        is_noise_known=True,
        measured=lambda name: make_measurement_rows(by_name[name]),
    )
