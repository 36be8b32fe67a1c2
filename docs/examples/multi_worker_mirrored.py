"""Train a dense network with MultiWorkerMirroredStrategy and its own training loop. TF_CONFIG describes the cluster.

dtfperf launch --num-workers=2 multi_worker_mirrored.py
"""

import argparse

import tensorflow as tf

from pytest_dtfperf.steps import Steps

parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int, default=64, help="of each worker")
parser.add_argument("--steps", type=int, default=100)
flags = parser.parse_args()

strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    weights = [tf.Variable(tf.random.stateless_normal(shape, seed=(1, 2)) * 0.05) for shape in ([784, 256], [256, 10])]


def batches(context):
    """Return generated digits, different ones for every worker."""
    images = tf.random.stateless_uniform([1024, 784], seed=(3, context.input_pipeline_id))
    labels = tf.argmax(images[:, :10], axis=1)
    return tf.data.Dataset.from_tensor_slices((images, labels)).repeat().batch(flags.batch_size, drop_remainder=True)


def replica_step(images, labels):
    with tf.GradientTape() as tape:
        logits = tf.nn.relu(images @ weights[0]) @ weights[1]
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        loss = tf.reduce_mean(losses) / strategy.num_replicas_in_sync
    gradients = tape.gradient(loss, weights)
    for weight, gradient in zip(weights, tf.distribute.get_replica_context().all_reduce("sum", gradients), strict=True):
        weight.assign_sub(0.1 * gradient)
    return loss


@tf.function
def step(images, labels):
    return strategy.reduce("sum", strategy.run(replica_step, (images, labels)), axis=None)


data = iter(strategy.distribute_datasets_from_function(batches))
steps = Steps(images_per_step=flags.batch_size, warmup=3)
for _ in range(flags.steps + 3):
    with steps:
        loss = step(*next(data))
        steps.wait_for(loss)
print(f"loss {loss.numpy():.3f}")
