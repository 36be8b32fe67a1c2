"""What TensorFlow tells of a model once it has made a graph of it: its classes, its arithmetic, and first values."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from pytest_dtfperf.errors import SpecError
from pytest_dtfperf.training.own.counting import Uncounted, multiply_adds
from pytest_dtfperf.training.own.words import in_words

v1 = tf.compat.v1


class Traced(NamedTuple):
    """A model, seen in a graph."""

    classes: int
    multiply_adds: int | None  # forward, per image
    uncounted: str  # why that is not known
    values: Sequence[Any]  # of what was fetched: numpy arrays


def traced(
    name: str,
    image_shape: tuple[int, int, int],
    forward: Callable[[tf.Tensor], Any],
    fetched: Callable[[], Sequence[tf.Tensor]] = lambda: (),
) -> Traced:
    """What `forward` makes of one image, in a graph of its own. Raises `SpecError` if that is no model of images."""
    with tf.Graph().as_default() as graph:
        images = v1.placeholder(tf.float32, (1, *image_shape))
        try:
            logits = logits_of(forward(images))
        except SpecError:
            raise
        except Exception as error:
            raise SpecError(f"{name} cannot be computed within a graph: {in_words(error)}") from error
        shape = logits.shape.as_list() if logits.shape.rank is not None else None
        if shape is None or len(shape) != 2 or shape[1] is None or shape[0] not in (1, None):
            raise SpecError(f"{name} makes {shape} of an image: it must be (batch, classes), with a fixed number of classes")
        values = []
        if tensors := list(fetched()):
            with v1.Session(graph=graph) as session:
                values = session.run(tensors)
        try:
            return Traced(shape[1], multiply_adds(logits), "", values)
        except Uncounted as why:
            return Traced(shape[1], None, str(why), values)


def logits_of(out: Any) -> tf.Tensor:
    """What a softmax was made of, if that is the last: cross-entropy is of logits."""
    if not isinstance(out, tf.Tensor):
        raise SpecError(f"a model of images returns one tensor, (batch, classes), not a {type(out).__qualname__}")
    last = out
    while last.op.type in ("Identity", "Cast"):
        last = last.op.inputs[0]
    return last.op.inputs[0] if last.op.type == "Softmax" else out


class FirstValue:
    """Of a variable that a model has made. Eagerly they are a constant, which would make a graph as large as they are.

    There they are fetched out of this process, by an operation that must be in it, on `host`: made by `prepare`, for a
    variable that lives elsewhere wants whatever is made within it beside itself.
    """

    def __init__(self, values: Any, host: str) -> None:
        self._values = values
        self._host = host
        self._prepared: dict[tf.Graph, tf.Tensor] = {}

    def prepare(self) -> None:
        """Let the current graph have them."""
        graph = v1.get_default_graph()
        if graph not in self._prepared:
            with v1.device(None), v1.device(self._host):
                found = tf.numpy_function(lambda: self._values, [], tf.as_dtype(self._values.dtype))
            found.set_shape(self._values.shape)
            self._prepared[graph] = found

    def __call__(self) -> tf.Tensor:
        if tf.executing_eagerly():
            return tf.constant(self._values)
        return tf.identity(self._prepared[v1.get_default_graph()])  # which may be wherever the variable is
