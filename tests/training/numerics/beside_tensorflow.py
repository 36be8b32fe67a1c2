"""Prints, as JSON, what our updates, rates and settings come to, beside TensorFlow's own. A program of its own."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from pytest_dtfperf.spec import OPTIMIZERS, Spec, TaskOrder
from pytest_dtfperf.spec.learning_rate import learning_rate_of
from pytest_dtfperf.training import optimizers as own_optimizers
from pytest_dtfperf.training.devices import make_environment_variables, make_session_config
from pytest_dtfperf.training.optimizers import Update, apply_all, compute_rate, make_loss_scale
from tests.training.numerics.tables import CONFIGS, HYPERPARAMETERS, OVERFLOWS, RATES, STEPS

v1 = tf.compat.v1

START = np.array([[1.0, -2.0], [0.5, 3.0]], np.float32)
GRADIENTS = [
    np.array(values, np.float32).reshape(2, 2) for values in ([1, 2, -3, 4], [0, -1, 2, 0.5], [3, 3, 3, -3], [1, 0, 0, 1])
]
TWO = (0.5, 1.5)  # parts of a gradient that is their mean
DEVICE = "/device:CPU:0"
BASE = Spec(model="trivial", batch_size=32, weight_decay=0.0, learning_rate=0.1)


@contextmanager
def one_variable(name: str = "dense0/weights") -> Iterator[tuple[tf.Variable, tf.Tensor]]:
    """A graph with a variable and a gradient to be fed."""
    with tf.Graph().as_default(), v1.device(DEVICE):
        yield v1.Variable(START, name=name, use_resource=True), v1.placeholder(tf.float32, START.shape)


def run(operation: Any, fed: tf.Tensor, fetched: Any, gradients: Sequence[Any]) -> list[Any]:
    """Return the fetched values after each of these gradients."""
    with v1.Session() as session:
        session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
        seen = []
        for gradient in gradients:
            session.run(operation, {fed: np.broadcast_to(gradient, START.shape)})
            seen.append(session.run(fetched))
        return seen


def run_own_updates(
    spec: Spec,
    gradients: Sequence[Any] = GRADIENTS,
    *,
    name: str = "dense0/weights",
    devices: int | None = None,
    shares: Sequence[float] = (1.0,),
) -> Any:
    """Return the variable after each update by the mean of shares of the gradient."""
    with one_variable(name) as (variable, gradient):
        several = [gradient * share for share in shares]
        operation = apply_all(spec, [Update(name, variable, several)], devices=devices)
        return np.stack(run(operation, gradient, variable, gradients)).tolist()


def run_tensorflow_updates(optimizer: Callable[[], Any]) -> Any:
    with one_variable() as (variable, gradient):
        operation = optimizer().apply_gradients([(gradient, variable)])
        return np.stack(run(operation, gradient, variable, GRADIENTS)).tolist()


def optimizers() -> dict[str, Any]:
    t = v1.train
    rate = BASE.learning_rate
    of_tensorflow = {
        "sgd": lambda: t.GradientDescentOptimizer(rate),
        "momentum": lambda: t.MomentumOptimizer(rate, 0.8, use_nesterov=True),
        "rmsprop": lambda: t.RMSPropOptimizer(rate, 0.7, momentum=0.6, epsilon=0.5),
        "adam": lambda: t.AdamOptimizer(rate, 0.8, 0.95, 1e-3),
    }
    return {
        name: {
            "ours": run_own_updates(BASE.replace(optimizer=name, **HYPERPARAMETERS[name])),
            "theirs": run_tensorflow_updates(optimizer),
        }
        for name, optimizer in of_tensorflow.items()
    }


@contextmanager
def compiling_all() -> Iterator[None]:
    """Treat every variable as a large one."""
    usual, own_optimizers.LARGE_BYTES = own_optimizers.LARGE_BYTES, 0
    yield
    own_optimizers.LARGE_BYTES = usual


def compiled_updates() -> dict[str, dict[str, Any]]:
    """Return the updates of each optimizer, with decay, clipping and a changing rate, as operations and compiled."""
    found = {}
    for name in OPTIMIZERS:
        changing = {"piecewise_learning_rate_schedule": "0.1;0.000001;0.05", "weight_decay": 0.5, "gradient_clip": 1.5}
        spec = BASE.replace(optimizer=name, **HYPERPARAMETERS[name], **changing)
        found[name] = {"plain": run_own_updates(spec), "mean": run_own_updates(spec, shares=TWO)}
        with compiling_all():
            found[name] |= {"compiled": run_own_updates(spec), "compiled mean": run_own_updates(spec, shares=TWO)}
    return found


def rates() -> dict[str, list[float]]:
    """Return the rates of each rule at each step, from the graph."""
    found = {}
    for name, rule in RATES.items():
        with tf.Graph().as_default(), v1.Session() as session:
            step = v1.placeholder(tf.int64, ())
            rate = compute_rate(learning_rate_of(Spec(**rule)), step)
            found[name] = [float(session.run(rate, {step: each})) for each in STEPS]
    return found


def overflows() -> dict[str, list[Any]]:
    """Scale, variable and momentum after each gradient, some of which are not finite."""
    spec = BASE.replace(optimizer="momentum", precision="fp16", fp16_enable_auto_loss_scale=True, fp16_inc_loss_scale_every_n=2)
    with one_variable() as (variable, gradient):
        make_loss_scale(TaskOrder(run="r", job="worker", index=0, spec=spec, cluster={}))
        operation = apply_all(spec, [Update("dense0/weights", variable, [gradient])])
        named = {each.op.name: each for each in [*v1.global_variables(), *v1.local_variables()]}
        fetched = [named["loss_scale"], variable[0, 0], named["dense0/weights/momentum"][0, 0]]
        seen = run(operation, gradient, fetched, OVERFLOWS)
    return {name: [float(each[at]) for each in seen] for at, name in enumerate(("scale", "variable", "momentum"))}


def configs() -> list[dict[str, Any]]:
    found = []
    for order in CONFIGS:
        variables = make_environment_variables(order)
        config = make_session_config(order)
        found.append({
            "variables": variables,
            "intra": config.intra_op_parallelism_threads,
            "inter": config.inter_op_parallelism_threads,
            "allow_growth": config.gpu_options.allow_growth,
            "gpus": config.device_count["GPU"],
            "jit": config.graph_options.optimizer_options.global_jit_level,
        })  # fmt: skip
    return found


def main() -> None:
    ones = [np.ones_like(START)] * 6
    warm = BASE.replace(batch_size=64, gpus=2, num_ps=1, num_learning_rate_warmup_epochs=4 * 128 / 1_281_167)
    print(json.dumps({
        "start": START.tolist(),
        "gradients": [gradient.tolist() for gradient in GRADIENTS],
        "optimizers": optimizers(),
        "compiled": compiled_updates(),
        "decayed": run_own_updates(BASE.replace(weight_decay=0.5)),
        "batch norm": run_own_updates(BASE.replace(weight_decay=0.5), name="batch_norm0/offset"),
        "clipped": run_own_updates(BASE.replace(weight_decay=0.5, gradient_clip=1.5)),
        "warming up": run_own_updates(warm, ones),
        "warming up alone": run_own_updates(warm, ones, devices=1),
        "rates": rates(),
        "overflows": overflows(),
        "configs": configs(),
    }))  # fmt: skip


if __name__ == "__main__":
    main()
