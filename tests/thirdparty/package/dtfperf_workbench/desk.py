"""This machine as several desks: the hosts of `local` with other names."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pytest_dtfperf.clusters.file import COUNT, Validator
from pytest_dtfperf.clusters.local import ADDRESS, Local, LocalAllocation
from pytest_dtfperf.clusters.named import Backend, ClusterConfig
from pytest_dtfperf.clusters.protocol import Allocation, Host, Resources


class Desk(Local):
    @contextmanager
    def allocate(self, resources: Resources) -> Iterator[Allocation]:
        with super().allocate(resources) as allocation:
            yield LocalAllocation([Host(f"desk-{number}", ADDRESS) for number, _ in enumerate(allocation.hosts)])


class DeskBackend(Backend):
    keys: Mapping[str, Validator] = {"desks": COUNT}
    hosts_key = "desks"

    def open_cluster(self, config: ClusterConfig) -> "Desk":
        return Desk(config)


DESK = DeskBackend()
