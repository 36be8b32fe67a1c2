"""Resources that are requested of a cluster."""

from pathlib import Path
from typing import Any

import pytest

from pytest_dtfperf.clusters.capacity import compute_need
from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.clusters.protocol import Resources
from pytest_dtfperf.errors import UsageError
from pytest_dtfperf.session.allocation_manager import (
    AllocationManager,
    choose_request,
    compute_need_of_test,
    explain_lack_of_hosts,
    find_largest,
    get_most_servers,
    is_enough,
)
from pytest_dtfperf.spec import Spec


def make_cluster(*, nodes: int | None = None, counts: dict[str, int] | None = None, **given: Any) -> ClusterConfig:
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
def test_need_of_a_spec(gpus: int, num_ps: int, given: dict[str, Any], expected: Resources) -> None:
    """A spec needs its devices, at most those of the cluster, and hosts for parameter servers if they have their own."""
    assert compute_need(make_cluster(**given), gpus, num_ps) == expected


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
def test_need_of_a_test(test: dict[str, Any], given: tuple[int, ...] | None, expected: Resources | None) -> None:
    """A test's own parameters have precedence over --gpus; without both, the need is unknown."""
    assert compute_need_of_test(test, given, make_cluster(ps_on_worker_hosts=False)) == expected


def test_largest_need_has_the_most_hosts() -> None:
    """The largest need is the one with the most hosts, and covers the others."""
    spread = make_cluster(counts={"8": 8})
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
def test_too_large_test_has_a_reason(test: dict[str, Any], given: dict[str, Any], words: str | None) -> None:
    """A test that needs more hosts than the cluster has is too large, with the numbers; without a limit none is."""
    assert explain_lack_of_hosts(test, make_cluster(ps_on_worker_hosts=False, **given)) == words


def test_request_of_a_session() -> None:
    """A session requests the largest need, or one device without any; `allocation = "test"` requests one measurement's need."""
    spec = Spec(model="trivial", batch_size=8, gpus=8, num_ps=1)
    assert choose_request(spec, [Resources(16)], make_cluster()) == Resources(16)
    assert choose_request(spec, [Resources(4)], make_cluster()) == Resources(8)
    assert choose_request(None, [], make_cluster()) == Resources(1)
    assert choose_request(spec, [Resources(16)], make_cluster(allocation="test")) == Resources(8)
    with pytest.raises(UsageError, match="cluster daint has no hosts between two measurements"):
        choose_request(None, [Resources(16)], make_cluster(allocation="test"))


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
def test_most_servers_of_a_sweep(given: dict[str, Any], most: int) -> None:
    """A sweep for eight devices has at most one server for each, or as many as there are other hosts."""
    assert get_most_servers(8, make_cluster(**given)) == most


def test_hosts_that_replace_others_are_enough_for_the_largest_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If hosts are lost in a measurement, the next ones are as many, even if a smaller training requests them first."""
    monkeypatch.setenv("DTFPERF_LOCKS", str(tmp_path))
    keys: dict[str, Any] = {"hosts": 4, "gpus_per_host": 2}
    config = ClusterConfig(name="sim", backend="simulated", backend_keys=keys, ps_on_worker_hosts=False)
    manager = AllocationManager(config, session="lost hosts", on_status=lambda status: None)
    one, two = (
        Spec(model="trivial", gpus=2, variable_update="parameter_server", num_ps=servers, batch_size=2) for servers in (1, 2)
    )
    with manager.measuring(two, "a comparison"):
        manager.allocate(two)
        manager.release()
        assert len(manager.get_launcher(one).hosts) == 3
    manager.release()
    with manager.measuring(one, "another measurement"):
        assert len(manager.get_launcher(one).hosts) == 2
    manager.release()
