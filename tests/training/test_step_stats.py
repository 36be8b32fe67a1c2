"""TensorFlow's account of a traced step as a trace: labels as TensorFlow 2.21 writes them."""

from types import SimpleNamespace
from typing import Any

from pytest_dtfperf.traces import Operation, Ran, Received, TaskTrace, Tensor
from pytest_dtfperf.training.step_stats import Tracer

WORKER, SERVER = "/job:worker/replica:0/task:1/device:CPU:0", "/job:ps/replica:0/task:0/device:CPU:0"


def node(label: str, *, name: str = "", scheduled: int = 0, start: int = 10, lasts: int = 5, size: int = 0) -> Any:
    output = SimpleNamespace(tensor_description=SimpleNamespace(allocation_description=SimpleNamespace(requested_bytes=size)))
    return SimpleNamespace(
        node_name=name or label.split(" = ")[0],
        timeline_label=label,
        scheduled_micros=scheduled,
        all_start_micros=start,
        all_end_rel_micros=lasts,
        output=[output],
    )


def stats(**devices: list[Any]) -> Any:
    names = {"worker": WORKER, "server": SERVER, "lone": "/job:localhost/replica:0/task:0/device:CPU:1", "odd": "somewhere"}
    return SimpleNamespace(
        dev_stats=[SimpleNamespace(device=names[where], node_stats=nodes) for where, nodes in devices.items()]
    )


def traced(step_stats: Any, graphs: Any = ()) -> TaskTrace:
    tracer = Tracer("worker:1")
    tracer.note_graphs(graphs)
    tracer.add(step_stats, begin_us=1, called_us=2, end_us=30, cpu_us=9)
    return tracer.trace({"fifo_queue": "step of worker 1"})


def test_operation_has_kind_and_inputs_of_its_label() -> None:
    """Memory in brackets is left out, outputs' numbers and control marks are no part of an input's name."""
    label = "[mklcpu 1.6MB 1.6MB] tower0/Relu = _MklNativeFusedConv2D(tower0/Read/ReadVariableOp, tower0/split:1, ^tower0/x)"
    trace = traced(stats(worker=[node(label, scheduled=7)]))
    inputs = ("tower0/Read/ReadVariableOp", "tower0/split", "tower0/x")
    assert trace.operations == [Operation("tower0/Relu", "_MklNativeFusedConv2D", "worker:1/CPU:0", inputs)]
    assert trace.steps[0].ran == [Ran(0, 7, 10, 15)]
    assert (trace.task, trace.steps[0].begin_us, trace.steps[0].called_us, trace.steps[0].end_us) == ("worker:1", 1, 2, 30)


def test_transfer_has_names_and_bytes() -> None:
    """A transfer is told by what was sent, from where to where, and by its size to the byte."""
    label = f"[12.2MB] [4.6Gb/s] edge_41_tower0/ReadVariableOp_2 from {SERVER} to {WORKER}"
    trace = traced(stats(worker=[node(label, name="RecvTensor", size=12_845_056)]))
    assert trace.tensors == [Tensor("tower0/ReadVariableOp_2", "ps:0/CPU:0", "worker:1/CPU:0", 12_845_056)]
    assert trace.steps[0].received == [Received(0, 10, 15)]


def test_edges_that_tensorflow_added_come_from_the_graphs() -> None:
    """Control edges that are in no label are taken from the graphs that TensorFlow runs, each edge once."""
    graph = SimpleNamespace(node=[SimpleNamespace(name="zeros", input=["^shape", "x:1"])])
    trace = traced(stats(worker=[node("zeros = Fill(x)")]), [graph])
    assert trace.operations[0].inputs == ("x", "shape")


def test_lone_process_is_its_worker() -> None:
    """A process without a cluster does not know its task's name; others' odd devices keep theirs."""
    trace = traced(stats(lone=[node("a = NoOp()")], odd=[node("b = NoOp()")]))
    assert [operation.device for operation in trace.operations] == ["worker:1/CPU:1", "worker:1/somewhere"]


def test_entry_without_a_label_is_an_operation_of_its_name() -> None:
    """What TensorFlow describes in no label is kept with its time, and transfers that nobody can read are left out."""
    trace = traced(stats(server=[node("", name="_SOURCE"), node("no transfer", name="RecvTensor")]))
    assert trace.operations == [Operation("_SOURCE", "_SOURCE", "ps:0/CPU:0", ())]
    assert trace.steps[0].received == []


def test_same_operation_in_two_steps_is_named_once() -> None:
    """Steps share the list of operations: what differs are the times."""
    tracer = Tracer("worker:1")
    for start in (10, 20):
        tracer.add(stats(worker=[node("a = NoOp()", start=start)]), begin_us=1, called_us=2, end_us=30, cpu_us=9)
    trace = tracer.trace({})
    assert len(trace.operations) == 1
    assert [step.ran[0].start_us for step in trace.steps] == [10, 20]
