"""Jobs that an outage has left: pytest, its keeper and its lease are gone, and so was Slurm when it should have been told.

Every job of ours says in its comment which process of which machine it is for. Only on that machine can anybody see whether the
process is still there; jobs that belong to others are shown, and cancelled only if whoever calls is sure.
"""

import re
import socket
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from pytest_dtfperf.clusters.slurm.answers import Job
from pytest_dtfperf.clusters.slurm.client import Client
from pytest_dtfperf.clusters.slurm.request import NAME_PREFIX
from pytest_dtfperf.clusters.slurm.states import Phase, phase_of

_COMMENT = re.compile(r"dtfperf session=(?P<session>\S+) owner=(?P<host>\S+):(?P<pid>\d+):(?P<started>\d+)")


@dataclass(frozen=True)
class Owner:
    """A process, for ever: ids are given again, but not at the same tick of the same machine's clock."""

    host: str
    pid: int
    started: int  # clock ticks since the machine's start

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


class Fate(Enum):
    """What has become of a job's owner."""

    LIVES = "is at work"
    GONE = "is gone"
    ELSEWHERE = "cannot be seen from here"


@dataclass(frozen=True)
class Left:
    """A job of ours in the queue."""

    job: Job
    session: str
    owner: Owner
    fate: Fate


def find(client: Client) -> list[Left]:
    """This user's jobs that a session of perf tests has submitted and that are not over. Raises `AllocationError`."""
    here = socket.gethostname()
    found = []
    for job in client.jobs_of_user():
        said = read_comment(job.comment)
        if said and job.name.startswith(NAME_PREFIX) and phase_of(job.state) is not Phase.OVER:
            session, owner = said
            found.append(Left(job, session, owner, fate_of(owner, here, is_alive)))
    return found


def read_comment(comment: str) -> tuple[str, Owner] | None:
    """(session, owner), or None if the comment is none of ours."""
    match = _COMMENT.fullmatch(comment.strip())
    if not match:
        return None
    return match["session"], Owner(match["host"], int(match["pid"]), int(match["started"]))


def fate_of(owner: Owner, host: str, alive: Callable[[Owner], bool]) -> Fate:
    """As seen from `host`."""
    if owner.host != host:
        return Fate.ELSEWHERE
    return Fate.LIVES if alive(owner) else Fate.GONE


def is_alive(owner: Owner) -> bool:
    """Whether this very process runs on this machine; one of the same id that began at another time is another one."""
    try:
        stat = Path(f"/proc/{owner.pid}/stat").read_bytes()
    except FileNotFoundError:
        return False
    state, *fields = stat.rpartition(b")")[2].split()
    return state not in (b"Z", b"X") and int(fields[18]) == owner.started
