"""Inputs are asked what is behind an error of TensorFlow's: they know the files."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import tensorflow as tf

from pytest_dtfperf.training.inputs import Input
from pytest_dtfperf.training.reason import message_of


@contextmanager
def asking(feeds: Iterable[Input]) -> Iterator[None]:
    """If TensorFlow fails here, the inputs are asked first whether they know why."""
    try:
        yield
    except (tf.errors.OpError, UnicodeDecodeError) as error:
        for feed in feeds:
            if cause := feed.explain(message_of(error)):
                raise cause from error
        raise
