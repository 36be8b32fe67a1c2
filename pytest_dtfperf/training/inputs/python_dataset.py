"""Images from Python generators, through tf.data."""

from collections.abc import Iterator
from functools import partial
from time import perf_counter

import tensorflow as tf

from pytest_dtfperf.errors import InfrastructureError, SpecError
from pytest_dtfperf.spec import TaskOrder
from pytest_dtfperf.training.inputs.fed import ENDED, Failure
from pytest_dtfperf.training.inputs.made import Batch, made
from pytest_dtfperf.training.inputs.pipeline import PipelineInput, around_zero, in_format, unconverted
from pytest_dtfperf.training.inputs.share import share_of
from pytest_dtfperf.training.models import Network


class PythonDataset(PipelineInput):
    """A generator per tower, asked by `tf.data.Dataset.from_generator`, `datasets_prefetch_buffer_size` batches ahead."""

    def __init__(self, order: TaskOrder, network: Network, host: str) -> None:
        if order.spec.mode.single_session and order.workers > 1:
            raise SpecError(
                f"variable_update={order.spec.variable_update} has one session for all workers, and data=python-dataset a "
                "generator in each worker, which that session could not ask. data=python-queue feeds any worker."
            )
        self._order = order
        self._network = network
        self._host = host
        self._failures: list[Failure] = []

    def dataset(self, tower: int) -> tf.data.Dataset:
        batch_size = self._order.spec.batch_size
        kinds = (
            tf.TensorSpec((batch_size, *self._network.image_shape), tf.uint8),
            tf.TensorSpec((batch_size,), tf.int32),
        )
        return tf.data.Dataset.from_generator(partial(self._watched, tower), output_signature=kinds).map(self._numbers)

    def batches(self, tower: int) -> Iterator[Batch]:
        """A tower's, for ever."""
        return made(share_of(self._order, tower), self._network.image_shape, self._network.classes, self._order.spec.seed)

    def explain(self, message: str) -> InfrastructureError | None:
        return self._failures[0].error(self._order.name) if self._failures else None

    @unconverted
    def _numbers(self, images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return in_format(around_zero(images), self._order.spec.data_format), labels

    def _watched(self, tower: int) -> Iterator[Batch]:
        delivered = 0
        try:
            for batch in self.batches(tower):
                yield batch
                delivered += 1
        except Exception as exc:
            self._failures.append(Failure(exc, delivered, perf_counter()))
            raise
        self._failures.append(Failure(ENDED, delivered, perf_counter()))
