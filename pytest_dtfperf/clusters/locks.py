"""Locks among processes: one for a file, and tickets for hosts, which are served in the order of their numbers.

A process that wants a host draws a ticket: a file that it keeps locked (flock) while it waits or has the host. The kernel drops
the lock when the process ends, however it ends, and the next process that looks deletes the ticket. All checks and changes are
made under a lock on the folder itself.

The folder is this user's own, which the user's sessions on this machine share, or the one that DTFPERF_LOCKS names, which
several machines, users and containers can share.
"""

import errno
import fcntl
import hashlib
import json
import math
import os
import re
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self

from pytest_dtfperf.errors import AllocationError
from pytest_dtfperf.formats import format_minutes, printable
from pytest_dtfperf.node import processes
from pytest_dtfperf.node.files import read_file
from pytest_dtfperf.node.owner import Owner

_POLL_S = 0.1


@contextmanager
def lock_file(path: Path, *, within_s: float = math.inf) -> Iterator[None]:
    """Lock a path among processes. Raises `BlockingIOError` if it is still locked after `within_s`; 0: at once.

    Unlike filelock, it deletes its file.
    """
    handle = _lock_within(path, within_s)
    try:
        yield
    finally:
        with suppress(OSError):
            os.unlink(path)
        os.close(handle)


def _lock_within(path: Path, within_s: float) -> int:
    if math.isinf(within_s):
        return _lock(path, fcntl.LOCK_EX)
    deadline = time.monotonic() + within_s
    while True:
        try:
            return _lock(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(_POLL_S)


def _lock(path: Path, how: int) -> int:
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(handle, how)
            if os.fstat(handle).st_nlink:
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)  # its holder deleted it in between: other processes lock the file that is there now


FOLDER = "DTFPERF_LOCKS"
_TICKET_POLL_S = 0.1
_SHORT_POLL_S = 0.01
LOCK_TIMEOUT_S = 60.0
_MOST_NOTE_BYTES = 1 << 16
NOTICE_S = 5.0  # interval of messages to a waiting process
_WAITS, _HOLDS = "waits", "holds"
_TICKET = re.compile(rf"(?P<name>.+)\.(?P<number>[0-9]{{10,200}})\.(?P<state>{_WAITS}|{_HOLDS})")


@dataclass(frozen=True)
class LockHolder:
    """The process that has a host or waits for it, and its purpose."""

    owner: Owner
    session: str
    purpose: str
    since: float  # seconds since 1970

    @classmethod
    def make_own(cls, session: str, purpose: str) -> Self:
        """Return the entry of this process, from now on."""
        return cls(Owner.read_own(), session, purpose, time.time())

    def __str__(self) -> str:
        return f"process {self.owner.pid} ({self.purpose} since {time.strftime('%H:%M:%S', time.localtime(self.since))})"


@dataclass(frozen=True)
class LockWait:
    """The state of a wait for a host."""

    holders: Sequence[LockHolder | None]  # of the host; None: the ticket cannot be read
    ahead: int  # number of earlier tickets
    waited_s: float

    def __str__(self) -> str:
        """Format the state in a text that changes seldom: a log has a line for each."""
        parts = [f"held by {' and '.join(str(each or 'a process that left no name') for each in self.holders)}"]
        if not self.holders:
            parts = ["free at any moment"]
        if self.ahead:
            parts.append(f"{self.ahead} came before")
        if self.waited_s >= 60:
            minutes = 1 << (int(self.waited_s // 60).bit_length() - 1)  # 1, 2, 4, 8, ...
            parts.append(f"for {format_minutes(minutes)} by now")
        return ", ".join(parts)


OnWait = Callable[[LockWait], object]


@contextmanager
def lock_hosts(
    names: Iterable[str], slots: int, holder: LockHolder, on_wait: OnWait, *, folder: Path | None = None
) -> Iterator[None]:
    """Lock all these hosts, each of which serves `slots` at once, for the length of a `with` block.

    `on_wait` is called at once if a host is not free, and every few seconds until it is. Raises `AllocationError` if the
    folder cannot be used.
    """
    began = time.monotonic()
    folder = folder or find_lock_folder()
    with ExitStack() as held:
        for name in sorted(set(names)):  # the same order in every process prevents deadlocks
            held.enter_context(_hold_ticket(_TicketQueue(folder, name), slots, holder, on_wait, began))
        yield


def find_lock_folder() -> Path:
    """Return the folder of the tickets. Raises `AllocationError`."""
    given = os.environ.get(FOLDER)
    if not given:
        return make_runtime_folder()
    folder = Path(given)
    if not folder.is_dir() or not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise AllocationError(
            f"{FOLDER} = {given!r} is no folder that this user may write to. `install -d -m 1777 ...` makes one"
        )
    return folder


def make_runtime_folder() -> Path:
    """Return this user's own folder for files that a restart of the machine may delete."""
    parent = os.environ.get("XDG_RUNTIME_DIR")
    folder = Path(parent, "dtfperf") if parent else Path(tempfile.gettempdir(), f"dtfperf-{os.getuid()}")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except OSError as exc:
        raise AllocationError(
            f"{folder}, where sessions find each other, cannot be made: {exc.strerror}. Set XDG_RUNTIME_DIR"
        ) from exc
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():  # all users can write to /tmp
        raise AllocationError(f"{folder} is not a folder of this user: set XDG_RUNTIME_DIR to one that is")
    return folder


@contextmanager
def _hold_ticket(queue: "_TicketQueue", slots: int, holder: LockHolder, on_wait: OnWait, began: float) -> Iterator[None]:
    ticket = queue.draw(holder)
    try:
        reported_s = -NOTICE_S
        while wait := queue.try_take(ticket, slots):
            waited_s = time.monotonic() - began
            if waited_s - reported_s >= NOTICE_S:
                on_wait(LockWait(*wait, waited_s))
                reported_s = waited_s
            time.sleep(_TICKET_POLL_S)
        yield
    finally:
        queue.give_back(ticket)


@dataclass
class _Ticket:
    """A file of this process, which it keeps locked."""

    file: IO[bytes]
    path: Path
    number: int


class _TicketQueue:
    """The tickets of one host."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        readable = re.sub(r"[^A-Za-z0-9_-]", "_", name)[:80]
        self._name = f"{readable}-{hashlib.sha256(name.encode()).hexdigest()[:12]}"

    def draw(self, holder: LockHolder) -> _Ticket:
        """Add a ticket after all existing ones."""
        with self._lock_exclusively():
            others = [number for number, _, _ in self._list_others(None)]
            number = max(others, default=0) + 1
            # A foreign file of another user cannot be deleted in a shared folder.
            while any(os.path.lexists(self._path(number, state)) for state in (_WAITS, _HOLDS)):
                number += 1
            path = self._path(number, _WAITS)
            file = path.open("xb", buffering=0)  # unbuffered, or `close` would write a note again that a full disk has refused
            fcntl.flock(file, fcntl.LOCK_EX)
            os.fchmod(file.fileno(), 0o644)  # other processes must be able to try its lock and to read its holder
            ticket = _Ticket(file, path, number)
            self._write(ticket, holder)
            return ticket

    def try_take(self, ticket: _Ticket, slots: int) -> tuple[Sequence[LockHolder | None], int] | None:
        """Take the host if it is this ticket's turn; otherwise return its holders and the number of earlier tickets."""
        with self._lock_exclusively():
            others = self._list_others(ticket)
            holders = [path for _, state, path in others if state == _HOLDS]
            ahead = [path for number, state, path in others if state == _WAITS and number < ticket.number]
            waiting = [path for path in ahead if not _is_stopped(path)]  # a stopped process would block all others
            if len(holders) + len(waiting) >= slots:
                return [_read_holder(path) for path in holders], len(ahead)
            taken = self._path(ticket.number, _HOLDS)
            ticket.path.rename(taken)
            ticket.path = taken
            if holder := _read_holder(taken):  # counted from the allocation, not from the start of the wait
                self._write(ticket, LockHolder(holder.owner, holder.session, holder.purpose, time.time()))
            return None

    def give_back(self, ticket: _Ticket) -> None:
        """Release the host, or withdraw the ticket."""
        with self._lock_exclusively():
            ticket.path.unlink(missing_ok=True)
            fcntl.flock(ticket.file, fcntl.LOCK_UN)  # also in processes that were forked since
            ticket.file.close()

    def _list_others(self, mine: _Ticket | None) -> list[tuple[int, str, Path]]:
        """Return number, state and file of the other living processes' tickets for this host. Deletes those of dead ones."""
        found = []
        for path in self._folder.iterdir():
            parts = _TICKET.fullmatch(path.name)
            if not parts or (mine and path == mine.path):
                continue
            if not _is_held(path):
                with suppress(OSError):  # another user's, in a shared folder: that user's next session deletes it
                    path.unlink()
            elif parts["name"] == self._name:
                found.append((int(parts["number"]), parts["state"], path))
        return found

    def _path(self, number: int, state: str) -> Path:
        return self._folder / f"{self._name}.{number:010}.{state}"

    def _write(self, ticket: _Ticket, holder: LockHolder) -> None:
        note = {"owner": holder.owner.text, "session": holder.session, "what": holder.purpose, "since": holder.since}
        with suppress(OSError):  # on a full disk: the lock counts, the note is only for messages
            ticket.file.seek(0)
            ticket.file.truncate()
            ticket.file.write(json.dumps(note).encode())
            ticket.file.flush()

    @contextmanager
    def _lock_exclusively(self) -> Iterator[None]:
        try:
            handle = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                _lock_folder(handle)
                yield
            finally:
                os.close(handle)
        except OSError as exc:
            raise AllocationError(
                f"{self._folder}, where sessions wait for each other, cannot be used: {exc.strerror}. "
                f"Set XDG_RUNTIME_DIR, or {FOLDER}, to another folder"
            ) from exc


def _lock_folder(handle: int) -> None:
    """Raise `OSError` where another process keeps the folder's lock, which is needed for milliseconds."""
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    while True:
        try:
            return fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                message = f"another process has kept the folder itself locked for {LOCK_TIMEOUT_S:.0f} s"
                raise OSError(errno.ETIMEDOUT, message) from None
            time.sleep(_SHORT_POLL_S)


def _is_held(path: Path) -> bool:
    """Return whether its process is alive. A file that may not be opened, a link, a pipe or a folder is no ticket."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        if stat.S_ISREG(os.fstat(handle).st_mode):
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(handle)
    return False


def _is_stopped(path: Path) -> bool:
    """Return whether the waiting process has been stopped (Ctrl-Z), as far as it is visible from here."""
    holder = _read_holder(path)
    seen = processes.inspect(holder.owner.pid) if holder and holder.owner.is_local else None
    return seen is not None and seen.stopped


def _read_holder(path: Path) -> LockHolder | None:
    """Return a ticket's holder; None if its note is damaged or missing."""
    try:
        note = json.loads(read_file(path, _MOST_NOTE_BYTES))
        owner, since = Owner.parse(note["owner"]), float(note["since"])
        time.localtime(since)  # fails for numbers that are no time
        return LockHolder(owner, str(note["session"]), printable(str(note["what"])), since) if owner else None
    except (OSError, ValueError, LookupError, TypeError, RecursionError, OverflowError):
        return None
