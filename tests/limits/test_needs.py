"""Tests of what a step needs of its hosts."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from pytest_dtfperf.limits.needs import SLOTS, Flow, Layout, compute_flop, compute_traffic, compute_update_bytes, count_devices
from pytest_dtfperf.records.arithmetic import flop_per_image
from pytest_dtfperf.spec import OPTIMIZERS, VARIABLE_UPDATES, Spec
from pytest_dtfperf.training.exchange_plan import bytes_on_servers
from pytest_dtfperf.training.models import get_network
from pytest_dtfperf.training.models.outline import compute_outline


def make_spec(**changes: object) -> Spec:
    usual: dict[str, object] = {
        "model": "alexnet",
        "batch_size": 4,
        "gpus": 2,
        "num_ps": 1,
        "variable_update": "parameter_server",
    }
    return Spec(**{**usual, **changes})  # type: ignore[arg-type]


def make_layout(servers: str, workers: str) -> Layout:
    """Make a layout with a letter for each host: "ab" and "c" are ps:0 on a, ps:1 on b, worker:0 on c."""
    tasks = {f"ps:{number}": host for number, host in enumerate(servers)}
    return Layout({**tasks, **{f"worker:{number}": host for number, host in enumerate(workers)}})


def compute_model_bytes(spec: Spec) -> int:
    return 4 * compute_outline(get_network(spec)).trained_parameters


def test_flop_of_a_step_are_those_of_its_images() -> None:
    """The operations of a step are those of its images, and those of an external command are unknown."""
    spec = make_spec()
    assert compute_flop(spec) == 4 * (flop_per_image(spec) or 0)
    assert compute_flop(make_spec(command=("python", "train.py"), num_ps=0, variable_update="independent")) is None


@pytest.mark.parametrize("gpus, workers, expected", [(4, 2, [2, 2]), (3, 2, [2, 1]), (3, 3, [1, 1, 1]), (8, 1, [8])])
def test_devices_are_divided_among_workers(gpus: int, workers: int, expected: list[int]) -> None:
    """All workers have the same number of devices, and the last may have fewer."""
    assert list(count_devices(make_spec(gpus=gpus), make_layout("a", "b" * workers)).values()) == expected


def test_reported_devices_of_workers_are_used() -> None:
    """Devices that workers reported are used instead of equal parts."""
    layout = replace(make_layout("a", "bc"), devices={"worker:0": 4, "worker:1": 2})
    assert count_devices(make_spec(gpus=6), layout) == layout.devices


@pytest.mark.parametrize("mode", [name for name, row in VARIABLE_UPDATES.items() if row.parameter_servers])
def test_sent_bytes_are_received(mode: str) -> None:
    """All sent bytes are received: both workers fetch and push all variables, except for those on their own host."""
    spec = make_spec(variable_update=mode, num_ps=2, cross_replica_sync=mode != "parameter_server_v2")
    layout = make_layout("ab", "bc")
    held = bytes_on_servers(spec)
    assert sum(held) == compute_model_bytes(spec)
    sent = received = 0.0
    for phase in compute_traffic(spec, layout):
        sent += sum(flow.sent for flow in phase.values())
        received += sum(flow.received for flow in phase.values())
    assert sent == received == 2 * (2 * held[0] + held[1])


def test_synchronous_step_pulls_before_it_pushes() -> None:
    """A synchronous step pulls before it pushes; in a staged, asynchronous or replicated one both are at the same time."""
    layout, size = make_layout("a", "bc"), compute_model_bytes(make_spec())
    down, up = compute_traffic(make_spec(), layout)
    assert down["a"] == Flow(sent=2 * size) == Flow(up["a"].received)
    assert down["b"] == Flow(received=size)
    for changes in ({"staged_vars": True}, {"cross_replica_sync": False}, {"variable_update": "distributed_replicated"}):
        (both,) = compute_traffic(make_spec(**changes), layout)
        assert both["a"] == Flow(2 * size, 2 * size)
        assert both["b"] == both["c"] == Flow(size, size)


def test_bf16_and_inference_send_fewer_bytes() -> None:
    """bf16 on the wire halves the bytes. Without training there are no gradients, and workers with copies fetch nothing."""
    layout, size = make_layout("a", "bc"), compute_model_bytes(make_spec())
    assert compute_traffic(make_spec(wire_precision="bf16"), layout)[0]["a"] == Flow(sent=size)
    down, up = compute_traffic(make_spec(forward_only=True), layout)
    assert (down["b"], up) == (Flow(received=size), {})
    assert not any(compute_traffic(make_spec(forward_only=True, variable_update="distributed_replicated"), layout))


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
def test_traffic_within_a_host_is_empty(changes: Mapping[str, object], servers: str, workers: str) -> None:
    """There is no traffic within a host, between workers that share nothing, or of an external command."""
    assert compute_traffic(make_spec(**changes), make_layout(servers, workers)) == []


@pytest.mark.parametrize("workers, hosts", [("ab", 2), ("aabb", 2), ("abcd", 4)])
def test_all_reduce_sends_its_part_through_each_host(workers: str, hosts: int) -> None:
    """An all-reduce sends and receives 2 (n - 1) / n of the gradients through each of n hosts, with any number of workers."""
    spec = make_spec(num_ps=0, variable_update="distributed_all_reduce", gpus=len(workers))
    (phase,) = compute_traffic(spec, make_layout("", workers))
    expected = 2 * (hosts - 1) / hosts * compute_model_bytes(spec)
    assert phase == {host: Flow(expected, expected) for host in dict.fromkeys(workers)}


@pytest.mark.parametrize("placement, fullest", [("greedy", 305), ("split", 125)])
def test_fullest_server_has_the_measured_bytes(placement: str, fullest: int) -> None:
    """The fullest of four servers sends the megabytes of AlexNet that were measured, to 2 %."""
    spec = make_spec(num_ps=4, variable_placement=placement)
    down, _ = compute_traffic(spec, make_layout("abcd", "ef"))
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
def test_update_bytes_depend_on_the_optimizer(changes: Mapping[str, object], times: int) -> None:
    """An update reads the gradients of each worker, and reads and writes variables and the optimizer's slots."""
    spec = make_spec(**changes)
    assert compute_update_bytes(spec, make_layout("a", "bc")) == {"a": times * compute_model_bytes(spec)}


def test_training_without_servers_updates_none() -> None:
    """Without servers, or without training, there are no bytes of updates."""
    assert compute_update_bytes(make_spec(num_ps=0, variable_update="replicated"), make_layout("", "a")) == {}
    assert compute_update_bytes(make_spec(forward_only=True), make_layout("a", "b")) == {}


def test_every_optimizer_has_its_slots() -> None:
    """Every optimizer has a number of slots."""
    assert set(SLOTS) == set(OPTIMIZERS)
