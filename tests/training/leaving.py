"""Two workers in one process: the second has made its last step and leaves, the first has not. Prints what the second does.

`python -m tests.training.leaving MODE`: prints "stays" or "leaves", then "both left".
"""

import socket
import sys
import threading

import tensorflow as tf

from pytest_dtfperf.spec import Spec, TaskOrder
from pytest_dtfperf.training.variable_update.barrier import Barrier

v1 = tf.compat.v1
LEAVES_S = 1.0  # a worker that does not wait needs milliseconds
PATIENCE_S = 60.0


def main(mode: str) -> None:
    cluster = {"worker": tuple(f"127.0.0.1:{_free_port()}" for _ in range(2))}
    servers = [tf.distribute.Server(cluster, job_name="worker", task_index=index) for index in range(2)]
    spec = Spec(model="trivial", gpus=2, num_ps=0, variable_update=mode, batch_size=1)

    def leave(index: int) -> None:
        with tf.Graph().as_default() as graph:
            order = TaskOrder(run="test", job="worker", index=index, spec=spec, cluster=cluster)
            shutdown = Barrier(order).shutdown()
        v1.Session(servers[index].target, graph=graph).run(shutdown)

    second = threading.Thread(target=leave, args=(1,), daemon=True)
    second.start()
    second.join(LEAVES_S)
    print("stays" if second.is_alive() else "leaves", flush=True)
    leave(0)
    second.join(PATIENCE_S)
    print("the second hangs" if second.is_alive() else "both left", flush=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


if __name__ == "__main__":
    main(sys.argv[1])
