"""The owner of a process, job, instance or lock, and whether that owner still runs.

A process id identifies a process only within its PID namespace, until the id is used again or the machine restarts. Therefore
an owner consists of the machine's boot id, the namespace, the process id and the start time. If the boot id differs, which may
mean another machine, or the namespace differs, which may mean another container of the same name and home, this process cannot
see whether the owner still runs, and leaves its resources alone until they end by themselves.
"""

from __future__ import annotations

import os
import re
import socket
from collections import namedtuple
from enum import Enum

from pytest_dtfperf.node import processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NamedTuple, Self

    class _Names(NamedTuple):
        host: str
        boot: str
        namespace: str
        pid: int
        started: int
else:  # agents start faster without typing
    _Names = namedtuple("_Names", "host boot namespace pid started")

_TEXT = re.compile(r"([^\s:]+):([0-9a-f-]*):([0-9]*):([1-9][0-9]{0,9}):([0-9]{1,19})")


class Fate(Enum):
    """The state of an owner, as far as this process can see it."""

    LIVES = "is at work"
    GONE = "is gone"
    ELSEWHERE = "cannot be seen from here"


class Owner(_Names):
    """A process, identified uniquely across machines and time.

    Attributes:
        host: The name of its machine, for messages: containers may share one.
        boot: The machine's boot id; empty if it is unknown.
        namespace: The number of its PID namespace.
        pid: Its process id in that namespace.
        started: Its start, in clock ticks since the machine's boot.
    """

    __slots__ = ()

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    @property
    def location(self) -> str:
        """The machine or container from which the owner can be seen."""
        elsewhere = self.host == socket.gethostname() and not self.is_local
        return f"another container on {self.host} (or {self.host} before its last start)" if elsewhere else self.host

    @property
    def text(self) -> str:
        """The text that `parse` reads. It is used in environments, tags of instances and comments of jobs."""
        return f"{self.host}:{self.boot}:{self.namespace}:{self.pid}:{self.started}"

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Return the owner in a text; None if the text is not an owner."""
        found = _TEXT.fullmatch(text)
        return cls(found[1], found[2], found[3], int(found[4]), int(found[5])) if found else None

    @classmethod
    def read_or_unknown(cls, text: object) -> Self:
        """Return the owner in a text; for other text, an owner that cannot be seen from any machine."""
        return (cls.parse(text) if isinstance(text, str) else None) or cls("an unknown machine", "", "", 1, 0)

    @classmethod
    def read_own(cls) -> Self:
        """Return the owner that is this process."""
        myself = processes.inspect("self")
        return cls(socket.gethostname(), *_read_namespace(), os.getpid(), myself.started if myself else 0)

    @property
    def is_local(self) -> bool:
        """Whether its process id is valid in this PID namespace of this boot."""
        return bool(self.boot) and (self.boot, self.namespace) == _read_namespace()

    @property
    def fate(self) -> Fate:
        """The state of the owner, as far as this process can see it."""
        if not self.is_local:
            return Fate.ELSEWHERE
        if self.pid != os.getpid() and not _shows_this_namespace():
            return Fate.ELSEWHERE
        seen = processes.inspect("self" if self.pid == os.getpid() else self.pid)
        if seen is None:
            return Fate.ELSEWHERE if _is_hidden(self.pid) else Fate.GONE
        return Fate.LIVES if seen.started == self.started and seen.state not in processes.DEAD else Fate.GONE


def boot_id() -> str:
    """Return this machine's boot id, which all its containers share; empty if /proc does not have it."""
    return _read_namespace()[0]


def _read_namespace() -> tuple[str, str]:
    """Return this machine's boot id and this process's PID namespace; empty if /proc does not have them."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        return boot, re.sub("[^0-9]", "", os.readlink("/proc/self/ns/pid"))  # pid:[4026531836]
    except OSError:
        return "", ""


def _shows_this_namespace() -> bool:
    """Return whether /proc is mounted in this PID namespace; otherwise its ids are those of other processes."""
    try:
        return os.readlink("/proc/self") == str(os.getpid())
    except OSError:
        return False


def _is_hidden(pid: int) -> bool:
    """Return whether a process with this id exists that /proc hides, as it does for other users with hidepid."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True  # it has just started
