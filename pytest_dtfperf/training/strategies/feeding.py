"""Feed a strategy's replicas with images, each from a source of its own."""

from collections.abc import Callable

import tensorflow as tf

from pytest_dtfperf.spec import TaskOrder
from pytest_dtfperf.training.devices import Devices
from pytest_dtfperf.training.inputs import TrainingInput
from pytest_dtfperf.training.inputs.pipeline import prefetch_batches

Batch = tuple[tf.Tensor, tf.Tensor]  # images and labels, as `TrainingInput.batch` returns them


class Given(TrainingInput):
    """An input for a `Tower` that has one batch, which was fetched before."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch

    def batch(self, tower: int) -> Batch:
        return self._batch

    def start(self, session: object) -> None:
        """Do nothing: the batch is there."""


def make_sources(order: TaskOrder, feed: TrainingInput, devices: Devices) -> list[Callable[[], Batch]]:
    """Return for each of a worker's towers a function that returns its next batch, to be called within a `tf.function`."""
    if feed.resident:
        return [_make_resident_source(feed, tower, device) for tower, device in enumerate(devices.towers)]
    with tf.device(devices.host):
        return [_make_pipeline_source(order, feed, tower) for tower in range(len(devices.towers))]


def _make_resident_source(feed: TrainingInput, tower: int, device: str) -> Callable[[], Batch]:
    with tf.device(device):
        batch = feed.batch(tower)
    return lambda: batch


def _make_pipeline_source(order: TaskOrder, feed: TrainingInput, tower: int) -> Callable[[], Batch]:
    iterator = iter(prefetch_batches(feed.dataset(tower), order.spec, order.num_devices))
    return lambda: next(iterator)


def dataset_of_worker(order: TaskOrder, feed: TrainingInput, worker: tf.Tensor) -> tf.data.Dataset:
    """Return a worker's batches, where each worker has one device.

    It is made on the worker, by one function for all workers.
    """
    towers = [feed.dataset(tower) for tower in range(order.spec.gpus)]
    own = tf.data.Dataset.from_tensors(tf.cast(worker, tf.int64)).repeat()
    return prefetch_batches(tf.data.Dataset.choose_from_datasets(towers, own, stop_on_empty_dataset=False), order.spec, 1)
