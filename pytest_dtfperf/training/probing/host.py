"""Measure what a host and its links can do, in a task that follows the controller's orders.

controller         this task
"compute"    ->    a "reading" of each thing that is measured here, then "facts", then "done"
"listen"     ->    "done", once other hosts can send to this one
"round 3"    ->    a "stream" for each that goes from here in that round, then "done"
"leave"      ->    it ends
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pytest_dtfperf.node import host_state, links
from pytest_dtfperf.spec import TaskOrder
from pytest_dtfperf.training.connection import AgentConnection
from pytest_dtfperf.training.probing import readings, throughput
from pytest_dtfperf.training.reason import format_reason
from pytest_dtfperf.training.subprocess_call import NoAnswer, call_in_fork, format_exception

# For all that is done in one process, TensorFlow's start and the first call included.
CORES_S, GPUS_S, MEMORY_S, INPUT_S = 20.0, 60.0, 15.0, 20.0

Order = Mapping[str, Any]


@dataclass(frozen=True)
class Family:
    """Readings that one process measures, with the last parts of their names."""

    name: str
    members: Sequence[str]
    measure: Callable[[], Mapping[str, Any]]
    within_s: float

    def readings(self, meanwhile: Callable[[], object]) -> dict[str, Any]:
        """Return readings by their full names: "cores.matmul", "memory"."""
        try:
            found = call_in_fork(lambda: dict(self.measure()), self.within_s, meanwhile, _format_error)
        except NoAnswer as why:
            found = {member: {"error": str(why)} for member in self.members}
        return {f"{self.name}.{member}".removesuffix("."): reading for member, reading in found.items()}


def run(order: Order, connection: AgentConnection) -> None:
    """Run a probing task."""
    connection.send("ready")
    while (word := connection.wait()) != "leave":
        what, _, number = word.partition(" ")
        _ORDERS[what]({**order, **order["probe"]}, connection, int(number or 0))
        connection.send("done", phase=word)


def _compute(order: Order, connection: AgentConnection, _: int) -> None:
    host = host_state.HostState()
    before = host.sample()
    clocks: list[float] = []
    for family in _list_families(order):
        if family.name not in order["families"]:
            continue
        for name, found in family.readings(partial(_note_clock, clocks if family.name == "cores" else [])).items():
            reading = None if "error" in found else found
            connection.send("reading", name=name, reading=reading, error=found.get("error"))
    connection.send(
        "facts",
        limits=host_state.read_limits(),
        clock_hz=sum(clocks) / len(clocks) if clocks else None,
        most_clock_hz=host_state.read_max_clock_hz(),
        state=host.account(before, before, host.sample()),
    )


def _list_families(order: Order) -> Iterator[Family]:
    cores = len(os.sched_getaffinity(0))
    operations = list(throughput.make_core_operations(1))
    yield Family("core", operations, partial(throughput.measure_cores, 1), CORES_S)
    yield Family("cores", operations, partial(throughput.measure_cores, cores), CORES_S)
    if gpus := order["gpus"]:
        members = [f"{gpu}.{name}" for gpu in range(gpus) for name in throughput.make_gpu_operations()]
        yield Family("gpu", members, partial(throughput.measure_gpus, gpus), GPUS_S)
    yield Family("memory", [""], lambda: {"": readings.measure_memory(cores, _get_free_bytes())}, MEMORY_S)
    if worker := order["input"]:
        task = TaskOrder.from_json(worker)
        yield Family("input", [""], lambda: {"": throughput.measure_input(task, order["input_cpus"])}, INPUT_S)


def _format_error(error: Exception) -> str:
    return (format_reason(error) or [format_exception(error)])[0]


def _note_clock(clocks: list[float]) -> None:
    if found := host_state.read_clock_hz():
        clocks.append(found)


def _get_free_bytes() -> int | None:
    with open("/proc/meminfo") as file:
        free = host_state.parse_available_bytes(file.read())
    allowed = host_state.read_limits().get("memory_bytes")
    return min((each for each in (free, allowed) if each is not None), default=None)


_LISTENERS: list[links.Listener] = []  # for the rest of this process's life


def _listen(order: Order, connection: AgentConnection, _: int) -> None:
    _LISTENERS.append(links.Listener(order["host"], order["token"], [order["port"]]))


def _send(order: Order, connection: AgentConnection, number: int) -> None:
    """Run all streams of a round that begin on this host, at the same time."""
    targets = [
        {"host": int(target), **order["addresses"][target], "connections": connections}
        for target, connections in order["rounds"][number][str(order["host"])].items()
    ]
    for found in links.measure_concurrently(order["token"], targets, order["part_s"], order["parts"]):
        connection.send("stream", round=number, to=found["to"], parts=found.get("parts", []), error=found.get("error"))


_ORDERS: Mapping[str, Callable[[Order, AgentConnection, int], None]] = {"compute": _compute, "listen": _listen, "round": _send}
