"""Tests of the names of sessions."""

import re
from datetime import UTC, datetime, timedelta, timezone

from pytest_dtfperf.records.session import new_session_id

BEGAN = datetime(2026, 1, 31, 2, 15, 3, tzinfo=UTC)


def test_session_id_has_the_start_in_utc() -> None:
    """A name has the start of the session in UTC to the second, in any time zone."""
    for zone in (UTC, timezone(timedelta(hours=5, minutes=30)), timezone(timedelta(hours=-8))):
        assert re.fullmatch(r"20260131T021503Z-[0-9a-f]{6}", new_session_id(BEGAN.astimezone(zone)))


def test_session_ids_sort_by_start() -> None:
    """Names sort by the start of their sessions, to the microsecond."""
    names = [new_session_id(BEGAN + timedelta(microseconds=at)) for at in (0, 1, 17, 4096, 70_000, 999_999, 1_000_000)]
    assert names == sorted(names)
