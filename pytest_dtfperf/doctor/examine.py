"""From a cluster to what is seen of it, and to what it should be."""

from collections.abc import Callable

from pytest_dtfperf.clusters import capacity
from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.doctor.diagnosis import Diagnosis, HostSeen
from pytest_dtfperf.doctor.examination import Examination
from pytest_dtfperf.doctor.findings import Expected
from pytest_dtfperf.doctor.lending import lent_hosts
from pytest_dtfperf.launch.placement import FIRST_FIXED_PORT

HOME = "~"
_FREE_PORTS = [0, 0]  # two that the kernel gives: a task's is one as good as another


def examine(config: ClusterConfig, gpus: int | None, on_status: Callable[[str], object]) -> Diagnosis:
    """Look at the hosts that so many devices need, or at all. Raises `UsageError`, `AllocationError`."""
    with lent_hosts(config, gpus, on_status) as lent:
        hosts = [HostSeen(host.name, host.address, missing=lent.missing.get(i)) for i, host in enumerate(lent.hosts)]
        seen = Diagnosis(
            cluster=config.name,
            hosts=hosts,
            backend=config.backend,
            network=config.backend_keys.get("network"),
            folder=config.backend_keys.get("shared", HOME),
        )
        ports = sorted(FIRST_FIXED_PORT.values()) if config.fixed_ports else _FREE_PORTS
        if seen.present:
            Examination(lent.channel, seen, config.limits, ports=ports, on_status=on_status).carry_out()
        on_status("giving the hosts back")
    return seen


def expected(config: ClusterConfig) -> Expected:
    """What clusters.toml says of each host."""
    given = capacity.predict_devices_per_host(config)
    on_gpus = capacity.predict_device(config) == "gpu"
    return Expected(
        gpus=given if on_gpus else None,
        shares=None if on_gpus else given,
        shared_folder="shared" in config.backend_keys,
    )
