"""Average gradients with Horovod (https://horovod.ai): one process per device, each with its own variables.

The processes are started as in every training, and not by mpirun. They find each other over Gloo and a rendezvous in the chief,
as with `horovodrun --gloo`. The environment variables and the server are those of horovod/runner/gloo_run.py and
horovod/runner/http/http_server.py, version 0.28.
"""

import importlib
import os
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from pytest_dtfperf.node.interfaces import find_interface
from pytest_dtfperf.spec import TaskOrder
from pytest_dtfperf.training.devices import Devices, make_session_config
from pytest_dtfperf.training.engine import add_shutdown_callback
from pytest_dtfperf.training.variable_update.horovod_slots import compute_slots
from pytest_dtfperf.training.variable_update.replicated import Copies

v1 = tf.compat.v1


def start_horovod(order: TaskOrder) -> Any:
    """Initialise Horovod, and return the module horovod.tensorflow once all workers have done so."""
    hosts = _list_hosts(order)
    found = compute_slots(hosts)
    os.environ |= {f"HOROVOD_{name.upper()}": str(value) for name, value in found[order.index].items()}
    os.environ |= {"HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo"}
    if order.workers > 1:
        interface = find_interface(hosts[order.index])
        if interface:  # otherwise Horovod chooses one. A host's name may lead to an address that others cannot reach
            os.environ.setdefault("HOROVOD_GLOO_IFACE", interface)
        port = _start_rendezvous(found) if order.is_chief else 0
        os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"] = hosts[0]
        os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"] = str(_broadcast(port, order))
    horovod = importlib.import_module("horovod.tensorflow")
    horovod.init()
    return horovod


def _list_hosts(order: TaskOrder) -> list[str]:
    """Return the address of each worker's host."""
    return [address.rpartition(":")[0].strip("[]") for address in order.cluster.get("worker", ("localhost:0",))]


def _start_rendezvous(found: Sequence[Mapping[str, Any]]) -> int:
    """Start the server, for the rest of the process's life, and return its port."""
    server = importlib.import_module("horovod.runner.http.http_server").RendezvousServer()
    slot_info = importlib.import_module("horovod.runner.common.util.hosts").SlotInfo
    port: int = server.start()
    server.init([slot_info(**slot) for slot in found])
    return port


def _broadcast(port: int, order: TaskOrder) -> int:
    """Return the chief's port in all workers.

    It is sent through a queue on the chief's CPU, as TensorFlow's servers are connected already.
    """
    with tf.Graph().as_default(), v1.device("/job:worker/task:0/device:CPU:0"):
        queue = v1.FIFOQueue(order.workers, tf.int32, shapes=[()], shared_name="horovod's rendezvous")
        enqueue, dequeue = queue.enqueue_many([tf.fill([order.workers], port)]), queue.dequeue()
        with v1.Session(f"grpc://{order.cluster['worker'][order.index]}", config=make_session_config(order)) as session:
            if order.is_chief:
                session.run(enqueue)
            return int(session.run(dequeue))


class Horovod(Copies):
    """A variable update that averages every gradient by itself under its variable's name. Horovod fuses small ones."""

    def __init__(self, order: TaskOrder, devices: Devices) -> None:
        super().__init__(order, devices)
        self._horovod = start_horovod(order)
        add_shutdown_callback(self._horovod.shutdown)

    def begin(self) -> tf.Operation:
        """Return an operation that gives all workers the chief's first values.

        They are equal before. It is done nevertheless, as Horovod's users do it.
        """
        return tf.group(*(self._broadcast(name, copy) for name, (copy,) in self._copies.items()))

    def _broadcast(self, name: str, copy: tf.Variable) -> tf.Operation:
        with v1.device(copy.device):
            value = self._horovod.broadcast(copy.read_value(), root_rank=0, name=_make_plain_name(f"begin/{name}"))
            return copy.assign(tf.ensure_shape(value, copy.shape), read_value=False)

    def update(self, gradients: Sequence[Mapping[str, tf.Tensor]]) -> list[tf.Operation]:
        (own,) = gradients
        return [tf.group(*self._apply({name: [self._mean(name, own[name])] for name in self._copies}))]

    def _mean(self, name: str, gradient: tf.Tensor) -> tf.Tensor:
        with v1.device(self._devices.towers[0]):
            mean = self._horovod.allreduce(gradient, op=self._horovod.Average, name=_make_plain_name(name))
            return tf.ensure_shape(mean, gradient.shape)


def _make_plain_name(name: str) -> str:
    """Return a name without scopes. It must be the same in all processes, because Horovod matches operations by it."""
    return f"horovod_{name.replace('/', '_')}"
