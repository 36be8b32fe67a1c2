"""Inputs with failing producers in Python."""

from collections.abc import Iterator
from itertools import islice

from pytest_dtfperf.training.inputs.python_sources import PythonDataset, PythonQueue
from pytest_dtfperf.training.inputs.zmq_producer import Batch

DELIVERED = 3  # batches, before it happens


class RaisingQueue(PythonQueue):
    def batches(self, tower: int) -> Iterator[Batch]:
        yield from islice(super().batches(tower), DELIVERED)
        raise ValueError("the disk is on fire")


class EndingQueue(PythonQueue):
    def batches(self, tower: int) -> Iterator[Batch]:
        return islice(super().batches(tower), DELIVERED)


class RaisingDataset(PythonDataset):
    def batches(self, tower: int) -> Iterator[Batch]:
        yield from islice(super().batches(tower), DELIVERED)
        raise ValueError("the disk is on fire")


class EndingDataset(PythonDataset):
    def batches(self, tower: int) -> Iterator[Batch]:
        return islice(super().batches(tower), DELIVERED)
