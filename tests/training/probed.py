"""Prints, as JSON, the readings of TensorFlow's probes, and the profiler's counts of their graphs. A program of its own."""

import json
from typing import Any

import tensorflow as tf

from pytest_dtfperf.extensions import load
from pytest_dtfperf.spec import Spec, TaskOrder
from pytest_dtfperf.training import probing
from pytest_dtfperf.training.inputs import TrainingInput

v1 = tf.compat.v1
CPU = "/device:CPU:0"
CHAINS = (1, 3)


def count_operations(operation: probing.ProbeOperation, chain: int) -> dict[str, float]:
    """Count the operations of a chain by TensorFlow's profiler and by the package, and those that draw its input."""
    with tf.Graph().as_default() as graph:
        probing._build_chain(operation, chain)
        options = v1.profiler.ProfileOptionBuilder(v1.profiler.ProfileOptionBuilder.float_operation())
        theirs = v1.profiler.profile(graph, options=options.with_empty_output().build()).total_float_ops
    drawn = sum(2 * tf.TensorShape(shape).num_elements() for shape in (operation.shape, operation.weights))
    return {"theirs": theirs, "ours": chain * operation.flops, "drawn": drawn}


def of_two_gpus() -> str:
    try:
        return str(probing.measure_gpus(2))
    except RuntimeError as error:
        return f"RuntimeError: {error}"


def measure_input() -> Any:
    spec = Spec(model="trivial", batch_size=4, gpus=1, num_ps=0, variable_update="replicated", data="synthetic-host", steps=1)
    made: list[TrainingInput] = []

    def load_input(path: str) -> Any:
        def make(*arguments: Any) -> TrainingInput:
            made.append(load(path)(*arguments))
            return made[0]

        return make

    vars(probing)["load"] = load_input
    found = probing.measure_input(TaskOrder(run="r", job="worker", index=0, spec=spec, cluster={}, threads=1), [])
    return {**found, "shuffles": made[0].shuffles}


def main() -> None:
    operations = {
        "matmul": probing.make_matmul(24),
        "convolution": probing.make_convolution(2, 9, 4, "NHWC"),
        **{f"{name} of one core": operation for name, operation in probing.make_core_operations(1).items()},
    }
    found = {
        "counted": {name: {chain: count_operations(each, chain) for chain in CHAINS} for name, each in operations.items()},
        "cpu": probing.try_operation(probing.make_matmul(64), CPU, v1.ConfigProto(), None, chain=probing.CHAIN),
        "no such device": probing.try_operation(probing.make_matmul(64), "/device:GPU:7", v1.ConfigProto(), None),
        "two gpus": of_two_gpus(),
        "input": measure_input(),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
