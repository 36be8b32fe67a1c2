"""Feed trainings with images and labels: one module per kind of input, each with a class derived from `TrainingInput`.

All images of a data set, in a new order for every pass, are one endless sequence. A step takes the next batches of all towers
of all workers from it. So together they have the images of a single process with the sum of their batches. All workers compute
the same sequence without a message.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from pytest_dtfperf.errors import DtfPerfError, SpecError
from pytest_dtfperf.spec import TaskOrder


@dataclass(frozen=True)
class TestSet:
    """The batches of a test set, as an operation and two tensors. TensorFlow's OutOfRangeError follows the last batch."""

    __test__ = False  # pytest would collect a class of this name

    restart: Any
    images: Any
    labels: Any


class TrainingInput(Protocol):
    """The base of inputs: images and labels for the towers of one worker.

    Made with (order, network, the device name of the worker's own CPU).
    """

    resident: bool = False  # the same batch in every step, which stays on the tower's device
    shuffles: bool = True  # False for a probe of a host: it waits for batches at once, and not until a buffer is full

    def batch(self, tower: int) -> tuple[Any, Any]:
        """Return a batch of images, float32 in the spec's data format, and of labels, int32.

        Called once per tower, on its device.
        """

    def dataset(self, tower: int) -> Any:
        """Return a tower's batches as a `tf.data.Dataset`, for TensorFlow's own strategies, which have no session."""
        raise SpecError(f"{type(self).__name__} feeds sessions: TensorFlow 2's own strategies have none")

    def test_set(self) -> TestSet:
        """Return the test set. Called by the chief, if the spec asks for an evaluation."""
        raise SpecError(f"{type(self).__name__} has no test set: accuracy on made-up images means nothing")

    def start(self, session: Any) -> None:
        """Start the threads or processes that bring images. Called once, after initialisation and before the first step."""

    def explain(self, message: str) -> DtfPerfError | None:
        """Return the cause of TensorFlow's error in a step or an evaluation; None if it does not come from this input."""
        return None


@dataclass(frozen=True)
class Share:
    """A tower's part of the sequence."""

    tower: int  # its number among the towers of all workers
    towers: int  # the number of all towers
    batch_size: int

    def start(self, step: Any) -> Any:
        """Return the position in the sequence at which the tower's batch of a step begins.

        `step` is a number or a tensor of one.
        """
        return (step * self.towers + self.tower) * self.batch_size


def compute_share(order: TaskOrder, tower: int) -> Share:
    """Return the share of a worker's tower. All workers have equally many towers, but for the last, which may have fewer."""
    last = order.index == order.workers - 1
    first = order.spec.gpus - order.num_devices if last else order.index * order.num_devices
    return Share(first + tower, order.spec.gpus, order.spec.batch_size)


def iterate_batches(share: Share, images: int, seed: int) -> Iterator[list[int]]:
    """Yield the images of each of a tower's batches, as numbers below `images`, without end."""
    step = 0
    while True:
        start = share.start(step)
        yield [_draw_order(images, seed, at // images)[at % images] for at in range(start, start + share.batch_size)]
        step += 1


@lru_cache(maxsize=4)  # a batch may be of two passes, and towers at different positions
def _draw_order(images: int, seed: int, epoch: int) -> list[int]:
    order: list[int] = np.random.default_rng((seed, epoch)).permutation(images).tolist()
    return order
