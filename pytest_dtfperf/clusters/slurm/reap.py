"""Jobs that an outage has left: pytest, its watchdog and its keep-alive step are gone, and so was Slurm when it should have
been told.

Every job of ours says in its comment which process it is for. Only on that machine, and in that process's PID namespace, can
anybody see whether it is still there; jobs of others are shown, and cancelled only if whoever calls is sure.
"""

from dataclasses import dataclass

from pytest_dtfperf.clusters.slurm.answers import Job
from pytest_dtfperf.clusters.slurm.client import Client
from pytest_dtfperf.clusters.slurm.comment import read_comment
from pytest_dtfperf.clusters.slurm.request import NAME_PREFIX
from pytest_dtfperf.clusters.slurm.states import Phase, phase_of
from pytest_dtfperf.node.owner import Fate, Owner


@dataclass(frozen=True)
class Left:
    """A job of ours in the queue."""

    job: Job
    session: str
    owner: Owner
    fate: Fate


def find(client: Client) -> list[Left]:
    """This user's jobs that a session of perf tests has submitted and that are not over. Raises `AllocationError`."""
    found = []
    for job in client.jobs_of_user():
        comment = read_comment(job.comment)
        if comment and job.name.startswith(NAME_PREFIX) and phase_of(job.state) is not Phase.OVER:
            session, owner = comment
            found.append(Left(job, session, owner, owner.fate))
    return found
