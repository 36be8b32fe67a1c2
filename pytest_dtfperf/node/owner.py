"""The owner of something, and what has become of that process: the same answer for processes, jobs, instances and locks.

A process id means one process only within its PID namespace, until it is given again, and until the machine's next start. So
an owner is named by the machine's boot, the namespace, the id, and the moment it began. An owner of another boot, which may
be another machine, or of another namespace, which may be another container of the same name and home, cannot see whether it is
still at work, and leaves what it owns alone until that ends by itself.
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
else:  # which saves agents the import of typing
    _Names = namedtuple("_Names", "host boot namespace pid started")

_TEXT = re.compile(r"([^\s:]+):([0-9a-f-]*):([0-9]*):([1-9][0-9]{0,9}):([0-9]{1,19})")
_DEAD = ("Z", "X")


class Fate(Enum):
    """What has become of an owner."""

    LIVES = "is at work"
    GONE = "is gone"
    ELSEWHERE = "cannot be seen from here"


class Owner(_Names):
    """A process, identified uniquely for all time.

    host: its machine's name, for people: containers may share one
    boot: the machine's boot id; empty where it is not known
    namespace: the number of its PID namespace
    started: in clock ticks since the machine's start
    """

    __slots__ = ()

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    @property
    def location(self) -> str:
        """Where it can be seen."""
        elsewhere = self.host == socket.gethostname() and not self.is_of_here
        return f"another container on {self.host} (or {self.host} before its last start)" if elsewhere else self.host

    @property
    def text(self) -> str:
        """Return what `parse` reads: it is put into environments, tags of instances and comments of jobs."""
        return f"{self.host}:{self.boot}:{self.namespace}:{self.pid}:{self.started}"

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Return the owner in a text; None where it names none."""
        found = _TEXT.fullmatch(text)
        return cls(found[1], found[2], found[3], int(found[4]), int(found[5])) if found else None

    @classmethod
    def read_or_unknown(cls, text: object) -> Self:
        """Return the owner in a text; for text that names none, an owner that cannot be seen from anywhere."""
        return (cls.parse(text) if isinstance(text, str) else None) or cls("an unknown machine", "", "", 1, 0)

    @classmethod
    def me(cls) -> Self:
        """Return this very process."""
        myself = processes.inspect("self")
        return cls(socket.gethostname(), *_here(), os.getpid(), myself.started if myself else 0)

    @property
    def is_of_here(self) -> bool:
        """Whether its process id means here what it means there."""
        return bool(self.boot) and (self.boot, self.namespace) == _here()

    @property
    def fate(self) -> Fate:
        """Return what this process can find out about it."""
        if not self.is_of_here:
            return Fate.ELSEWHERE
        if self.pid != os.getpid() and not _shows_this_namespace():
            return Fate.ELSEWHERE
        seen = processes.inspect("self" if self.pid == os.getpid() else self.pid)
        if seen is None:
            return Fate.ELSEWHERE if _is_hidden(self.pid) else Fate.GONE
        return Fate.LIVES if seen.started == self.started and seen.state not in _DEAD else Fate.GONE


def boot_id() -> str:
    """Return this machine's boot id, the same in all its containers. Empty where /proc does not have it."""
    return _here()[0]


def _here() -> tuple[str, str]:
    """Return this machine's boot and this process's PID namespace; empty where /proc does not have them."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        return boot, re.sub("[^0-9]", "", os.readlink("/proc/self/ns/pid"))  # pid:[4026531836]
    except OSError:
        return "", ""


def _shows_this_namespace() -> bool:
    """Return whether /proc has been mounted in this PID namespace: else it shows other processes below the same ids."""
    try:
        return os.readlink("/proc/self") == str(os.getpid())
    except OSError:
        return False


def _is_hidden(pid: int) -> bool:
    """Whether there is a process of that id that /proc does not show: it may be mounted to hide other users' (hidepid)."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True  # it has begun just now
