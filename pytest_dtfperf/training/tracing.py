"""Further steps after the measured ones, each with TensorFlow's full account of it."""

import time
from collections.abc import Callable

import tensorflow as tf

from pytest_dtfperf.spec import TaskOrder
from pytest_dtfperf.traces import TaskTrace
from pytest_dtfperf.training.inputs.asked import asking
from pytest_dtfperf.training.replica import Replica
from pytest_dtfperf.training.step_stats import Tracer, queues_of
from pytest_dtfperf.training.wall_clock import WallClock

v1 = tf.compat.v1


def traced(
    session: tf.compat.v1.Session, replica: Replica, order: TaskOrder, patience_s: float, after_each: Callable[[], None]
) -> TaskTrace:
    """Train `order.traced_steps` steps as `training.step` does, traced. Raises what TensorFlow raises, also if a step takes
    more than `patience_s`: a worker that cannot trace makes no step, and those of a synchronous training wait for each other.
    After the steps `InvalidTrace`, where this host's clock was set meanwhile.
    """
    run = session.make_callable([replica.loss, *replica.updates], accept_options=True)
    tracer = Tracer(order.name)
    taken = []
    clock = WallClock()
    ended = time.time_ns()
    for number in range(order.traced_steps):
        options = v1.RunOptions(
            trace_level=v1.RunOptions.FULL_TRACE,
            output_partition_graphs=number == 0,  # it is dropped when steps are taken apart, and may be slower
            timeout_in_ms=round(1000 * patience_s),
        )
        metadata = v1.RunMetadata()
        begun, used = ended, time.process_time_ns()
        if order.sleep_s:
            time.sleep(order.sleep_s)
        called = time.time_ns()
        with asking(replica.feeds):
            run(options=options, run_metadata=metadata)
        ended = time.time_ns()
        after_each()
        taken.append((metadata, [each // 1000 for each in (begun, called, ended, time.process_time_ns() - used)]))
    clock.check()
    tracer.note_graphs(taken[0][0].partition_graphs)
    for metadata, (begin_us, called_us, end_us, cpu_us) in taken:  # not in between: the others would wait for it
        tracer.add(metadata.step_stats, begin_us=begin_us, called_us=called_us, end_us=end_us, cpu_us=cpu_us)
    return tracer.trace(dict(queues_of(session.graph.get_operations())))
