"""Apply gradients to variables: the scale of the loss, update rules, learning rates, and updates in one pass through memory.

All state of an optimizer is on the device of its variable, so that an update never crosses the network.

Each rule is one of TensorFlow's own operations, with the variable locked: asynchronous workers may apply at the same time, and
without a lock one of their gradients could be lost.

float16 has no numbers below 6e-8: smaller gradients would become zero. Therefore the loss is scaled:

    tower: loss x scale -> gradients in float16 -> float32 / scale      each tower's result is a true gradient, or inf or nan
    on the variables' device: all finite? -> update; every N steps double the scale. If not -> no update; halve it

The decision depends on the gradients that are applied. Therefore it is the same for all towers and workers of one training, in
every mode.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import tensorflow as tf

from pytest_dtfperf.spec import Spec, TaskOrder
from pytest_dtfperf.spec.learning_rate import LearningRate, learning_rate_of
from pytest_dtfperf.training.models.layers import has_weight_decay
from pytest_dtfperf.training.models.tensors import make_variable

v1 = tf.compat.v1

DEFAULT_LOSS_SCALE = 128.0  # tf_cnn_benchmarks' value for image models
LEAST_LOSS_SCALE = 1.0  # below it, even unscaled gradients do not fit into float16

_SCALE_KEY = "dtfperf_loss_scale"  # the graph's collection of its one dynamic scale


class LossScale:
    """A constant loss scale."""

    def __init__(self, value: float | tf.Tensor) -> None:
        self._value = value

    def scale_loss(self, loss: tf.Tensor) -> tf.Tensor:
        return loss * self._value

    def unscale_gradients(self, gradients: Iterable[tf.Tensor]) -> list[tf.Tensor]:
        inverse = 1.0 / self._value
        return [gradient * inverse for gradient in gradients]


class DynamicLossScale(LossScale):
    """A loss scale that adapts, kept in a variable.

    It is on the first parameter server for all workers. Without one each worker has its own, and all of these make the same
    decisions.
    """

    def __init__(self, order: TaskOrder) -> None:
        self._every_n = order.spec.fp16_inc_loss_scale_every_n
        shared = bool(order.cluster.get("ps"))
        self._device = "/job:ps/task:0/device:CPU:0" if shared else _name_host(order)
        self._scale = _make_scale_variable(
            "loss_scale", order.spec.fp16_loss_scale or DEFAULT_LOSS_SCALE, self._device, shared=shared
        )
        self._finite_steps = _make_scale_variable("loss_scale_normal_steps", 0.0, self._device, shared=shared)
        with v1.device(self._device):
            value = self._scale.read_value()
        with v1.device(_name_host(order)):  # a step reads the scale once, to scale and to unscale
            super().__init__(tf.identity(value))

    def are_finite(self, gradients: Iterable[tuple[str, tf.Tensor]]) -> tf.Tensor:
        """Return whether no value is inf or nan. `gradients` are pairs of a device and a gradient to check there."""
        by_device: dict[str, list[tf.Tensor]] = {}
        for device, gradient in gradients:
            with v1.device(device):
                # A sum below 3e38 is finite if and only if all values are, and it reads them only once.
                by_device.setdefault(device, []).append(tf.math.is_finite(tf.reduce_sum(gradient)))
        there = []
        for device, flags in by_device.items():
            with v1.device(device):
                there.append(tf.reduce_all(flags))
        with v1.device(self._device):
            return tf.reduce_all(there)

    def learn(self, finite: tf.Tensor) -> tf.Operation:
        """Halve the scale after a step that overflowed, and double it after `every_n` consecutive steps that did not."""
        with v1.device(self._device):
            before, scale = self._finite_steps.read_value() + 1.0, self._scale.read_value()
            is_time = before >= self._every_n
            grown = tf.where(is_time, scale * 2.0, scale)
            new_scale = tf.where(finite, grown, tf.maximum(scale / 2.0, LEAST_LOSS_SCALE))
            new_steps = tf.where(tf.logical_and(finite, tf.logical_not(is_time)), before, 0.0)
            with v1.control_dependencies([new_scale, new_steps]):
                return tf.group(
                    self._scale.assign(new_scale, read_value=False), self._finite_steps.assign(new_steps, read_value=False)
                )


def make_loss_scale(order: TaskOrder) -> LossScale | None:
    """Return the loss scale of the current graph's towers; None in a precision that needs none."""
    if order.spec.precision != "fp16":
        return None
    if not order.spec.fp16_enable_auto_loss_scale:
        return static_loss_scale(order.spec)
    if not v1.get_collection(_SCALE_KEY):
        v1.add_to_collection(_SCALE_KEY, DynamicLossScale(order))
    return dynamic_loss_scale()


def static_loss_scale(spec: Spec) -> LossScale | None:
    value = DEFAULT_LOSS_SCALE if spec.fp16_loss_scale is None else spec.fp16_loss_scale
    return None if value == 1.0 else LossScale(value)


def dynamic_loss_scale() -> DynamicLossScale | None:
    """Return the current graph's dynamic loss scale."""
    found: list[DynamicLossScale] = v1.get_collection(_SCALE_KEY)
    return found[0] if found else None


def _name_host(order: TaskOrder) -> str:
    return f"/job:worker/task:{order.index}/device:CPU:0" if order.cluster else "/device:CPU:0"


def _make_scale_variable(name: str, start: float, device: str, *, shared: bool) -> tf.Variable:
    with v1.device(device), v1.name_scope(None):
        return make_variable(start, name, shared=shared)


def compute_rate(rule: LearningRate, step: tf.Tensor) -> tf.Tensor:
    """Return the learning rate after `step` steps (int64 scalar), as float32 on the current device."""
    rate = tf.constant(rule.values[0])
    for start, value in zip(rule.starts[1:], rule.values[1:], strict=True):
        rate = tf.where(step >= start, tf.constant(value), rate)
    if rule.decay_steps:
        times = tf.cast(step // rule.decay_steps, tf.float32)
        rate = tf.maximum(rate * tf.pow(tf.constant(rule.decay_factor), times), rule.minimum)
    if rule.warmup_steps:
        grown = rule.values[0] / rule.warmup_steps * tf.cast(step, tf.float32)
        rate = tf.where(step < rule.warmup_steps, grown, rate)
    return rate


# An update is bound by memory. As separate operations, weight decay and SGD move eight times the size of the variable: 2 to
# scale it, 3 to add, 3 to apply. Compiled, they move three times its size. The mean of two gradients adds 5; compiled, 1. With
# compiled updates the trivial network, which has a variable of 16 MB, makes 1.22 times as many steps in the same time.
# Compiling takes 0.05 s for each variable. For smaller ones this is more than it saves.
LARGE_BYTES = 4 << 20

CompiledUpdate = Callable[[Sequence[tf.Tensor]], tf.Operation]  # an update by these gradients


def apply_in_one_pass(variable: tf.Variable, gradients: Sequence[tf.Tensor], apply: CompiledUpdate) -> tf.Operation:
    """Apply an update as one compiled operation where that is faster. The current device must be the variable's."""
    return _compile_update(apply, gradients) if _is_worth_it(variable) else apply(gradients)


def _is_worth_it(variable: tf.Variable) -> bool:
    """Return whether a compiled update is faster: that of a large variable on a CPU.

    GPUs have ten times the bandwidth, and XLA needs further parts of CUDA for them.
    """
    size_bytes = variable.shape.num_elements() * variable.dtype.size
    on_cpu = tf.DeviceSpec.from_string(variable.device).device_type in (None, "CPU")
    return size_bytes >= LARGE_BYTES and on_cpu and bool(tf.test.is_built_with_xla())


def _compile_update(apply: CompiledUpdate, gradients: Sequence[tf.Tensor]) -> tf.Operation:
    """Return the update as one operation that XLA compiles.

    XLA holds the variable's lock from reading it to writing it, as TensorFlow's own operations do with `use_locking`.
    """

    def update(values: Sequence[tf.Tensor]) -> tf.Tensor:
        with tf.control_dependencies([apply(values)]):
            return tf.constant(True)

    return tf.function(update, jit_compile=True, autograph=False)(list(gradients)).op


class SharedUpdateValues(NamedTuple):
    """The values that all updates on one device share."""

    spec: Spec
    rate: float | tf.Tensor
    powers: Sequence[tf.Tensor]


Slots = Mapping[str, tf.Variable]
Apply = Callable[[SharedUpdateValues, tf.Variable, tf.Tensor, Slots], tf.Operation]


class Rule(NamedTuple):
    """The update rule of an optimizer, and the state that it keeps."""

    apply: Apply
    slots: Mapping[str, float] = {}  # name and initial value of the state beside each variable, in its shape
    powers: Sequence[str] = ()  # hyperparameters b of which step n needs b ** n


def sgd(common: SharedUpdateValues, variable: tf.Variable, gradient: tf.Tensor, slots: Slots) -> tf.Operation:
    return tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=common.rate, delta=gradient, use_locking=True)


def momentum(common: SharedUpdateValues, variable: tf.Variable, gradient: tf.Tensor, slots: Slots) -> tf.Operation:
    """Apply Nesterov's momentum, as tf_cnn_benchmarks does."""
    return tf.raw_ops.ResourceApplyMomentum(
        var=variable.handle,
        accum=slots["momentum"].handle,
        lr=common.rate,
        grad=gradient,
        momentum=common.spec.momentum,
        use_nesterov=True,
        use_locking=True,
    )


def rmsprop(common: SharedUpdateValues, variable: tf.Variable, gradient: tf.Tensor, slots: Slots) -> tf.Operation:
    """Apply RMSProp with momentum (Tieleman and Hinton, Coursera "Neural Networks for Machine Learning", lecture 6e)."""
    return tf.raw_ops.ResourceApplyRMSProp(
        var=variable.handle,
        ms=slots["rmsprop_square"].handle,
        mom=slots["rmsprop_momentum"].handle,
        lr=common.rate,
        rho=common.spec.rmsprop_decay,
        momentum=common.spec.rmsprop_momentum,
        epsilon=common.spec.rmsprop_epsilon,
        grad=gradient,
        use_locking=True,
    )


def adam(common: SharedUpdateValues, variable: tf.Variable, gradient: tf.Tensor, slots: Slots) -> tf.Operation:
    """Apply Adam (Kingma and Ba, arXiv 1412.6980, algorithm 1)."""
    return tf.raw_ops.ResourceApplyAdam(
        var=variable.handle,
        m=slots["adam_mean"].handle,
        v=slots["adam_square"].handle,
        beta1_power=common.powers[0],
        beta2_power=common.powers[1],
        lr=common.rate,
        beta1=common.spec.adam_beta1,
        beta2=common.spec.adam_beta2,
        epsilon=common.spec.adam_epsilon,
        grad=gradient,
        use_locking=True,
    )


RULES: Mapping[str, Rule] = {
    "adam": Rule(adam, {"adam_mean": 0.0, "adam_square": 0.0}, powers=("adam_beta1", "adam_beta2")),
    "momentum": Rule(momentum, {"momentum": 0.0}),
    "rmsprop": Rule(rmsprop, {"rmsprop_square": 1.0, "rmsprop_momentum": 0.0}),  # as tf.compat.v1's optimizer starts
    "sgd": Rule(sgd),
}


class Update(NamedTuple):
    """A variable, or one of its copies, and gradients. Their mean is the mean over all towers that train together."""

    name: str  # of the trained variable
    variable: tf.Variable
    gradients: Sequence[tf.Tensor]  # as received: shorter types are converted to float32 before they are added


# (variable, name, shape, first value) -> more state beside the variable: float32 for a float, int64 for a whole number.
State = Callable[[tf.Variable, str, Sequence[int], float], tf.Variable]


def compute_mean(gradients: Sequence[tf.Tensor]) -> tf.Tensor:
    """Return the mean of one variable's gradients, on the current device."""
    return gradients[0] if len(gradients) == 1 else tf.add_n(gradients) * (1.0 / len(gradients))


def make_state(variable: tf.Variable, name: str, shape: Sequence[int], start: float) -> tf.Variable:
    """Return optimizer state in a graph, on the variable's device.

    It is initialised by the process that initialises the variable: the chief, or each worker for its own.
    """
    is_local = any(variable is each for each in v1.get_collection(v1.GraphKeys.LOCAL_VARIABLES))
    kind = tf.float32 if isinstance(start, float) else tf.int64
    with v1.name_scope(None), v1.device(variable.device):
        return make_variable(
            lambda: tf.fill(shape, tf.constant(start, kind)), f"{variable.op.name}/{name}", shared=not is_local
        )


def apply_all(
    spec: Spec, updates: Iterable[Update], *, devices: int | None = None, state: State = make_state
) -> list[tf.Operation]:
    """Return one update operation of each variable, on the variable's device and in the given order.

    `devices` is the number of devices that the gradients come from; None: all that train. With a dynamic loss scale, no
    variable changes if any gradient is not finite.
    """
    updates = list(updates)
    on_devices = [_OnDevice(spec, theirs, devices or spec.gpus, state) for theirs in _group_by_device(updates).values()]
    applied: dict[int, tf.Operation] = {}
    scale = dynamic_loss_scale()
    finite = scale.are_finite(_list_gradients(updates)) if scale else None
    for there in on_devices:
        applied |= there.apply() if finite is None else there.apply_if(finite)
    found = [applied[id(update)] for update in updates]
    return found if finite is None else [*found[:-1], _learn_scale_after(found[-1], scale, finite)]


def _group_by_device(updates: Iterable[Update]) -> dict[str, list[Update]]:
    found: dict[str, list[Update]] = {}
    for update in updates:
        found.setdefault(update.variable.device, []).append(update)
    return found


def _list_gradients(updates: Iterable[Update]) -> list[tuple[str, tf.Tensor]]:
    """Return each gradient once with a device that needs it: copies of a variable share their gradient."""
    return list({id(each): (update.variable.device, each) for update in updates for each in update.gradients}.values())


def _learn_scale_after(last: tf.Operation, scale: DynamicLossScale | None, finite: tf.Tensor) -> tf.Operation:
    assert scale is not None
    return tf.group(last, scale.learn(finite))


class _OnDevice:
    """The updates on one device, with the state that they share: the learning rate, Adam's powers, and the step counter.

    Steps are counted on each device: one counter for all would tie all parameter servers to one of them.
    """

    def __init__(self, spec: Spec, updates: Sequence[Update], devices: int, state: State) -> None:
        self._spec = spec
        self._updates = updates
        self._devices = devices
        self._device = updates[0].variable.device
        self._rule = RULES[spec.optimizer]
        self._rate = learning_rate_of(spec)
        with v1.device(self._device):
            self._slots = [
                {name: state(each.variable, name, each.variable.shape, start) for name, start in self._rule.slots.items()}
                for each in updates
            ]
            first = updates[0].variable
            self._powers = [state(first, f"{name}_power", (), getattr(spec, name)) for name in self._rule.powers]
            # Counts batches, one per device: in some modes an update has the gradients of one worker only.
            self._batches = None if self._rate.is_constant else state(first, "batches", (), 0)

    def apply(self) -> dict[int, tf.Operation]:
        """Return an update operation by the id of each `Update`."""
        with v1.device(self._device):
            powers = [power.read_value() for power in self._powers]
            common = SharedUpdateValues(self._spec, self._compute_rate_now(), powers)
            applied = [
                apply_in_one_pass(update.variable, update.gradients, partial(self._apply_one, common, update, slots))
                for update, slots in zip(self._updates, self._slots, strict=True)
            ]
            if self._powers or self._batches is not None:
                applied[-1] = self._count_step(applied, powers)
        return {id(update): operation for update, operation in zip(self._updates, applied, strict=True)}

    def apply_if(self, finite: tf.Tensor) -> dict[int, tf.Operation]:
        with v1.device(self._device):
            done = v1.cond(finite, self._apply_and_confirm, lambda: tf.constant(False))
        return {id(update): done.op for update in self._updates}

    def _apply_and_confirm(self) -> tf.Tensor:
        with v1.control_dependencies(list(self.apply().values())):
            return tf.constant(True)

    def _compute_rate_now(self) -> float | tf.Tensor:
        if self._batches is None:
            return self._rate.values[0]
        return compute_rate(self._rate, self._batches.read_value() // self._spec.gpus)

    def _apply_one(
        self, common: SharedUpdateValues, update: Update, slots: Slots, gradients: Sequence[tf.Tensor]
    ) -> tf.Operation:
        float32_gradients = [
            gradient if gradient.dtype == tf.float32 else tf.cast(gradient, tf.float32) for gradient in gradients
        ]
        return self._rule.apply(common, update.variable, self._add_weight_decay(update, compute_mean(float32_gradients)), slots)

    def _add_weight_decay(self, update: Update, gradient: tf.Tensor) -> tf.Tensor:
        """Add weight decay's gradient, and then clip, as tf_cnn_benchmarks does.

        The gradient of the decay is known, so its loss, which is not reported, is never computed. All variables decay, except
        for those of batch norm. It is added once, where the variable is, and not in each tower.
        """
        spec = self._spec
        if spec.weight_decay and has_weight_decay(update.name):
            gradient = gradient + spec.weight_decay * update.variable.read_value()
        return gradient if spec.gradient_clip is None else tf.clip_by_value(gradient, -spec.gradient_clip, spec.gradient_clip)

    def _count_step(self, applied: Sequence[tf.Operation], powers: Sequence[tf.Tensor]) -> tf.Operation:
        """Return one operation that counts the step after all updates."""
        with v1.control_dependencies(applied):
            counted = [
                variable.assign(power * getattr(self._spec, name), read_value=False)
                for variable, power, name in zip(self._powers, powers, self._rule.powers, strict=True)
            ]
            if self._batches is not None:
                counted.append(self._batches.assign_add(self._devices, read_value=False))
            return tf.group(*counted)
