"""Allocate hosts for a checkup, together or one by one, with a checkup process on each and one channel to all."""

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial

from pytest_dtfperf.clusters import capacity, named
from pytest_dtfperf.clusters.locks import LockHolder, LockWait, lock_hosts
from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.clusters.protocol import Allocation, Channel, Host, Lost, Resources
from pytest_dtfperf.errors import DtfPerfError, HostLost, UsageError
from pytest_dtfperf.node import wire
from pytest_dtfperf.node.module_command import make_module_command
from pytest_dtfperf.records.session import new_session_id

_LISTEN_S = 0.25  # delay until the end is noticed
_MOST_WAITING = 10_000  # lines of all hosts that may wait to be handled; then hosts have to wait
_IDLE_S = 1.0
_LEAVE_S = 30.0  # for connections that are being made; running processes exit at once

OpenAllocation = Callable[[], AbstractContextManager[Allocation]]


@dataclass(frozen=True)
class CheckupHosts:
    """Hosts with a checkup process on each."""

    hosts: Sequence[Host]
    channel: Channel
    missing: Mapping[int, str]  # hosts that could not be allocated -> the reason


@contextmanager
def allocate_one_by_one(
    known: Sequence[Host], allocators: Sequence[OpenAllocation], argv: Sequence[str], *, at_once: int, idle: bytes
) -> Iterator[CheckupHosts]:
    """Allocate one host per function. Hosts that fail are missing; the others are used.

    Args:
        known: The hosts' names before they are connected.
        allocators: Functions that each allocate one host.
        argv: The command of the checkup.
        at_once: How many hosts are connected at the same time.
        idle: A heartbeat for hosts that wait for slower ones.
    """
    several = HostChannels(at_once, idle)
    try:
        for host, allocate in enumerate(allocators):
            several.add(host, allocate, [*argv, "--host", str(host)])
        hosts, missing = several.wait()
        yield CheckupHosts([hosts.get(i, each) for i, each in enumerate(known)], several, missing)
    finally:
        several.close()


class HostChannels:
    """A `Channel` over several channels, each to one host and in a thread of its own.

    `idle` is a heartbeat for hosts that wait for slower ones.
    """

    def __init__(self, at_once: int, idle: bytes) -> None:
        self._idle = idle
        self._complete = threading.Event()
        self._may_start = threading.Semaphore(at_once)
        self._over = threading.Event()
        self._arrived: queue.Queue[tuple[int, bytes | Lost]] = queue.Queue(_MOST_WAITING)
        self._threads: list[threading.Thread] = []
        self._started: list[threading.Event] = []
        self._channels: dict[int, Channel] = {}
        self._hosts: dict[int, Host] = {}
        self._missing: dict[int, str] = {}

    def add(self, host: int, allocate: OpenAllocation, argv: Sequence[str]) -> None:
        started = threading.Event()
        thread = threading.Thread(
            target=self._lead, args=(host, allocate, argv, started), name=f"dtfperf-host-{host}", daemon=True
        )
        self._started.append(started)
        self._threads.append(thread)
        thread.start()

    def wait(self) -> tuple[Mapping[int, Host], Mapping[int, str]]:
        """Wait until each host has started or failed. Returns the hosts, and the reasons of failures."""
        for started in self._started:
            started.wait()
        self._complete.set()
        return self._hosts, self._missing

    def send(self, line: bytes) -> None:
        listening = 0
        for channel in list(self._channels.values()):
            with suppress(HostLost):
                channel.send(line)
                listening += 1
        if not listening:
            raise HostLost("all hosts are lost")

    def receive(self, timeout_s: float) -> tuple[int, bytes | Lost] | None:
        with suppress(queue.Empty):
            return self._arrived.get(timeout=timeout_s) if timeout_s > 0 else self._arrived.get_nowait()
        return None

    def explain_silence(self, host: int) -> Lost | None:
        channel = self._channels.get(host)
        return channel.explain_silence(0) if channel else None

    def close(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(_LEAVE_S)

    def _lead(self, host: int, allocate: OpenAllocation, argv: Sequence[str], started: threading.Event) -> None:
        with ExitStack() as resources:
            try:
                with self._may_start:
                    if self._over.is_set():
                        return
                    allocation = resources.enter_context(allocate())
                    channel = allocation.start(argv)
                resources.callback(channel.close)
                self._hosts[host], self._channels[host] = allocation.hosts[0], channel
            except (DtfPerfError, OSError) as error:
                self._missing[host] = str(error)
                return
            finally:
                started.set()
            self._listen(host, channel)
            del self._channels[host]

    def _listen(self, host: int, channel: Channel) -> None:
        reported = 0.0
        while not self._over.is_set():
            if not self._complete.is_set() and time.monotonic() - reported > _IDLE_S:
                reported = time.monotonic()
                with suppress(HostLost):  # received below
                    channel.send(self._idle)
            if (arrived := channel.receive(_LISTEN_S)) is not None:
                self._put((host, arrived[1]))
                if isinstance(arrived[1], Lost):
                    return

    def _put(self, arrived: tuple[int, bytes | Lost]) -> None:
        while not self._over.is_set():
            with suppress(queue.Full):
                self._arrived.put(arrived, timeout=_LISTEN_S)
                return


AllocateHosts = Callable[[ClusterConfig, Resources, Sequence[str]], AbstractContextManager[CheckupHosts]]

_AT_ONCE = 16  # connections that are made at the same time, unless the cluster file sets a limit


@contextmanager
def allocate_hosts(config: ClusterConfig, gpus: int | None, on_status: Callable[[str], object]) -> Iterator[CheckupHosts]:
    """Allocate as many hosts as `gpus` devices need, or all. Raises `UsageError`, `AllocationError`."""
    resources = compute_resources(config, gpus, on_status)
    timeout_s = f"{config.heartbeat_timeout_s:g}"
    argv = make_module_command(named.get_python(config), "pytest_dtfperf.node.checkup", "--heartbeat-timeout-s", timeout_s)
    with _lock_cluster(config, resources), ONE_BY_ONE.get(config.backend, allocate_together)(config, resources, argv) as hosts:
        yield hosts


def compute_resources(config: ClusterConfig, gpus: int | None, on_status: Callable[[str], object]) -> Resources:
    """Return the request to the cluster. Raises `UsageError` if no option or key sets the number of hosts."""
    session = new_session_id()
    server_hosts = capacity.count_server_hosts(config, 1)
    if gpus is not None:
        return Resources(gpus, server_hosts, session=session, on_status=on_status)
    there = capacity.count_hosts(config)
    if there is None:
        raise UsageError(f"clusters.toml has no number of hosts of {config.name!r}: choose it with --gpus=N")
    workers = max(1, there - server_hosts)
    return Resources(
        workers * (capacity.predict_devices_per_host(config) or 1), there - workers, session=session, on_status=on_status
    )


@contextmanager
def allocate_together(config: ClusterConfig, resources: Resources, argv: Sequence[str]) -> Iterator[CheckupHosts]:
    """Allocate all hosts as one allocation."""
    with named.open_cluster(config).allocate(resources) as allocation:
        channel = allocation.start(argv)
        try:
            yield CheckupHosts(allocation.hosts, channel, {})
        finally:
            channel.close()


@contextmanager
def allocate_over_ssh(config: ClusterConfig, resources: Resources, argv: Sequence[str]) -> Iterator[CheckupHosts]:
    """Allocate hosts that SSH reaches one by one."""
    from pytest_dtfperf.clusters.ssh.cluster import open_allocation
    from pytest_dtfperf.clusters.ssh.endpoints import list_endpoints

    resources.on_status("connecting to all hosts")
    chosen = list_endpoints(config)[: capacity.require_hosts(config, resources, "the hosts")]
    one = Resources(devices=1, session=resources.session)  # without status lines: many allocate at once
    known = [Host(each.name, each.address or each.target) for each in chosen]
    allocators = [partial(open_allocation, config, [each], one) for each in chosen]
    at_once = config.backend_keys.get("parallel", _AT_ONCE)
    with allocate_one_by_one(known, allocators, argv, at_once=at_once, idle=wire.encode({"order": "ping"})) as found:
        yield found


# Backends that allocate hosts one by one, so that hosts can be checked although others do not answer.
ONE_BY_ONE: Mapping[str, AllocateHosts] = {"ssh": allocate_over_ssh}


def _lock_cluster(config: ClusterConfig, resources: Resources) -> AbstractContextManager[object]:
    """Wait while others measure there, or while the maximum number of allocations is in use."""
    if capacity.is_inside_allocation(config):
        return nullcontext()
    shared = named.BACKENDS[config.backend].list_shared_machines(config)

    def waiting(wait: LockWait) -> None:
        resources.on_status(f"waiting for {config.name}, {wait}")

    return lock_hosts(
        shared or [f"cluster-{config.name}"],
        slots=1 if shared else config.jobs_at_once,
        holder=LockHolder.make_own(session=resources.session, purpose="dtfperf doctor"),
        on_wait=waiting,
    )
