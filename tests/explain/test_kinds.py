"""Tests of the kinds of work of operations, by names and types from real traces."""

import pytest

from pytest_dtfperf.explain.step_events import classify_operation
from pytest_dtfperf.traces import KERNEL, NO_BATCH, XLA_MODULE, Operation

WORKER, GPU, SERVER = "worker:1/CPU:0", "worker:1/GPU:0", "ps:0/CPU:0"


@pytest.mark.parametrize(
    "name, type_, device, kind",
    [
        ("tower0/Relu", "_MklNativeFusedConv2D", WORKER, "forward"),
        ("tower1/dropout/Mul", "Mul", WORKER, "forward"),
        ("tower0/gradients/tower0/MatMul_grad/MatMul", "_MklMatMul", WORKER, "backward"),
        ("ConstantFolding/tower0/gradients/tower0/conv1_grad/ShapeN-matshapes-1", "Const", WORKER, "backward"),
        ("tower0/PartitionedCall", "PartitionedCall", WORKER, "compiled"),
        ("cluster_1_1/xla_run", "_XlaRun", WORKER, "compiled"),
        ("StatefulPartitionedCall_1", "StatefulPartitionedCall", WORKER, "apply"),
        ("concat", "ConcatV2", WORKER, "apply"),
        ("tower0/IteratorGetNext", "IteratorGetNext", WORKER, "input"),
        ("tower0/images_of_tower0_Dequeue", "QueueDequeueV2", WORKER, "input"),
        ("tower0/synthetic_images", "VarHandleOp", WORKER, "input"),
        ("CollectiveReduceV2_3", "CollectiveReduceV2", WORKER, "reduce"),
        ("HorovodAllreduce_1", "HorovodAllreduce", WORKER, "reduce"),
        ("tower0/ReadVariableOp_2", "ReadVariableOp", SERVER, "apply"),
        ("fifo_queue_3_enqueue", "QueueEnqueueV2", SERVER, "apply"),
        ("fifo_queue_6_Dequeue", "QueueDequeueV2", SERVER, "wait"),
        ("tower0/Read_4/ReadVariableOp/_10", "_Recv", WORKER, "receive"),
        ("GroupCrossDeviceControlEdges_0/NoOp/_35", "_Recv", WORKER, "wait"),
        ("tower0/gradients/tower0/MatMul_grad/MatMul_1/_21", "_Send", WORKER, "send"),
        ("tower0/Read_4/ReadVariableOp/_10", "_HostRecv", GPU, "receive"),
        ("tower0/gradients/global_step/_12", "_HostRecv", GPU, "wait"),
        ("tower0/Shape/_14", "_HostSend", GPU, "send"),
        ("", NO_BATCH, WORKER, "wait"),
        ("a_inference_update_593__.1", XLA_MODULE, WORKER, "apply"),
        ("a_inference_compiled_77__.1", XLA_MODULE, WORKER, "compiled"),
        ("cluster_0_1__XlaCompiledKernel_true", XLA_MODULE, GPU, "compiled"),
        ("tower0/Relu", "Conv2D", GPU, "forward"),
        ("CollectiveReduceV2", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", GPU, "reduce"),
        ("NcclAllReduce", "NcclAllReduce", GPU, "reduce"),
        ("tower0/split", "MemcpyH2D", GPU, "copy"),
        ("void at::native::unrolled_elementwise_kernel", KERNEL, GPU, "unknown"),
    ],
)
def test_operation_has_the_kind_of_its_name_and_type(name: str, type_: str, device: str, kind: str) -> None:
    """Names and types of TensorFlow's operations and of GPU kernels have the expected kinds of work."""
    assert classify_operation(Operation(name, type_, device, ())) == kind
