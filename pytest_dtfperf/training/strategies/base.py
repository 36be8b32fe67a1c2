"""Train with TensorFlow 2's mirrored strategies, and set up its eager runtime."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from time import perf_counter, process_time, sleep, time
from typing import Any

import tensorflow as tf

from pytest_dtfperf.datamodel.task_report import Score, StepGraph
from pytest_dtfperf.extensions import load
from pytest_dtfperf.spec import TaskOrder
from pytest_dtfperf.traces import StepTimestamps, TaskTrace
from pytest_dtfperf.training import engine
from pytest_dtfperf.training.devices import get_devices, make_session_config
from pytest_dtfperf.training.evaluation import Evaluator
from pytest_dtfperf.training.graph_hash import describe_computation
from pytest_dtfperf.training.inputs import TrainingInput
from pytest_dtfperf.training.inputs.damage import explain_errors
from pytest_dtfperf.training.models import get_network
from pytest_dtfperf.training.replica import check_devices
from pytest_dtfperf.training.step_timestamps import TimestampLog, add_to_function, list_fetches
from pytest_dtfperf.training.strategies.replicas import Replicas, Variables, make_sources
from pytest_dtfperf.training.tracing import profile_steps, run_steps, trace_of_steps


def set_up(order: TaskOrder, *, computes: bool = True) -> None:
    """Set up this process's eager runtime. Without `computes`, a server beside it does the arithmetic.

    Raises `InfrastructureError` if TensorFlow does not see the GPUs that the task was given.
    """
    get_devices(order)
    config = make_session_config(order)
    tf.config.threading.set_intra_op_parallelism_threads(config.intra_op_parallelism_threads)
    tf.config.threading.set_inter_op_parallelism_threads(config.inter_op_parallelism_threads)
    tf.config.set_soft_device_placement(False)  # an impossible placement is an error
    tf.config.optimizer.set_jit("autoclustering" if order.spec.xla else False)
    tf.random.set_seed(order.spec.seed)  # combined with the operations' seeds, as in a graph
    gpus = tf.config.list_physical_devices("GPU")[: order.num_devices if order.device == "gpu" and computes else 0]
    tf.config.set_visible_devices(gpus, "GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, config.gpu_options.allow_growth)
    if order.device == "cpu" and order.num_devices > 1 and computes:
        (cpu,) = tf.config.list_physical_devices("CPU")
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * order.num_devices)


class StrategyTraining:
    """The part of a training that all of TensorFlow's strategies share: their variables, saved and evaluated."""

    _order: TaskOrder
    _variables: Variables

    def evaluate(self) -> Score:
        return self._evaluator.score(self._variables.values)

    @cached_property
    def _evaluator(self) -> Evaluator:
        return Evaluator(self._order)

    def save(self, path: Path) -> None:
        engine.write_variables(self._variables.trained, path)

    @property
    def variable_bytes(self) -> Mapping[str, int]:
        return engine.bytes_by_device(self._variables.copies)


class MirroredTraining(StrategyTraining):
    """A training with a copy of all variables on each device, and steps of all devices together.

    Derived classes define the strategy and the barriers.
    """

    _feed: TrainingInput
    _run: Any  # a concrete function: () -> loss, a tensor on each replica's device, timestamps
    _log: TimestampLog
    _added_ops: Sequence[str]  # names of what timestamps have added to the function

    def __init__(self, order: TaskOrder) -> None:
        self._order = order
        self.devices: Sequence[str] = ()

    def serve(self) -> None:
        set_up(self._order)

    def step(self) -> float:
        cpu_s = process_time()
        if self._order.sleep_s:  # before the work, so that the others wait for it, as in `training.step`
            sleep(self._order.sleep_s)
        called, called_s = time(), perf_counter()
        with explain_errors([self._feed]):
            loss, computed, timestamps = self._run()
            value = float(loss)
        self._log.note(cpu_s, called, called_s, [float(each) for each in timestamps])
        if not self.devices:
            found = {self._full_name(tensor.backing_device) for tensor in computed}
            self.devices = check_devices(self._order.name, found, get_devices(self._order).towers)
        return value

    def timestamps(self, step_s: Sequence[float]) -> Sequence[StepTimestamps]:
        return self._log.get_last_steps(step_s) if any(self._order.timestamped) else ()

    def barrier(self, name: str) -> None:
        raise NotImplementedError

    def trace(self, patience_s: float, after_each: Callable[[], None]) -> TaskTrace | None:
        """Trace some steps. `patience_s` is unused: a function cannot be cancelled, and waits as in any measured step."""
        order = self._order
        self.barrier("start")
        with profile_steps(order) as done:
            run_steps(done, order.traced_steps, self.step, order.sleep_s, after_each)
        return trace_of_steps(order.name, done)

    @property
    def step_graph(self) -> StepGraph:
        returned = [tensor.op.name for tensor in self._run.outputs if tensor.op.inputs[0].op.name in self._added_ops]
        return describe_computation(self._run.graph.as_graph_def(), without={*self._added_ops, *returned})

    def _make(self, strategy: tf.distribute.Strategy) -> None:
        """Make the variables, the inputs, and the function that is a step."""
        order, devices = self._order, get_devices(self._order)
        self._variables = Variables(strategy, order)
        self._feed = load(order.spec.input.implementation)(order, get_network(order.spec), devices.host)
        feeds = make_sources(order, self._feed, devices)
        replicas = Replicas(order, strategy, self._variables)

        def step() -> tuple[tf.Tensor, Sequence[tf.Tensor], Sequence[tf.Tensor]]:
            done = replicas.train([feed() for feed in feeds])
            pairs = {}
            self._added_ops = ()
            if any(order.timestamped):
                pairs[order.name], self._added_ops = add_to_function(done.values, done.gradients, devices.host)
            self._log = TimestampLog(order.name, pairs)
            return done.loss, done.computed, list_fetches(pairs)

        self._run = tf.function(step, autograph=False).get_concrete_function()

    def _full_name(self, device: str) -> str:
        """Return a device's full name: the runtime names its first CPU as before it had a server and knew its task."""
        found = tf.DeviceSpec.from_string(device)
        if self._order.cluster and found.job == "localhost":
            found = found.replace(job=self._order.job, task=self._order.index)
        return str(found.to_string())
