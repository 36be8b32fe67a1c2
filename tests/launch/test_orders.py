"""Tests of the orders to agents: one for all hosts, from which each takes its part."""

import dataclasses

import pytest

from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.clusters.placement import HostView, PlacedTask, place
from pytest_dtfperf.launch import agents
from pytest_dtfperf.node import wire
from pytest_dtfperf.spec import Spec, TaskOrder

CONFIG = ClusterConfig(name="orders", fixed_ports=True)


def make_hosts(count: int) -> list[HostView]:
    return [HostView(f"h{i}", f"10.0.0.{i}", cpus=tuple(range(64)), gpus=("0",)) for i in range(count)]


def make_spec(workers: int, num_ps: int) -> Spec:
    return Spec(model="inception3", batch_size=64, gpus=workers, num_ps=num_ps)


def make_start_order(spec: Spec, hosts: list[HostView], tasks: tuple[PlacedTask, ...]) -> bytes:
    ports = {host: range(10000, 10000 + len(on_host)) for host, on_host in agents.group_tasks_by_host(tasks).items()}
    cluster = agents.make_task_addresses(tasks, hosts, ports)
    order = agents.start_order(
        tasks,
        hosts,
        run="0123456789ab",
        spec=spec,
        cluster=cluster,
        injected_slowdowns={"worker:1": 0.5},
        checkpoint="/c",
        cold=False,
        isolated=True,
    )
    return wire.encode({"order": "start", "run": "0123456789ab", **order})


def test_reserve_order_has_every_host_once() -> None:
    """One order has the number of ports, or the ports, of each host with tasks, and the peers that may connect."""
    tasks = place(make_spec(2, 1), make_hosts(3), CONFIG)
    free = agents.reserve_order(tasks, fixed_ports=False, isolated=True, peers=None)
    assert free == {"hosts": {"0": {"count": 2}, "1": {"count": 1}}, "isolated": True, "peers": None}
    fixed = agents.reserve_order(tasks, fixed_ports=True, isolated=False, peers=["10.0.0.1"])
    assert fixed["hosts"] == {"0": {"ports": [2230, 2220]}, "1": {"ports": [2220]}}
    assert (fixed["isolated"], fixed["peers"]) == (False, ["10.0.0.1"])


def test_addresses_are_in_the_order_of_the_tasks() -> None:
    """The addresses of a job are those of its tasks by index, with the ports in the order of the tasks on a host."""
    hosts = make_hosts(2)
    tasks = place(make_spec(2, 3), hosts, CONFIG)
    found = agents.make_task_addresses(tasks, hosts, {0: [5, 6, 7], 1: [8, 9]})
    assert found == {"ps": ["10.0.0.0:5", "10.0.0.1:8", "10.0.0.0:6"], "worker": ["10.0.0.0:7", "10.0.0.1:9"]}


@pytest.mark.parametrize(
    "address, written",
    [("fd00::2", "[fd00::2]:7"), ("fe80::1%eth0", "[fe80::1%eth0]:7"), ("node-1", "node-1:7")],
)
def test_ipv6_address_is_in_brackets(address: str, written: str) -> None:
    """An IPv6 address is in brackets before its port, and a name is not."""
    (host,) = make_hosts(1)
    tasks = place(make_spec(1, 0), [host], CONFIG)
    assert agents.make_task_addresses(tasks, [dataclasses.replace(host, address=address)], {0: [7]}) == {"worker": [written]}


def test_common_and_own_part_make_a_whole_order() -> None:
    """The common part and a task's own part make the task's order, without anything of another task."""
    hosts, spec = make_hosts(2), make_spec(2, 1)
    order = wire.decode(make_start_order(spec, hosts, place(spec, hosts, CONFIG)))
    orders = {each["task"]: TaskOrder.from_json({**order["common"], **each["order"]}) for each in order["tasks"]}
    assert set(orders) == {"ps:0", "worker:0", "worker:1"}
    cluster = {"ps": ("10.0.0.0:10000",), "worker": ("10.0.0.0:10001", "10.0.0.1:10000")}
    chief = TaskOrder(
        run="0123456789ab", job="worker", index=0, spec=spec, cluster=cluster, device="gpu", threads=64, checkpoint="/c"
    )
    assert orders["worker:0"] == chief
    assert orders["worker:1"] == dataclasses.replace(chief, index=1, sleep_s=0.5, checkpoint=None)
    assert orders["ps:0"].name == "ps:0"


def test_devices_and_cores_are_part_of_the_order() -> None:
    """Each task has the GPUs that it may see, a server none, and a part of the cores is listed."""
    hosts, spec = make_hosts(1), make_spec(1, 1)
    for device, visible, cpus in (("gpu", "0", []), ("cpu", "", list(range(32)))):
        tasks = place(spec, hosts, dataclasses.replace(CONFIG, device=device))
        order = wire.decode(make_start_order(spec, hosts, tasks))
        ps, worker = order["tasks"]
        assert order["env"] == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        assert ps["env"] == {"CUDA_VISIBLE_DEVICES": ""}
        assert worker["env"] == {"CUDA_VISIBLE_DEVICES": visible}
        assert worker["cpus"] == cpus


@pytest.mark.parametrize(
    "of_spec, expected",
    [((), {"NCCL_SOCKET_IFNAME": "ib0"}), (("NCCL_SOCKET_IFNAME=ib1",), {})],
    ids=["of the host", "of the spec"],
)
def test_tasks_have_the_variables_of_their_host(of_spec: tuple[str, ...], expected: dict[str, str]) -> None:
    """A task has the variables of its host, and a variable of the spec replaces them."""
    hosts = [dataclasses.replace(host, environment=(("NCCL_SOCKET_IFNAME", "ib0"),)) for host in make_hosts(2)]
    spec = dataclasses.replace(make_spec(2, 1), environment=of_spec)
    order = wire.decode(make_start_order(spec, hosts, place(spec, hosts, CONFIG)))
    for task in order["tasks"]:
        assert {name: value for name, value in task["env"].items() if name.startswith("NCCL_")} == expected
        assert "NCCL_SOCKET_IFNAME" in {**order["env"], **task["env"]}


def test_order_grows_with_the_tasks_and_not_with_their_square() -> None:
    """Four times the tasks make an order of about four times the size, and the largest one is below 64 kB."""
    sizes = {}
    for workers, num_ps in ((32, 29), (128, 116)):
        hosts, spec = make_hosts(workers), make_spec(workers, num_ps)
        sizes[workers] = len(make_start_order(spec, hosts, place(spec, hosts, CONFIG)))
    assert sizes[128] < 4.1 * sizes[32]
    assert sizes[128] < 64 * 1024
