"""Tests that compare allocated hosts with the requested ones."""

from typing import Any

import pytest

from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.clusters.placement import HostView, describe_allocation
from pytest_dtfperf.datamodel.fingerprint import AllocatedNode


def make_config(**settings: Any) -> ClusterConfig:
    return ClusterConfig(name="granted", backend="slurm", **settings)


def make_nodes(*gpus: int, switches: str = "") -> list[HostView]:
    """Make nodes n1, n2, ... with so many GPUs, each on the switch of its letter: `ab`."""
    return [
        HostView(f"n{i}", "", cpus=(0,), gpus=tuple(map(str, range(count))), switch=f"s{switches[i - 1]}" if switches else None)
        for i, count in enumerate(gpus, 1)
    ]


FOUR_GPUS = make_config(backend_keys={"gpus_per_node": 4})
CASES: dict[str, tuple[ClusterConfig, int | None, list[HostView], list[str], list[str], bool]] = {
    "as asked for": (FOUR_GPUS, 2, make_nodes(4, 4), ["2 nodes", "4 GPUs each"], ["2 nodes", "4 GPUs each"], True),
    "one node": (FOUR_GPUS, 1, make_nodes(4), ["1 node", "4 GPUs each"], ["1 node", "4 GPUs each"], True),
    "a GPU is missing": (
        FOUR_GPUS, 2, make_nodes(4, 3), ["2 nodes", "4 GPUs each"], ["2 nodes", "4 GPUs on n1", "3 GPUs on n2"], False,
    ),
    "all GPUs of one node are missing": (
        FOUR_GPUS, 2, make_nodes(4, 0), ["2 nodes", "4 GPUs each"], ["2 nodes", "4 GPUs on n1", "no GPU on n2"], False,
    ),
    "more GPUs than asked for are no harm": (
        FOUR_GPUS, 1, make_nodes(8), ["1 node", "4 GPUs each"], ["1 node", "8 GPUs each"], True,
    ),
    "gres asks for GPUs, too": (
        make_config(backend_keys={"gres": "gpu:p100:1"}), 1, make_nodes(0), ["1 node", "1 GPU each"], ["1 node", "no GPU each"],
        False,
    ),
    "so does a cluster that SSH reaches": (
        ClusterConfig(name="granted", backend="ssh", backend_keys={"gpus_per_host": 2}), 1, make_nodes(1),
        ["1 node", "2 GPUs each"], ["1 node", "1 GPU each"], False,
    ),
    "devices of hosts with GPUs are GPUs": (
        make_config(devices_per_host=2), 2, make_nodes(2, 1), ["2 nodes", "2 GPUs each"],
        ["2 nodes", "2 GPUs on n1", "1 GPU on n2"], False,
    ),
    "a cluster that says gpu means GPUs": (
        make_config(devices_per_host=2, device="gpu"), 1, make_nodes(0), ["1 node", "2 GPUs each"], ["1 node", "no GPU each"],
        False,
    ),
    "a cluster that says gpu means one at least": (
        make_config(device="gpu"), 1, make_nodes(0), ["1 node", "1 GPU each"], ["1 node", "no GPU each"], False,
    ),
    "one host of several without GPUs": (
        make_config(), 2, make_nodes(2, 0), ["2 nodes", "1 GPU each"], ["2 nodes", "2 GPUs on n1", "no GPU on n2"], False,
    ),
    "GPUs that were not counted": (make_config(), 2, make_nodes(2, 2), ["2 nodes"], ["2 nodes"], True),
    "devices of hosts without GPUs are cores": (
        make_config(devices_per_host=2), 2, make_nodes(0, 0), ["2 nodes"], ["2 nodes"], True,
    ),
    "a cluster that says cpu asks for no GPUs": (
        make_config(devices_per_host=2, device="cpu"), 1, make_nodes(1), ["1 node"], ["1 node"], True,
    ),
    "too few nodes": (make_config(), 3, make_nodes(0, 0), ["3 nodes"], ["2 nodes"], False),
    "more nodes than asked for are no harm": (make_config(), 1, make_nodes(0, 0), ["1 node"], ["2 nodes"], True),
    "no requested number": (make_config(), None, make_nodes(0, 0), [], ["2 nodes"], True),
    "too many switches": (
        make_config(backend_keys={"switches": 1}), 2, make_nodes(0, 0, switches="ab"), ["2 nodes", "1 switch"],
        ["2 nodes", "2 switches: sa, sb"], False,
    ),
    "one switch": (
        make_config(backend_keys={"switches": 1}), 2, make_nodes(0, 0, switches="aa"), ["2 nodes", "1 switch"],
        ["2 nodes", "1 switch: sa"], True,
    ),
    "switches that were not requested": (
        make_config(), 2, make_nodes(0, 0, switches="ab"), ["2 nodes"], ["2 nodes", "2 switches: sa, sb"], True,
    ),
    "unknown switches": (
        make_config(backend_keys={"switches": 1}), 1, make_nodes(0), ["1 node", "1 switch"], ["1 node", "switches unknown"],
        True,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_allocation_matches_unless_it_has_less(case: str) -> None:
    """The lists of requested and of allocated resources have the same items, and match unless less was allocated."""
    where, wanted, nodes, requested, granted, matches = CASES[case]
    found = describe_allocation(where, nodes, wanted_nodes=wanted)
    assert (found.requested, found.granted, found.matches) == (requested, granted, matches)


def test_nodes_have_gpus_and_switch() -> None:
    """Each node is recorded with its GPUs and its switch, in placement order."""
    found = describe_allocation(FOUR_GPUS, make_nodes(4, 3, switches="ab"), wanted_nodes=2)
    assert found.nodes == [
        AllocatedNode(name="n1", gpus=4, switch="sa"), AllocatedNode(name="n2", gpus=3, switch="sb"),
    ]  # fmt: skip


def test_many_equal_nodes_are_counted() -> None:
    """A hundred equal nodes are counted, and the different one is named."""
    found = describe_allocation(FOUR_GPUS, make_nodes(*[4] * 100, 3), wanted_nodes=101)
    assert found.granted == ["101 nodes", "4 GPUs on 100 nodes", "3 GPUs on n101"]
