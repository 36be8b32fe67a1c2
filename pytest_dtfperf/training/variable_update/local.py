"""Where a worker keeps what it fetches from parameter servers: on its host, or on the devices of its towers."""

from collections.abc import Sequence

from pytest_dtfperf.spec import TaskOrder
from pytest_dtfperf.training.devices import Devices
from pytest_dtfperf.training.placement import FLOAT_BYTES, GreedyLoadBalancing, size_of

# Smaller ones stay on the host: there are many, and a GPU copies each with a start-up time of its own. tf_cnn_benchmarks'
# threshold for what it caches.
SMALL_BYTES = 64 * 1024 * FLOAT_BYTES


class LocalDevices:
    """The device of each variable's value, as `local_parameter_device` says.

    `cpu`: on the host, from where towers copy it. `gpu`: on the tower that has the fewest bytes so far, from where the others
    copy it, over their own links; what is small stays on the host. Never is one fetched twice: the wire is the slowest.

    A lone process has no wire: its variables themselves are on these devices, the small ones as well.
    """

    def __init__(self, order: TaskOrder, devices: Devices) -> None:
        self._host = devices.host
        self._distributed = bool(devices.servers)
        self._on_towers = order.spec.local_parameter_device == "gpu"
        self.all: tuple[str, ...] = devices.towers if self._on_towers else (devices.host,)
        self._balance = GreedyLoadBalancing(len(self.all))
        self._found: dict[str, str] = {}

    def place(self, name: str, shape: Sequence[int], holder: str) -> str:
        """Of the next variable, which lies on the device `holder`."""
        self._found[name] = self._next(size_of(shape)) if self._distributed else holder
        return self._found[name]

    def _next(self, size_bytes: int) -> str:
        if self._on_towers and size_bytes < SMALL_BYTES:
            return self._host
        return self.all[self._balance.place(size_bytes)]

    def __getitem__(self, name: str) -> str:
        return self._found[name]
