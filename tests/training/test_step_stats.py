"""TensorFlow's account of a traced step as a trace: labels as TensorFlow 2.21 writes them."""

from types import SimpleNamespace
from typing import Any

from pytest_dtfperf.traces import KERNEL, Operation, OperationRun, TaskTrace, Tensor, TensorArrival
from pytest_dtfperf.training.step_stats import Tracer

WORKER, SERVER = "/job:worker/replica:0/task:1/device:CPU:0", "/job:ps/replica:0/task:0/device:CPU:0"

# As ConvertGpuXSpaceToStepStats in TensorFlow's source names them: no GPU has been at hand.
GPU = {
    "gpu": "/job:worker/replica:0/task:1/device:GPU:0",
    "other_gpu": "/job:worker/replica:0/task:0/device:GPU:0",
    "stream": "/device:GPU:0/stream:13",
    "nccl_stream": "/device:GPU:0/stream:21",
    "copies": "/device:GPU:0/stream:14<MemcpyH2D>",
    "all_streams": "/device:GPU:0/stream:all",
    "memcpy": "/device:GPU:0/memcpy",
    "sync": "/device:GPU:0/sync",
    "unnamed": "/device:GPU:0/stream:",
}


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
    names = {
        "worker": WORKER,
        "server": SERVER,
        "lone": "/job:localhost/replica:0/task:0/device:CPU:1",
        "odd": "somewhere",
        **GPU,
    }
    return SimpleNamespace(
        dev_stats=[SimpleNamespace(device=names[where], node_stats=nodes) for where, nodes in devices.items()]
    )


def make_trace(step_stats: Any, graphs: Any = ()) -> TaskTrace:
    tracer = Tracer("worker:1")
    tracer.note_graphs(graphs)
    tracer.add(step_stats, begin_us=1, called_us=2, end_us=30, cpu_us=9)
    return tracer.trace({"fifo_queue": "step of worker 1"})


def test_operation_has_kind_and_inputs_of_its_label() -> None:
    """Memory in brackets is left out, outputs' numbers and control marks are no part of an input's name."""
    label = "[mklcpu 1.6MB 1.6MB] tower0/Relu = _MklNativeFusedConv2D(tower0/Read/ReadVariableOp, tower0/split:1, ^tower0/x)"
    trace = make_trace(stats(worker=[node(label, scheduled=7)]))
    inputs = ("tower0/Read/ReadVariableOp", "tower0/split", "tower0/x")
    assert trace.operations == [Operation("tower0/Relu", "_MklNativeFusedConv2D", "worker:1/CPU:0", inputs)]
    assert trace.steps[0].ran == [OperationRun(0, 7, 10, 15)]
    assert (trace.task, trace.steps[0].begin_us, trace.steps[0].called_us, trace.steps[0].end_us) == ("worker:1", 1, 2, 30)


def test_transfer_has_names_and_bytes() -> None:
    """A transfer has the name of its tensor, its source and target, and its size in bytes."""
    label = f"[12.2MB] [4.6Gb/s] edge_41_tower0/ReadVariableOp_2 from {SERVER} to {WORKER}"
    trace = make_trace(stats(worker=[node(label, name="RecvTensor", size=12_845_056)]))
    assert trace.tensors == [Tensor("tower0/ReadVariableOp_2", "ps:0/CPU:0", "worker:1/CPU:0", 12_845_056)]
    assert trace.steps[0].received == [TensorArrival(0, 10, 15)]


def test_edges_that_tensorflow_added_come_from_the_graphs() -> None:
    """Control edges that are in no label are taken from the graphs that TensorFlow runs, each edge once."""
    graph = SimpleNamespace(node=[SimpleNamespace(name="zeros", input=["^shape", "x:1"])])
    trace = make_trace(stats(worker=[node("zeros = Fill(x)")]), [graph])
    assert trace.operations[0].inputs == ("x", "shape")


def test_lone_process_is_its_worker() -> None:
    """A process without a cluster does not know its task's name; others' odd devices keep theirs."""
    trace = make_trace(stats(lone=[node("a = NoOp()")], odd=[node("b = NoOp()")]))
    assert [operation.device for operation in trace.operations] == ["worker:1/CPU:1", "worker:1/somewhere"]


def test_entry_without_a_label_is_an_operation_of_its_name() -> None:
    """An entry without a label is kept with its name and time, and unreadable transfers are omitted."""
    trace = make_trace(stats(server=[node("", name="_SOURCE"), node("no transfer", name="RecvTensor")]))
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


def test_operation_on_a_gpu_lasts_until_its_kernels_are_done() -> None:
    """An operation on a GPU lasts from its first kernel's start to the last one's end; repeated streams count once."""
    kernels = [
        node("conv_kernel regs:32", name="tower0/Relu", start=40, lasts=10),
        node("relu regs:8", name="tower0/Relu", start=60),
    ]
    launched = node("tower0/Relu = Conv2D(tower0/x)", scheduled=7, start=10, lasts=2)
    trace = make_trace(
        stats(gpu=[launched], stream=kernels, all_streams=kernels, sync=[node("ThreadId 3", name="cuStreamSynchronize")])
    )
    assert trace.operations == [Operation("tower0/Relu", "Conv2D", "worker:1/GPU:0", ("tower0/x",))]
    assert trace.steps[0].ran == [OperationRun(0, 7, 40, 65)]


def test_copies_and_exchanges_are_recognised_by_stream() -> None:
    """A copy is one by its stream, an exchange by its kernel's name; a kernel of no operation that ran is known as such."""
    nccl = node("ncclDevKernel_AllReduce_Sum_f32_RING_LL regs:96", name="CollectiveReduceV2", start=20)
    copy = node("MemcpyH2D kind_src:pinned", name="tower0/IteratorGetNext", start=30)
    trace = make_trace(
        stats(nccl_stream=[nccl], copies=[copy], memcpy=[copy], stream=[node("odd", name="odd_kernel")], unnamed=[node("x")])
    )
    assert [operation[:3] for operation in trace.operations] == [
        ("CollectiveReduceV2", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "worker:1/GPU:0"),
        ("tower0/IteratorGetNext", "MemcpyH2D", "worker:1/GPU:0"),
        ("odd_kernel", KERNEL, "worker:1/GPU:0"),
    ]


def test_streams_apply_to_the_tasks_own_gpus() -> None:
    """An operation on another task's GPU with the same number keeps its own time."""
    trace = make_trace(stats(other_gpu=[node("a = Conv2D()")], stream=[node("k", name="a", start=40)]))
    assert trace.steps[0].ran[0] == OperationRun(0, 10, 10, 15)
    assert trace.operations[1] == Operation("a", KERNEL, "worker:1/GPU:0", ())
