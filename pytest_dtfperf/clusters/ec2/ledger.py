"""The ledger of a run: each request to Amazon is written down before it is sent, so that no cost is overlooked.

One file of JSON lines per run, only appended to, and on disk (fsync) before the next call leaves this machine. The first line
is the plan. An intent comes before everything that is made, and after it what was received, or that it was refused. The last
line records that Amazon showed nothing of the run any more. A crash leaves an intent without an answer at worst.

If the disk is full, nothing more is made: each intent raises `AllocationError`. The end of a run goes on all the same.
"""

import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any, Self

from pytest_dtfperf.clusters.ec2.plan import LaunchPlan
from pytest_dtfperf.errors import AllocationError
from pytest_dtfperf.node.files import read_file
from pytest_dtfperf.node.owner import Owner

_SUFFIX = ".jsonl"
# The required fields of entries that others rely on.
_SAYS = {"plan": {"plan"}, "intent": {"kind"}, "got": {"kind"}, "refused": {"kind"}, "ready": {"instances"}}
KEPT_FOR_S = 90 * 86400.0  # closed ledgers, kept for questions about a bill


def get_state_folder() -> Path:
    """Return this user's folder for data that must survive a crash and a restart."""
    given = os.environ.get("XDG_STATE_HOME", "")
    return Path(given if os.path.isabs(given) else Path.home() / ".local" / "state", "dtfperf", "ec2")


@dataclass(frozen=True)
class LedgerRecord:
    """The contents of a ledger."""

    plan: LaunchPlan
    entries: tuple[Mapping[str, Any], ...]  # after the plan, each with the time `at` in seconds since 1970

    @property
    def is_closed(self) -> bool:
        """Whether Amazon has shown that nothing is left."""
        return any(entry["event"] == "closed" for entry in self.entries)

    @property
    def is_ready(self) -> bool:
        """Whether the instances have been logged in to, so that they may be kept; False once they are to end."""
        last = [entry["event"] for entry in self.entries if entry["event"] in ("ready", "ending")][-1:]
        return last == ["ready"]

    @property
    def ready(self) -> Sequence[str]:
        """The instances that were logged in to."""
        entry = self.get_last_entry("ready")
        return entry["instances"] if entry else ()

    @property
    def holder(self) -> Owner | None:
        """The process that uses the instances or used them when it died; None: they are kept for the next session."""
        given = [entry for entry in self.entries if entry["event"] in ("held", "kept")]
        if not given:
            return self.plan.owner
        return Owner.read_or_unknown(given[-1].get("owner")) if given[-1]["event"] == "held" else None

    @property
    def held_since(self) -> float:
        """When the present session got the instances, by Amazon's clock if it was known."""
        entry = self.get_last_entry("held")
        return float(entry.get("since", entry["at"])) if entry else float(self.plan.made)

    @property
    def security_group(self) -> str | None:
        """The id of the security group."""
        ids = [entry.get("id") for entry in self.entries if entry["event"] == "got" and entry["kind"] == "security-group"]
        return ids[-1] if ids else None

    @cached_property
    def instances(self) -> Mapping[str, float]:
        """The time at which each instance was received, by id."""
        got = [entry for entry in self.entries if entry["event"] == "got" and entry["kind"] == "instances"]
        return {each: entry["at"] for entry in got for each in entry.get("ids", ())}

    @property
    def tokens(self) -> list[str]:
        """The tokens of all requests for instances that were sent."""
        return list(dict.fromkeys(entry["token"] for entry in self._list_intents("instances") if "token" in entry))

    @property
    def unanswered_since(self) -> float | None:
        """The time of the latest request without a known result; None if there is none."""
        pending: dict[tuple[str, str], float] = {}
        for entry in self.entries:
            what = entry.get("kind", ""), str(entry.get("token") or entry.get("name"))
            match entry["event"]:
                case "intent":
                    pending[what] = entry["at"]
                case "got" | "refused":
                    pending.pop(what, None)
        return max(pending.values(), default=None)

    def get_last_entry(self, event: str) -> Mapping[str, Any] | None:
        return next((entry for entry in reversed(self.entries) if entry["event"] == event), None)

    def _list_intents(self, kind: str) -> Iterator[Mapping[str, Any]]:
        return (entry for entry in self.entries if entry["event"] == "intent" and entry["kind"] == kind)


class Ledger:
    """One run's file, and the folder beside it with its keys."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.has_begun = False  # this object has written to the file: even if the file is lost, there may be instances

    @classmethod
    def from_plan(cls, plan: LaunchPlan, folder: Path | None = None) -> Self:
        """Return the ledger of a run that has yet to begin."""
        return cls((folder or get_state_folder()) / f"{plan.run}{_SUFFIX}")

    def begin(self, plan: LaunchPlan) -> None:
        """Write the plan to disk. No request may be sent before."""
        with self._writing():
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.folder.mkdir(mode=0o700)
        self._append({"event": "plan", "plan": plan.to_json()})
        with self._writing():
            _sync_folder(self.path.parent)

    @property
    def run(self) -> str:
        return self.path.name.removesuffix(_SUFFIX)

    @property
    def folder(self) -> Path:
        """The folder of the run's keys; deleted at the end of the run."""
        return self.path.with_suffix("")

    def note_intent(self, kind: str, **what: Any) -> None:
        """Record a request before it is sent, repetitions included."""
        self._append({"event": "intent", "kind": kind, **what})

    def note_result(self, kind: str, **what: Any) -> None:
        """Record that a request was carried out."""
        self._append({"event": "got", "kind": kind, **what})

    def note_refused(self, kind: str, **what: Any) -> None:
        """Record that a request was refused for good."""
        self._append({"event": "refused", "kind": kind, **what})

    def note(self, event: str, **what: Any) -> None:
        """Record any other event that later readers need."""
        self._append({"event": event, **what})

    def note_held(self, owner: Owner, now: float | None = None) -> None:
        """Record that this process holds the instances from now on. `now` is Amazon's time, if known."""
        self.note("held", owner=owner.text, **({} if now is None else {"since": round(now, 3)}))

    def note_kept(self) -> None:
        """Record that the instances have no owner: the next session may take them."""
        self.note("kept")

    def close(self) -> None:
        """Record that Amazon has shown that nothing is left, and delete the keys."""
        try:
            self.note("closed")
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    def read_record(self) -> LedgerRecord | None:
        """Read the ledger. None: there is no such run, or it died before its plan was on disk, and so before any request.

        Also None for a damaged file: then only the tags of the instances are left to find them (`reap`).
        """
        try:
            lines = read_file(self.path).split(b"\n")[:-1]  # the last line may be incomplete if the process died
        except OSError:  # missing, of another user, or on a failing disk
            return None
        entries = [entry for line in lines if (entry := _parse_entry(line))]
        if not entries or entries[0]["event"] != "plan":
            return None
        try:
            return LedgerRecord(LaunchPlan.from_json(entries[0]["plan"]), tuple(entries[1:]))
        except (LookupError, TypeError, AttributeError):
            return None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the ledger to read its holder and then write another. The lock ends with the process.

        Raises `AllocationError` on a file system without locks.
        """
        with _open_for_lock(self.path) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
            except OSError as exc:
                raise AllocationError(
                    f"{self.path} cannot be locked: {exc.strerror}. Two sessions could take the same instances; set a "
                    "folder on another file system with XDG_STATE_HOME, or end them with: dtfperf ec2 down"
                ) from exc
            yield

    def _append(self, entry: Mapping[str, Any]) -> None:
        line = json.dumps({**entry, "at": round(time.time(), 3)}).encode() + b"\n"
        with self._writing():
            handle = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                size = os.fstat(handle).st_size
                if size and os.pread(handle, 1, size - 1) != b"\n":
                    line = b"\n" + line  # after an incomplete line
                rest = memoryview(line)
                while rest:  # a write to a nearly full disk may be partial
                    rest = rest[os.write(handle, rest) :]
                os.fsync(handle)
            finally:
                os.close(handle)
        self.has_begun = True

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as exc:
            raise AllocationError(
                f"{self.path} cannot be written: {exc.strerror}. What may cost money is written down there before it is asked "
                "for; make room on that disk, or set another with XDG_STATE_HOME"
            ) from exc


def _open_for_lock(path: Path) -> IO[bytes]:
    """Open the file for writing, which locks on some file systems require; for reading on a read-only disk."""
    try:
        return path.open("ab")
    except OSError:
        return path.open("rb")


def _parse_entry(line: bytes) -> dict[str, Any] | None:
    """Parse one line; None if it is incomplete or damaged."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    whole = isinstance(entry, dict) and isinstance(entry.get("event"), str) and isinstance(entry.get("at"), int | float)
    return entry if whole and _SAYS.get(entry["event"], set()) <= entry.keys() else None


def list_ledgers(folder: Path | None = None) -> list[Ledger]:
    """Return all ledgers, the oldest first."""
    return [Ledger(path) for path in sorted((folder or get_state_folder()).glob(f"*{_SUFFIX}"))]


def list_damaged_ledgers(folder: Path | None = None) -> list[Ledger]:
    """Return the ledgers that are not empty but have no readable plan. An empty one died before any request."""
    return [ledger for ledger in list_ledgers(folder) if ledger.read_record() is None and _is_something(ledger.path)]


def _is_something(path: Path) -> bool:
    try:
        return b"\n" in read_file(path)
    except OSError:
        return True


def delete_old_ledgers(folder: Path | None = None, now: Callable[[], float] = time.time) -> None:
    """Delete old ledgers of closed runs, and old unreadable ones."""
    for ledger in list_ledgers(folder):
        with suppress(FileNotFoundError, PermissionError):
            if now() - ledger.path.stat().st_mtime > KEPT_FOR_S and (
                (record := ledger.read_record()) is None or record.is_closed
            ):
                shutil.rmtree(ledger.folder, ignore_errors=True)
                ledger.path.unlink()


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
