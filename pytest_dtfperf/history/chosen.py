"""Which session somebody means: by its id, by a date, a commit or a version. Pure."""

import re
from collections.abc import Sequence

from pytest_dtfperf.errors import UsageError, shown
from pytest_dtfperf.history.rows import Row

LAST = "last"
DATE = re.compile(r"\d{4}-\d{2}(-\d{2}([T ]\d{2}(:\d{2})?)?)?")
LEAST = 4  # signs of an id or a commit: fewer are likely a slip


def chosen(sessions: Sequence[Row], given: str) -> Row:
    """The session that is meant; of several of a date, a commit or a version, the latest. Raises `UsageError`."""
    found = all_chosen(sessions, given)
    return found[-1]


def all_chosen(sessions: Sequence[Row], given: str) -> list[Row]:
    """All sessions that are meant, the oldest first. Raises `UsageError` where there is none."""
    found = _of(sessions, given)
    if found:
        return found
    if not sessions:
        raise UsageError("there is no session in the history")
    latest = ", ".join(row["id"] for row in sessions[-3:])
    raise UsageError(
        f"no session in the history is {shown(given)}: neither an id, a date (2026-01-31), a commit, nor a version "
        f"(tensorflow=2.21.0). The latest: {latest}"
    )


def _of(sessions: Sequence[Row], given: str) -> list[Row]:
    if given == LAST:
        return list(sessions[-1:])
    if DATE.fullmatch(given):
        return [row for row in sessions if row["started"].startswith(given.replace(" ", "T"))]
    name, is_version, version = given.partition("=")
    if is_version:
        return [row for row in sessions if row["versions"].get(name) == version]
    if len(given) < LEAST:
        return []
    return [row for row in sessions if row["id"].startswith(given) or (row["commit"] or "").startswith(given)]
