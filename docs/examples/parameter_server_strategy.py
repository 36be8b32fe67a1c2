"""Train a dense network with ParameterServerStrategy. The chief schedules steps on workers. Parameter servers keep variables.

dtfperf launch --chief --num-ps=1 --num-workers=2 parameter_server_strategy.py
"""

import tensorflow as tf

STEPS, BATCH_SIZE = 200, 64

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if resolver.task_type in ("worker", "ps"):
    # A step that waits for a parameter server keeps a thread. With few threads, all of them may wait for each other.
    config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=resolver.cluster_spec().num_tasks("worker") + 2)
    server = tf.distribute.Server(resolver.cluster_spec(), resolver.task_type, resolver.task_id, config=config)
    server.join()  # does not return

strategy = tf.distribute.ParameterServerStrategy(resolver)
with strategy.scope():
    weights = [tf.Variable(tf.random.stateless_normal(shape, seed=(1, 2)) * 0.05) for shape in ([784, 256], [256, 10])]


@tf.function
def step():
    images = tf.random.uniform([BATCH_SIZE, 784])
    labels = tf.argmax(images[:, :10], axis=1)

    def replica_step():
        with tf.GradientTape() as tape:
            logits = tf.nn.relu(images @ weights[0]) @ weights[1]
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(0.1 * gradient)
        return loss

    return strategy.run(replica_step)


coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
losses = [coordinator.schedule(step) for _ in range(STEPS)]
coordinator.join()
print(f"{STEPS} steps, loss {losses[0].fetch():.3f} -> {losses[-1].fetch():.3f}")
