"""Files of a session on disk: written atomically, and read with a check of their schema.

They may be old, damaged, or of another program. Any fault is a `SessionFileError`: one line that begins with `where` and has
no control characters. A record is a line, which counts once its newline is there.

While a session goes on, a record is appended anew each time it changes, and its last line counts. So a change costs what its
own record is long, however many there are, and a writer that is killed leaves all earlier lines. When the session ends, one
line a record is left (`SessionFolder.finish`).
"""

import json
import os
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from io import FileIO
from pathlib import Path
from typing import Any, Literal

from pytest_dtfperf.baselines.entry import UTC_TIME
from pytest_dtfperf.baselines.files import SCHEMA, check_schema_version, load, validate
from pytest_dtfperf.baselines.verdict import Verdict
from pytest_dtfperf.clusters.protocol import Bill
from pytest_dtfperf.codec import JsonData, describe
from pytest_dtfperf.errors import BaselineFileError, DtfPerfError, SessionFileError
from pytest_dtfperf.formats import printable
from pytest_dtfperf.node.files import read_file, replace_file
from pytest_dtfperf.records.record import Record, configuration, with_what_follows
from pytest_dtfperf.spec import Spec

MOST_BYTES = 1 << 30  # of a session's file: every step of every run of thousands of tests
_BLOCK = 1 << 16  # bytes read at once where a line's beginning is looked for
_KEPT_RECORDS, _MOST_KEPT_BYTES = 64, 1 << 18  # in memory, as they were read: so many lines of at most so many bytes


@dataclass(frozen=True, kw_only=True)
class Budget(JsonData):
    """The allowed false alarms of a session."""

    false_alarms: float = field(
        metadata=describe("Largest fraction of sessions without a change that may fail", above=0, below=1)
    )
    tests: int = field(metadata=describe("Number of tests that share it", at_least=0))


@dataclass(frozen=True, kw_only=True)
class SessionInfo(JsonData):
    """session.json: what was run, where, and how it ended."""

    schema: Literal[1] = field(default=SCHEMA, metadata=describe("Version of this format"))
    id: str = field(metadata=describe("Name of the session and of its folder"))
    cluster: str = field(metadata=describe("Name of the cluster in clusters.toml"))
    started: str = field(metadata=describe("Start of the session, UTC", pattern=UTC_TIME))
    wall_s: float | None = field(
        default=None, metadata=describe("Duration of the session; null: it is running, or was killed", unit="s", at_least=0)
    )
    command: Sequence[str] = field(metadata=describe("Command line, with its arguments"))
    versions: Mapping[str, str] = field(metadata=describe("Versions of Python, this package and others"))
    budget: Budget | None = field(
        default=None, metadata=describe("Allowed false alarms, and the number of tests that share them", omit_empty=True)
    )
    costs: Sequence[Bill] = field(
        default=(),
        metadata=describe("Costs of each allocation that has a price"),
    )
    verdicts: Mapping[Verdict, int] = field(default_factory=dict, metadata=describe("Number of each verdict", at_least=1))
    exit_code: int | None = field(default=None, metadata=describe("pytest's exit code; null: it is running, or was killed"))
    commit: str = field(
        default="", metadata=describe("Commit of the repository with the tests, if there is one", omit_empty=True)
    )


@lru_cache(maxsize=16)  # a session reads its own file a dozen times, and to check it takes longer than to read it
def session_of(content: bytes, where: str) -> SessionInfo:
    """Return the content of a session.json."""
    session = SessionInfo.from_json(_check_content(SessionInfo, content, where))
    try:
        datetime.fromisoformat(session.started)
    except ValueError as exc:
        raise SessionFileError(f"{where}: started: {session.started!r} is no time") from exc
    return session


def record_of(content: bytes, where: str) -> Record:
    """Return the content of a line of measurements.jsonl."""
    return (_read_record if len(content) <= _MOST_KEPT_BYTES else _read_record.__wrapped__)(content, where)


@lru_cache(maxsize=_KEPT_RECORDS)  # a night reads its session a dozen times, and to check a line takes longer than to read it
def _read_record(content: bytes, where: str) -> Record:
    data = _check_content(Record, content, where)
    try:
        return Record.from_json(data)
    except DtfPerfError as exc:  # rules beyond a schema: which networks can have which inputs, for one
        raise SessionFileError(f"{where}: {printable(str(exc))}") from exc


def _check_content(kind: type[JsonData], content: bytes, where: str) -> Any:
    try:
        data = load(content.decode(), where)
        check_schema_version(data, where)
        validate(kind, data, where)
    except UnicodeDecodeError as exc:
        raise SessionFileError(f"{where}: is no text: {exc}") from exc
    except BaselineFileError as exc:
        raise SessionFileError(str(exc)) from exc
    return data


def encode_record(record: Record) -> bytes:
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


def list_whole_lines(content: bytes) -> list[bytes]:
    """Return the lines that have their newline."""
    return content[: content.rfind(b"\n") + 1].splitlines(keepends=True)


def content_of(path: Path) -> bytes:
    try:
        return read_file(path, MOST_BYTES)
    except OSError as exc:
        raise SessionFileError(f"{path} cannot be read: {exc.strerror}") from exc


def read_own_record(line: bytes, where: str) -> Record:
    """Without asking the schema, which would take milliseconds each time that a session looks for an anchor."""
    try:
        return Record.from_json(json.loads(line))
    except KeyError as exc:
        raise SessionFileError(f"{where}: {exc} is missing") from exc
    except (TypeError, ValueError, DtfPerfError) as exc:
        raise SessionFileError(f"{where}: {exc}") from exc


def write(path: Path, content: bytes) -> None:
    with replace_file(path) as file:
        file.write(content)


MOST_SUPERSEDED_BYTES = 1 << 24  # that a file keeps until its session ends, or as much as what counts, if that is more


class Journal:
    """The records of one file, kept in memory: `refresh` reads only what other processes have appended since."""

    def __init__(self, path: Path, read: Callable[[int, bytes], Record]) -> None:
        """`read` makes a record of a line, given its number."""
        self._path = path
        self._read = read
        self._forget()

    def _forget(self) -> None:
        self.records: dict[str, Record] = {}  # id -> record as it is now, in the order in which they were added
        self._by_spec: dict[Spec, list[str]] = defaultdict(list)
        self._by_configuration: dict[tuple[object, ...], list[str]] = defaultdict(list)
        self._position: dict[str, int] = {}
        self._spans: dict[str, tuple[int, int]] = {}  # begin and end of each record's last line
        self.superseded_bytes = 0  # of lines with records that have later lines
        self._lines = 0
        self._end = 0
        self._last_line = b""

    def refresh(self) -> None:
        """Read what was appended since the last time; all of it, where the file is another by now.

        A last line without its newline is what a killed writer leaves, and is passed over. Raises `SessionFileError` for any
        other line that is no record.
        """
        appended = self._read_appended()
        if appended is None:
            self._forget()
            appended = content_of(self._path)
        for line in list_whole_lines(appended):
            self._keep(self._read(self._lines + 1, line), line)

    def _keep(self, record: Record, line: bytes) -> None:
        if record.id not in self.records:
            self._position[record.id] = len(self._position)
            self._by_spec[record.spec].append(record.id)
            self._by_configuration[configuration(record.spec)].append(record.id)
        self.records[record.id] = record
        begin, end = self._spans.get(record.id, (0, 0))
        self.superseded_bytes += end - begin
        self._note_line(record.id, line)

    def _note_line(self, record_id: str, line: bytes) -> None:
        self._spans[record_id] = self._end, self._end + len(line)
        self._lines, self._end, self._last_line = self._lines + 1, self._end + len(line), line

    def append(self, records: Collection[Record]) -> None:
        """Write records to the file, which must be locked and read to its end. They are not read again."""
        lines = [encode_record(record) for record in records]
        append(self._path, b"".join(lines))
        for record, line in zip(records, lines, strict=True):
            self._keep(record, line)

    def compact(self) -> None:
        """Leave the last line of each record in the file, which must be locked and read to its end."""
        content = content_of(self._path)
        lines = {record_id: content[begin:end] for record_id, (begin, end) in self._spans.items()}
        write(self._path, b"".join(lines.values()))
        self.superseded_bytes = self._lines = self._end = 0
        for record_id, line in lines.items():
            self._note_line(record_id, line)

    def _read_appended(self) -> bytes | None:
        """Return what is behind the last line that was read; None where that line is not in its place any more."""
        if not self._last_line or not self._path.is_file():
            return None
        try:
            with self._path.open("rb", buffering=0) as file:
                file.seek(self._end - len(self._last_line))
                content = file.read()
        except OSError as exc:
            raise SessionFileError(f"{self._path} cannot be read: {exc.strerror}") from exc
        return content[len(self._last_line) :] if content.startswith(self._last_line) else None

    def select_spec(self, spec: Spec) -> list[Record]:
        """Return the records of exactly this spec, in the order in which they were added."""
        return [self.records[each] for each in self._by_spec.get(spec, ())]

    @property
    def is_mostly_superseded(self) -> bool:
        return self.superseded_bytes > max(self._end // 2, MOST_SUPERSEDED_BYTES)

    def with_what_follows(self, changed: Mapping[str, Record]) -> dict[str, Record]:
        """Return the changed records and those that change with them, as `with_what_follows` of all records has them."""
        records = {**self.records, **changed}
        affected = records.keys() if any(record.is_void for record in changed.values()) else self._find_affected_ids(changed)
        bases = {each for record_id in affected for each in self._bases(records[record_id]) if each in records}
        context = sorted({*affected, *bases}, key=lambda each: self._position.get(each, len(records)))
        followed = {record.id: record for record in with_what_follows(records[each] for each in context)}
        return {each: followed[each] for each in context if each in affected and followed[each] is not self.records.get(each)}

    def _find_affected_ids(self, changed: Mapping[str, Record]) -> set[str]:
        """Return the ids of those that may change with them: one device's measurement is the anchor of its curve's others."""
        curves = [self._curve(record) for record in changed.values() if record.spec.gpus == 1]
        return {*changed, *(each for curve in curves for each in curve if self.records[each].spec.gpus > 1)}

    def _bases(self, record: Record) -> list[str]:
        """Return the ids of all that its efficiency and its checks may rest on."""
        others = [check.other for check in record.checks if check.other]
        anchors = [each for each in self._curve(record) if self.records[each].spec.gpus == 1] if record.spec.gpus > 1 else []
        return [*others, *anchors, *([record.anchor] if record.anchor else [])]

    def _curve(self, record: Record) -> Sequence[str]:
        return self._by_configuration.get(configuration(record.spec), ())
