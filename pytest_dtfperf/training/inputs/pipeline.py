"""Share between all inputs on tf.data where they run, how far they read ahead, and how batches come into the graph."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar, cast

import tensorflow as tf

from pytest_dtfperf.spec import Spec, TaskOrder
from pytest_dtfperf.training.inputs import TrainingInput

v1 = tf.compat.v1

P = ParamSpec("P")
R = TypeVar("R")


def mark_unconverted(function: Callable[P, R]) -> Callable[P, R]:
    """Mark a function for tf.data as free of `if` and `for` over tensors, which AutoGraph would spend time to look for."""
    return cast("Callable[P, R]", tf.autograph.experimental.do_not_convert(function))


@contextmanager
def on_host(host: str) -> Iterator[None]:
    """Within the context, place operations on the worker's own CPU, whatever the tower's device."""
    with v1.device(None), v1.device(host):
        yield


class PipelineInput(TrainingInput):
    """The base of inputs that are a tf.data pipeline. Derived classes define a tower's batches in `dataset`."""

    _order: TaskOrder
    _host: str

    def batch(self, tower: int) -> tuple[tf.Tensor, tf.Tensor]:
        with on_host(self._host):
            return get_next_batch(self.dataset(tower), self._order.spec, self._order.num_devices)


def prefetch_batches(dataset: tf.data.Dataset, spec: Spec, pipelines: int) -> tf.data.Dataset:
    """Return the data set with batches prefetched. A worker's `pipelines` data sets share its private threads."""
    options = tf.data.Options()
    options.deterministic = True
    if spec.datasets_num_private_threads:
        options.threading.private_threadpool_size = max(1, spec.datasets_num_private_threads // pipelines)
    return dataset.prefetch(spec.datasets_prefetch_buffer_size).with_options(options)


def get_next_batch(dataset: tf.data.Dataset, spec: Spec, pipelines: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Return a step's images and labels from a data set, in a graph. See `prefetch_batches`."""
    iterator = v1.data.make_initializable_iterator(prefetch_batches(dataset, spec, pipelines))
    v1.add_to_collection(v1.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
    batch: tuple[tf.Tensor, tf.Tensor] = iterator.get_next()
    return batch


def convert_format(images: tf.Tensor, data_format: str) -> tf.Tensor:
    """Transpose (batch, height, width, channels) to the data format."""
    return tf.transpose(images, [0, 3, 1, 2]) if data_format == "NCHW" else images


def scale_around_zero(images: tf.Tensor) -> tf.Tensor:
    """Scale pixels from 0 to 255 to float32 from -1 to 1, as tf_cnn_benchmarks does."""
    return tf.cast(images, tf.float32) * (1 / 127.5) - 1
