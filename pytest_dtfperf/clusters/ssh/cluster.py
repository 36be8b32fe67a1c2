"""The SSH backend: its hosts exist already, so an allocation connects to them and checks them."""

import ipaddress
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from pytest_dtfperf.clusters.capacity import require_hosts
from pytest_dtfperf.clusters.children import ChildrenChannel
from pytest_dtfperf.clusters.environment import TRAINING, select_variables
from pytest_dtfperf.clusters.named import Backend, ClusterConfig
from pytest_dtfperf.clusters.protocol import Allocation, Host, Resources
from pytest_dtfperf.clusters.ssh import bootstrap, connection, endpoints, keys
from pytest_dtfperf.clusters.ssh.bootstrap import Handshake
from pytest_dtfperf.clusters.ssh.endpoints import Endpoint
from pytest_dtfperf.clusters.ssh.keys import KEYS
from pytest_dtfperf.clusters.ssh.ssh_process import Refused, SshProcess, Unreachable
from pytest_dtfperf.errors import AllocationError, AllocationOver
from pytest_dtfperf.node.owner import Fate, Owner


def find_address(endpoint: Endpoint, survey: Mapping[str, Any], backend_keys: Mapping[str, Any]) -> str:
    """Return the address by which tasks reach a host: that of the cluster file, else the one that this controller used.

    Behind a gateway that translates addresses, it is the address that the host itself reports.
    """
    if endpoint.address:
        return endpoint.address
    network = keys.parse_network(backend_keys.get("private_address"))
    if network is None:
        reached_at: str = survey["reached_at"] or survey["hostname"]
        return reached_at
    own: Sequence[str] = survey["addresses"]
    for candidate in own:
        if ipaddress.ip_address(candidate) in network:
            return candidate
    raise AllocationError(
        f'host {endpoint.name} has no address in private_address = "{network}", only '
        f"{', '.join(own) or 'that of its loopback'}. "
        "Correct the network in clusters.toml, or set each host's address in a table"
    )


def get_controller_id() -> str:
    """Return the id of this process that marks everything it starts on hosts."""
    return Owner.me().text


def find_abandoned_sessions(left: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the sessions of controllers that have certainly ended. Controllers elsewhere cannot be checked from here."""
    owners = [(Owner.parse(text), sessions) for text, sessions in left.items()]
    return [session for owner, sessions in owners if owner and owner.fate is Fate.GONE for session in sessions]


LEAVE_S = 5.0  # covers the way to the host, the agent's exit or the supervisor's timeout, and the way back
SWEEP_S = 8.0
# As in node/sweep.py and node/supervisor.py.
SESSION, OWNER, CONTROLLER = "DTFPERF_SESSION", "DTFPERF_OWNER", "DTFPERF_CONTROLLER"


class SshBackend(Backend):
    """The backend for hosts that SSH reaches."""

    keys = KEYS
    python = "python3"

    def open_cluster(self, config: ClusterConfig) -> "Ssh":
        return Ssh(config)

    def validate(self, table: Mapping[str, Any]) -> str | None:
        return keys.validate(table)

    def share_hosts(self, allocation: Allocation, config: ClusterConfig) -> "SshAllocation":
        assert isinstance(allocation, SshAllocation)
        return allocation.copy_with(config)

    def count_hosts(self, config: ClusterConfig) -> int | None:
        """Return the number of hosts. Reads the files that the cluster names, too."""
        return endpoints.count_hosts(config)

    def count_gpus(self, backend_keys: Mapping[str, Any]) -> int | None:
        gpus: int | None = backend_keys.get("gpus_per_host")
        return gpus

    def list_commands(self, config: ClusterConfig, resources: Resources) -> Sequence[str]:
        return endpoints.list_commands(config, resources)

    def list_shared_machines(self, config: ClusterConfig) -> Sequence[str]:
        return endpoints.list_machines(config)


class Ssh:
    """The hosts of a cluster file, to allocate."""

    def __init__(self, config: ClusterConfig) -> None:
        self._config = config

    @contextmanager
    def allocate(self, resources: Resources) -> Iterator[Allocation]:
        wanted = require_hosts(self._config, resources, "hosts or gpus_per_host")
        with open_allocation(self._config, endpoints.list_endpoints(self._config)[:wanted], resources) as allocation:
            yield allocation


@contextmanager
def open_allocation(config: ClusterConfig, endpoints: Sequence[Endpoint], resources: Resources) -> Iterator["SshAllocation"]:
    """Allocate all these hosts. Raises `AllocationError`."""
    resources.on_status(f"connecting to {', '.join(endpoint.name for endpoint in endpoints)}")
    try:
        lines = connection.open_processes(Handshake.of(config, survey=True), list(enumerate(endpoints)), resources.on_status)
    except Unreachable as exc:
        raise AllocationError(str(exc)) from exc
    allocation = SshAllocation(config, endpoints, lines)
    try:
        allocation.take_over()
        yield allocation
    finally:
        allocation.close()


class SshAllocation:
    """Hosts that have answered. Their connections are kept for the first start: a handshake takes longer than a start."""

    def __init__(self, config: ClusterConfig, endpoints: Sequence[Endpoint], lines: Sequence[SshProcess]) -> None:
        self._config = config
        self._endpoints = endpoints
        self._idle = list(lines)
        self.hosts: Sequence[Host] = ()

    def take_over(self) -> None:
        """Read the hosts' addresses, and end what dead controllers have left on them."""
        self.hosts = [
            Host(line.endpoint.name, find_address(line.endpoint, line.survey, self._config.backend_keys)) for line in self._idle
        ]
        left = [(line, find_abandoned_sessions(line.survey["left"])) for line in self._idle]
        connection.sweep_idle([(line, sessions) for line, sessions in left if sessions], SWEEP_S)

    def copy_with(self, config: ClusterConfig) -> "SshAllocation":
        """Return the same hosts with another stack, and connections of its own that are opened when it starts."""
        copy = SshAllocation(config, self._endpoints, ())
        copy.hosts = self.hosts
        return copy

    def start(self, argv: Sequence[str]) -> ChildrenChannel:
        session = uuid.uuid4().hex
        env = select_variables(os.environ, TRAINING, self._config.environment)
        env.pop(OWNER, None)
        env |= {SESSION: session, CONTROLLER: get_controller_id()}
        lines = self._start(bootstrap.adapt_argv(self._config, argv), env)
        return ChildrenChannel(
            lines,
            empty_message=f"no agent is left on {', '.join(host.name for host in self.hosts)}",
            clean_up=partial(self._clean_up, lines, session),
            leave_s=LEAVE_S,
        )

    def close(self) -> None:
        """Close connections that were not used."""
        for line in self._idle:
            line.let_go()
        self._idle = []

    def _start(self, argv: Sequence[str], env: Mapping[str, str]) -> list[SshProcess]:
        """Start a command on every host. If a kept connection has ended without a message, all connections are opened anew."""
        have_waited = bool(self._idle)
        lines = self._lines()
        try:
            connection.start_on_all(lines, argv, env, heartbeat_timeout_s=self._config.heartbeat_timeout_s)
        except Refused as exc:
            raise AllocationError(str(exc)) from exc
        except Unreachable as exc:
            if not have_waited:
                raise AllocationOver(str(exc)) from exc
            return self._start(argv, env)
        return lines

    def _lines(self) -> list[SshProcess]:
        """Return a connection to every host: the kept ones that still work, and new ones. Raises `AllocationOver`."""
        waiting = {line.host: line for line in self._idle if line.is_idle()}
        for line in self._idle:
            if line.host not in waiting:
                line.let_go()
        self._idle = list(waiting.values())
        missing = [(index, endpoint) for index, endpoint in enumerate(self._endpoints) if index not in waiting]
        try:
            found = connection.open_processes(Handshake.of(self._config), missing) if missing else []
        except Unreachable as exc:
            raise AllocationOver(str(exc)) from exc
        self._idle = []
        return sorted([*waiting.values(), *found], key=lambda line: line.host)

    def _clean_up(self, lines: Sequence[SshProcess], session: str) -> None:
        """End the session's processes where a supervisor has not confirmed that none is left. Errors are ignored."""
        unsure = [(line.host, line.endpoint) for line in lines if not line.is_clean]
        if unsure:
            connection.sweep_hosts(self._config, unsure, [session], SWEEP_S)
