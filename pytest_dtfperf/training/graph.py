"""Training as a graph that a session runs: between-graph replication, as in TensorFlow 1."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import tensorflow as tf

from pytest_dtfperf.datamodel.task_report import Score, StepGraph
from pytest_dtfperf.spec import TaskOrder
from pytest_dtfperf.traces import StepTimestamps, TaskTrace
from pytest_dtfperf.training import engine
from pytest_dtfperf.training.devices import get_devices, make_session_config, start_server
from pytest_dtfperf.training.evaluation import compute_score
from pytest_dtfperf.training.graph_hash import describe_computation
from pytest_dtfperf.training.inputs.damage import explain_errors
from pytest_dtfperf.training.replica import Replica, Step, build, build_barriers_only
from pytest_dtfperf.training.tracing import trace_steps
from pytest_dtfperf.training.variable_update.parameter_server import Wire

v1 = tf.compat.v1

# Out of scope, a session closes itself, which takes up to ten seconds with tf.data behind it, or does not end without its
# parameter servers. The process's end needs none of it.
_NEVER_CLOSED: list[tf.compat.v1.Session] = []


class GraphTraining:
    """A worker's graph and its session. See `Training` for its members."""

    _target: str
    _replica: Replica
    _session: tf.compat.v1.Session
    _step: Step

    def __init__(self, order: TaskOrder, *, serves_devices: bool | None = None) -> None:
        """Make the training. With `serves_devices`, another session computes on this task's devices."""
        self._order = order
        self._serves_devices = order.serves_devices if serves_devices is None else serves_devices
        self._graph = tf.Graph()

    def serve(self) -> None:
        self._target = start_server(self._order)

    def build(self) -> None:
        with self._graph.as_default():
            self._replica = (build_barriers_only if self._serves_devices else build)(self._order, get_devices(self._order))

    def initialise(self) -> None:
        self._session = v1.Session(self._target, graph=self._graph, config=make_session_config(self._order))
        _NEVER_CLOSED.append(self._session)
        self._session.run(self._replica.initialise_own)
        if self._order.is_chief:
            self._session.run(self._replica.initialise_shared)
        self._session.run(self._replica.barriers["initialised"])
        self._session.run(self._replica.begin)
        for feed in self._replica.feeds:
            feed.start(self._session)
        if not self._serves_devices:
            self._step = Step(self._session, self._replica, self._order)

    def step(self) -> float:
        with explain_errors(self._replica.feeds):
            return self._step()

    def barrier(self, name: str) -> None:
        self._session.run(self._replica.barriers[name])

    def broadcast(self, value: bool) -> bool:
        broadcast = self._replica.broadcast
        return bool(self._session.run(broadcast.received, {broadcast.sent: value}))

    def evaluate(self) -> Score:
        assert self._replica.evaluation is not None
        with explain_errors(self._replica.feeds):
            return compute_score(self._session, self._replica.evaluation)

    def save(self, path: Path) -> None:
        engine.save_variables(self._session, self._replica.variables, path, Wire(self._order).dtype)

    def timestamps(self, step_s: Sequence[float]) -> Sequence[StepTimestamps]:
        return self._step.log.get_last_steps(step_s) if not self._serves_devices and all(self._order.timestamped) else ()

    def trace(self, patience_s: float, after_each: Callable[[], None]) -> TaskTrace | None:
        if self._serves_devices:
            return None  # the chief's session has it
        if not self._order.spec.mode.single_session:
            self.barrier("start")  # some workers may have evaluated
        return trace_steps(self._session, self._replica, self._order, patience_s, after_each)

    def shut_down(self) -> None:
        try:
            self._session.run(self._replica.shutdown)
        except tf.errors.OpError:  # the chief has received it, and may be gone, with any error, before it can confirm it
            if self._order.is_chief:
                raise

    @property
    def devices(self) -> Sequence[str]:
        return () if self._serves_devices else self._step.devices

    @property
    def variable_bytes(self) -> Mapping[str, int]:
        return engine.bytes_by_device(self._replica.stored)

    @property
    def step_graph(self) -> StepGraph | None:
        return None if self._serves_devices else describe_computation(self._graph.as_graph_def(), self._step.operations)
