"""What is trained on: one file per kind of input, one class each with the members of `Input`."""

from dataclasses import dataclass
from typing import Any, Protocol

from pytest_dtfperf.errors import DtfPerfError, SpecError


@dataclass(frozen=True)
class TestSet:
    """Batches in turn; TensorFlow's OutOfRangeError after the last. Fields are an operation and two tensors."""

    __test__ = False  # for pytest, which takes every Test... for a test

    restart: Any
    images: Any
    labels: Any


class TrainingInput(Protocol):
    """Images and labels for the towers of one worker. Made with (order, network, the worker's own CPU). To be derived from."""

    resident: bool = False  # the same batch in every step, which stays on the tower's device

    def batch(self, tower: int) -> tuple[Any, Any]:
        """A batch of images, float32 in the spec's data format, and of labels, int32. Called once per tower, on its device."""

    def dataset(self, tower: int) -> Any:
        """Return a tower's batches as a `tf.data.Dataset`, for TensorFlow's own strategies, which have no session."""
        raise SpecError(f"{type(self).__name__} feeds sessions: TensorFlow 2's own strategies have none")

    def test_set(self) -> TestSet:
        """What accuracy is measured on. Called by the chief, if the spec asks for it."""
        raise SpecError(f"{type(self).__name__} has no test set: accuracy on made-up images means nothing")

    def start(self, session: Any) -> None:
        """Set going what brings images from outside of TensorFlow. Called once, after initialisation, before the first step."""

    def explain(self, message: str) -> DtfPerfError | None:
        """Return what is behind an error of TensorFlow's in a step or an evaluation, if it came from here."""
        return None
