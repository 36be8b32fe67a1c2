"""Distribute images over towers. Pure, so that all workers compute the same result without a message.

All images of a data set, in a new order for every pass, are one endless sequence. A step takes the next batches of all towers
of all workers from it. So together they have the images of a single process with the sum of their batches.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from pytest_dtfperf.spec import TaskOrder


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


def share_of(order: TaskOrder, tower: int) -> Share:
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
