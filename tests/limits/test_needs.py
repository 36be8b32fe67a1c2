"""What a step needs of hosts."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from pytest_dtfperf.limits.needs import SLOTS, Flow, Layout, compute_flop, compute_traffic, compute_update_bytes, count_devices
from pytest_dtfperf.records.arithmetic import flop_per_image
from pytest_dtfperf.spec import OPTIMIZERS, VARIABLE_UPDATES, Spec
from pytest_dtfperf.training.exchange_plan import bytes_on_servers
from pytest_dtfperf.training.models import get_network
from pytest_dtfperf.training.models.outline import compute_outline


def spec_of(**changes: object) -> Spec:
    usual: dict[str, object] = {
        "model": "alexnet",
        "batch_size": 4,
        "gpus": 2,
        "num_ps": 1,
        "variable_update": "parameter_server",
    }
    return Spec(**{**usual, **changes})  # type: ignore[arg-type]


def layout_of(servers: str, workers: str) -> Layout:
    """A letter a host: "ab", "c" are ps:0 on a, ps:1 on b, worker:0 on c."""
    tasks = {f"ps:{number}": host for number, host in enumerate(servers)}
    return Layout({**tasks, **{f"worker:{number}": host for number, host in enumerate(workers)}})


def model_bytes(spec: Spec) -> int:
    return 4 * compute_outline(get_network(spec)).trained_parameters


def test_a_step_of_one_device() -> None:
    """Its arithmetic is that of its images; an external command's is not known."""
    spec = spec_of()
    assert compute_flop(spec) == 4 * (flop_per_image(spec) or 0)
    assert compute_flop(spec_of(command=("python", "train.py"), num_ps=0, variable_update="independent")) is None


@pytest.mark.parametrize("gpus, workers, expected", [(4, 2, [2, 2]), (3, 2, [2, 1]), (3, 3, [1, 1, 1]), (8, 1, [8])])
def test_devices_of_workers(gpus: int, workers: int, expected: list[int]) -> None:
    """All workers have as many, the last may have fewer."""
    assert list(count_devices(spec_of(gpus=gpus), layout_of("a", "b" * workers)).values()) == expected


def test_devices_that_workers_have_told_of() -> None:
    """Six devices in processes of four are four and two, and not three each."""
    layout = replace(layout_of("a", "bc"), devices={"worker:0": 4, "worker:1": 2})
    assert count_devices(spec_of(gpus=6), layout) == layout.devices


@pytest.mark.parametrize("mode", [name for name, row in VARIABLE_UPDATES.items() if row.parameter_servers])
def test_every_byte_has_two_ends(mode: str) -> None:
    """Whatever hosts send to others, others receive, and both workers fetch and push all variables but what is beside them."""
    spec = spec_of(variable_update=mode, num_ps=2, cross_replica_sync=mode != "parameter_server_v2")
    layout = layout_of("ab", "bc")
    held = bytes_on_servers(spec)
    assert sum(held) == model_bytes(spec)
    sent = received = 0.0
    for phase in compute_traffic(spec, layout):
        sent += sum(flow.sent for flow in phase.values())
        received += sum(flow.received for flow in phase.values())
    assert sent == received == 2 * (2 * held[0] + held[1])


def test_pulls_and_pushes_come_in_turn() -> None:
    """Where a synchronous step pulls before it pushes; staged, asynchronous or replicated, both are under way at once."""
    layout, size = layout_of("a", "bc"), model_bytes(spec_of())
    down, up = compute_traffic(spec_of(), layout)
    assert down["a"] == Flow(sent=2 * size) == Flow(up["a"].received)
    assert down["b"] == Flow(received=size)
    for changes in ({"staged_vars": True}, {"cross_replica_sync": False}, {"variable_update": "distributed_replicated"}):
        (both,) = compute_traffic(spec_of(**changes), layout)
        assert both["a"] == Flow(2 * size, 2 * size)
        assert both["b"] == both["c"] == Flow(size, size)


def test_fewer_bytes() -> None:
    """bf16 on the wire is half of them; without training there are no gradients, and workers with copies fetch nothing."""
    layout, size = layout_of("a", "bc"), model_bytes(spec_of())
    assert compute_traffic(spec_of(wire_precision="bf16"), layout)[0]["a"] == Flow(sent=size)
    down, up = compute_traffic(spec_of(forward_only=True), layout)
    assert (down["b"], up) == (Flow(received=size), {})
    assert not any(compute_traffic(spec_of(forward_only=True, variable_update="distributed_replicated"), layout))


@pytest.mark.parametrize(
    "changes, servers, workers",
    [
        ({}, "a", "aa"),
        ({"num_ps": 0, "variable_update": "independent"}, "", "ab"),
        ({"num_ps": 0, "variable_update": "replicated"}, "", "a"),
        ({"num_ps": 0, "variable_update": "collective_all_reduce", "forward_only": True}, "", "ab"),
        ({"num_ps": 0, "variable_update": "independent", "command": ("python", "train.py")}, "", "ab"),
    ],
    ids=["one host", "independent", "one process", "forward only", "an external command"],
)
def test_nothing_on_the_wire(changes: Mapping[str, object], servers: str, workers: str) -> None:
    """The traffic is unknown or none within a host, or between workers that share nothing."""
    assert compute_traffic(spec_of(**changes), layout_of(servers, workers)) == []


@pytest.mark.parametrize("workers, hosts", [("ab", 2), ("aabb", 2), ("abcd", 4)])
def test_an_all_reduce(workers: str, hosts: int) -> None:
    """2 (n - 1) / n of the gradients through each of n hosts, both ways, however many workers each has."""
    spec = spec_of(num_ps=0, variable_update="distributed_all_reduce", gpus=len(workers))
    (phase,) = compute_traffic(spec, layout_of("", workers))
    expected = 2 * (hosts - 1) / hosts * model_bytes(spec)
    assert phase == {host: Flow(expected, expected) for host in dict.fromkeys(workers)}


@pytest.mark.parametrize("placement, fullest", [("greedy", 305), ("split", 125)])
def test_the_fullest_server(placement: str, fullest: int) -> None:
    """AlexNet over four servers: as measured on their links, in MB for two workers."""
    spec = spec_of(num_ps=4, variable_placement=placement)
    down, _ = compute_traffic(spec, layout_of("abcd", "ef"))
    assert max(flow.sent for flow in down.values()) / 1e6 == pytest.approx(fullest, rel=0.02)


@pytest.mark.parametrize(
    "changes, times",
    [
        ({}, 2 + 2),
        ({"optimizer": "momentum"}, 2 + 4),
        ({"optimizer": "adam"}, 2 + 6),
        ({"cross_replica_sync": False}, 2 + 2 * 2),
        ({"wire_precision": "bf16"}, 1 + 2),
    ],
    ids=["sgd", "momentum", "adam", "asynchronous", "short gradients"],
)
def test_updates_in_memory(changes: Mapping[str, object], times: int) -> None:
    """Each worker's gradients are read once, variables and what the optimizer keeps are read and written."""
    spec = spec_of(**changes)
    assert compute_update_bytes(spec, layout_of("a", "bc")) == {"a": times * model_bytes(spec)}


def test_no_updates() -> None:
    """Without servers, or without training, nothing is updated on any."""
    assert compute_update_bytes(spec_of(num_ps=0, variable_update="replicated"), layout_of("", "a")) == {}
    assert compute_update_bytes(spec_of(forward_only=True), layout_of("a", "b")) == {}


def test_all_optimizers_are_known() -> None:
    """An optimizer without a row would have no bound."""
    assert set(SLOTS) == set(OPTIMIZERS)
