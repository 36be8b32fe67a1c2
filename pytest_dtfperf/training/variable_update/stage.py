"""Values that wait on a tower for its next step."""

from collections.abc import Sequence

import tensorflow as tf

v1 = tf.compat.v1


class Stage:
    """Every tower's values of this step, which give place to those of the next one once they are read.

    Local variables rather than staging areas: what evaluates between two steps may read them, too.
    """

    def __init__(self, towers: Sequence[str]) -> None:
        self._towers = towers
        self._puts: list[tuple[tf.Variable, tf.Tensor, tf.Tensor]] = []

    def pass_through(self, tower: int, name: str, fetched: tf.Tensor) -> tf.Tensor:
        """What `fetched` was a step ago, on a tower."""
        with v1.device(self._towers[tower]), v1.name_scope(None):
            kept = v1.Variable(
                lambda: tf.zeros(fetched.shape),
                name=f"stage{tower}/{name}",
                trainable=False,
                use_resource=True,
                collections=[v1.GraphKeys.LOCAL_VARIABLES],
            )
            value = tf.raw_ops.ReadVariableOp(resource=kept.handle, dtype=kept.dtype)
        self._puts.append((kept, value, fetched))
        return value

    def fill(self) -> list[tf.Operation]:
        """Keep what is fetched now."""
        filled = []
        for kept, value, fetched in self._puts:
            with v1.device(kept.device), v1.control_dependencies([value.op]):  # what was kept has been read
                filled.append(kept.assign(fetched, read_value=False))
        return filled
