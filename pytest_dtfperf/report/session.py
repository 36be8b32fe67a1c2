"""The session folder: everything a session measured, written down before anybody judges it.

perf_results/20260131T021503Z-9f3c1a/
├── session.json          what was run, where, and how it ended
├── measurements.jsonl    one record per line; a line counts once its newline is there
├── logs/<test>/<n>/      what the tasks of the test's n-th run printed, one file per task
├── figures/
└── .lock                 held while measurements.jsonl is written: xdist workers share one folder
"""

import hashlib
import json
import os
import re
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import filelock

from pytest_dtfperf.baselines.checks import Check
from pytest_dtfperf.errors import DtfPerfError, SessionFileError, SessionFolderFull
from pytest_dtfperf.measurement import Measurement, Run
from pytest_dtfperf.report.record import SCHEMA, Compared, Efficiency, Record
from pytest_dtfperf.report.stored import record_of, session_of
from pytest_dtfperf.session_id import new_session_id
from pytest_dtfperf.spec import Spec

FOLDER_NAME = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{6}")
LOCK_TIMEOUT_S = 60.0  # writing takes milliseconds; who waits longer waits for a stopped process or a dead file server


@dataclass(frozen=True)
class SessionFolder:
    """A session folder on disk. Holds nothing open, so that it may be passed to other processes by its path.

    `is_ours`: this very session writes it, and need not doubt what it reads there; what others left is checked.
    """

    path: Path
    is_ours: bool = field(default=False, compare=False)

    @classmethod
    def create(
        cls,
        root: Path,
        *,
        cluster: str,
        command: Sequence[str],
        versions: Mapping[str, str],
        session_id: str | None = None,
        started: datetime | None = None,
        budget: Mapping[str, float] | None = None,
    ) -> Self:
        """Make the session's folder below `root`; where several processes do so with one `session_id`, all get the same.

        `budget`: how many false alarms there may be, and how many tests share them.
        """
        started = (started or datetime.now(UTC)).astimezone(UTC)
        folder = cls((root / (session_id or new_session_id(started))).absolute(), is_ours=True)
        with _writing(folder.path):
            for below in ("logs", "figures"):
                (folder.path / below).mkdir(parents=True, exist_ok=True)
        with folder._locked():
            if (folder.path / "session.json").exists():
                return folder
            (folder.path / "measurements.jsonl").touch()
            folder._write_session(
                {
                    "schema": SCHEMA,
                    "id": folder.id,
                    "cluster": cluster,
                    "started": started.isoformat(timespec="seconds"),
                    "wall_s": None,
                    "command": list(command),
                    "versions": dict(versions),
                    "budget": dict(budget or {}),
                    "costs": [],
                    "verdicts": {},
                    "exit_code": None,
                }
            )
        return folder

    @classmethod
    def open(cls, path: Path) -> Self:
        """A folder that exists. Raises `SessionFileError` if `path` is none."""
        if not os.path.isfile(path / "session.json"):  # that may not be looked at is none, either
            raise SessionFileError(f"{path} is no session folder: it has no session.json")
        return cls(path.absolute())

    @property
    def id(self) -> str:
        return self.path.name

    @property
    def session(self) -> dict[str, Any]:
        """What session.json says. Raises `SessionFileError`."""
        path = self.path / "session.json"
        return session_of(_content(path), f"{path}: is no session")

    def finish(self, *, exit_code: int, wall_s: float, verdicts: Mapping[str, int] | None = None) -> None:
        """Write down how the session ended. Without `verdicts`, those of the measurements are counted."""
        if verdicts is None:
            verdicts = Counter(record.verdict for record in self.measurements() if record.verdict)
        with self._locked():
            self._write_session(
                self.session | {"wall_s": round(wall_s, 3), "verdicts": dict(sorted(verdicts.items())), "exit_code": exit_code}
            )

    def spend(self, bill: Mapping[str, Any]) -> None:
        """Write down what an allocation has cost. Each process of a session adds its own."""
        with self._locked():
            session = self.session
            self._write_session(session | {"costs": [*session.get("costs", ()), dict(bill)]})

    def add(self, test: str, measurement: Measurement, *, efficiency: Efficiency | None = None) -> Record:
        """Append a measurement, not yet judged."""
        record = Record(id=secrets.token_hex(6), test=test, measurement=measurement, efficiency=efficiency)
        with self._locked(), (self.path / "measurements.jsonl").open("r+b") as file:
            file.seek(_end_of_last_whole_line(file.read()))
            file.truncate()
            file.write(line_of(record))
            file.flush()
            os.fsync(file.fileno())
        return record

    def judge(
        self,
        record_id: str,
        *,
        verdict: str,
        reason: str,
        baseline: Compared | None = None,
        efficiency: Efficiency | None = None,
        check: Check | None = None,
    ) -> Record:
        """Write a record's verdict into its line, with what it rests on; returns the record as it is now.

        A measurement that several tests judge keeps the gravest of their verdicts.
        """
        return self._change(
            record_id,
            lambda record: record.judged(verdict, reason, baseline=baseline, efficiency=efficiency, check=check),
        )

    def extend(self, record_id: str, runs: Sequence[Run]) -> Record:
        """Add runs to a measurement; returns the record as it is now."""
        return self._change(record_id, lambda record: replace(record, measurement=record.measurement.with_runs(runs)))

    def _change(self, record_id: str, change: Callable[[Record], Record]) -> Record:
        """Replace a record by what becomes of it. Raises `SessionFileError` if there is none with that id."""
        path = self.path / "measurements.jsonl"
        with self._locked():
            lines = _whole_lines(path)
            for i, line in enumerate(lines):
                record = self._record(path, i + 1, line)
                if record.id != record_id:
                    continue
                changed = change(record)
                if changed != record:
                    lines[i] = line_of(changed)
                    _replace(path, b"".join(lines))
                return changed
        raise SessionFileError(f"{path} has no measurement with id {record_id!r} to judge")

    def measurements(self) -> list[Record]:
        """All records, in the order they were made.

        A last line without its newline is what a killed writer leaves, and is passed over. Anything else that is no record
        raises `SessionFileError` with its line.
        """
        path = self.path / "measurements.jsonl"
        return [self._record(path, number, line) for number, line in enumerate(_whole_lines(path), start=1)]

    def find(self, spec: Spec, *, but_not_of: str | None = None) -> Record | None:
        """The latest valid measurement of exactly `spec` in this session, made for any test but `but_not_of`.

        This is how tests and xdist workers share an anchor, while a test that measures anew gets new numbers.
        """
        found = (r for r in reversed(self.measurements()) if r.spec == spec and r.is_valid and r.test != but_not_of)
        return next(found, None)

    def logs_of(self, test: str) -> Path:
        """Where the logs of a test's runs are. There need not be any."""
        return self.path / "logs" / path_safe(test)

    def new_logs(self, test: str) -> Path:
        """Make the folder for the logs of a test's next run: `logs/<test>/1`, then `2`, ..."""
        folder = self.logs_of(test)
        number = 1
        while True:
            with suppress(FileExistsError), _writing(folder):  # another process may be making the same one: who makes it has it
                folder.mkdir(parents=True, exist_ok=True)
                (folder / str(number)).mkdir()
                return folder / str(number)
            number += 1

    def _record(self, path: Path, number: int, line: bytes) -> Record:
        return (_own_record if self.is_ours else record_of)(line, f"{path}:{number}: is no measurement")

    def _write_session(self, data: Mapping[str, Any]) -> None:
        _replace(self.path / "session.json", json.dumps(data, indent=2, ensure_ascii=False).encode() + b"\n")

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            with _writing(self.path), filelock.FileLock(self.path / ".lock", timeout=LOCK_TIMEOUT_S):
                yield
        except filelock.Timeout as exc:
            raise SessionFileError(
                f"{self.path / '.lock'} has been held for {LOCK_TIMEOUT_S:.0f} s by another process"
            ) from exc


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Around whatever changes a session folder: what is in it stays as it was when the disk is full, or may not be written."""
    try:
        yield
    except (FileExistsError, filelock.Timeout):
        raise
    except OSError as exc:
        raise SessionFolderFull(f"results cannot be written to {folder}: {exc.strerror or exc}") from exc


def path_safe(test: str) -> str:
    """A folder name for a test's node id: readable, of plain characters, and different for different ids.

    What the readable part loses ("a/b" and "a_b" read alike) the digest keeps. Characters are those every file system and
    GitHub's artifact upload allow.
    """
    readable = re.sub(r"[^A-Za-z0-9_.=-]+", "_", test).strip("._-")[-120:].lstrip("._-")
    return f"{readable or 'test'}-{hashlib.sha256(test.encode()).hexdigest()[:16]}"


def log_name(task: str) -> str:
    """The file name of a task's log: `worker-0.log`, for a colon is refused by GitHub's artifact upload."""
    return f"{task.replace(':', '-')}.log"


def session_folders(root: Path) -> list[SessionFolder]:
    """The session folders below `root`, oldest first."""
    if not root.is_dir():
        return []
    paths = sorted(path for path in root.iterdir() if FOLDER_NAME.fullmatch(path.name) and (path / "session.json").is_file())
    return [SessionFolder.open(path) for path in paths]


def line_of(record: Record) -> bytes:
    """The record as it stands in measurements.jsonl."""
    return json.dumps(record.to_json(), ensure_ascii=False, allow_nan=False).encode() + b"\n"


def _end_of_last_whole_line(content: bytes) -> int:
    return content.rfind(b"\n") + 1


def _whole_lines(path: Path) -> list[bytes]:
    content = _content(path)
    return content[: _end_of_last_whole_line(content)].splitlines(keepends=True)


def _content(path: Path) -> bytes:
    try:
        if path.exists() and not path.is_file():
            raise SessionFileError(f"{path} cannot be read: it is no file")  # reading a pipe would wait for ever
        return path.read_bytes()
    except OSError as exc:
        raise SessionFileError(f"{path} cannot be read: {exc.strerror}") from exc


def _own_record(line: bytes, where: str) -> Record:
    """Without asking the schema, which would take milliseconds each time that a session looks for an anchor."""
    try:
        return Record.from_json(json.loads(line))
    except KeyError as exc:
        raise SessionFileError(f"{where}: {exc} is missing") from exc
    except (TypeError, ValueError, DtfPerfError) as exc:
        raise SessionFileError(f"{where}: {exc}") from exc


def _replace(path: Path, content: bytes) -> None:
    """Change a file so that a reader sees the old content or the new, whatever happens in between."""
    beside = path.with_name(f".{path.name}.{secrets.token_hex(3)}")
    try:
        with beside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
