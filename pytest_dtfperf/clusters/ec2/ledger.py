"""The ledger of a run: each request to Amazon is written down before it is sent, so that no cost can be forgotten.

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
# What an entry must say for its event, where others rely on it.
_SAYS = {"plan": {"plan"}, "intent": {"kind"}, "got": {"kind"}, "refused": {"kind"}, "ready": {"instances"}}
KEPT_FOR_S = 90 * 86400.0  # ledgers of runs that are over, for whoever wonders about a bill


def state_folder() -> Path:
    """This user's own folder for what must outlive a crash and a restart."""
    given = os.environ.get("XDG_STATE_HOME", "")
    return Path(given if os.path.isabs(given) else Path.home() / ".local" / "state", "dtfperf", "ec2")


@dataclass(frozen=True)
class LedgerRecord:
    """What stands in a ledger."""

    plan: LaunchPlan
    entries: tuple[Mapping[str, Any], ...]  # after the plan, each with the time `at` in seconds since 1970

    @property
    def is_closed(self) -> bool:
        """Whether Amazon has shown that nothing is left."""
        return any(entry["event"] == "closed" for entry in self.entries)

    @property
    def is_ready(self) -> bool:
        """Whether its instances have been logged in to, and so may be kept for others; not any more once they are to end."""
        last = [entry["event"] for entry in self.entries if entry["event"] in ("ready", "ending")][-1:]
        return last == ["ready"]

    @property
    def ready(self) -> Sequence[str]:
        """The instances that were logged in to."""
        entry = self.last("ready")
        return entry["instances"] if entry else ()

    @property
    def holder(self) -> Owner | None:
        """The process that uses the instances, or did when it died; None: they are kept for whoever needs them next."""
        given = [entry for entry in self.entries if entry["event"] in ("held", "kept")]
        if not given:
            return self.plan.owner
        return Owner.read_or_unknown(given[-1].get("owner")) if given[-1]["event"] == "held" else None

    @property
    def held_since(self) -> float:
        """When the present session got them: by Amazon's clock, as far as that was known."""
        entry = self.last("held")
        return float(entry.get("since", entry["at"])) if entry else float(self.plan.made)

    @property
    def security_group(self) -> str | None:
        """Its id."""
        ids = [entry.get("id") for entry in self.entries if entry["event"] == "got" and entry["kind"] == "security-group"]
        return ids[-1] if ids else None

    @cached_property
    def instances(self) -> Mapping[str, float]:
        """The ids of all that were got, and when."""
        got = [entry for entry in self.entries if entry["event"] == "got" and entry["kind"] == "instances"]
        return {each: entry["at"] for entry in got for each in entry.get("ids", ())}

    @property
    def tokens(self) -> list[str]:
        """Of all requests for instances that were ever sent."""
        return list(dict.fromkeys(entry["token"] for entry in self._intents("instances") if "token" in entry))

    @property
    def unanswered(self) -> float | None:
        """When something was asked for of which nobody knows what came of it; None: all is known."""
        pending: dict[tuple[str, str], float] = {}
        for entry in self.entries:
            what = entry.get("kind", ""), str(entry.get("token") or entry.get("name"))
            match entry["event"]:
                case "intent":
                    pending[what] = entry["at"]
                case "got" | "refused":
                    pending.pop(what, None)
        return max(pending.values(), default=None)

    def last(self, event: str) -> Mapping[str, Any] | None:
        """The latest entry of that event."""
        return next((entry for entry in reversed(self.entries) if entry["event"] == event), None)

    def _intents(self, kind: str) -> Iterator[Mapping[str, Any]]:
        return (entry for entry in self.entries if entry["event"] == "intent" and entry["kind"] == kind)


class Ledger:
    """One run's file, and the folder beside it that holds its keys."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.has_begun = False  # this object has written there: whatever becomes of the file, there may be instances

    @classmethod
    def of(cls, plan: LaunchPlan, folder: Path | None = None) -> Self:
        """The one of a run, which has yet to begin."""
        return cls((folder or state_folder()) / f"{plan.run}{_SUFFIX}")

    def begin(self, plan: LaunchPlan) -> None:
        """The plan is on disk when this returns. Nothing may be asked for before."""
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
        """Where the run's keys are; gone once the run is over."""
        return self.path.with_suffix("")

    def intend(self, kind: str, **what: Any) -> None:
        """Before every call that makes something, repetitions included."""
        self._append({"event": "intent", "kind": kind, **what})

    def got(self, kind: str, **what: Any) -> None:
        """It is there."""
        self._append({"event": "got", "kind": kind, **what})

    def note_refused(self, kind: str, **what: Any) -> None:
        """It is not, and will not come."""
        self._append({"event": "refused", "kind": kind, **what})

    def note(self, event: str, **what: Any) -> None:
        """Anything else that whoever reads on must know."""
        self._append({"event": event, **what})

    def note_held(self, owner: Owner, now: float | None = None) -> None:
        """The instances are this process's from now on. `now` is Amazon's time, if known: this machine's may be wrong."""
        self.note("held", owner=owner.text, **({} if now is None else {"since": round(now, 3)}))

    def note_kept(self) -> None:
        """The instances are nobody's: the next may have them."""
        self.note("kept")

    def close(self) -> None:
        """Amazon has shown that nothing is left: the keys are of no more use."""
        try:
            self.note("closed")
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    def read_record(self) -> LedgerRecord | None:
        """None: there is no such run, or it died before its plan was on disk, and so before it asked for anything.

        Or the file is damaged: then the tags of what it launched are all that is known (`reap`).
        """
        try:
            lines = read_file(self.path).split(b"\n")[:-1]  # a line without its end was being written when all ended
        except OSError:  # not there, not ours to read, or on a disk that fails
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
        """For whoever reads who holds the run, and then writes it. The lock falls with the process that has it.

        Raises `AllocationError` where the file system has no locks.
        """
        with _open_for_lock(self.path) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
            except OSError as exc:
                raise AllocationError(
                    f"{self.path} cannot be locked: {exc.strerror}. Two sessions could take the same instances; say a "
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
                    line = b"\n" + line  # after a line that was torn
                rest = memoryview(line)
                while rest:  # a disk that is nearly full takes a part of it
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
                "for; make room on that disk, or say another with XDG_STATE_HOME"
            ) from exc


def _open_for_lock(path: Path) -> IO[bytes]:
    """For writing, without which some file systems lock nothing; on a disk that is read-only, as it can be."""
    try:
        return path.open("ab")
    except OSError:
        return path.open("rb")


def _parse_entry(line: bytes) -> dict[str, Any] | None:
    """None for a line that is torn: it was being written when another process went on, or the file is damaged."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    whole = isinstance(entry, dict) and isinstance(entry.get("event"), str) and isinstance(entry.get("at"), int | float)
    return entry if whole and _SAYS.get(entry["event"], set()) <= entry.keys() else None


def list_ledgers(folder: Path | None = None) -> list[Ledger]:
    """All there are, the oldest first."""
    return [Ledger(path) for path in sorted((folder or state_folder()).glob(f"*{_SUFFIX}"))]


def list_damaged_ledgers(folder: Path | None = None) -> list[Ledger]:
    """Those that say something, but not what was launched. An empty one is no damage: it died before it asked for anything."""
    return [ledger for ledger in list_ledgers(folder) if ledger.read_record() is None and _is_something(ledger.path)]


def _is_something(path: Path) -> bool:
    try:
        return b"\n" in read_file(path)
    except OSError:
        return True


def delete_old_ledgers(folder: Path | None = None, now: Callable[[], float] = time.time) -> None:
    """Delete the ledgers of runs that were over long ago, and those, as old, from which nobody learns anything."""
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
