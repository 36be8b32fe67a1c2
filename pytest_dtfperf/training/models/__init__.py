"""The networks that can be trained: one file per family, one class each with the members of `Network`."""

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import tensorflow as tf

    from pytest_dtfperf.training.models.layers import Layers


class Network(Protocol):
    """A network: what it looks at, what it tells apart, and how."""

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Height, width, channels."""

    @property
    def classes(self) -> int:
        """How many kinds of images it tells apart."""

    def logits(self, net: "Layers", images: "tf.Tensor") -> "tf.Tensor":
        """(batch, classes) of a batch of images. Called once per tower, and once more to evaluate."""
