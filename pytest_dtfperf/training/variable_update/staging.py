"""Stage values for the next step, and choose the devices for values that a worker fetches from parameter servers."""

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from pytest_dtfperf.spec import TaskOrder
from pytest_dtfperf.training.devices import Devices
from pytest_dtfperf.training.models.tensors import make_variable
from pytest_dtfperf.training.placement import FLOAT_BYTES, GreedyLoadBalancing, compute_bytes

v1 = tf.compat.v1


class StagedTensor(NamedTuple):
    """A tensor that is staged in the step that computes it, and taken out in the next step."""

    old: tf.Tensor  # the previous step's tensor, available without waiting for this step's
    put: tf.Operation
    fill: tf.Operation  # run before the first step, which then takes zeros

    def wait_for_staging(self, value: tf.Tensor) -> tf.Tensor:
        """Return the value, but not before the new tensor is staged, and so computed: its operands may change afterwards."""
        with v1.device(self.put.device), v1.control_dependencies([self.put]):
            return tf.identity(value)


def stage_tensor(tensor: tf.Tensor, device: str, area: str) -> StagedTensor:
    """Stage a tensor in an area of its own on a device."""
    with v1.device(device):
        fill = tf.raw_ops.Stage(values=[tf.zeros(tensor.shape, tensor.dtype)], shared_name=area)
        put = tf.raw_ops.Stage(values=[tensor], shared_name=area)
        # First in, first out: this gets the older tensor, whatever the order of the two in a step.
        (old,) = tf.raw_ops.Unstage(dtypes=[tensor.dtype], shared_name=area)
        return StagedTensor(tf.ensure_shape(old, tensor.shape), put, fill)


class Stage:
    """Every tower's values of this step, replaced by those of the next step once they are read.

    They are in local variables rather than in staging areas: an evaluation between two steps may read them, too.
    """

    def __init__(self, towers: Sequence[str]) -> None:
        self._towers = towers
        self._puts: list[tuple[tf.Variable, tf.Tensor, tf.Tensor]] = []

    def pass_through(self, tower: int, name: str, fetched: tf.Tensor) -> tf.Tensor:
        """Return the value that `fetched` had a step ago, on a tower."""
        with v1.device(self._towers[tower]), v1.name_scope(None):
            kept = make_variable(lambda: tf.zeros(fetched.shape), f"stage{tower}/{name}")
            value = tf.raw_ops.ReadVariableOp(resource=kept.handle, dtype=kept.dtype)
        self._puts.append((kept, value, fetched))
        return value

    def fill(self) -> list[tf.Operation]:
        """Return operations that store the fetched values."""
        filled = []
        for kept, value, fetched in self._puts:
            with v1.device(kept.device), v1.control_dependencies([value.op]):  # after the old value has been read
                filled.append(kept.assign(fetched, read_value=False))
        return filled


# Smaller ones stay on the host: there are many, and a GPU copies each with a start-up time of its own. tf_cnn_benchmarks'
# threshold for what it caches.
SMALL_BYTES = 64 * 1024 * FLOAT_BYTES


class LocalDevices:
    """The device of each variable's value, by `local_parameter_device`.

    `cpu`: on the host, from where towers copy it. `gpu`: on the tower that has the fewest bytes so far, from where the others
    copy it, over their own links; small values stay on the host. No value is fetched twice: the network is the slowest link.

    A single process sends nothing: its variables themselves are on these devices, the small ones as well.
    """

    def __init__(self, order: TaskOrder, devices: Devices) -> None:
        self._host = devices.host
        self._distributed = bool(devices.servers)
        self._on_towers = order.spec.local_parameter_device == "gpu"
        self.all: tuple[str, ...] = devices.towers if self._on_towers else (devices.host,)
        self._balance = GreedyLoadBalancing(len(self.all))
        self._found: dict[str, str] = {}

    def place(self, name: str, shape: Sequence[int], holder: str) -> str:
        """Return the device for the value of the next variable, which is on the device `holder`."""
        self._found[name] = self._choose_next(compute_bytes(shape)) if self._distributed else holder
        return self._found[name]

    def _choose_next(self, size_bytes: int) -> str:
        if self._on_towers and size_bytes < SMALL_BYTES:
            return self._host
        return self.all[self._balance.place(size_bytes)]

    def __getitem__(self, name: str) -> str:
        return self._found[name]
