"""What session folders hold, checked before anything is made of it: they may be old, damaged, or of another program.

Whatever is wrong is a `SessionFileError`: one line that begins with `where`, with nothing in it that a terminal would obey.
"""

import json
from datetime import datetime
from functools import lru_cache
from typing import Any

from pytest_dtfperf.baselines.validation import load, validate
from pytest_dtfperf.errors import BaselineFileError, DtfPerfError, SessionFileError
from pytest_dtfperf.printable import printable
from pytest_dtfperf.records.record import SCHEMA, Record


def session_of(content: bytes, where: str) -> dict[str, Any]:
    """What a session.json says."""
    _check_session(content, where)
    data: dict[str, Any] = json.loads(content.decode())
    return data


@lru_cache(maxsize=16)  # a session reads its own file a dozen times, and to check it takes longer than to read it
def _check_session(content: bytes, where: str) -> None:
    data = _checked("session", content, where)
    try:
        datetime.fromisoformat(data["started"])
    except ValueError as exc:
        raise SessionFileError(f"{where}: started: {data['started']!r} is no time") from exc


def record_of(content: bytes, where: str) -> Record:
    """What a line of measurements.jsonl says."""
    data = _checked("measurement", content, where)
    try:
        return Record.from_json(data)
    except DtfPerfError as exc:  # what no schema says: which networks can have which inputs, for one
        raise SessionFileError(f"{where}: {printable(str(exc))}") from exc


def _checked(kind: str, content: bytes, where: str) -> Any:
    try:
        data = load(content.decode(), where)
        _check_version(data, where)
        validate(kind, data, where)
    except UnicodeDecodeError as exc:
        raise SessionFileError(f"{where}: is no text: {exc}") from exc
    except BaselineFileError as exc:
        raise SessionFileError(str(exc)) from exc
    return data


def _check_version(data: Any, where: str) -> None:
    found = data.get("schema") if isinstance(data, dict) else None
    if isinstance(found, int) and found > SCHEMA:
        raise SessionFileError(
            f"{where}: written by a newer version of pytest-dtfperf (its schema is {found}, this version reads {SCHEMA}); "
            "install that: pip install --upgrade pytest-dtfperf"
        )
