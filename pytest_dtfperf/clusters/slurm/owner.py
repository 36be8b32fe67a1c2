"""Whose a job is: written into its comment when it is submitted, read there when an outage has left it behind."""

import os
import re
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Self

_COMMENT = re.compile(r"dtfperf session=(?P<session>\S+) owner=(?P<host>\S+):(?P<pid>\d+):(?P<started>\d+)")


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


def write_comment(session: str, owner: Owner) -> str:
    """What a job says of itself."""
    return f"dtfperf session={session} owner={owner.host}:{owner.pid}:{owner.started}"


def read_comment(comment: str) -> tuple[str, Owner] | None:
    """(session, owner), or None if the comment is none of ours."""
    match = _COMMENT.fullmatch(comment.strip())
    if not match:
        return None
    return match["session"], Owner(match["host"], int(match["pid"]), int(match["started"]))


def _look(pid: int) -> tuple[int, bytes] | None:
    """When a process of this machine began, and its state."""
    try:
        # The second field is the command's name in parentheses, and may itself hold blanks and parentheses.
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(fields[19]), fields[0]
