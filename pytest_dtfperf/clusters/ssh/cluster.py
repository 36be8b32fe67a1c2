"""Hosts that SSH reaches as a cluster: they are there already, so lending them is to find them well."""

import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

from pytest_dtfperf.clusters.capacity import require_hosts
from pytest_dtfperf.clusters.children import ChildrenChannel
from pytest_dtfperf.clusters.environment import TRAINING, handed_on
from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.clusters.protocol import Allocation, Host, Resources
from pytest_dtfperf.clusters.ssh import connection, hosts, setup, survey
from pytest_dtfperf.clusters.ssh.endpoint import Endpoint
from pytest_dtfperf.clusters.ssh.handshake import Handshake
from pytest_dtfperf.clusters.ssh.line import Line, Refused, Unreachable
from pytest_dtfperf.errors import AllocationError, AllocationOver

LEAVE_S = 5.0  # a line's end takes a way to the host, its agent's leaving or the supervisor's patience with it, and a way back
SWEEP_S = 8.0
# As in node/sweep.py and node/supervisor.py.
SESSION, OWNER, CONTROLLER = "DTFPERF_SESSION", "DTFPERF_OWNER", "DTFPERF_CONTROLLER"


class Ssh:
    """The hosts of a cluster file."""

    def __init__(self, config: ClusterConfig) -> None:
        self._config = config

    @contextmanager
    def allocate(self, resources: Resources) -> Iterator[Allocation]:
        wanted = require_hosts(self._config, resources, "hosts or gpus_per_host")
        with lend(self._config, hosts.endpoints(self._config)[:wanted], resources) as allocation:
            yield allocation


@contextmanager
def lend(config: ClusterConfig, endpoints: Sequence[Endpoint], resources: Resources) -> Iterator["SshAllocation"]:
    """All these hosts. Raises `AllocationError`."""
    resources.on_status(f"connecting to {', '.join(endpoint.name for endpoint in endpoints)}")
    try:
        lines = connection.reach_all(Handshake.of(config, survey=True), list(enumerate(endpoints)), resources.on_status)
    except Unreachable as exc:
        raise AllocationError(str(exc)) from exc
    allocation = SshAllocation(config, endpoints, lines)
    try:
        allocation.take_over()
        yield allocation
    finally:
        allocation.close()


class SshAllocation:
    """Hosts that have answered. Their lines are kept for what is started first: a handshake costs more than starting."""

    def __init__(self, config: ClusterConfig, endpoints: Sequence[Endpoint], lines: Sequence[Line]) -> None:
        self._config = config
        self._endpoints = endpoints
        self._idle = list(lines)
        self.hosts: Sequence[Host] = ()

    def take_over(self) -> None:
        """Learn the hosts' addresses, and end what dead controllers have left on them."""
        self.hosts = [
            Host(line.endpoint.name, survey.address(line.endpoint, line.survey, self._config.backend_keys))
            for line in self._idle
        ]
        left = [(line, survey.abandoned(line.survey["left"])) for line in self._idle]
        connection.sweep_idle([(line, sessions) for line, sessions in left if sessions], SWEEP_S)

    def start(self, argv: Sequence[str]) -> ChildrenChannel:
        session = uuid.uuid4().hex
        env = handed_on(os.environ, TRAINING, self._config.environment)
        env.pop(OWNER, None)
        env |= {SESSION: session, CONTROLLER: survey.controller()}
        lines = self._start(setup.program(self._config, argv), env)
        return ChildrenChannel(
            lines,
            nobody=f"no agent is left on {', '.join(host.name for host in self.hosts)}",
            clean_up=partial(self._clean_up, lines, session),
            leave_s=LEAVE_S,
        )

    def close(self) -> None:
        """Let go of lines that nobody has used."""
        for line in self._idle:
            line.let_go()
        self._idle = []

    def _start(self, argv: Sequence[str], env: Mapping[str, str]) -> list[Line]:
        """Have it run on every host. A line that has waited may have died without a word: then all are made anew."""
        have_waited = bool(self._idle)
        lines = self._lines()
        try:
            connection.run_all(lines, argv, env, heartbeat_timeout_s=self._config.heartbeat_timeout_s)
        except Refused as exc:
            raise AllocationError(str(exc)) from exc
        except Unreachable as exc:
            if not have_waited:
                raise AllocationOver(str(exc)) from exc
            return self._start(argv, env)
        return lines

    def _lines(self) -> list[Line]:
        """One to every host: those that wait, and new ones for those that wait no more. Raises `AllocationOver`."""
        waiting = {line.host: line for line in self._idle if line.is_idle()}
        for line in self._idle:
            if line.host not in waiting:
                line.let_go()
        self._idle = list(waiting.values())
        missing = [(index, endpoint) for index, endpoint in enumerate(self._endpoints) if index not in waiting]
        try:
            found = connection.reach_all(Handshake.of(self._config), missing) if missing else []
        except Unreachable as exc:
            raise AllocationOver(str(exc)) from exc
        self._idle = []
        return sorted([*waiting.values(), *found], key=lambda line: line.host)

    def _clean_up(self, lines: Sequence[Line], session: str) -> None:
        """End what is left where a supervisor has not said that nothing is. It must not keep anybody from going on."""
        unsure = [(line.host, line.endpoint) for line in lines if not line.is_clean]
        if unsure:
            connection.sweep(self._config, unsure, [session], SWEEP_S)
