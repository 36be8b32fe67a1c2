"""A cluster with many simulated hosts, which are all this machine: it allocates them as a batch system does.

The file PRETEND_LOG gets a line of JSON for each request, allocation and release. PRETEND_DO changes the
behaviour: "refuse" refuses each request; "revoke" ends the allocation, so that no second agent can be started on its hosts.
"""

import json
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

from pytest_dtfperf.clusters import named
from pytest_dtfperf.clusters.capacity import predict_devices_per_host
from pytest_dtfperf.clusters.children import ChildrenChannel
from pytest_dtfperf.clusters.file import COUNT, Validator
from pytest_dtfperf.clusters.local import ADDRESS, LocalAllocation
from pytest_dtfperf.clusters.named import Backend, ClusterConfig
from pytest_dtfperf.clusters.protocol import Allocation, Host, Resources
from pytest_dtfperf.errors import AllocationError, AllocationOver


def register() -> None:
    """Add the backend. The conftest.py of the perf tests calls it."""
    cast("dict[str, Backend]", named.BACKENDS)["pretend"] = PretendBackend()


class PretendBackend(Backend):
    keys: Mapping[str, Validator] = {"hosts": COUNT}
    hosts_key = "hosts"
    max_jobs = 2

    def open_cluster(self, config: ClusterConfig) -> "Pretend":
        return Pretend(config)

    def list_commands(self, config: ClusterConfig, resources: Resources) -> Sequence[str]:
        return [f"allocate --hosts={_hosts(config, resources)} --session={resources.session}"]


class Pretend:
    def __init__(self, config: ClusterConfig) -> None:
        self._config = config

    @contextmanager
    def allocate(self, resources: Resources) -> Iterator[Allocation]:
        _note("requested", resources)
        resources.on_status(f"{self._config.name}: job 17 pending (Priority)")
        if os.environ.get("PRETEND_DO") == "refuse":
            raise AllocationError("cloud: the limit of hosts is exceeded")
        name = socket.gethostname()
        _note("allocated", resources)
        try:
            yield PretendAllocation([Host(f"{name}-{i}", ADDRESS) for i in range(_hosts(self._config, resources))])
        finally:
            _note("released", resources)


class PretendAllocation(LocalAllocation):
    def __init__(self, hosts: Sequence[Host]) -> None:
        super().__init__(hosts)
        self._starts = 0

    def start(self, argv: Sequence[str]) -> ChildrenChannel:
        self._starts += 1
        if self._starts > 1 and os.environ.get("PRETEND_DO") == "revoke":
            raise AllocationOver("job 17 ended: node n3 failed")
        return super().start(argv)


def _hosts(config: ClusterConfig, resources: Resources) -> int:
    return -(-resources.devices // (predict_devices_per_host(config) or 1)) + resources.separate_ps_hosts


def _note(event: str, resources: Resources) -> None:
    size: dict[str, Any] = {"devices": resources.devices, "ps_hosts": resources.separate_ps_hosts}
    with open(os.environ["PRETEND_LOG"], "a") as file:
        note = {"event": event, "pid": os.getpid(), "at_s": time.monotonic(), "session": resources.session, **size}
        file.write(json.dumps(note) + "\n")
