"""Feed trainings with images and labels: one module per kind of input, each with a class derived from `TrainingInput`."""

from dataclasses import dataclass
from typing import Any, Protocol

from pytest_dtfperf.errors import DtfPerfError, SpecError


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
