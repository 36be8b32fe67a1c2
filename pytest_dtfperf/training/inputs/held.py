"""Data sets that fit into memory: read once, and then drawn from."""

import tensorflow as tf

from pytest_dtfperf.training.inputs.pipeline import unconverted
from pytest_dtfperf.training.inputs.share import Share

ROUNDS = 4  # of the cipher that shuffles; TensorFlow's default


def drawn(pixels: tf.Tensor, labels: tf.Tensor, share: Share, seed: int) -> tf.data.Dataset:
    """A tower's batches: of `pixels` and `labels`, each with one row per image, and the images' places in the sequence, int64.

    The order of a pass is computed where it is needed, number by number, instead of by a buffer that is filled and shuffled:
    a batch costs a gather, whoever else takes part.
    """
    images = int(pixels.shape[0])

    @unconverted
    def batch(step: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        positions = share.start(step) + tf.range(share.batch_size, dtype=tf.int64)
        chosen = _shuffled(positions, images, seed)
        return tf.gather(pixels, chosen), tf.gather(labels, chosen), positions

    return tf.data.Dataset.counter().map(batch)


def _shuffled(positions: tf.Tensor, images: int, seed: int) -> tf.Tensor:
    """Places in the sequence -> numbers of images: every number once in each pass, in an order of the pass's own."""
    epochs = positions // images
    seeds = tf.stack([tf.fill(tf.shape(epochs), tf.constant(seed, tf.int64)), epochs, tf.zeros_like(epochs)], axis=1)
    return tf.raw_ops.RandomIndexShuffle(
        index=positions % images, seed=seeds, max_index=tf.constant(images - 1, tf.int64), rounds=ROUNDS
    )


def chance(positions: tf.Tensor, seed: int) -> tf.Tensor:
    """A number from 0 to 2^40 for each place in the sequence, that looks like chance and follows from the seed, int64.

    So the distortions of an image do not depend on which worker it went to.
    """
    seeds = tf.constant([seed, 1, 1], tf.int64)
    return tf.raw_ops.RandomIndexShuffle(index=positions, seed=seeds, max_index=tf.constant(2**40, tf.int64), rounds=ROUNDS)
