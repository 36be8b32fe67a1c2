"""Waits until a job runs: patiently, with few questions, and not at all where waiting cannot help."""

import hashlib
import os
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from itertools import count
from pathlib import Path

from pytest_dtfperf.clusters.locks import lock_file, make_runtime_folder
from pytest_dtfperf.clusters.slurm import states
from pytest_dtfperf.clusters.slurm.client import SlurmClient, parse_queue
from pytest_dtfperf.clusters.slurm.outage import through_outages
from pytest_dtfperf.clusters.slurm.parse import Job
from pytest_dtfperf.clusters.slurm.states import Outlook, Phase
from pytest_dtfperf.errors import AllocationError, AllocationOver
from pytest_dtfperf.node import backoff
from pytest_dtfperf.node.files import replacing

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
PATIENCE_S = 90.0  # with whoever asks for all: Slurm's answer may take a minute
SITE = ("SLURM_CONF", "SLURM_CLUSTERS")  # variables that say which of several Slurms is asked: job 17 is another in each
_FEW = 8  # nodes that are named one by one
_GROWTH = 1.1  # of the pauses, which makes each a tenth of the time waited so far: so late a job's start is noticed, at most


class SharedQueue:
    """This user's jobs, asked for once by all processes on this machine that want to know."""

    def __init__(self, client: SlurmClient, folder: Path | None = None, patience_s: float = PATIENCE_S) -> None:
        self._client = client
        site = "\n".join(client.environment.get(name, "") for name in SITE)
        self._seen = (folder or make_runtime_folder()) / f"slurm-{hashlib.sha256(site.encode()).hexdigest()[:8]}.squeue"
        self._patience_s = patience_s

    def find(self, job_id: str, *, not_before: float) -> Job | None:
        """The job as squeue shows it, not as it was before `not_before` (seconds since 1970). None: squeue does not know it."""
        try:
            with lock_file(self._seen.with_suffix(".lock"), within_s=self._patience_s):
                text = self._shared(not_before)
        except OSError:  # a full disk, or somebody was stopped while asking: whoever cannot share asks alone
            text = self._client.queue()
        return next((job for job in parse_queue(text) if job.id == job_id), None)

    def _shared(self, not_before: float) -> str:
        asked = time.time()
        # Of a time to come it is where the clock has been put back; a second, for file systems round.
        if not self._seen.exists() or not not_before <= self._seen.stat().st_mtime <= asked + 1:
            text = self._client.queue()
            with replacing(self._seen) as fresh:
                fresh.write(text.encode())
                fresh.flush()
                os.utime(fresh.fileno(), (asked, asked))
        return self._seen.read_text(encoding="utf-8")


def wait_until_running(
    client: SlurmClient, queue: SharedQueue, job_id: str, *, max_pending_s: float | None, on_status: Callable[[str], object]
) -> Job:
    """Wait until the job has its nodes. Raises `AllocationError` as soon as it is clear that it will not get them.

    The caller cancels the job then: here nothing is but looked at.
    """
    submitted, began = time.time(), time.monotonic()
    was_hopeless = False
    for tries in count(1):
        pause_s = backoff.pause_s(tries, FIRST_PAUSE_S, LONGEST_PAUSE_S, growth=_GROWTH)
        not_before = max(submitted, time.time() - pause_s / 2)
        # A job that has long ended is forgotten by the queue first, by the controller next, by its accounting never.
        job = through_outages(partial(_find_job, client, queue, job_id, not_before), on_status)
        if job is None:
            raise AllocationOver(states.explain_unknown(job_id))
        phase = states.phase_of(job.state)
        if phase is Phase.RUNNING and job.nodes:
            on_status(f"Slurm job {job.id} runs on {format_nodes(job.nodes)}")
            return job
        if phase in (Phase.ENDING, Phase.OVER):
            raise AllocationOver(states.explain_end(client.job(job_id) or job))
        outlook = states.judge_reason(job.reason)
        if outlook.outlook is Outlook.HOPELESS and was_hopeless:
            raise AllocationError(f"Slurm job {job_id} cannot start: {outlook.words} ({job.reason})")
        was_hopeless = outlook.outlook is Outlook.HOPELESS  # what Slurm says at first is often not yet the whole truth
        if max_pending_s is not None and time.monotonic() - began > max_pending_s:
            raise AllocationError(
                f"{_format_pending(job)}: not started within max_pending = {max_pending_s:g} s, and cancelled"
            )
        on_status(_format_pending(job))
        time.sleep(pause_s)
    raise AssertionError("it is looked for ever")


def _find_job(client: SlurmClient, queue: SharedQueue, job_id: str, not_before: float) -> Job | None:
    return queue.find(job_id, not_before=not_before) or client.job(job_id)


def _format_pending(job: Job) -> str:
    """What is known of a job that waits: `Slurm job 17 pending, expected to start 14:05: others go first (Priority)`.

    In a narrow terminal the end is cut off.
    """
    words = f"Slurm job {job.id} {job.state.lower()}"
    if job.start and job.start > time.time():
        start = datetime.fromtimestamp(job.start)
        words += f", expected to start {start:%H:%M}" + (f" on {start:%Y-%m-%d}" if job.start - time.time() > 86400 / 2 else "")
    if job.reason not in ("", "None"):
        words += f": {states.judge_reason(job.reason).words} ({job.reason})"
    return words


def format_nodes(nodes: Sequence[str]) -> str:
    """The nodes, or of many the first and how many more."""
    return ", ".join(nodes) if len(nodes) <= _FEW else f"{nodes[0]} and {len(nodes) - 1} others"
