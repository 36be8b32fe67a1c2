"""The session folder: everything a session measured, written down before anybody judges it.

perf_results/20260131T021503Z-9f3c1a/
├── session.json          what was run, where, and how it ended
├── measurements.jsonl    a record on each line, which counts once its newline is there; of several of one id the last counts
├── logs/<test>/<n>/      what the tasks of the test's n-th run printed, one file per task
├── hosts.jsonl           a reading of a host on each line: host_readings.py
├── measurements.csv      the same as a table: exports.py
├── figures/
└── .lock                 held while measurements.jsonl is written: xdist workers share one folder

What the disk refuses (it is full, read-only, out of inodes) this process keeps in memory, so that it can be shown, and tries to
write again with whatever comes next. `write_failure` reports it, once.
"""

import errno
import hashlib
import json
import os
import re
import secrets
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import filelock

from pytest_dtfperf.baselines.judgement import Judgement
from pytest_dtfperf.baselines.verdict import Verdict
from pytest_dtfperf.clusters.protocol import Bill
from pytest_dtfperf.datamodel.explanation import ExperimentResult, Explanation, Limit, SweepState
from pytest_dtfperf.datamodel.measurement import Measurement, Run
from pytest_dtfperf.datamodel.probes import Probes
from pytest_dtfperf.errors import SessionFileError
from pytest_dtfperf.records.record import Record
from pytest_dtfperf.records.stored import (
    Budget,
    Journal,
    SessionInfo,
    append,
    content_of,
    read_own_record,
    record_of,
    session_of,
    write,
)
from pytest_dtfperf.spec import Spec


def new_session_id(started: datetime | None = None) -> str:
    """`20260131T021503Z-9f3c1a`: UTC, then five hexadecimal digits of the microsecond and a random one."""
    began = (started or datetime.now(UTC)).astimezone(UTC)
    return f"{began:%Y%m%dT%H%M%SZ}-{began.microsecond:05x}{secrets.token_hex(1)[0]}"


_MOST_STEM_BYTES = 180  # a name has 255 at most, and what is written whole or not at all needs some before


def path_safe(test: str) -> str:
    """Return a folder name for a test's node id: readable, of plain characters, and different for different ids.

    What the readable part loses ("a/b" and "a_b" read alike) the digest keeps. Characters are those every file system and
    GitHub's artifact upload allow.
    """
    readable = re.sub(r"[^A-Za-z0-9_.=-]+", "_", test).strip("._-")[-120:].lstrip("._-")
    return f"{readable or 'test'}-{hashlib.sha256(test.encode()).hexdigest()[:16]}"


def file_stem(model: str, batch_size: int) -> str:
    """Return the begin of the names of a training's files: `trivial_b32`.

    The name of a program may be longer than a file's may be: then its begin is used, with a digest of the whole.
    """
    stem, digest = f"{model}_b{batch_size}", hashlib.sha256(model.encode()).hexdigest()[:16]
    if len(os.fsencode(stem)) <= _MOST_STEM_BYTES:
        return stem
    return f"{os.fsencode(model)[: _MOST_STEM_BYTES - 40].decode(errors='ignore')}-{digest}_b{batch_size}"


def make_next_folder(folder: Path) -> Path:
    """Make `1` in it, then `2`, ..."""
    folder.mkdir(parents=True, exist_ok=True)
    number = 1
    while True:
        with suppress(FileExistsError):  # another process may be making the same one: the one that makes it has it
            (folder / str(number)).mkdir()
            return folder / str(number)
        number += 1


ID_VARIABLE = "DTFPERF_SESSION_ID"  # of the session of a command's pytest, which the command then finds among others
FOLDER_NAME = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{6}")
LOCK_TIMEOUT_S = 60.0  # writing takes milliseconds; a longer wait is for a stopped process or a dead file server


@dataclass(eq=False)
class _PendingWrites:
    """What the disk has refused, as it should stand there."""

    session: SessionInfo | None = None  # as it begins, where not even the folder could be made
    changes: list[Callable[[SessionInfo], SessionInfo]] = field(default_factory=list)  # of the session, in their order
    records: dict[str, Record] = field(default_factory=dict)  # id -> record
    files: dict[str, OSError] = field(default_factory=dict)  # name -> why; in the order in which it was first refused


@dataclass(frozen=True)
class SessionFolder:
    """A session folder on disk. Holds nothing open, so that it may be passed to other processes by its path.

    `is_ours`: this very session writes it, and need not doubt what it reads there; what others left is checked.
    """

    path: Path
    is_ours: bool = field(default=False, compare=False)
    _unwritten: _PendingWrites = field(default_factory=_PendingWrites, compare=False, repr=False)
    _journal: list[Journal] = field(default_factory=list, compare=False, repr=False)  # the one, once something was read

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
        budget: Budget | None = None,
    ) -> Self:
        """Make the session's folder below `root`; where several processes do so with one `session_id`, all get the same.

        `budget`: how many false alarms there may be, and how many tests share them.
        """
        started = (started or datetime.now(UTC)).astimezone(UTC)
        folder = cls((root / (session_id or new_session_id(started))).absolute(), is_ours=True)
        folder._unwritten.session = SessionInfo(
            id=folder.id,
            cluster=cluster,
            started=started.isoformat(timespec="seconds"),
            command=command,
            versions=versions,
            budget=budget,
        )
        try:
            folder._make()
        except OSError as exc:
            folder.refuse("session.json", exc)
        return folder

    def _make(self) -> None:
        """Make what is missing of the folder. Does nothing where all is known to be there."""
        if self._unwritten.session is None:
            return
        for below in ("logs", "figures"):
            (self.path / below).mkdir(parents=True, exist_ok=True)
        with self._locked():
            if not self._json.exists():
                self._lines.touch()
                write(self._json, _json_of(self._unwritten.session))
        self._unwritten.session = None

    @classmethod
    def open(cls, path: Path) -> Self:
        """Return a folder that exists. Raises `SessionFileError` if `path` is none."""
        # What may not be looked at is none, either; one that is a pipe is, and cannot be read.
        if not os.path.lexists(path / "session.json") or os.path.isdir(path / "session.json"):
            sessions = session_folders(path) if os.path.isdir(path) and os.access(path, os.R_OK | os.X_OK) else []
            hint = f"; its latest session is {path / sessions[-1].id}" if sessions else ""
            raise SessionFileError(f"{path} is no session folder: it has no session.json{hint}")
        return cls(path.absolute())

    @property
    def id(self) -> str:
        return self.path.name

    @property
    def session(self) -> SessionInfo:
        """The content of session.json, now or once the disk takes it. Raises `SessionFileError`."""
        session = self._unwritten.session or session_of(content_of(self._json), f"{self._json}: is no session")
        for change in self._unwritten.changes:
            session = change(session)
        return session

    def finish(
        self, *, exit_code: int, wall_s: float, verdicts: Mapping[str, int] | None = None, commit: str | None = None
    ) -> None:
        """Write down how the session ended. Without `verdicts`, those of the measurements are counted.

        `commit`: of the repository that holds the tests, if it is one.
        """
        if verdicts is None:
            verdicts = Counter(record.verdict for record in self.measurements() if record.verdict)
        counts = {Verdict(name): count for name, count in sorted(verdicts.items())}
        self._compact()
        self._change_session(
            lambda session: replace(
                session, wall_s=round(wall_s, 3), verdicts=counts, exit_code=exit_code, commit=commit or session.commit
            )
        )

    def _compact(self) -> None:
        with suppress(OSError, SessionFileError), self._locked():
            journal = self._read_journal()
            if journal.superseded_bytes:
                self._leave_last_lines(journal)

    def _leave_last_lines(self, journal: Journal) -> None:
        """Leave one line a record. Where the disk refuses that, the lines stay as they are: nothing of them is lost."""
        with suppress(OSError, SessionFileError):
            journal.compact()

    def fail(self, exit_code: int) -> None:
        """Write down that a finished session ends otherwise after all."""
        self._change_session(lambda session: replace(session, exit_code=exit_code))

    def add_cost(self, bill: Bill) -> None:
        """Write down what an allocation has cost. Each process of a session adds its own."""
        self._change_session(lambda session: replace(session, costs=[*session.costs, bill]))

    def add(self, test: str, measurement: Measurement, *, attempt: int = 1) -> Record:
        """Append a measurement, not yet judged. Efficiencies that follow from it, its own and others', are written with it."""
        record = Record(id=secrets.token_hex(6), test=test, measurement=measurement, attempt=attempt)
        return self._edit(lambda _: {record.id: record})[record.id]

    def judge(self, record_id: str, *, verdict: Verdict, reason: str) -> Record:
        """Write a verdict that results from a record's runs; returns the record as it is now."""
        return self._change(record_id, lambda record: record.with_verdict(verdict, reason))

    def add_judgement(self, record_id: str, judgement: Judgement) -> Record:
        """Add the judgement of a check to a record; returns the record as it is now.

        A measurement that several tests judge keeps the gravest of their verdicts.
        """
        return self._change(record_id, lambda record: record.with_judgement(judgement))

    def extend(self, record_id: str, runs: Sequence[Run]) -> Record:
        """Add runs to a measurement; returns the record as it is now."""
        return self._change(record_id, lambda record: replace(record, measurement=record.measurement.with_runs(runs)))

    def note_probes(self, record_id: str, probes: Probes) -> Record:
        """Add what the hosts of a measurement can do; returns the record as it is now."""
        return self._change(record_id, lambda record: replace(record, measurement=replace(record.measurement, probes=probes)))

    def note_limit(self, record_id: str, limit: Limit) -> Record:
        """Add the highest rate that a measurement's resources allow; returns the record as it is now."""
        return self._change(record_id, lambda record: replace(record, limit=limit))

    def note_sweep(self, record_id: str, sweep: SweepState) -> Record:
        """Add how its number of parameter servers was found; returns the record as it is now."""
        return self._change(record_id, lambda record: replace(record, sweep=sweep))

    def explain(self, record_id: str, *, explanation: Explanation | None = None, unexplained: str = "") -> Record:
        """Store why a measurement is slower, or why that is not known; returns the record as it is now."""
        return self._change(record_id, lambda record: replace(record, explanation=explanation, unexplained=unexplained))

    def note_experiments(self, record_id: str, tried: Sequence[ExperimentResult]) -> Record:
        """Add the results of experiments on its causes; returns the record as it is now."""
        return self._change(record_id, lambda record: replace(record, experiments=list(tried)))

    def note_traced(self, record_id: str, run: Run) -> Record:
        """Add a run that was made to be traced alone; returns the record as it is now."""
        return self._change(record_id, lambda record: replace(record, measurement=replace(record.measurement, traced=run)))

    def accept(self, ids: Collection[str]) -> None:
        """Write down which measurements have become baselines."""
        if ids:
            self._edit(lambda records: {each: replace(records[each], accepted=True) for each in ids if each in records})

    def _change(self, record_id: str, change: Callable[[Record], Record]) -> Record:
        """Replace a record by what becomes of it. Raises `SessionFileError` if there is none with that id."""
        found = self._edit(lambda records: {record_id: change(records[record_id])} if record_id in records else {})
        if record_id not in found:
            raise SessionFileError(f"{self._lines} has no measurement with id {record_id!r} to judge")
        return found[record_id]

    def _edit(self, edit: Callable[[Mapping[str, Record]], Mapping[str, Record]]) -> Mapping[str, Record]:
        """Write what `edit` makes of some records, and what follows from that for others; returns all of these by their ids."""
        edited: Mapping[str, Record] | None = None
        try:
            self._make()
            with self._locked():
                edited = self._edit_records(edit)
                journal = self._journal[0]
                journal.append(edited.values())
                if journal.is_mostly_superseded:
                    self._leave_last_lines(journal)
            self._unwritten.records.clear()
        except OSError as exc:
            self.refuse(self._lines.name, exc)
            if (
                edited is None
            ):  # there was no lock: what other processes have written since is theirs, and must not be kept as it is now
                edited = self._edit_records(edit)
            self._unwritten.records |= edited
        return edited

    def _edit_records(self, edit: Callable[[Mapping[str, Record]], Mapping[str, Record]]) -> Mapping[str, Record]:
        journal, unwritten = self._read_journal(), self._unwritten.records
        changed = {**unwritten, **edit({**journal.records, **unwritten})}
        return {**changed, **journal.with_what_follows(changed)}

    def measurements(self) -> list[Record]:
        """Return all records, in the order they were made.

        A last line without its newline is what a killed writer leaves, and is passed over. Anything else that is no record
        raises `SessionFileError` with its line.
        """
        return self._with_unwritten(self._read_journal().records)

    def measurement(self, record_id: str) -> Record | None:
        """Return the record with this id, as it is now."""
        return self._unwritten.records.get(record_id) or self._read_journal().records.get(record_id)

    @property
    def _json(self) -> Path:
        return self.path / "session.json"

    @property
    def _lines(self) -> Path:
        return self.path / "measurements.jsonl"

    def _read_journal(self) -> Journal:
        """Return what is on disk. What others have left, or may have touched, is read and checked anew each time."""
        journal = self._journal[0] if self._journal and self.is_ours else Journal(self._lines, self._record)
        self._journal[:] = [journal]
        if not self._unwritten.session or self._lines.exists():
            journal.refresh()
        return journal

    def _with_unwritten(self, written: Mapping[str, Record]) -> list[Record]:
        return list({**written, **self._unwritten.records}.values())

    @property
    def unwritten(self) -> list[Record]:
        """Records that are not on disk as they are: a process that ends must hand them over."""
        return list(self._unwritten.records.values())

    def get_latest(self) -> Sequence[Record]:
        """Return all records as this process last knew them, should they be nowhere else."""
        return self._with_unwritten(self._journal[0].records if self._journal else {})

    def take_over(self, records: Sequence[Record], why: str) -> None:
        """Keep what another process of this session could not write."""
        self._unwritten.records |= {record.id: record for record in records}
        self._unwritten.files.setdefault(self._lines.name, OSError(why))

    def write(self, name: str, content: bytes) -> bool:
        """Write another file of the folder; whether that was possible."""
        path = self.path / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write(path, content)
        except OSError as exc:
            self.refuse(name, exc)
            return False
        return True

    def append(self, name: str, lines: bytes) -> bool:
        """Append whole lines to another file of the folder; whether that was possible."""
        path = self.path / name
        try:
            self._make()
            with self._locked():
                path.touch()
                append(path, lines)
        except OSError as exc:
            self.refuse(name, exc)
            return False
        return True

    def write_json(self, name: str, document: Mapping[str, Any]) -> bool:
        """Write a file with one JSON object; return whether that was possible."""
        return self.write(name, f"{json.dumps(document, ensure_ascii=False, indent=1)}\n".encode())

    def refuse(self, name: str, why: OSError) -> None:
        """Note that something could not be written."""
        self._unwritten.files.setdefault(name, why)

    @property
    def write_errors(self) -> str:
        """Why things could not be written, as the system's messages."""
        return ", ".join(dict.fromkeys(why.strerror or str(why) for why in self._unwritten.files.values()))

    @property
    def write_failure(self) -> str | None:
        """What could not be written, and why, in one line; None if everything was."""
        files = self._unwritten.files
        if not files:
            return None
        lost = ", where the latest measurements are missing" if self._unwritten.records else ""
        return f"results cannot be written to {self.path}: {self.write_errors} ({', '.join(files)}{lost})"

    def find(self, spec: Spec, *, but_not_of: str | None = None) -> Record | None:
        """Return the latest valid measurement of exactly `spec` in this session, made for any test but `but_not_of`.

        This is how tests and xdist workers share an anchor, while a test that measures anew gets new numbers.
        """
        written, unwritten = self._read_journal().select_spec(spec), self._unwritten.records
        found = {record.id: record for record in written}
        found |= {record.id: record for record in unwritten.values() if record.spec == spec}
        usable = (record for record in reversed(found.values()) if record.is_valid)
        return next((record for record in usable if record.test != but_not_of), None)

    def logs_of(self, test: str) -> Path:
        """Return the folder for the logs of a test's runs. There need not be any."""
        return self.path / "logs" / path_safe(test)

    def new_logs(self, test: str) -> Path:
        """Make the folder for the logs of a test's next run: `logs/<test>/1`, then `2`, ..."""
        folder = self.logs_of(test)
        try:
            return make_next_folder(folder)
        except OSError as exc:
            self.refuse("logs", exc)
            return folder

    def _record(self, number: int, line: bytes) -> Record:
        return (read_own_record if self.is_ours else record_of)(line, f"{self._lines}:{number}: is no measurement")

    def _change_session(self, change: Callable[[SessionInfo], SessionInfo]) -> None:
        """Change session.json. A refused write stays a change, so that it takes back nothing that others write in between."""
        try:
            self._make()
            with self._locked():
                write(self._json, _json_of(change(self.session)))
            self._unwritten.changes.clear()
        except OSError as exc:
            self.refuse(self._json.name, exc)
            self._unwritten.changes.append(change)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            with filelock.FileLock(self.path / ".lock", timeout=LOCK_TIMEOUT_S):
                yield
        except NotImplementedError as exc:  # from filelock
            raise OSError(errno.ENOLCK, "its file system has no locks") from exc
        except filelock.Timeout as exc:
            raise SessionFileError(
                f"{self.path / '.lock'} has been held for {LOCK_TIMEOUT_S:.0f} s by another process"
            ) from exc


def session_folders(root: Path) -> list[SessionFolder]:
    """Return the session folders below `root`, oldest first; without those that this user may not look into.

    Raises `SessionFileError` where `root` is such a folder.
    """
    if not os.path.isdir(root):
        return []
    try:
        names = sorted(filter(FOLDER_NAME.fullmatch, os.listdir(root)))
    except OSError as exc:
        raise SessionFileError(f"{root} cannot be read: {exc.strerror}") from exc
    paths = [root / name for name in names if os.path.isfile(root / name / "session.json")]
    return [SessionFolder.open(path) for path in paths]


def drop_copies(folders: Sequence[SessionFolder], on_status: Callable[[str], object]) -> list[SessionFolder]:
    """Return of a session's copies the folder with its own name, else the first; `on_status` gets each that is left out."""
    named = [(_session_id(folder), folder) for folder in folders]
    kept: dict[str, SessionFolder] = {}
    for session, folder in sorted(named, key=lambda each: each[1].id != each[0]):
        if session in kept:
            on_status(f"{folder.path} is left out: it is a copy of session {session}, as {kept[session].path} has it")
        kept.setdefault(session, folder)
    return [folder for session, folder in named if kept[session] is folder]


def find_session(root: Path, session_id: str) -> SessionFolder | None:
    """Return the folder of a session below `root`; None if it has measured nothing."""
    return next((folder for folder in session_folders(root) if folder.id == session_id), None)


def select_by_arguments(folders: Sequence[SessionFolder], arguments: Sequence[str]) -> Sequence[SessionFolder]:
    """Return the sessions of pytest with these arguments, as stored; all folders if there are none."""
    return [folder for folder in folders if list(folder.session.command) == ["pytest", *arguments]] or folders


def _session_id(folder: SessionFolder) -> str:
    """Return a folder's session id; a file that cannot be read is refused later, by its reader."""
    try:
        return folder.session.id
    except SessionFileError:
        return folder.id


def _json_of(session: SessionInfo) -> bytes:
    return json.dumps(session.to_json(), indent=2, ensure_ascii=False).encode() + b"\n"
