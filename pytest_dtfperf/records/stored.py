"""Files of a session on disk: written atomically, and read with a check of their schema.

They may be old, damaged, or of another program. Any fault is a `SessionFileError`: one line that begins with `where` and has
no control characters. A record is a line, which counts once its newline is there.
"""

import json
import os
from datetime import datetime
from functools import lru_cache
from io import FileIO
from pathlib import Path
from typing import Any

from pytest_dtfperf.baselines.files import check_schema_version, load, validate
from pytest_dtfperf.errors import BaselineFileError, DtfPerfError, SessionFileError
from pytest_dtfperf.formats import printable
from pytest_dtfperf.node.files import read_file, replacing
from pytest_dtfperf.records.record import Record

MOST_BYTES = 1 << 30  # of a session's file: every step of every run of thousands of tests
_BLOCK = 1 << 16  # bytes read at once where a line's beginning is looked for


def session_of(content: bytes, where: str) -> dict[str, Any]:
    """Return the content of a session.json."""
    _check_session(content, where)
    data: dict[str, Any] = json.loads(content.decode())
    return data


@lru_cache(maxsize=16)  # a session reads its own file a dozen times, and to check it takes longer than to read it
def _check_session(content: bytes, where: str) -> None:
    data = _check_content("session", content, where)
    try:
        datetime.fromisoformat(data["started"])
    except ValueError as exc:
        raise SessionFileError(f"{where}: started: {data['started']!r} is no time") from exc


def record_of(content: bytes, where: str) -> Record:
    """Return the content of a line of measurements.jsonl."""
    data = _check_content("measurement", content, where)
    try:
        return Record.from_json(data)
    except DtfPerfError as exc:  # rules beyond a schema: which networks can have which inputs, for one
        raise SessionFileError(f"{where}: {printable(str(exc))}") from exc


def _check_content(kind: str, content: bytes, where: str) -> Any:
    try:
        data = load(content.decode(), where)
        check_schema_version(data, where)
        validate(kind, data, where)
    except UnicodeDecodeError as exc:
        raise SessionFileError(f"{where}: is no text: {exc}") from exc
    except BaselineFileError as exc:
        raise SessionFileError(str(exc)) from exc
    return data


def line_of(record: Record) -> bytes:
    """Return the record as it is written in measurements.jsonl."""
    return json.dumps(record.to_json(), ensure_ascii=False, allow_nan=False).encode() + b"\n"


def append(path: Path, lines: bytes) -> None:
    """Behind the last whole line; where there is no room for them all, the file stays as it was."""
    with path.open("r+b", buffering=0) as file:
        end = _end_of_last_whole_line(file)
        file.truncate(end)
        try:
            file.seek(end)
            rest = memoryview(lines)
            while rest:
                rest = rest[file.write(rest) :]
            os.fsync(file.fileno())
        except OSError:
            file.truncate(end)
            raise


def _end_of_last_whole_line(file: FileIO) -> int:
    """Return where a torn last line begins, or the file ends; only as much is read as that takes."""
    end = file.seek(0, os.SEEK_END)
    while end:
        begin = max(0, end - _BLOCK)
        file.seek(begin)
        if newline := file.read(end - begin).rfind(b"\n") + 1:
            return begin + newline
        end = begin
    return 0


def whole_lines(content: bytes) -> list[bytes]:
    """Return the lines that have their newline."""
    return content[: content.rfind(b"\n") + 1].splitlines(keepends=True)


def content_of(path: Path) -> bytes:
    try:
        return read_file(path, MOST_BYTES)
    except OSError as exc:
        raise SessionFileError(f"{path} cannot be read: {exc.strerror}") from exc


def own_record(line: bytes, where: str) -> Record:
    """Without asking the schema, which would take milliseconds each time that a session looks for an anchor."""
    try:
        return Record.from_json(json.loads(line))
    except KeyError as exc:
        raise SessionFileError(f"{where}: {exc} is missing") from exc
    except (TypeError, ValueError, DtfPerfError) as exc:
        raise SessionFileError(f"{where}: {exc}") from exc


def write(path: Path, content: bytes) -> None:
    with replacing(path) as file:
        file.write(content)
