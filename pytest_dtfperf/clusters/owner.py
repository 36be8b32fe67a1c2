"""Whose jobs and instances are: written on them when they are asked for, read there when an outage has left them behind."""

import os
import socket
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Self


@dataclass(frozen=True)
class Owner:
    """A process, for ever: ids are given again, but not at the same tick of the same machine's clock."""

    host: str
    pid: int
    started: int  # clock ticks since the machine's start

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    @classmethod
    def me(cls) -> Self:
        """This very process."""
        started, _ = _look(os.getpid()) or (0, b"")
        return cls(socket.gethostname(), os.getpid(), started)

    def is_alive(self) -> bool:
        """Whether it runs on this machine; one of the same id that began at another time is another one."""
        found = _look(self.pid)
        return found is not None and found[0] == self.started and found[1] not in (b"Z", b"X")


class Fate(Enum):
    """What has become of an owner."""

    LIVES = "is at work"
    GONE = "is gone"
    ELSEWHERE = "cannot be seen from here"


def fate_of(owner: Owner, host: str) -> Fate:
    """As seen from `host`, which this process runs on."""
    if owner.host != host:
        return Fate.ELSEWHERE
    return Fate.LIVES if owner.is_alive() else Fate.GONE


def _look(pid: int) -> tuple[int, bytes] | None:
    """When a process of this machine began, and its state."""
    try:
        # The second field is the command's name in parentheses, and may itself hold blanks and parentheses.
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(fields[19]), fields[0]
