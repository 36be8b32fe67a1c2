"""Train MNIST with TensorFlow 1's parameter servers and workers: Listing 2 of the report of 2017, completed.

python mnist_ps.py --job_type=worker --task_idx=0 --ps_hosts=a:2230 --worker_hosts=a:2220,b:2220
"""

import argparse
import time

import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()

parser = argparse.ArgumentParser()
parser.add_argument("--job_type", choices=("ps", "worker"), required=True)
parser.add_argument("--task_idx", type=int, required=True)
parser.add_argument("--ps_hosts", type=lambda hosts: hosts.split(","), required=True)
parser.add_argument("--worker_hosts", type=lambda hosts: hosts.split(","), required=True)
parser.add_argument("--batch_size", type=int, default=64)
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--data", help="an npz file with images and labels; made-up digits otherwise")
flags = parser.parse_args()

cluster = tf.train.ClusterSpec({"ps": flags.ps_hosts, "worker": flags.worker_hosts})
server = tf.distribute.Server(cluster, job_name=flags.job_type, task_index=flags.task_idx)
if flags.job_type == "ps":
    server.join()  # does not return


def digits():
    """Return images of 28 x 28 between 0 and 1, and their labels."""
    if flags.data:
        with np.load(flags.data) as data:
            return data["images"], data["labels"]
    random = np.random.default_rng(flags.task_idx)
    labels = random.integers(0, 10, 2048)
    patterns = np.random.default_rng(7).random((10, 28, 28, 1))
    return (patterns[labels] + 0.3 * random.random((2048, 28, 28, 1))).astype(np.float32), labels.astype(np.int32)


def variable(name, shape):
    return tf.get_variable(name, shape, initializer=tf.truncated_normal_initializer(stddev=0.1))


def network(images):
    hidden = tf.nn.max_pool2d(tf.nn.relu(tf.nn.conv2d(images, variable("conv1", [5, 5, 1, 32]), 1, "SAME")), 2, 2, "SAME")
    hidden = tf.nn.max_pool2d(tf.nn.relu(tf.nn.conv2d(hidden, variable("conv2", [5, 5, 32, 64]), 1, "SAME")), 2, 2, "SAME")
    hidden = tf.nn.relu(tf.reshape(hidden, [-1, 7 * 7 * 64]) @ variable("dense1", [7 * 7 * 64, 256]))
    return hidden @ variable("dense2", [256, 10])


me = f"/job:worker/task:{flags.task_idx}"
with tf.device(tf.train.replica_device_setter(worker_device=me, cluster=cluster)):
    images, labels = digits()
    batches = tf.data.Dataset.from_tensor_slices((images, labels)).repeat().shuffle(2048).batch(flags.batch_size)
    images, labels = tf.data.make_one_shot_iterator(batches).get_next()
    logits = network(images)
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
    accuracy = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1, output_type=tf.int32), labels), tf.float32))
    train_op = tf.train.AdamOptimizer(1e-3).minimize(loss)

initialise, missing = tf.global_variables_initializer(), tf.report_uninitialized_variables()

# A worker needs only parameter servers. Without the filter it would wait for workers that have ended. Worker 0 initialises.
# With MonitoredTrainingSession the others would check for that only every 30 s.
config = tf.ConfigProto(device_filters=["/job:ps", me])
with tf.Session(server.target, config=config) as session:
    if flags.task_idx == 0:
        session.run(initialise)
    while session.run(missing).size:
        time.sleep(0.05)
    session.run(train_op)  # the first step builds the graph
    began = time.perf_counter()
    for _ in range(flags.steps):
        _, found, right = session.run([train_op, loss, accuracy])
    seconds = time.perf_counter() - began
print(f"loss {found:.3f}, accuracy {right:.2f}")
print(f"images/sec of all workers: {len(flags.worker_hosts) * flags.batch_size * flags.steps / seconds:.1f}")
