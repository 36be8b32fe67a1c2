"""Keep variables on parameter servers: workers fetch values and send gradients, and servers apply the updates.

Between tasks, values and gradients may be sent in fewer bytes (`wire_precision`). The sender rounds to the nearest, ties to
even, and the receiver converts to float32 again. TensorFlow's own option, `enable_bfloat16_sendrecv`, cuts off the lower half
instead, so that all received values are nearer to zero.
"""

from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from pytest_dtfperf.spec import TaskOrder
from pytest_dtfperf.training.devices import Devices
from pytest_dtfperf.training.exchange_plan import Wave, assign_servers, compute_sizes, plan_waves
from pytest_dtfperf.training.models.tensors import DTYPES
from pytest_dtfperf.training.optimizers import Update, apply_all, compute_mean
from pytest_dtfperf.training.variable_update.barrier import Barrier, group_by_device
from pytest_dtfperf.training.variable_update.staging import LocalDevices, Stage

v1 = tf.compat.v1


class Wire:
    """The type in which values are sent between tasks. Values that are not sent to another task are not converted."""

    def __init__(self, order: TaskOrder) -> None:
        self.dtype: tf.DType = DTYPES[order.spec.wire_precision] if order.cluster else tf.float32

    @property
    def narrows(self) -> bool:
        return bool(self.dtype != tf.float32)

    def narrow(self, value: tf.Tensor) -> tf.Tensor:
        """Return the value in the type in which it is sent, on its own device."""
        if value.dtype == self.dtype:
            return value
        with v1.device(value.device):
            # Traces match a received tensor by the name of the sent one.
            return tf.cast(value, self.dtype, name=f"{value.op.name.rpartition('/')[2]}_{self.dtype.name}")

    def round_value(self, value: tf.Tensor) -> tf.Tensor:
        """Return the value as its receivers get it, on its own device, for copies that must stay equal."""
        return widen_value(self.narrow(value)) if self.narrows else value


def widen_value(value: tf.Tensor) -> tf.Tensor:
    """Return a received value as float32, on the current device."""
    return value if value.dtype == tf.float32 else tf.cast(value, tf.float32)


TURN_BYTES = 1 << 20  # of a gradient: smaller ones arrive before their arrival could be known


class Servers:
    """The variables on parameter servers. All operations run where a variable is: only values and gradients are sent.

    Workers that step together put each gradient into a queue of their own. The chief takes one from each queue as soon as they
    are there, adds them in the workers' order, not in that of arrival, and applies their mean. A queue needs no copy of a
    gradient, where TensorFlow's accumulators would copy it once and divide it again. In asynchronous trainings each gradient is
    applied alone.
    """

    def __init__(self, order: TaskOrder, devices: Sequence[str]) -> None:
        self._order = order
        self._devices = devices
        self._servers = assign_servers(order, len(devices))
        self.wire = Wire(order)
        # The mean is over workers: one with more devices has more weight.
        self._weight = order.num_devices * order.workers / order.spec.gpus if self.is_synchronous else 1
        self.variables: dict[str, tf.Variable] = {}

    @property
    def is_synchronous(self) -> bool:
        """Return whether an update is of all workers."""
        return self._order.workers > 1 and self._order.spec.cross_replica_sync

    def hold(self, name: str, shape: Sequence[int], initial: Callable[[], tf.Tensor]) -> tf.Variable:
        """Make a variable on its server."""
        with v1.device(self._devices[self._servers[name]]), v1.name_scope(None):
            self.variables[name] = v1.Variable(initial, name=name, use_resource=True)
        return self.variables[name]

    def read_variable(self, name: str, after: Sequence[tf.Operation] = ()) -> tf.Tensor:
        """Return a variable's value, on its server."""
        variable = self.variables[name]
        with v1.device(variable.device), v1.control_dependencies(after):
            return tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)

    def send_variable(self, name: str, after: Sequence[tf.Operation] = ()) -> tf.Tensor:
        """Return a variable's value as it leaves its server; the receiver makes it float32."""
        return self.wire.narrow(self.read_variable(name, after))

    def mean(self, gradients: Sequence[tf.Tensor]) -> tf.Tensor:
        """Return the mean of a worker's gradients from each tower, as it is sent from the current device."""
        mean = compute_mean(gradients)
        return self.wire.narrow(mean if self._weight == 1 else mean * self._weight)

    def apply(self, gradients: Mapping[str, tf.Tensor]) -> dict[str, tf.Operation]:
        """Return one update of each variable by the results of `mean`."""
        return self._apply_all({name: [gradient] for name, gradient in gradients.items()})

    def _apply_all(self, gradients: Mapping[str, Sequence[tf.Tensor]]) -> dict[str, tf.Operation]:
        updates = [Update(name, self.variables[name], theirs) for name, theirs in gradients.items()]
        devices = self._order.spec.gpus if self._order.spec.cross_replica_sync else self._order.num_devices
        return dict(zip(gradients, apply_all(self._order.spec, updates, devices=devices), strict=True))

    def push(self, gradients: Mapping[str, tf.Tensor], *, in_turn: bool = False) -> list[tf.Operation]:
        """Return operations that send this worker's gradients, the results of `mean`, to their servers.

        With `in_turn`, each server gets one large gradient after another, beginning with the last variables, whose gradients
        are known first. Several gradients sent at once would share the link, and all arrive when the last one does.
        """
        pushes: dict[str, tf.Operation] = {}
        last_large: dict[str, tf.Operation] = {}  # by server
        for name, gradient in reversed(list(gradients.items())):
            server = self.variables[name].device
            is_large = in_turn and gradient.shape.num_elements() * gradient.dtype.size >= TURN_BYTES
            if is_large and server in last_large:
                with v1.device(gradient.device), v1.control_dependencies([last_large[server]]):
                    gradient = tf.identity(gradient)
            with v1.device(server):
                pushes[name] = self._queue(name, self._order.index).enqueue(gradient)
            if is_large:
                last_large[server] = pushes[name]
        return [pushes[name] for name in gradients]

    def apply_means(self) -> dict[str, tf.Operation]:
        """Return one update of each variable on the chief, which runs as soon as every worker has pushed its gradient."""
        return self._apply_all({name: self._dequeue_gradients(name) for name in self.variables})

    def _dequeue_gradients(self, name: str) -> list[tf.Tensor]:
        with v1.device(self.variables[name].device):
            return [self._queue(name, worker).dequeue() for worker in range(self._order.workers)]

    def _queue(self, name: str, worker: int) -> tf.queue.FIFOQueue:
        """Return a worker's queue of one gradient. The next one waits until the chief has taken the last."""
        shape = self.variables[name].shape
        return v1.FIFOQueue(1, self.wire.dtype, shapes=[shape], shared_name=f"{name}/gradient of worker {worker}")


class ValueWaves:
    """Waves of values: servers send values in about the order in which a forward pass uses them.

    A worker requests all values of a step at once, and TensorFlow sends them in random order, so that the forward pass would
    wait for almost the last. So servers hold most values back and send them in waves, each when the values before it have
    arrived. The values between two waves are sent meanwhile, so that each server's link is busy.
    """

    def __init__(self, order: TaskOrder, host: str) -> None:
        """Plan the waves. `host` is the worker's CPU."""
        # Not measured on GPUs; no step waits for staged values.
        is_used = order.device == "cpu" and order.is_between_hosts and not order.spec.staged_vars
        servers = order.spec.num_ps if is_used else 0
        waves = plan_waves(compute_sizes(order), assign_servers(order, servers)) if servers else []
        self._waits = [_Wait(wave, host) for wave in waves]

    def hold_back(self, name: str, value: tf.Tensor) -> tf.Tensor:
        """Return the value as it is sent, on its own device, once its wave may begin."""
        for wait in self._waits:
            if name in wait.wave.held_back:
                with v1.device(value.device), v1.control_dependencies([wait.get_end()]):
                    return tf.identity(value, name=value.op.name.rpartition("/")[2])  # a trace shows this name
        return value

    def note_arrival(self, name: str, value: tf.Tensor) -> None:
        """Note the tensor that has the value on the worker."""
        for wait in self._waits:
            if name in wait.wave.awaited:
                wait.arrivals.append(value.op)


class _Wait:
    """The wait for the values before a wave. All of them are noted before the first value that it holds back."""

    def __init__(self, wave: Wave, host: str) -> None:
        self.wave = wave
        self.arrivals: list[tf.Operation] = []
        self._host = host
        self._end: tf.Operation | None = None

    def get_end(self) -> tf.Operation:
        """Return the operation on the worker's host that runs when all awaited values have arrived."""
        if self._end is None:
            with v1.device(self._host), v1.control_dependencies(self.arrivals):
                self._end = tf.no_op(name="awaited")
        return self._end


class ParameterServer:
    """An update on parameter servers: synchronous, of the mean over all devices once per step, or asynchronous, by each worker.

    In a synchronous step, every worker reads the variables and pushes its gradients. When all means are applied, the chief puts
    a token into each other worker's queue, and that ends their step. Only values, gradients and tokens are sent.

    A value is fetched once per step and worker, to the host or to one of its towers (`local_parameter_device`), the first
    layers' before the others, and gradients are averaged there. In a single process, without parameter servers, these devices
    have the variables themselves.

    With `staged_vars` the network computes with values that were fetched during the step before. So the variables w after step
    t, of gradients g, are those of delayed gradient descent, where the first two steps have the same variables:

        w[t + 1] = w[t] - learning_rate * g(w[t - 1])        w[-1] = w[0]

    This is exact in any synchronous training: an update waits until every worker has read the values that it replaces. In an
    asynchronous one, a value is older than all of its own worker's last gradient, and may be younger or older than those of
    others.
    """

    def __init__(self, order: TaskOrder, devices: Devices) -> None:
        self._order = order
        self._local = LocalDevices(order, devices)
        self._servers = Servers(order, devices.servers or self._local.all)
        self._first = (devices.servers or self._local.all)[0]
        self._barrier = Barrier(order)
        self._waves = ValueWaves(order, devices.host)
        self._stage = Stage(devices.towers) if order.spec.staged_vars else None
        self._there: dict[str, tf.Tensor] = {}  # the value that a step begins with, on its server
        self._here: dict[str, tf.Tensor] = {}  # the same, fetched

    @property
    def variables(self) -> Mapping[str, Sequence[tf.Variable]]:
        return {name: [variable] for name, variable in self._servers.variables.items()}

    def variable(self, tower: int, name: str, shape: Sequence[int], initial: Callable[[], tf.Tensor]) -> tf.Tensor:
        if name not in self._here:
            held = self._servers.hold(name, shape, initial)
            self._there[name] = self._servers.read_variable(name)
            sent = self._waves.hold_back(name, self._servers.wire.narrow(self._there[name]))
            with v1.device(self._local.place(name, shape, held.device)):
                self._here[name] = widen_value(tf.identity(sent))
            self._waves.note_arrival(name, self._here[name])
        return self._stage.pass_through(tower, name, self._here[name]) if self._stage else self._here[name]

    def begin(self) -> tf.Operation:
        return tf.group(*self._stage.fill()) if self._stage else tf.no_op()

    def update(self, gradients: Sequence[Mapping[str, tf.Tensor]]) -> list[tf.Operation]:
        own = {name: self._compute_own_mean(name, [tower[name] for tower in gradients]) for name in self._here}
        staged = self._stage.fill() if self._stage else []
        if not self._servers.is_synchronous:
            return [*staged, *group_by_device([*self._servers.apply(own).values()])]
        pushes = group_by_device(self._servers.push(own))
        return [*staged, *pushes, self._end_of_step()]

    def _compute_own_mean(self, name: str, gradients: Sequence[tf.Tensor]) -> tf.Tensor:
        with v1.device(self._local[name]):
            mean = self._servers.mean(gradients)
        if not self._stage:
            return mean
        # The stage's next value must be read before this step's update. Without a stage it is, as gradients depend on it.
        with v1.device(self._servers.variables[name].device), v1.control_dependencies([self._there[name].op]):
            return tf.identity(mean)

    def _end_of_step(self) -> tf.Operation:
        updates = group_by_device([*self._servers.apply_means().values()]) if self._order.is_chief else []
        with v1.device(self._first):
            queues = [self._barrier.queue("step", worker) for worker in range(self._order.workers)]
            if not self._order.is_chief:
                return queues[self._order.index].dequeue().op
            with v1.control_dependencies(updates):
                return tf.group(*(queue.enqueue(True) for queue in queues[1:]))
