"""What it costs to read a list of hosts, and to check it as clusters.toml's: the same per host, however long the list is."""

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from pytest_dtfperf.clusters import file
from pytest_dtfperf.clusters.ssh import keys as keys

HOSTS = (1_000, 20_000)


@pytest.mark.parametrize("hosts", HOSTS)
@pytest.mark.parametrize("written", ["one by one", "in brackets"])
def test_expand(benchmark: BenchmarkFixture, hosts: int, written: str) -> None:
    """All names of a list."""
    written_list = ",".join(f"node{i}" for i in range(hosts)) if written == "one by one" else f"node[0-{hosts - 1}]"
    assert len(benchmark(file.expand_hostlist, written_list)) == hosts


@pytest.mark.parametrize("hosts", HOSTS)
def test_check(benchmark: BenchmarkFixture, hosts: int) -> None:
    """Whether a cluster's table with so many hosts, each with an address of its own, is right."""
    names = [f"node{i}" for i in range(hosts)]
    table = {
        "hosts": names,
        "gpus_per_host": 1,
        "private_address": {name: f"10.0.{i // 250}.{i % 250}" for i, name in enumerate(names)},
    }
    assert benchmark(keys.validate, table) is None
