"""Jobs and sruns that an outage has left behind: pytest, its watchdog and its keep-alive step are gone.

Each job has its process in its comment, and each srun in its environment. Only on that machine, and in that process's PID
namespace, can it be checked whether the process still runs. Other jobs are listed, and cancelled only on request. An srun is
on the same machine, and waits for Slurm's controller without end.
"""

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from pytest_dtfperf.clusters.slurm.client import SlurmClient
from pytest_dtfperf.clusters.slurm.job_keepalive import SRUN_LEAVES_S
from pytest_dtfperf.clusters.slurm.parse import SlurmJob
from pytest_dtfperf.clusters.slurm.request import NAME_PREFIX, parse_job_comment
from pytest_dtfperf.clusters.slurm.states import Phase, get_phase
from pytest_dtfperf.node import processes, sweep
from pytest_dtfperf.node.owner import Fate, Owner


@dataclass(frozen=True)
class LeftJob:
    """A job of this package in the queue."""

    job: SlurmJob
    session: str
    owner: Owner
    fate: Fate


def find_left_sruns() -> dict[Owner, list[int]]:
    """Return this user's sruns on this machine by owner, of owners that have ended. Each has a child process of its own."""
    all_of_them = _list_sruns()
    found: dict[Owner, list[int]] = defaultdict(list)
    for process, owner in all_of_them.items():
        seen = processes.inspect(process)
        if seen and seen.parent not in all_of_them:
            found[owner].append(process)
    return found


def end_sruns(owner: Owner) -> bool:
    """End an owner's sruns, and return whether none is left. Searches again, because a process id may be reused."""
    return not processes.end_processes(
        lambda: [process for process, its in _list_sruns().items() if its == owner], grace_s=SRUN_LEAVES_S
    )


def _list_sruns() -> dict[int, Owner]:
    seen = {
        pid: Owner.parse(sweep.read_environment(pid).get(sweep.OWNER, ""))
        for pid in sweep.find_left_processes((), abandoned=True)
    }
    return {pid: owner for pid, owner in seen.items() if owner and _read_program(pid) == "srun"}


def _read_program(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").rstrip("\n")
    except OSError:  # it has just ended
        return ""


def find_left_jobs(client: SlurmClient) -> list[LeftJob]:
    """Return this user's jobs that a session has submitted and that are not over. Raises `AllocationError`."""
    found = []
    for job in client.jobs_of_user():
        comment = parse_job_comment(job.comment)
        if comment and job.name.startswith(NAME_PREFIX) and get_phase(job.state) is not Phase.OVER:
            session, owner = comment
            found.append(LeftJob(job, session, owner, owner.fate))
    return found
