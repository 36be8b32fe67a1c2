"""Images from Python threads, through queues of TensorFlow."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from pytest_dtfperf.training.inputs.fed import FedInput
from pytest_dtfperf.training.inputs.made import Batch, made
from pytest_dtfperf.training.inputs.share import share_of


class PythonQueue(FedInput):
    """A thread and a queue per tower; the queue holds `datasets_prefetch_buffer_size` batches."""

    def feeds(self) -> Sequence[tuple[Sequence[int], Callable[[], Iterator[Batch]]]]:
        return [([tower], partial(self.batches, tower)) for tower in range(self._order.num_devices)]

    def batches(self, tower: int) -> Iterator[Batch]:
        """A tower's, for ever."""
        return made(share_of(self._order, tower), self._network.image_shape, self._network.classes, self._order.spec.seed)
