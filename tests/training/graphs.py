"""Prints, as JSON, the hashes of graphs that differ in one property each. A program of its own, for the tests."""

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

import pytest_dtfperf.training.first_import  # noqa: F401 - before all others

# isort: split
import tensorflow as tf

from pytest_dtfperf.spec import Spec, TaskOrder
from pytest_dtfperf.training.devices import get_devices
from pytest_dtfperf.training.graph_hash import describe_computation
from pytest_dtfperf.training.replica import build

v1 = tf.compat.v1
SPEC = Spec(model="mnist", batch_size=4, optimizer="sgd")


def of_spec(index: int = 0, workers: int = 1, **changes: Any) -> dict[str, Any]:
    """Return the hash of a worker's graph, with all fetches of its step."""
    spec = SPEC.replace(**changes)
    jobs = {"ps": spec.num_ps, "worker": workers} if spec.num_ps else {}
    cluster = {job: tuple(f"{job}:{i}" for i in range(count)) for job, count in jobs.items()}
    order = TaskOrder(run="x", job="worker", index=index, spec=spec, cluster=cluster)
    with tf.Graph().as_default() as graph:
        replica = build(order, get_devices(order))
    assert replica.loss is not None
    fetches = [replica.loss.op.name, *(update.name for update in replica.updates)]
    return describe_computation(graph.as_graph_def(), fetches).to_json()


def make_small_graph(
    *, stride: int = 1, names: str = "", backwards: bool = False, pad: int = 1, kernel: str = "conv", seed: int = 1
) -> Any:
    """Return a graph of two branches on one input, made one after the other; it is never run."""
    with tf.Graph().as_default() as graph:
        images = v1.placeholder(tf.float32, (2, 8, 8, 4), name=f"{names}images")
        weights = tf.constant(0.5, shape=(1, 1, 4, 4), name=f"{names}weights")
        padded = tf.pad(images, [[0, 0], [pad, pad], [pad, pad], [0, 0]])

        def convolve() -> tf.Tensor:
            if kernel == "matmul":
                return tf.reshape(tf.matmul(tf.reshape(padded, (-1, 4)), weights[0, 0]), (2, 10, 10, 4))
            return tf.nn.conv2d(padded, weights, stride, "SAME", name=f"{names}convolved")

        def drop() -> tf.Tensor:
            return v1.nn.dropout(padded, rate=0.5, seed=seed)

        made = [branch() for branch in ((drop, convolve) if backwards else (convolve, drop))]
        first, second = reversed(made) if backwards else made
        tf.add_n([tf.reduce_sum(first), tf.reduce_sum(second)])
    return graph.as_graph_def()


def rename_operations(definition: Any) -> Any:
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(definition, name="elsewhere")
    return graph.as_graph_def()


def make_colocated_graph(device: str) -> Any:
    """Return a graph with an operation that is placed by the location of another one."""
    with tf.Graph().as_default() as graph:
        with tf.device(device):
            there = tf.constant([1.0, 2.0])
        with v1.colocate_with(there.op):
            tf.exp(there)
    return graph.as_graph_def()


def of_function(*, stride: int = 1, name: str = "a", calls: int = 1) -> Any:
    """A concrete function that trains a step, its variables of this name; within it, another that it calls so often."""
    weights = tf.Variable(tf.ones((3, 3, 3, 8)), name=name)
    double = tf.function(lambda x: tf.exp(x) + tf.exp(x))

    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            y = tf.nn.relu(tf.nn.conv2d(x, weights, stride, "SAME"))
            for _ in range(calls):
                y = double(y)
            loss = tf.reduce_sum(y)
        weights.assign_sub(0.1 * tape.gradient(loss, weights))
        return loss

    return tf.function(step).get_concrete_function(tf.TensorSpec((2, 16, 16, 3))).graph.as_graph_def()


def collective(key: int) -> Any:
    """The sum of two tasks' numbers, as groups with this key add it."""
    with tf.Graph().as_default() as graph:
        tf.raw_ops.CollectiveReduceV2(
            input=[1.0], group_size=2, group_key=key, instance_key=key + 1, ordering_token=[], merge_op="Add", final_op="Id"
        )
    return graph.as_graph_def()


GRAPHS: Mapping[str, Callable[[], dict[str, Any]]] = {
    "mnist": of_spec,
    "mnist again": of_spec,
    "mnist, another seed": lambda: of_spec(seed=77),
    "mnist, another learning rate": lambda: of_spec(learning_rate=0.3),
    "mnist, momentum": lambda: of_spec(optimizer="momentum"),
    "mnist, bf16": lambda: of_spec(precision="bf16"),
    "mnist, NCHW": lambda: of_spec(data_format="NCHW"),
    "mnist, another batch size": lambda: of_spec(batch_size=5),
    "mnist, on servers": lambda: of_spec(num_ps=1, gpus=2, workers=2, variable_update="parameter_server"),
    "mnist, on servers, not packed": lambda: of_spec(
        num_ps=1, gpus=2, workers=2, variable_update="parameter_server", agg_small_grads_max_bytes=0
    ),
    "mnist, on servers, the other worker": lambda: of_spec(
        num_ps=1, gpus=2, workers=2, variable_update="parameter_server", index=1
    ),
    "small": lambda: describe_computation(make_small_graph()).to_json(),
    "small, other names": lambda: describe_computation(make_small_graph(names="other_")).to_json(),
    "small, within another scope": lambda: describe_computation(rename_operations(make_small_graph())).to_json(),
    "small, built in another order": lambda: describe_computation(make_small_graph(backwards=True)).to_json(),
    "small, another seed": lambda: describe_computation(make_small_graph(seed=2)).to_json(),
    "small, another stride": lambda: describe_computation(make_small_graph(stride=2)).to_json(),
    "small, another padding": lambda: describe_computation(make_small_graph(pad=2)).to_json(),
    "small, another kernel": lambda: describe_computation(make_small_graph(kernel="matmul")).to_json(),
    "on a CPU": lambda: describe_computation(make_colocated_graph("/device:CPU:0")).to_json(),
    "on the second CPU": lambda: describe_computation(make_colocated_graph("/device:CPU:1")).to_json(),
    "on a CPU, placed": lambda: describe_computation(rename_operations(make_colocated_graph("/device:CPU:0"))).to_json(),
    "on a GPU": lambda: describe_computation(make_colocated_graph("/device:GPU:0")).to_json(),
    "on a server": lambda: describe_computation(make_colocated_graph("/job:ps/task:0/device:CPU:0")).to_json(),
    "a function": lambda: describe_computation(of_function()).to_json(),
    "a function, other names": lambda: describe_computation(of_function(name="b")).to_json(),
    "a function, another stride": lambda: describe_computation(of_function(stride=2)).to_json(),
    "a function that calls three times": lambda: describe_computation(of_function(calls=3)).to_json(),
    "a collective": lambda: describe_computation(collective(1)).to_json(),
    "a later collective": lambda: describe_computation(collective(40)).to_json(),
}

if __name__ == "__main__":
    print(json.dumps({name: made() for name, made in GRAPHS.items()}), file=sys.__stdout__)
