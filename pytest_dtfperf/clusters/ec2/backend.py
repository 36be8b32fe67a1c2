"""The EC2 backend's properties that are known without boto3, which is not always installed."""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from pytest_dtfperf.clusters.ec2 import keys
from pytest_dtfperf.clusters.ec2.instance_types import get_known_gpus
from pytest_dtfperf.clusters.ec2.keys import KEYS
from pytest_dtfperf.clusters.named import Backend, ClusterConfig
from pytest_dtfperf.clusters.protocol import Allocation

if TYPE_CHECKING:
    from pytest_dtfperf.clusters.ec2.cluster import Ec2


class Ec2Backend(Backend):
    """Instances that EC2 launches."""

    keys = KEYS
    hosts_key = "count"
    device = "gpu"
    is_firewalled = True
    python = "python3"
    requires = ("boto3", "ec2")

    def open_cluster(self, config: ClusterConfig) -> "Ec2":
        from pytest_dtfperf.clusters.ec2.cluster import Ec2  # loads boto3

        return Ec2(config)

    def share_hosts(self, allocation: Allocation, config: ClusterConfig, without: Collection[str] = ()) -> Allocation:
        from pytest_dtfperf.clusters.ec2.cluster import Ec2Allocation  # loads boto3

        assert isinstance(allocation, Ec2Allocation)
        return allocation.copy_with(config, without)

    def validate(self, table: Mapping[str, Any]) -> str | None:
        return keys.validate(table)

    def count_gpus(self, backend_keys: Mapping[str, Any]) -> int | None:
        return get_known_gpus(backend_keys)

    def get_lifetime_s(self, backend_keys: Mapping[str, Any]) -> float | None:
        return keys.get_lifetime_s(backend_keys)
