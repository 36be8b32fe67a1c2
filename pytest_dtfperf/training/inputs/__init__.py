"""What is trained on: one file per kind of input, one class each with the members of `Input`."""

from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class TestSet:
    """Batches in turn; TensorFlow's OutOfRangeError after the last. Fields are an operation and two tensors."""

    __test__ = False  # for pytest, which takes every Test... for a test

    restart: Any
    images: Any
    labels: Any


class Input(Protocol):
    """Images and labels for the towers of one worker. Made with (order, network, the worker's own CPU)."""

    def batch(self, tower: int) -> tuple[Any, Any]:
        """A batch of images, float32 in the spec's data format, and of labels, int32. Called once per tower, on its device."""

    def test_set(self) -> TestSet:
        """What accuracy is measured on. Called by the chief, if the spec asks for it."""
