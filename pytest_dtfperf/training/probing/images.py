"""How many images a second a worker's input brings when nobody trains on them."""

import os
from collections.abc import Collection
from dataclasses import replace

import tensorflow as tf

from pytest_dtfperf.spec import TaskOrder
from pytest_dtfperf.training.devices import config_of
from pytest_dtfperf.training.inputs import Input
from pytest_dtfperf.training.inputs.asked import asking
from pytest_dtfperf.training.load import load
from pytest_dtfperf.training.models import network_of
from pytest_dtfperf.training.own import building
from pytest_dtfperf.training.probing.readings import How, Reading, repeated

v1 = tf.compat.v1

BATCH = 16  # or the spec's, where that is smaller: a window shall have several
WARM_UP_S = 0.3  # what was read ahead is used up by then
_CPU = "/device:CPU:0"


def of_worker(order: TaskOrder, cpus: Collection[int]) -> Reading:
    """Of a worker with these cores, if not all: all towers' batches, fetched and thrown away. Raises as its input does."""
    if cpus:
        os.sched_setaffinity(0, cpus)
    building.expect(order)
    spec = replace(order.spec, batch_size=min(BATCH, order.spec.batch_size))
    alone = replace(order, spec=spec, cluster={}, device="cpu")
    feed: Input = load(spec.input.implementation)(alone, network_of(spec), _CPU)
    with tf.Graph().as_default() as graph, asking([feed]):
        with v1.device(_CPU):
            fetched = tf.group(*(tensor for tower in range(order.num_devices) for tensor in feed.batch(tower)))
        prepared = tf.group(v1.global_variables_initializer(), v1.local_variables_initializer(), v1.tables_initializer())
        session = v1.Session(graph=graph, config=config_of(alone))  # never closed: this process ends
        session.run(prepared)
        feed.start(session)
        how: How = {"data": spec.data, "model": spec.model, "batch": spec.batch_size, "threads": order.threads}
        cores = len(os.sched_getaffinity(0))
        return repeated(
            lambda: session.run(fetched), spec.batch_size * order.num_devices, how, cores=cores, warm_up_s=WARM_UP_S
        )
