"""Update variables without parameter servers: every device has a copy of all variables."""

from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from pytest_dtfperf.spec import Spec, TaskOrder
from pytest_dtfperf.spec.all_reduce import Range, parse
from pytest_dtfperf.training.devices import Devices
from pytest_dtfperf.training.models.tensors import make_variable
from pytest_dtfperf.training.optimizers import Update, apply_all, compute_mean
from pytest_dtfperf.training.variable_update.all_reduce_graph import HIERARCHICAL_COPY, Collective, Reduction, Towers, repack
from pytest_dtfperf.training.variable_update.barrier import group_by_device
from pytest_dtfperf.training.variable_update.parameter_server import Wire, widen_value
from pytest_dtfperf.training.variable_update.staging import stage_tensor

v1 = tf.compat.v1


class Copies:
    """The base of modes with variables on every tower. Each mode defines how gradients become updates."""

    def __init__(self, order: TaskOrder, devices: Devices) -> None:
        self._order = order
        self._spec = order.spec
        self._devices = devices
        self._copies: dict[str, list[tf.Variable]] = {}

    @property
    def variables(self) -> Mapping[str, Sequence[tf.Variable]]:
        return self._copies

    def variable(self, tower: int, name: str, shape: Sequence[int], initial: Callable[[], tf.Tensor]) -> tf.Tensor:
        """Return a variable of the tower. The first value follows from the name, so that all copies start equal."""
        with v1.device(self._devices.towers[tower]), v1.name_scope(None):
            copy = make_variable(initial, f"copy{tower}/{name}")
            self._copies.setdefault(name, []).append(copy)
            return copy.read_value()

    def begin(self) -> tf.Operation:
        return tf.no_op()

    def _apply(self, gradients: Mapping[str, Sequence[tf.Tensor]]) -> list[tf.Operation]:
        """Return the updates of all copies by their gradients."""
        updates = [
            Update(name, copy, [gradient])
            for name, copies in self._copies.items()
            for copy, gradient in zip(copies, gradients[name], strict=True)
        ]
        return apply_all(self._spec, updates)


class Replicated(Copies):
    """An update of all copies by the mean gradient over the devices, so that all stay equal.

    With relaxed consistency, a step applies the gradients of the step before, so that adding them need not wait for the
    backward pass. The first step has no gradients to apply; it still applies weight decay, which is not part of them.
    """

    def __init__(self, order: TaskOrder, devices: Devices) -> None:
        super().__init__(order, devices)
        self._reduce = Reduction(order, devices, _choose_algorithms(order.spec))
        self._fill: list[tf.Operation] = []

    def begin(self) -> tf.Operation:
        return tf.group(*self._fill)

    def update(self, gradients: Sequence[Mapping[str, tf.Tensor]]) -> list[tf.Operation]:
        towers = [[tower[name] for name in self._copies] for tower in gradients]
        means = (self._delay_means if self._spec.variable_consistency == "relaxed" else self._means)(towers)
        return group_by_device(self._apply(dict(zip(self._copies, zip(*means, strict=True), strict=True))))

    def _means(self, towers: Towers) -> Towers:
        return repack(self._reduce, towers, self._devices.towers, parts=self._spec.gradient_repacking)

    def _delay_means(self, towers: Towers) -> Towers:
        """Return the means of the step before, applied once this step has its own gradients, and so has read the variables."""
        at = zip(self._devices.towers, towers, strict=True)
        staged = [[stage_tensor(gradient, device, f"gradient{i}") for i, gradient in enumerate(tower)] for device, tower in at]
        self._fill += [each.fill for tower in staged for each in tower]
        means = self._means([[each.old for each in tower] for tower in staged])
        return [
            [each.wait_for_staging(mean) for each, mean in zip(*of_tower, strict=True)]
            for of_tower in zip(staged, means, strict=True)
        ]


def _choose_algorithms(spec: Spec) -> Sequence[Range]:
    """Return the algorithms of the spec; by default one device adds for all: the CPU, or the towers' devices in turn."""
    if spec.all_reduce_spec:
        return parse(spec.all_reduce_spec)
    if spec.hierarchical_copy:
        return [Range(HIERARCHICAL_COPY)]
    return [Range({"cpu": "pscpu", "gpu": "psgpu"}[spec.local_parameter_device])]


class Independent(Copies):
    """An update without any exchange, so that networks drift apart. Workers only begin and end the measured steps together."""

    @property
    def variables(self) -> Mapping[str, Sequence[tf.Variable]]:
        """Return the variables of the first tower: those of the others are other networks."""
        return {name: copies[:1] for name, copies in self._copies.items()}

    def update(self, gradients: Sequence[Mapping[str, tf.Tensor]]) -> list[tf.Operation]:
        return group_by_device(self._apply({name: [tower[name] for tower in gradients] for name in self._copies}))


class CollectiveAllReduce(Copies):
    """An update by TensorFlow's collectives, which join the workers' graphs: all devices apply the same mean.

    A worker's first device adds for all of its devices, and takes part in the ring: as much is sent as with one device per
    worker.

    In bf16, TensorFlow's ring adds what it sends: the sum so far is rounded wherever it passes.
    """

    def __init__(self, order: TaskOrder, devices: Devices) -> None:
        super().__init__(order, devices)
        (range_,) = parse(order.spec.all_reduce_spec or "collective")
        self._first = devices.towers[0]
        self._wire = Wire(order)
        self._reduce = Collective([self._first], size=order.workers, shards=range_.shards, divides=not self._wire.narrows)
        # The ring's mean is over workers: one with more devices has more weight.
        self._weight = order.num_devices * order.workers / order.spec.gpus

    def update(self, gradients: Sequence[Mapping[str, tf.Tensor]]) -> list[tf.Operation]:
        means = {name: [self._mean([tower[name] for tower in gradients])] * len(gradients) for name in self._copies}
        return group_by_device(self._apply(means))

    def _mean(self, gradients: Sequence[tf.Tensor]) -> tf.Tensor:
        with v1.device(self._first):
            own = compute_mean(gradients)
            weighed = own if self._weight == 1 else own * self._weight
            if not self._wire.narrows:
                return self._reduce([weighed])[0]
            (total,) = self._reduce([self._wire.narrow(weighed)])
            return widen_value(total) * (1.0 / self._order.workers)


class DistributedAllReduce(Copies):
    """An update in the chief's graph, which has a tower on every device of every worker. Every tower has all variables."""

    def __init__(self, order: TaskOrder, devices: Devices) -> None:
        super().__init__(order, devices)
        self._reduce = Reduction(order, devices, parse(order.spec.all_reduce_spec or "xring"))

    def update(self, gradients: Sequence[Mapping[str, tf.Tensor]]) -> list[tf.Operation]:
        means = {name: self._reduce([tower[name] for tower in gradients]) for name in self._copies}
        return group_by_device(self._apply(means))
