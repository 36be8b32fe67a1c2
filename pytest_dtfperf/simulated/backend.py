"""The backend of simulated clusters: hosts that are always there, or after a queue that takes no real time."""

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pytest_dtfperf.clusters.capacity import require_hosts
from pytest_dtfperf.clusters.children import sweep_machine
from pytest_dtfperf.clusters.file import Validator
from pytest_dtfperf.clusters.local import LocalAllocation
from pytest_dtfperf.clusters.named import Backend, ClusterConfig, Limits
from pytest_dtfperf.clusters.protocol import Allocation, Channel, Host, Resources
from pytest_dtfperf.datamodel.fingerprint import Fingerprint, Hardware
from pytest_dtfperf.datamodel.measurement import SIMULATED
from pytest_dtfperf.errors import AllocationOver
from pytest_dtfperf.formats import duration
from pytest_dtfperf.simulated.agents import AGENT, SessionState, SimulatedChannel, VirtualClock
from pytest_dtfperf.simulated.hardware import KEYS, SimulatedHardware, find_conflict, read_hardware

MOST_SESSIONS = 64  # at the same time: they share nothing


class SimulatedBackend(Backend):
    """Hosts of one process without TensorFlow, which answer as a real cluster's agents would."""

    keys: Mapping[str, Validator] = KEYS
    hosts_key = "hosts"
    device = "gpu"
    is_simulated = True
    max_jobs = MOST_SESSIONS
    limits = Limits(silence_s=600.0)  # no message is late on a virtual clock, and each one costs real time

    def __init__(self) -> None:
        self._sessions: dict[tuple[str, str], SessionState] = {}

    def open_cluster(self, config: ClusterConfig) -> "SimulatedCluster":
        return SimulatedCluster(config, self._sessions)

    def share_hosts(
        self, allocation: Allocation, config: ClusterConfig, without: Collection[str] = ()
    ) -> "SimulatedAllocation":
        assert isinstance(allocation, SimulatedAllocation)
        return allocation.share(config, without)

    def validate(self, table: Mapping[str, Any]) -> str | None:
        return find_conflict(table)

    def count_gpus(self, backend_keys: Mapping[str, Any]) -> int | None:
        return backend_keys.get("gpus_per_host")

    def count_hosts(self, config: ClusterConfig) -> int | None:
        return int(config.backend_keys.get("hosts", 1))


class SimulatedCluster:
    """A cluster of simulated hosts."""

    def __init__(self, config: ClusterConfig, sessions: dict[tuple[str, str], SessionState]) -> None:
        """Note what has happened in each session of this process, so that a host dies only once in it."""
        self._config = config
        self._sessions = sessions

    @contextmanager
    def allocate(self, resources: Resources) -> Iterator[Allocation]:
        wanted = require_hosts(self._config, resources, "hosts or devices_per_host")
        sweep_machine(abandoned=True)
        hardware = read_hardware(self._config)
        clock = VirtualClock()
        if hardware.queue_s:
            resources.on_status(f"{SIMULATED}: waited {duration(hardware.queue_s)} of virtual time in the queue")
            clock.now_s += hardware.queue_s
        hosts = [_make_host(self._config.name, number, hardware) for number in range(wanted)]
        state = self._sessions.setdefault((self._config.name, resources.session), SessionState())
        yield SimulatedAllocation(hosts, self._config, hardware, clock, state)


class SimulatedAllocation:
    """Simulated hosts. Their agents are a part of this process; any other command runs on this machine, once for each host."""

    def __init__(
        self,
        hosts: Sequence[Host],
        config: ClusterConfig,
        hardware: SimulatedHardware,
        clock: VirtualClock,
        state: SessionState,
    ) -> None:
        self.hosts = hosts
        self.clock = clock
        self._config, self._hardware, self._state = config, hardware, state
        self._allocated_s = clock.now_s
        self._unix_s = time.time() - clock.now_s
        self._dead: set[str] = set()

    def share(self, config: ClusterConfig, without: Collection[str]) -> "SimulatedAllocation":
        """Return the same hosts, but some, for another software stack. A host dies for all stacks.

        Each has a clock of its own: some train at the same time, and a common one would jump while one of them waits.
        """
        kept = [number for number, host in enumerate(self.hosts) if host.name not in without]
        hosts, hardware = [self.hosts[number] for number in kept], self._hardware.select_hosts(kept)
        shared = SimulatedAllocation(hosts, config, hardware, VirtualClock(self._allocated_s), self._state)
        shared._dead = self._dead
        return shared

    def start(self, argv: Sequence[str]) -> Channel:
        limits = self._config.limits
        if AGENT not in argv:
            return LocalAllocation(self.hosts, environment=self._config.environment).start(argv)
        if dead := [host.name for host in self.hosts if host.name in self._dead]:
            raise AllocationOver(f"{SIMULATED}: the allocation has ended with the death of {', '.join(dead)}", hosts=dead)
        return SimulatedChannel(
            self.hosts,
            self._hardware,
            clock=self.clock,
            state=self._state,
            dead=self._dead,
            allocated_s=self._allocated_s,
            unix_s=self._unix_s,
            beat_s=0.8 * min(limits.silence_s, limits.progress_s),
        )


def _make_host(cluster: str, number: int, hardware: SimulatedHardware) -> Host:
    low = number + 1
    address = f"10.{low >> 16}.{low >> 8 & 255}.{low & 255}"
    return Host(f"{cluster}-{number:04}", address, fingerprint=Fingerprint(hardware=Hardware(simulated=cluster)))
