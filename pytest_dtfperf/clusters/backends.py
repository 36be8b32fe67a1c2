"""The ways to get hosts, one row each. Strings name the code, so that naming a backend imports nothing of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pytest_dtfperf.clusters.ec2 import keys as ec2
from pytest_dtfperf.clusters.slurm import keys as slurm
from pytest_dtfperf.clusters.ssh import keys as ssh
from pytest_dtfperf.clusters.validators import COUNT, Validator, one_of
from pytest_dtfperf.extensions import Table


@dataclass(frozen=True, kw_only=True)
class Backend:
    """One way to get hosts."""

    implementation: str  # "module:Class", made of a ClusterConfig
    hosts: str  # the key that tells how many hosts there are, or "module:function" of (ClusterConfig) that does
    keys: Mapping[str, Validator]  # what only this backend knows
    validate: Callable[[Mapping[str, Any]], str | None] = lambda table: None  # about keys that are right one by one
    gpus: str | None = None  # "module:function" of (backend keys): how many GPUs a host has, None where that is not known
    device: str = "cpu"  # what a host has whose GPUs are not known
    here: bool = False  # its hosts are this machine
    walled: bool = False  # who lends them keeps strangers out where a host has no firewall of its own
    cores: str | None = None  # the key that tells how many cores a host lends
    spread: str | None = None  # the key of a table of device counts, and how many hosts each is spread over
    python: str | None = None  # the hosts' interpreter; None: this one, which they have, too
    needs: tuple[str, str] | None = None  # a module, and the extra of this package that brings it
    commands: str | None = None  # "module:function" of (ClusterConfig, Resources): the shell commands of an allocation
    max_jobs: int = 1
    shared: str | None = None  # "module:function" of (ClusterConfig): what `shared_machines` tells
    hosts_here: Callable[[], int | None] = lambda: None  # how many the allocation has that this process already runs in
    lent_s: Callable[[Mapping[str, Any]], float | None] = lambda keys: None  # for how long at most, where the keys tell
    exposed: str | None = None  # "module:function" of (ClusterConfig): a warning of who reaches what trains there, or None


_OURS: Mapping[str, Backend] = {
    "local": Backend(
        implementation="pytest_dtfperf.clusters.local:Local",
        hosts="hosts",
        keys={"hosts": COUNT, "network": one_of("host")},
        here=True,
        exposed="pytest_dtfperf.clusters.local:exposed",
        shared="pytest_dtfperf.clusters.local:machines",
    ),
    "ssh": Backend(
        implementation="pytest_dtfperf.clusters.ssh.cluster:Ssh",
        hosts="pytest_dtfperf.clusters.ssh.endpoints:count_hosts",
        keys=ssh.KEYS,
        validate=ssh.validate,
        gpus="pytest_dtfperf.clusters.ssh.keys:gpus_per_host",
        python="python3",
        commands="pytest_dtfperf.clusters.ssh.endpoints:list_commands",
        shared="pytest_dtfperf.clusters.ssh.endpoints:list_machines",
    ),
    "slurm": Backend(
        implementation="pytest_dtfperf.clusters.slurm.cluster:Slurm",
        hosts="nodes",
        keys=slurm.KEYS,
        validate=slurm.validate,
        gpus="pytest_dtfperf.clusters.slurm.keys:gpus_per_node",
        commands="pytest_dtfperf.clusters.slurm.request:list_commands",
        max_jobs=4,
        shared="pytest_dtfperf.clusters.slurm.keys:machines",
        cores="cpus_per_node",
        spread="nodes_per_gpu_count",
        hosts_here=slurm.nodes_of_job,
        lent_s=slurm.lent_s,
    ),
    "ec2": Backend(
        implementation="pytest_dtfperf.clusters.ec2.cluster:Ec2",
        hosts="count",
        keys=ec2.KEYS,
        validate=ec2.validate,
        gpus="pytest_dtfperf.clusters.ec2.instance_types:known_gpus",
        device="gpu",
        walled=True,
        python="python3",
        needs=("boto3", "ec2"),
        lent_s=ec2.lent_s,
    ),
}

# With those of other packages that are installed: docs/extending.md.
BACKENDS: Table[Backend] = Table("pytest_dtfperf.backends", Backend, _OURS)
