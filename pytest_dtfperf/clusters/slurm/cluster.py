"""Slurm as a backend: submit a job, poll until it runs, use its nodes, cancel it. Or use the job in which pytest runs.

Few questions poll the queue, shared by all processes of this user on this machine. A wait ends early if it cannot
succeed.
"""

import copy
import hashlib
import itertools
import os
import subprocess
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from pytest_dtfperf.clusters.children import Watchdog, sweep_machine
from pytest_dtfperf.clusters.locks import lock_file, make_runtime_folder
from pytest_dtfperf.clusters.named import Backend, ClusterConfig, get_python
from pytest_dtfperf.clusters.protocol import Allocation, Host, Resources
from pytest_dtfperf.clusters.slurm import job_keepalive, keys, parse, request, states
from pytest_dtfperf.clusters.slurm.channel import SrunChannel
from pytest_dtfperf.clusters.slurm.client import (
    ControllerDown,
    NotConfigured,
    SlurmClient,
    get_pause_s,
    parse_queue,
    retry_while_down,
)
from pytest_dtfperf.clusters.slurm.job_keepalive import Keepalive
from pytest_dtfperf.clusters.slurm.keys import KEYS
from pytest_dtfperf.clusters.slurm.parse import SlurmJob
from pytest_dtfperf.clusters.slurm.request import format_job_comment
from pytest_dtfperf.clusters.slurm.states import JobOutlook, Phase
from pytest_dtfperf.errors import AllocationError, AllocationOver
from pytest_dtfperf.formats import format_count
from pytest_dtfperf.node import sweep
from pytest_dtfperf.node.files import replace_file
from pytest_dtfperf.node.module_command import make_module_command
from pytest_dtfperf.node.owner import Owner

PATIENCE_S = 90.0  # of the process that asks for all: Slurm's answer may take a minute
SITE = ("SLURM_CONF", "SLURM_CLUSTERS")  # variables that select one of several Slurms: job 17 is another job in each
_FEW = 8  # nodes that a message lists one by one


class SharedQueue:
    """A cache of this user's jobs, which all processes on this machine share."""

    def __init__(self, client: SlurmClient, folder: Path | None = None, patience_s: float = PATIENCE_S) -> None:
        self._client = client
        site = "\n".join(client.environment.get(name, "") for name in SITE)
        self._seen = (folder or make_runtime_folder()) / f"slurm-{hashlib.sha256(site.encode()).hexdigest()[:8]}.squeue"
        self._patience_s = patience_s

    def find(self, job_id: str, *, not_before: float) -> SlurmJob | None:
        """Return the job from squeue, not older than `not_before` (seconds since 1970). None: squeue does not know it."""
        try:
            with lock_file(self._seen.with_suffix(".lock"), within_s=self._patience_s):
                text = self._read_shared_answer(not_before)
        except OSError:  # a full disk, or the asking process was stopped: ask without the cache
            text = self._client.read_queue()
        return next((job for job in parse_queue(text) if job.id == job_id), None)

    def _read_shared_answer(self, not_before: float) -> str:
        asked = time.time()
        # A time in the future means that the clock was put back; the second allows for file systems that round.
        if not self._seen.exists() or not not_before <= self._seen.stat().st_mtime <= asked + 1:
            text = self._client.read_queue()
            with replace_file(self._seen) as fresh:
                fresh.write(text.encode())
                fresh.flush()
                os.utime(fresh.fileno(), (asked, asked))
        return self._seen.read_text(encoding="utf-8")


def wait_until_running(
    client: SlurmClient, queue: SharedQueue, job_id: str, *, max_pending_s: float | None, on_status: Callable[[str], object]
) -> SlurmJob:
    """Wait until the job has its nodes. Raises `AllocationError` as soon as it is clear that it will not get them.

    The caller then cancels the job: this function only reads its state.
    """
    submitted, began = time.time(), time.monotonic()
    was_hopeless = False
    for tries in count(1):
        pause_s = get_pause_s(tries)
        not_before = max(submitted, time.time() - pause_s / 2)
        # The queue forgets an ended job first, then the controller, the accounting never.
        job = retry_while_down(partial(_find_job, client, queue, job_id, not_before), on_status)
        if job is None:
            raise AllocationOver(states.explain_unknown(job_id))
        phase = states.get_phase(job.state)
        if phase is Phase.RUNNING and job.nodes:
            on_status(f"Slurm job {job.id} runs on {format_nodes(job.nodes)}")
            return job
        if phase in (Phase.ENDING, Phase.OVER):
            raise AllocationOver(states.explain_end(client.find_job(job_id) or job))
        outlook = states.judge_reason(job.reason)
        if outlook.outlook is JobOutlook.HOPELESS and was_hopeless:
            raise AllocationError(f"Slurm job {job_id} cannot start: {outlook.description} ({job.reason})")
        was_hopeless = outlook.outlook is JobOutlook.HOPELESS  # Slurm's first reason is often preliminary
        if max_pending_s is not None and time.monotonic() - began > max_pending_s:
            raise AllocationError(
                f"{_format_pending(job)}: not started within max_pending = {max_pending_s:g} s, and cancelled"
            )
        on_status(_format_pending(job))
        time.sleep(pause_s)
    raise AssertionError("the loop does not end")


def _find_job(client: SlurmClient, queue: SharedQueue, job_id: str, not_before: float) -> SlurmJob | None:
    return queue.find(job_id, not_before=not_before) or client.find_job(job_id)


def _format_pending(job: SlurmJob) -> str:
    """Format the state of a waiting job: `Slurm job 17 pending, expected to start 14:05: others go first (Priority)`.

    A narrow terminal cuts off the end.
    """
    message = f"Slurm job {job.id} {job.state.lower()}"
    if job.start and job.start > time.time():
        start = datetime.fromtimestamp(job.start)
        message += f", expected to start {start:%H:%M}" + (
            f" on {start:%Y-%m-%d}" if job.start - time.time() > 86400 / 2 else ""
        )
    if job.reason not in ("", "None"):
        message += f": {states.judge_reason(job.reason).description} ({job.reason})"
    return message


def format_nodes(nodes: Sequence[str]) -> str:
    """Format the nodes; if there are many, the first ones and the number of the others."""
    return ", ".join(nodes) if len(nodes) <= _FEW else f"{nodes[0]} and {len(nodes) - 1} others"


START_S = 120.0  # for srun to start a process on every node: prologs and module systems on cold file systems are slow
ENDING_S = 10.0  # the reason of a job's end is known only when its last process is gone
SWEEP_S = 20.0
KEEPALIVE_NODES = 3  # on which the keep-alive step is tried if nodes may fail
_POLL_S = 0.25
_numbers = itertools.count(1)


class SlurmBackend(Backend):
    """Nodes that Slurm allocates."""

    keys = KEYS
    hosts_key = "nodes"
    cores_key = "cpus_per_node"
    spread_key = "nodes_per_gpu_count"
    max_jobs = 4

    def open_cluster(self, config: ClusterConfig) -> "Slurm":
        return Slurm(config)

    def validate(self, table: Mapping[str, Any]) -> str | None:
        return keys.validate(table)

    def select_hosts(self, config: ClusterConfig, names: str) -> ClusterConfig:
        return request.select_nodes(config, names)

    def count_allocated_hosts(self) -> int | None:
        return keys.count_nodes_of_job()

    def count_gpus(self, backend_keys: Mapping[str, Any]) -> int | None:
        return keys.get_gpus_per_node(backend_keys)

    def get_lifetime_s(self, backend_keys: Mapping[str, Any]) -> float | None:
        return keys.get_lifetime_s(backend_keys)

    def share_hosts(self, allocation: Allocation, config: ClusterConfig, without: Collection[str] = ()) -> "SlurmAllocation":
        assert isinstance(allocation, SlurmAllocation)
        return allocation.copy_with(config, without)

    def list_commands(self, config: ClusterConfig, resources: Resources) -> Sequence[str]:
        return request.list_commands(config, resources)

    def list_shared_machines(self, config: ClusterConfig) -> Sequence[str]:
        """Return the job in which this process runs: its nodes are those of every allocation."""
        job_id = os.environ.get("SLURM_JOB_ID")
        return [f"slurm-job-{job_id}"] if job_id else []


class Slurm:
    """Nodes of a Slurm cluster, as described in clusters.toml."""

    def __init__(self, config: ClusterConfig) -> None:
        self._config = config

    @contextmanager
    def allocate(self, resources: Resources) -> Iterator[Allocation]:
        client = SlurmClient(wanted=self._config.environment)
        nodes = request.count_nodes(self._config, resources)
        sweep_machine(abandoned=True)
        if job_id := os.environ.get("SLURM_JOB_ID"):
            names = _list_nodes_of_this_job(client, job_id, nodes)
            resources.on_status(f"inside Slurm job {job_id}, on {format_nodes(names)}")
            with job_keepalive.make_srun_watchdog(client) as watchdog:
                try:
                    yield SlurmAllocation(self._config, client, job_id, names, resources.on_status)
                finally:
                    watchdog.cancel()
        else:
            name = f"{request.NAME_PREFIX}{resources.session}-{os.getpid()}-{next(_numbers)}"
            with self._job(client, nodes, name, resources) as (job_id, names), ExitStack() as held:
                self._keepalive(held, client, job_id, name, names, resources)
                yield SlurmAllocation(self._config, client, job_id, names, resources.on_status)

    @contextmanager
    def _job(self, client: SlurmClient, nodes: int, name: str, resources: Resources) -> Iterator[tuple[str, Sequence[str]]]:
        """Yield a job and its nodes, and cancel it at the end of the block."""
        known = request.select_partition(self._config, client.list_nodes())
        unavailable = request.list_unavailable(self._config, known)
        if unavailable:
            resources.on_status(f"Slurm gives no jobs to {format_nodes(list(map(str, unavailable)))}")
        argv = request.make_submit_command(
            self._config,
            nodes=nodes,
            name=name,
            comment=format_job_comment(resources.session, Owner.read_own()),
            unavailable=[node.name for node in unavailable],
        )
        patience_s = request.get_max_pending_s(self._config)
        with job_keepalive.make_job_watchdog(client, name) as watchdog:
            job_id = _submit(client, argv, name, watchdog, resources.on_status)
            try:
                job = wait_until_running(
                    client, SharedQueue(client), job_id, max_pending_s=patience_s, on_status=resources.on_status
                )
                if kinds := request.describe_kinds(self._config, known, job.nodes):
                    resources.on_status(kinds)
                yield job_id, job.nodes
            finally:
                with suppress(AllocationError):  # the controller does not answer; the watchdog tries again
                    client.cancel([job_id])
                    watchdog.cancel()

    def _keepalive(
        self, held: ExitStack, client: SlurmClient, job_id: str, name: str, nodes: Sequence[str], resources: Resources
    ) -> None:
        """Start the keep-alive step on the first node; if it may fail, on another one of the first."""
        *others, last = nodes[: KEEPALIVE_NODES if resources.may_lack_hosts else 1]
        command = job_keepalive.make_keepalive_command(name, self._config.heartbeat_timeout_s)

        def start(node: str) -> None:
            step = request.make_keepalive_step(self._config, job=job_id, node=node, argv=command)
            retry_while_down(lambda: held.enter_context(Keepalive(client, node, step)), resources.on_status)

        for node in others:
            try:
                start(node)
            except ControllerDown:
                raise
            except AllocationError as error:
                resources.on_status(" ".join(str(error).split()))
            else:
                return
        start(last)


class SlurmAllocation:
    """The nodes of a job."""

    def __init__(
        self, config: ClusterConfig, client: SlurmClient, job_id: str, nodes: Sequence[str], on_status: Callable[[str], object]
    ) -> None:
        self._config = config
        self._client = client
        self._job_id = job_id
        self._nodes = nodes
        self._step = request.AGENTS
        addresses = retry_while_down(
            partial(client.find_addresses, nodes), on_status
        )  # retried: the wait for the nodes was long
        switches = client.find_switches()
        self.hosts = [Host(node, addresses[node], switches.get(node)) for node in nodes]

    def copy_with(self, config: ClusterConfig, without: Collection[str] = ()) -> "SlurmAllocation":
        """Return the same nodes, but some, with another stack, whose agents are a step of their own."""
        found = copy.copy(self)
        found._config, found._client = config, SlurmClient(wanted=config.environment)
        found._step = f"{request.AGENTS}-{next(_numbers)}"
        found._nodes = [node for node in self._nodes if node not in without]
        found.hosts = [host for host in self.hosts if host.name not in without]
        return found

    def start(self, argv: Sequence[str]) -> SrunChannel:
        session = uuid.uuid4().hex
        command = request.make_wrapper(self._config, argv)
        return SrunChannel(
            request.make_agents_command(self._config, job=self._job_id, nodes=self._nodes, argv=command, name=self._step),
            {**self._client.step_environment, sweep.SESSION: session},
            self._nodes,
            why_over=self._explain_end,
            clean_up=partial(self._clean_up, session),
            start_s=START_S,
        )

    def _explain_end(self, failed_nodes: Sequence[str] = ()) -> str | None:
        """Return why the job ended; None while it runs. srun knows which node has failed if scontrol does not."""
        deadline = time.monotonic() + ENDING_S
        while True:
            try:
                job = self._client.find_job(self._job_id)
            except AllocationError:  # the controller does not answer, which running jobs do not need
                return None
            if job is None:
                return states.explain_unknown(self._job_id)
            phase = states.get_phase(job.state)
            if job.state not in states.STATES or (phase is Phase.RUNNING and job.state not in states.STANDSTILL):
                return None
            if phase is Phase.WAITING:  # requeued after it had run
                return states.explain_end(replace(job, state="REQUEUED"))
            if phase is not Phase.ENDING or time.monotonic() > deadline:
                return states.explain_end(replace(job, failed_node=job.failed_node or next(iter(failed_nodes), None)))
            time.sleep(_POLL_S)

    def _clean_up(self, session: str) -> None:
        """End a step that srun did not end, and processes that a killed agent left on its node. Errors are ignored."""
        with suppress(AllocationError, subprocess.TimeoutExpired, OSError):
            job = self._client.find_job(self._job_id)
            if job is None or states.get_phase(job.state) is not Phase.RUNNING or job.state in states.STANDSTILL:
                return  # Slurm ends its processes, and cannot end a step before
            self._client.cancel_steps(self._job_id, self._step)
            program = request.make_wrapper(self._config, make_module_command(get_python(self._config), sweep.__name__, session))
            subprocess.run(
                request.make_sweep_command(self._config, job=self._job_id, nodes=self._nodes, argv=program),
                env=self._client.step_environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=SWEEP_S,
                check=False,
            )


def _submit(client: SlurmClient, argv: Sequence[str], name: str, watchdog: Watchdog, on_status: Callable[[str], object]) -> str:
    """Submit, and return the job's id. After an outage, it first checks whether the controller has accepted the job."""
    tried = False

    def submit() -> str:
        nonlocal tried
        taken = next((job.id for job in client.list_jobs() if job.name == name), None) if tried else None
        first, tried = not tried, True
        try:
            return taken or client.submit(argv, job_keepalive.JOB_SCRIPT)
        except NotConfigured as exc:
            if first:  # without any earlier answer, retries would not help
                raise AllocationError(
                    f"this machine knows of no Slurm cluster; is SLURM_CONF what it should be? {exc}"
                ) from None
            raise

    try:
        return retry_while_down(submit, on_status)
    except ControllerDown:
        raise
    except AllocationError:  # Slurm has refused the job
        watchdog.cancel()
        raise


def _list_nodes_of_this_job(client: SlurmClient, job_id: str, wanted: int) -> Sequence[str]:
    """Return the nodes of the user's job in which pytest runs; the user ends it."""
    with suppress(ControllerDown):  # a running job does not need the controller
        job = client.find_job(job_id)
        if job is None or states.get_phase(job.state) is not Phase.RUNNING:
            raise AllocationError(
                f"SLURM_JOB_ID names Slurm job {job_id}, but that is {job.state if job else 'not known'}. "
                "Unset SLURM_JOB_ID for a job of its own"
            )
    nodes = parse.expand_hostlist(os.environ.get("SLURM_JOB_NODELIST", ""))
    if wanted > len(nodes):
        raise AllocationError(
            f"this is inside Slurm job {job_id}, which has {format_count(len(nodes), 'node')}, but {wanted} are needed. "
            "Give the job more nodes, ask for fewer devices, or unset SLURM_JOB_ID for a job of its own"
        )
    return nodes[:wanted]
