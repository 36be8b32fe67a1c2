"""Trace further steps after the measured ones: by sessions, and by TensorFlow's profiler for its own strategies.

TensorFlow's own strategies have no account of a step (`RunMetadata`); the profiler is used for them. A profile has the time of
each operation, but not what the operation waited for.
"""

import resource
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path

import tensorflow as tf

from pytest_dtfperf.node import sweep
from pytest_dtfperf.spec import TaskOrder
from pytest_dtfperf.traces import NO_BATCH, Operation, OperationRun, TaskTrace, TracedStep, WallClock
from pytest_dtfperf.training.inputs.damage import explain_errors
from pytest_dtfperf.training.replica import Replica
from pytest_dtfperf.training.step_stats import Tracer, iterate_queues
from pytest_dtfperf.training.subprocess_call import Answer, NoAnswer, call_in_fork
from pytest_dtfperf.training.xspace import Activity, Profile

v1 = tf.compat.v1


def trace_steps(
    session: tf.compat.v1.Session, replica: Replica, order: TaskOrder, patience_s: float, after_each: Callable[[], None]
) -> TaskTrace:
    """Train `order.traced_steps` steps as `training.step` does, traced.

    Raises TensorFlow's errors, also if a step takes more than `patience_s`: a worker that cannot trace makes no step, and those
    of a synchronous training wait for each other. Raises `InvalidTrace` after the steps, where this host's clock was set during
    them.
    """
    run = session.make_callable([replica.loss, *replica.updates], accept_options=True)
    tracer = Tracer(order.name)
    taken = []
    clock = WallClock()
    ended = time.time_ns()
    for number in range(order.traced_steps):
        options = v1.RunOptions(
            trace_level=v1.RunOptions.FULL_TRACE,
            output_partition_graphs=number == 0,  # it may be slower, and the first step is dropped later
            timeout_in_ms=round(1000 * patience_s),
        )
        metadata = v1.RunMetadata()
        begun, used = ended, time.process_time_ns()
        if order.sleep_s:
            time.sleep(order.sleep_s)
        called = time.time_ns()
        with explain_errors(replica.feeds):
            run(options=options, run_metadata=metadata)
        ended = time.time_ns()
        after_each()
        taken.append((metadata, [each // 1000 for each in (begun, called, ended, time.process_time_ns() - used)]))
    clock.check()
    tracer.note_graphs(taken[0][0].partition_graphs)
    for metadata, (begin_us, called_us, end_us, cpu_us) in taken:  # not between steps: other workers would wait
        tracer.add(metadata.step_stats, begin_us=begin_us, called_us=called_us, end_us=end_us, cpu_us=cpu_us)
    return tracer.trace(dict(iterate_queues(session.graph.get_operations())))


MOST_BYTES = 64 << 20  # of a profile: some hundred thousand events
# Where one thread has begun an activity and another ended it, TensorFlow 2.21 may lose where that is kept, and frees what is
# not its own (`TraceMeRecorder::Consume`): the process is aborted. Collective operations have such activities in all workers
# but the first, which they ask how to go on. Whether it happens depends on how many threads have recorded anything: in each of
# 84 states that were tried some of these attempts were aborted, if any, and never all.
_MORE_THREADS = (0, 1, 2, 3, 5, 8, 13, 21, 34, 55)  # in consecutive attempts
_STOPS_S = 10.0  # at most, for all attempts: each takes milliseconds, and if one hangs, so does the next

_OPTIONS = {"host_tracer_level": 2, "python_tracer_level": 0, "device_tracer_level": 1}  # operations; no Python; kernels


@dataclass
class ProfileResult:
    """The result of a profiled stretch of work, once it is over."""

    profile: Profile | None = None
    why_not: Exception | None = None
    steps: list[tuple[int, int, int, int]] = field(default_factory=list)  # begin, called, end, CPU: microseconds

    @contextmanager
    def recording_errors(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.why_not = error


@contextmanager
def profile_steps(order: TaskOrder) -> Iterator[ProfileResult]:
    """Profile the steps within the context.

    Errors of the profiler are kept until later, as other workers wait for the steps.
    """
    done, clock = ProfileResult(), WallClock()
    with ExitStack() as held:
        with done.recording_errors():
            stop = _choose_stop(order)
            folder = held.enter_context(sweep.make_temporary_folder())
            tf.profiler.experimental.start(folder, tf.profiler.experimental.ProfilerOptions(**_OPTIONS))
        yield done
        if done.why_not is None:
            with done.recording_errors():
                stop()
                clock.check()
                done.profile = Profile(_read_xspace(Path(folder)), order.name)


def _choose_stop(order: TaskOrder) -> Callable[[], None]:
    """Return a function that stops this task's profiler without ending the task. Raise `ValueError` where there is none."""
    if order.is_chief or not order.spec.mode.workers_communicate:
        return _stop_here
    if order.device == "gpu":
        raise ValueError("TensorFlow's profiler may abort all workers but the first, and a copy of the process has no GPU")
    return _stop_apart


def _stop_here() -> None:
    tf.profiler.experimental.stop()


def _stop_apart() -> None:
    """Stop the profiler in a fork of this process, which writes the profile and may be aborted.

    Here the profiler goes on until the task ends. Raises `ValueError` if no fork has written the profile.
    """
    until_s = time.monotonic() + _STOPS_S
    for more_threads in _MORE_THREADS:
        try:
            with warnings.catch_warnings():  # Python warns of threads: their locks can only cost the profile
                warnings.simplefilter("ignore", DeprecationWarning)
                call_in_fork(partial(_stop, more_threads), round(until_s - time.monotonic(), 2))
            return
        except NoAnswer as error:
            why = error
        if time.monotonic() > until_s:
            break
    raise ValueError(f"TensorFlow's profiler could not be stopped: {why}")


def _stop(more_threads: int) -> Answer:
    """Stop the profiler after `more_threads` threads have recorded something."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the known crash needs no core dump
    threads = [threading.Thread(target=_record) for _ in range(more_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    tf.profiler.experimental.stop()
    return {}


def _record() -> None:
    with tf.profiler.experimental.Trace("more threads"):
        pass


def _read_xspace(folder: Path) -> object:
    """Return the `XSpace` that the profiler has written. Raise `ValueError` if it is too large, or missing."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    files = sorted(folder.rglob("*.xplane.pb"))
    if len(files) != 1:
        raise ValueError(f"TensorFlow's profiler has written {len(files)} files")
    if (size := files[0].stat().st_size) > MOST_BYTES:
        raise ValueError(f"the profile has {size >> 20} MiB, {MOST_BYTES >> 20} can be read")
    return xplane_pb2.XSpace.FromString(files[0].read_bytes())


def run_steps(
    done: ProfileResult, steps: int, step: Callable[[], object], sleep_s: float, after_each: Callable[[], None]
) -> None:
    """Train `steps` steps, and note the times of each."""
    ended = time.time_ns()
    for _ in range(steps):
        begun, used = ended, time.process_time_ns()
        called = begun + round(1e9 * sleep_s)  # `step` sleeps first
        step()
        ended = time.time_ns()
        after_each()
        done.steps.append((begun // 1000, called // 1000, ended // 1000, (time.process_time_ns() - used) // 1000))


def trace_of_steps(task: str, done: ProfileResult) -> TaskTrace:
    """Return the trace of a worker that makes its own steps. Raise the profiler's error if there is no profile."""
    profile = _get_profile(done)
    return _trace(task, profile.activities(), done.steps)


def trace_of_batches(task: str, done: ProfileResult) -> TaskTrace:
    """Return the trace of a worker that gets batches from a coordinator. Raise the profiler's error if there is no profile.

    Each batch is a step, with the wait for it.
    """
    profile = _get_profile(done)
    batches = profile.batches()
    idle = Operation("", NO_BATCH, f"{task}/CPU:0", ())
    waits = [Activity(idle, before[1], after[0]) for before, after in pairwise(batches)]
    begins = [batches[0][0], *(end for _, end in batches)] if batches else []
    steps = [(begin, begin, end, None) for begin, (_, end) in zip(begins, batches, strict=False)]
    return _trace(task, [*profile.activities(), *waits], steps)


def _get_profile(done: ProfileResult) -> Profile:
    if done.profile is None:
        raise done.why_not or ValueError("TensorFlow's profiler has reported nothing")
    return done.profile


def _trace(task: str, activities: Sequence[Activity], steps: Sequence[tuple[int, int, int, int | None]]) -> TaskTrace:
    operations: dict[Operation, int] = {}
    traced = []
    for begin, called, end, cpu in steps:
        ran = [
            OperationRun(
                operations.setdefault(each.operation, len(operations)), each.start_us, each.start_us, min(each.end_us, end)
            )
            for each in activities
            if begin <= each.start_us < end
        ]
        traced.append(TracedStep(begin, called, end, cpu, ran, []))
    return TaskTrace(task, list(operations), [], traced, edges=False)
