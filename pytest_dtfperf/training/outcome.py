"""What a training has come to: its variables, and where they lie."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from pytest_dtfperf.errors import InvalidMeasurement
from pytest_dtfperf.node.files import replacing


def save(
    session: tf.compat.v1.Session, variables: Mapping[str, Sequence[tf.Tensor]], path: Path, sent_as: tf.DType = tf.float32
) -> None:
    """As `write`, of what a session holds."""
    write(session.run({name: list(copies) for name, copies in variables.items()}), path, sent_as)


def write(variables: Mapping[str, Sequence[Any]], path: Path, sent_as: tf.DType = tf.float32) -> None:
    """Write variables by name, whole or not at all. `sent_as` is what copies may have been sent in: of these, the first is it.

    Raises `InvalidMeasurement` if copies of one differ.
    """
    values: dict[str, Any] = {}
    for name, copies in variables.items():
        first, *others = (copy.astype(sent_as.as_numpy_dtype, copy=False) for copy in copies)
        if any(not np.array_equal(first, other) for other in others):
            raise InvalidMeasurement(
                f"the copies of variable {name} have drifted apart: its devices trained different networks"
            )
        values[name] = copies[0]
    with replacing(path) as file:
        np.savez(file, **values)


def bytes_by_device(variables: Mapping[str, Sequence[tf.Variable]]) -> dict[str, int]:
    """Where the trained variables lie."""
    totals: dict[str, int] = {}
    for variable in (copy for copies in variables.values() for copy in copies):
        totals[variable.device] = totals.get(variable.device, 0) + variable.shape.num_elements() * variable.dtype.size
    return totals
