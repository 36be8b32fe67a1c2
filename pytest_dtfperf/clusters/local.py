"""This machine as a cluster of one host, or of several that are only called so: each with its part of the cores."""

import os
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial

from pytest_dtfperf.clusters.capacity import require_hosts
from pytest_dtfperf.clusters.children import Child, ChildrenChannel
from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.clusters.protocol import Allocation, Host, Resources
from pytest_dtfperf.errors import AllocationError

ADDRESS = "127.0.0.1"
SWEEP_S = 20.0  # looking through /proc takes a tenth of a second; only a process that cannot be killed takes longer


class Local:
    """A cluster that is always there."""

    def __init__(self, config: ClusterConfig) -> None:
        self._config = config

    @contextmanager
    def allocate(self, resources: Resources) -> Iterator[Allocation]:
        wanted = require_hosts(self._config, resources, "hosts or devices_per_host")
        _sweep("--abandoned")
        name = socket.gethostname()
        yield LocalAllocation([Host(f"{name}-{i}" if wanted > 1 else name, ADDRESS) for i in range(wanted)])


class LocalAllocation:
    """This machine, once or more often."""

    def __init__(self, hosts: Sequence[Host]) -> None:
        self.hosts = hosts

    def start(self, argv: Sequence[str]) -> ChildrenChannel:
        session = uuid.uuid4().hex
        env = {**os.environ, "DTFPERF_SESSION": session, "DTFPERF_OWNER": _this_process()}
        agents: list[Child] = []
        try:
            for host, cores in enumerate(_shares(sorted(os.sched_getaffinity(0)), len(self.hosts))):
                with _on_cores(cores):
                    agents.append(Child(host, argv, env))
        except OSError as exc:
            for agent in agents:
                agent.hang_up()
                agent.end(0.0)
            raise AllocationError(f"cannot start {argv[0]}: {exc}") from exc
        return ChildrenChannel(agents, nobody="no agent is left on this machine", clean_up=partial(_sweep, session))


def _shares(cores: Sequence[int], hosts: int) -> list[list[int]]:
    """Each host's part of this machine: with fewer cores than hosts, some share one."""
    size = max(1, len(cores) // hosts)
    return [list(cores) if hosts == 1 else [cores[(i * size + k) % len(cores)] for k in range(size)] for i in range(hosts)]


@contextmanager
def _on_cores(cores: Sequence[int]) -> Iterator[None]:
    """What this thread starts meanwhile starts on these cores."""
    mine = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, mine)


def _this_process() -> str:
    """Who owns what is started here: process id, start time in clock ticks, and the namespace in which the id means that."""
    with open("/proc/self/stat", "rb") as file:
        started = file.read().rpartition(b")")[2].split()[19].decode()
    return f"{os.getpid()} {started} {os.readlink('/proc/self/ns/pid')}"


def _sweep(*what: str) -> None:
    """End what dead sessions left on this machine. A sweep that itself fails must not keep anybody from going on."""
    command = [sys.executable, "-m", "pytest_dtfperf.node.sweep", *what]
    with suppress(subprocess.TimeoutExpired, OSError):
        subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, timeout=SWEEP_S, check=False)
