"""The cluster of a session as its user sees it: read-only."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from pytest_dtfperf.baselines.comparability import system_name
from pytest_dtfperf.clusters import capacity
from pytest_dtfperf.clusters.named import BACKENDS, ClusterConfig
from pytest_dtfperf.datamodel.measurement import Run
from pytest_dtfperf.formats import format_count
from pytest_dtfperf.launch.launcher import Launcher
from pytest_dtfperf.session.resolve import merge_cluster_settings


class ClusterInfo:
    """The properties of a cluster. `hosts`, `fingerprint` and `system` may allocate hosts, and raise `AllocationError`."""

    def __init__(self, config: ClusterConfig, get_launcher: Callable[[], Launcher]) -> None:
        """Note the function that returns the launcher, which allocates hosts if necessary."""
        self.config = config
        self._get_launcher = get_launcher

    def __repr__(self) -> str:
        return f"<cluster {self.name}: {self.backend}, {format_count(self.devices, f'{self.device} device')}>"

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def backend(self) -> str:
        return self.config.backend

    @cached_property
    def devices(self) -> int:
        """Devices of the whole cluster, as far as known without an allocation."""
        return capacity.count_devices(self.config) or self.devices_per_host

    @cached_property
    def devices_per_host(self) -> int:
        return capacity.predict_devices_per_host(self.config) or 1

    @cached_property
    def device(self) -> str:
        """What computes: "gpu" or "cpu"."""
        return capacity.predict_device(self.config)

    @cached_property
    def between_hosts(self) -> bool:
        """Whether a training's tasks may be on several hosts, with links between them."""
        return not BACKENDS[self.config.backend].is_local and capacity.count_hosts(self.config) != 1

    def settings(self, model: str) -> dict[str, Any]:
        """Return the settings in clusters.toml for training a model here."""
        found = merge_cluster_settings(self.config.training, self.config.models, model)
        return {"data_dir": self.config.data, **found} if self.config.data else found

    @property
    def hosts(self) -> Sequence[str]:
        return self._get_launcher().hosts

    @property
    def fingerprint(self) -> Mapping[str, Any]:
        """The properties of all hosts."""
        return self._with_shares(self._get_launcher().fingerprint)

    def collect_fingerprint(self, run: Run) -> Mapping[str, Any]:
        """Return the fingerprint of a run's hosts and of its software there."""
        return {**self._with_shares(self._get_launcher().collect_fingerprint(run.hosts)), "program": run.program}

    @property
    def system(self) -> str:
        """The hardware's name, under which baselines are kept."""
        return system_name(self.fingerprint["hardware"])

    def _with_shares(self, found: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the fingerprint with the number of shares of the cores, which are the devices of a host without GPUs."""
        if self.device == "gpu":
            return found
        return {**found, "hardware": {**found["hardware"], "cpu_devices": self.devices_per_host}}
