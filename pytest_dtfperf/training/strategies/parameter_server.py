"""Train with parameter_server_v2 (`tf.distribute.ParameterServerStrategy`): a coordinator gives batches to idle workers.

    chief (worker:0)   the coordinator, and beside it, in the same process, a server as every worker has
    worker:1, ...      a server: what the coordinator schedules there reads the variables from the parameter servers, computes
                       the gradients of a batch, and applies them to the variables, without waiting for other workers

A step of the measured loop is as many batches as there are devices, on any workers. It ends when the batches scheduled for it
are done; those of the next steps are scheduled by then, so that no worker waits for the coordinator. The last step of a window
ends with its last batch: exactly the images that are counted were trained within it.
"""

from collections import deque
from collections.abc import Callable, Sequence
from time import sleep

import tensorflow as tf

from pytest_dtfperf.datamodel.task_report import StepGraph
from pytest_dtfperf.errors import InvalidMeasurement
from pytest_dtfperf.extensions import load
from pytest_dtfperf.spec import Spec, TaskOrder
from pytest_dtfperf.traces import StepTimestamps, TaskTrace
from pytest_dtfperf.training.devices import get_devices
from pytest_dtfperf.training.engine import Training
from pytest_dtfperf.training.graph import GraphTraining
from pytest_dtfperf.training.graph_hash import describe_computation
from pytest_dtfperf.training.inputs import TrainingInput
from pytest_dtfperf.training.inputs.damage import explain_errors
from pytest_dtfperf.training.models import get_network
from pytest_dtfperf.training.replica import is_one_of
from pytest_dtfperf.training.step_timestamps import add_timestamp, add_to_function, convert_batches, list_fetches
from pytest_dtfperf.training.strategies.base import StrategyTraining, set_up
from pytest_dtfperf.training.strategies.replicas import Replicas, Variables, dataset_of_worker
from pytest_dtfperf.training.tracing import profile_steps, trace_of_batches

# Steps that are scheduled before they are waited for. A worker so many times slower than others does not hold them up.
READ_AHEAD = 16


def make_training(order: TaskOrder) -> Training:
    """Return the training of this task. All workers but the chief serve scheduled batches, and only pass barriers."""
    return WorkerTraining(order) if order.serves_devices else Coordinator(order)


class WorkerTraining(GraphTraining):
    """A worker that is not the chief. It can trace the batches that are trained on its server."""

    def trace(self, patience_s: float, after_each: Callable[[], None]) -> TaskTrace:
        with profile_steps(self._order) as done:
            self.barrier("start")
            self.barrier("end")
        return trace_of_batches(self._order.name, done)


class Coordinator(StrategyTraining, GraphTraining):
    """The chief. Its graph has only the barriers."""

    _traced: tf.Graph

    def __init__(self, order: TaskOrder) -> None:
        super().__init__(order, serves_devices=True)
        self._scheduled: deque[tf.distribute.experimental.coordinator.RemoteValue] = deque()
        self._steps = 0
        self._traced_left: int | None = None  # steps that are left to trace; None: it measures
        self._seen: set[str] = set()
        self._batch_timestamps: list[tuple[str, Sequence[float]]] = []  # the device and the timestamps of each batch
        self._added_ops: Sequence[str] = ()  # names of what timestamps have added to the function

    def serve(self) -> None:
        set_up(self._order, computes=False)
        super().serve()

    def initialise(self) -> None:
        cluster = tf.train.ClusterSpec({job: list(addresses) for job, addresses in self._order.cluster.items()})
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(cluster, rpc_layer="grpc")
        strategy = tf.distribute.ParameterServerStrategy(resolver)
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        self._variables = Variables(strategy, self._order)
        self._feed: TrainingInput = load(self._order.spec.input.implementation)(self._order, get_network(self._order.spec), "")
        self._batches = iter(self._coordinator.create_per_worker_dataset(tf.function(self._dataset, autograph=False)))
        self._replicas = Replicas(self._order, strategy, self._variables)
        self._function = tf.function(self._train, autograph=False)
        super().initialise()

    def _dataset(self) -> tf.data.Dataset:
        return dataset_of_worker(self._order, self._feed, tf.distribute.coordinator.experimental_get_current_worker_index())

    def _train(self, batches: tf.data.Iterator) -> tuple[tf.Tensor, tf.Tensor, Sequence[tf.Tensor]]:
        """Train a batch on a worker. Return its loss, a scalar on the device of its gradients, and its timestamps."""
        self._traced = tf.compat.v1.get_default_graph()
        done = self._replicas.train([next(batches)])
        (computed,) = done.computed
        scalar = tf.reshape(computed, [-1])[0]
        timestamps: Sequence[tf.Tensor] = ()
        if any(self._order.timestamped):
            begin = add_timestamp([], "")  # on the worker that runs this
            pair, self._added_ops = add_to_function(done.values, done.gradients, "")
            timestamps = [begin, *list_fetches({"": pair})]
            self._added_ops = [begin.op.name, *self._added_ops]
        return done.loss, scalar, timestamps

    def step(self) -> float:
        if self._order.sleep_s:
            sleep(self._order.sleep_s)
        spec = self._order.spec
        left = steps_left(spec, self._steps) if self._traced_left is None else self._traced_left
        ahead = min(left, READ_AHEAD + 1) * spec.gpus
        while len(self._scheduled) < ahead:
            self._scheduled.append(self._coordinator.schedule(self._function, args=(self._batches,)))
        self._steps += 1
        with explain_errors([self._feed]):
            return sum(self._await_batch(self._scheduled.popleft()) for _ in range(spec.gpus)) / spec.gpus

    def _await_batch(self, batch: tf.distribute.experimental.coordinator.RemoteValue) -> float:
        """Wait until the batch has been trained, and return its loss."""
        there = batch._get_values()  # before the fetch: a worker that fails during it trains the batch again
        loss, _, timestamps = batch.fetch()
        device = there[1].backing_device  # the fetched value is a copy on this device
        self._seen.add(device)
        self._batch_timestamps.append((device, [float(each) for each in timestamps]))
        return float(loss)

    def timestamps(self, step_s: Sequence[float]) -> Sequence[StepTimestamps]:
        """Return each batch's timestamps from its begin on its worker, as that clock has no time of the coordinator's order."""
        if not any(self._order.timestamped):
            return ()
        found: dict[str, list[Sequence[float]]] = {}
        for device, timestamps in self._batch_timestamps[-len(step_s) * self._order.spec.gpus :]:
            found.setdefault(f"worker:{tf.DeviceSpec.from_string(device).task}", []).append(timestamps)
        return [convert_batches(worker, found[worker]) for worker in sorted(found)]

    def trace(self, patience_s: float, after_each: Callable[[], None]) -> TaskTrace:
        """Return the trace of the batches that this process trained.

        Both barriers are passed in any case: other workers wait there.
        """
        order = self._order
        with profile_steps(order) as done:
            self.barrier("start")
            try:
                for self._traced_left in range(order.traced_steps, 0, -1):
                    self.step()
                    after_each()
            finally:
                self.barrier("end")
        return trace_of_batches(order.name, done)

    @property
    def devices(self) -> Sequence[str]:
        """Return the workers that had a batch to train, sorted: a slow worker may have had none."""
        asked = get_devices(self._order).towers
        if wrong := [device for device in self._seen if not is_one_of(device, asked)]:
            raise InvalidMeasurement(f"{', '.join(asked)} were to compute gradients, TensorFlow has computed some on {wrong}")
        return sorted(self._seen)

    @property
    def step_graph(self) -> StepGraph:
        outputs = [operation for operation in self._traced.get_operations() if operation.type == "Identity"]
        returned = [each.name for each in outputs if each.inputs[0].op.name in self._added_ops]
        return describe_computation(self._traced.as_graph_def(), without={*self._added_ops, *returned})


def steps_left(spec: Spec, done: int) -> int:
    """Return the steps left of the warm-up, or of the current measured window, after `done` steps."""
    if done < spec.warmup_steps:
        return spec.warmup_steps - done
    measured = done - spec.warmup_steps
    every = spec.eval_during_training_every_n_steps or spec.steps
    return min(every - measured % every, spec.steps - measured)
