"""What the agents are sent: one order for all hosts, from which each takes its own."""

import dataclasses

import pytest

from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.launch import agents
from pytest_dtfperf.launch.placement import HostView, PlacedTask, place
from pytest_dtfperf.node import wire
from pytest_dtfperf.spec import Spec, TaskOrder

CONFIG = ClusterConfig(name="orders", fixed_ports=True)


def hosts_of(count: int) -> list[HostView]:
    return [HostView(f"h{i}", f"10.0.0.{i}", cpus=tuple(range(64)), gpus=("0",)) for i in range(count)]


def spec_of(workers: int, num_ps: int) -> Spec:
    return Spec(model="inception3", batch_size=64, gpus=workers, num_ps=num_ps)


def start_order(spec: Spec, hosts: list[HostView], tasks: tuple[PlacedTask, ...]) -> bytes:
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


def test_reserve_names_every_host_once() -> None:
    """One order says how many ports each host that has tasks shall hold, or which, and who may reach them."""
    tasks = place(spec_of(2, 1), hosts_of(3), CONFIG)
    free = agents.reserve_order(tasks, fixed_ports=False, isolated=True, peers=None)
    assert free == {"hosts": {"0": {"count": 2}, "1": {"count": 1}}, "isolated": True, "peers": None}
    fixed = agents.reserve_order(tasks, fixed_ports=True, isolated=False, peers=["10.0.0.1"])
    assert fixed["hosts"] == {"0": {"ports": [2230, 2220]}, "1": {"ports": [2220]}}
    assert (fixed["isolated"], fixed["peers"]) == (False, ["10.0.0.1"])


def test_addresses_are_in_the_order_of_the_tasks() -> None:
    """A job's addresses are those of its tasks by index, with the ports in the order in which a host was asked for them."""
    hosts = hosts_of(2)
    tasks = place(spec_of(2, 3), hosts, CONFIG)
    found = agents.make_task_addresses(tasks, hosts, {0: [5, 6, 7], 1: [8, 9]})
    assert found == {"ps": ["10.0.0.0:5", "10.0.0.1:8", "10.0.0.0:6"], "worker": ["10.0.0.0:7", "10.0.0.1:9"]}


@pytest.mark.parametrize(
    "address, written",
    [("fd00::2", "[fd00::2]:7"), ("fe80::1%eth0", "[fe80::1%eth0]:7"), ("node-1", "node-1:7")],
)
def test_address_and_port_can_be_told_apart(address: str, written: str) -> None:
    """An address of IPv6, which has colons of its own, stands in brackets: TensorFlow never reached the port behind it else."""
    (host,) = hosts_of(1)
    tasks = place(spec_of(1, 0), [host], CONFIG)
    assert agents.make_task_addresses(tasks, [dataclasses.replace(host, address=address)], {0: [7]}) == {"worker": [written]}


def test_common_and_own_part_make_a_whole_order() -> None:
    """What an agent puts together for a task is a task's order, with nothing missing and nothing of another task's."""
    hosts, spec = hosts_of(2), spec_of(2, 1)
    order = wire.decode(start_order(spec, hosts, place(spec, hosts, CONFIG)))
    told = {each["task"]: TaskOrder.from_json({**order["common"], **each["order"]}) for each in order["tasks"]}
    assert set(told) == {"ps:0", "worker:0", "worker:1"}
    cluster = {"ps": ("10.0.0.0:10000",), "worker": ("10.0.0.0:10001", "10.0.0.1:10000")}
    chief = TaskOrder(
        run="0123456789ab", job="worker", index=0, spec=spec, cluster=cluster, device="gpu", threads=64, checkpoint="/c"
    )
    assert told["worker:0"] == chief
    assert told["worker:1"] == dataclasses.replace(chief, index=1, sleep_s=0.5, checkpoint=None)
    assert told["ps:0"].name == "ps:0"


def test_devices_and_cores_are_part_of_the_order() -> None:
    """Every task is told which GPUs it may see, a parameter server none; only a part of the cores needs to be named."""
    hosts, spec = hosts_of(1), spec_of(1, 1)
    for device, visible, cpus in (("gpu", "0", []), ("cpu", "", list(range(32)))):
        tasks = place(spec, hosts, dataclasses.replace(CONFIG, device=device))
        order = wire.decode(start_order(spec, hosts, tasks))
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
def test_variables_of_a_host_are_those_of_its_tasks(of_spec: tuple[str, ...], expected: dict[str, str]) -> None:
    """A task gets the variables of its host, and a variable of the spec goes first."""
    hosts = [dataclasses.replace(host, environment=(("NCCL_SOCKET_IFNAME", "ib0"),)) for host in hosts_of(2)]
    spec = dataclasses.replace(spec_of(2, 1), environment=of_spec)
    order = wire.decode(start_order(spec, hosts, place(spec, hosts, CONFIG)))
    for task in order["tasks"]:
        assert {name: value for name, value in task["env"].items() if name.startswith("NCCL_")} == expected
        assert "NCCL_SOCKET_IFNAME" in {**order["env"], **task["env"]}


def test_order_grows_with_the_tasks_and_not_with_their_square() -> None:
    """Four times the tasks make an order of no more than four times the size: the largest of the report's is below 64 kB."""
    sizes = {}
    for workers, num_ps in ((32, 29), (128, 116)):
        hosts, spec = hosts_of(workers), spec_of(workers, num_ps)
        sizes[workers] = len(start_order(spec, hosts, place(spec, hosts, CONFIG)))
    assert sizes[128] < 4.1 * sizes[32]
    assert sizes[128] < 64 * 1024
