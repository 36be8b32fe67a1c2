"""How much of a cluster is asked for."""

from typing import Any

import pytest

from pytest_dtfperf.clusters.capacity import compute_need
from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.clusters.protocol import Resources
from pytest_dtfperf.errors import UsageError
from pytest_dtfperf.session.allocation_manager import (
    choose_request,
    compute_need_of_test,
    explain_lack_of_hosts,
    find_largest,
    is_enough,
    most_servers,
)
from pytest_dtfperf.spec import Spec


def cluster(*, nodes: int | None = None, counts: dict[str, int] | None = None, **given: Any) -> ClusterConfig:
    """A Slurm cluster with four devices per node."""
    backend_keys: dict[str, Any] = {"nodes": nodes} if nodes else {}
    if counts:
        backend_keys["nodes_per_gpu_count"] = counts
    return ClusterConfig(name="daint", backend="slurm", backend_keys=backend_keys, devices_per_host=4, **given)


@pytest.mark.parametrize(
    "gpus, num_ps, given, expected",
    [
        (8, 3, {}, Resources(8)),
        (8, 3, {"ps_on_worker_hosts": False}, Resources(8, 3)),
        (8, 3, {"ps_on_worker_hosts": False, "ps_per_host": 2}, Resources(8, 2)),
        (8, 0, {"ps_on_worker_hosts": False}, Resources(8)),
        (99, 1, {"nodes": 2}, Resources(8)),
        (99, 1, {"nodes": 3, "ps_on_worker_hosts": False}, Resources(8, 1)),
    ],
)
def test_needed(gpus: int, num_ps: int, given: dict[str, Any], expected: Resources) -> None:
    """Devices as ordered, but not more than there are; hosts for parameter servers only where they have their own."""
    assert compute_need(cluster(**given), gpus, num_ps) == expected


@pytest.mark.parametrize(
    "test, given, expected",
    [
        ({"gpus": 8, "num_ps": 2}, None, Resources(8, 2)),
        ({"gpus": 8, "num_ps": 2}, (1, 16), Resources(8, 2)),
        ({"gpus": 8, "num_ps": "best"}, None, Resources(8, 1)),
        ({"batch_size": 3}, (1, 16), Resources(16, 1)),
        ({"batch_size": 3}, None, None),
    ],
)
def test_needed_by_a_collected_test(test: dict[str, Any], given: tuple[int, ...] | None, expected: Resources | None) -> None:
    """A test's own parameters come first, then --gpus; without both, the requirements are open."""
    assert compute_need_of_test(test, given, cluster(ps_on_worker_hosts=False)) == expected


def test_the_largest_need_is_the_one_of_most_hosts() -> None:
    """Eight devices spread over eight hosts are more than sixteen on four, and cover them."""
    spread = cluster(counts={"8": 8})
    assert find_largest([Resources(1), Resources(8), Resources(16)], spread) == Resources(8)
    assert is_enough(Resources(8), Resources(16), spread)
    assert not is_enough(Resources(16), Resources(8), spread)


@pytest.mark.parametrize(
    "test, given, words",
    [
        ({"gpus": 8, "num_ps": 3}, {"nodes": 4}, "daint has 4 hosts, gpus=8 and num_ps=3 on hosts of their own need 5"),
        ({"gpus": 8, "num_ps": 2}, {"nodes": 4}, None),
        (
            {"gpus": 8},
            {"nodes": 4, "counts": {"8": 8}},
            "daint has 4 hosts, gpus=8 and num_ps=1 on hosts of their own need 9",
        ),
        ({"gpus": 8, "num_ps": 300}, {}, None),
        ({}, {"nodes": 2}, None),
    ],
)
def test_too_large(test: dict[str, Any], given: dict[str, Any], words: str | None) -> None:
    """A test that needs more hosts than the file has is too large, with the numbers; without a limit none is."""
    assert explain_lack_of_hosts(test, cluster(ps_on_worker_hosts=False, **given)) == words


def test_what_is_asked_for() -> None:
    """For a session what the largest of all needs, one device where nothing is known; else what a measurement needs itself."""
    spec = Spec(model="trivial", batch_size=8, gpus=8, num_ps=1)
    assert choose_request(spec, [Resources(16)], cluster()) == Resources(16)
    assert choose_request(spec, [Resources(4)], cluster()) == Resources(8)
    assert choose_request(None, [], cluster()) == Resources(1)
    assert choose_request(spec, [Resources(16)], cluster(allocation="test")) == Resources(8)
    with pytest.raises(UsageError, match="cluster daint has no hosts between two measurements"):
        choose_request(None, [Resources(16)], cluster(allocation="test"))


@pytest.mark.parametrize(
    "given, most",
    [
        ({}, 8),
        ({"nodes": 2}, 8),
        ({"ps_on_worker_hosts": False}, 8),
        ({"nodes": 4, "ps_on_worker_hosts": False}, 2),
        ({"nodes": 4, "ps_on_worker_hosts": False, "ps_per_host": 3}, 6),
        ({"nodes": 2, "ps_on_worker_hosts": False}, 1),
    ],
)
def test_most_servers(given: dict[str, Any], most: int) -> None:
    """For eight devices a sweep considers one server each, or as many as there are hosts for beside the workers'."""
    assert most_servers(8, cluster(**given)) == most
