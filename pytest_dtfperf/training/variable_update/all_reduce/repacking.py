"""Gradients as they are, or all in one and cut into equal parts, which keeps all devices equally busy with adding."""

from collections.abc import Sequence

import tensorflow as tf

from pytest_dtfperf.training.variable_update.all_reduce.graph import cut
from pytest_dtfperf.training.variable_update.all_reduce.reduction import Reduce

v1 = tf.compat.v1

Towers = list[list[tf.Tensor]]  # of each tower, one tensor per variable


def repacked(reduce: Reduce, towers: Towers, devices: Sequence[str], *, parts: int) -> Towers:
    """The means, reduced in so many parts; 0: variable by variable."""
    if not parts:
        return _reduced(reduce, towers)
    joined = [_cut(gradients, device, parts) for gradients, device in zip(towers, devices, strict=True)]
    means = _reduced(reduce, joined)
    return [_restored(mean, like, device) for mean, like, device in zip(means, towers, devices, strict=True)]


def _reduced(reduce: Reduce, towers: Towers) -> Towers:
    means = [reduce(of_towers) for of_towers in zip(*towers, strict=True)]
    return [list(of_tower) for of_tower in zip(*means, strict=True)]


def _cut(gradients: Sequence[tf.Tensor], device: str, parts: int) -> list[tf.Tensor]:
    with v1.device(device):
        return cut(tf.concat([tf.reshape(gradient, [-1]) for gradient in gradients], 0), parts)


def _restored(parts: Sequence[tf.Tensor], likes: Sequence[tf.Tensor], device: str) -> list[tf.Tensor]:
    with v1.device(device):
        flat = tf.split(tf.concat(parts, 0), [like.shape.num_elements() for like in likes])
        return [tf.reshape(piece, like.shape) for piece, like in zip(flat, likes, strict=True)]
