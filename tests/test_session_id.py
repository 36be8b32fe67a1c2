"""The names of sessions."""

import re
from datetime import UTC, datetime, timedelta

from pytest_dtfperf.records.session import new_session_id

BEGAN = datetime(2026, 1, 31, 2, 15, 3, tzinfo=UTC)


def test_a_name_tells_when_the_session_began() -> None:
    """UTC to the second can be read off, whatever the time zone."""
    assert re.fullmatch(r"20260131T021503Z-[0-9a-f]{6}", new_session_id(BEGAN))


def test_names_sort_as_sessions_began() -> None:
    """Also within one second, down to its microseconds: the last folder is the last night's."""
    names = [new_session_id(BEGAN + timedelta(microseconds=at)) for at in (0, 1, 17, 4096, 70_000, 999_999, 1_000_000)]
    assert names == sorted(names)
