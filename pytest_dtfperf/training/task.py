"""A task's life, from its port to its report."""

import math
import os
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy's own threads would make it unsafe to fork this process

import tensorflow as tf

from pytest_dtfperf.measurement import TaskReport
from pytest_dtfperf.spec import TaskOrder
from pytest_dtfperf.training import outcome
from pytest_dtfperf.training.devices import config_of, devices_of, start_server
from pytest_dtfperf.training.memory import keep_freed_memory
from pytest_dtfperf.training.replica import Replica, build
from pytest_dtfperf.training.step import Step
from pytest_dtfperf.training.step_timer import time_steps

v1 = tf.compat.v1

# Out of scope, a session closes itself, and that takes up to ten seconds with tf.data behind it, or for ever without its
# parameter servers. The process's end needs none of it.
_NEVER_CLOSED: list[tf.compat.v1.Session] = []

PROGRESS_S = 0.25  # at least, from one sign of progress to the next


class Counters(Protocol):
    """What the host and this process have used so far."""

    @property
    def bytes_sent(self) -> int:
        """By the host, over all its interfaces."""

    @property
    def bytes_received(self) -> int:
        """By the host, over all its interfaces."""

    @property
    def cpu_s(self) -> float:
        """User and system time of this process."""

    @property
    def peak_rss_bytes(self) -> int:
        """Of this process."""


class Connection(Protocol):
    """The line to whoever started this task."""

    def send(self, kind: str, **data: Any) -> None:
        """Say "ready" (the port is bound), "progress", or "report"."""

    def wait(self) -> str:
        """Block for the next word: "go" or "leave"."""

    def counters(self) -> Counters:
        """Read the counters now."""


def run(order: Mapping[str, Any], connection: Connection) -> None:
    """Live a task's life. The caller then ends the process at once: closing a session would wait for tasks that are gone."""
    task = TaskOrder.from_json(order)
    keep_freed_memory()
    with tf.Graph().as_default():
        (_serve if task.job == "ps" else _train)(task, connection)


def _serve(order: TaskOrder, connection: Connection) -> None:
    """A parameter server does what workers ask of it, until it is sent away."""
    phases = _Phases()
    start_server(order)
    phases.end("server")
    connection.send("ready")
    while connection.wait() != "leave":
        pass
    used = connection.counters()
    report = TaskReport(
        job=order.job, index=order.index, startup_s=phases.taken_s, cpu_s=used.cpu_s, peak_rss_bytes=used.peak_rss_bytes
    )
    connection.send("report", **report.to_json())


def _train(order: TaskOrder, connection: Connection) -> None:
    """A worker's life: build, initialise, warm up, meet the others, measure, report."""
    spec = order.spec
    phases = _Phases()
    target = start_server(order)
    phases.end("server")
    connection.send("ready")

    replica = build(order, devices_of(order))
    phases.end("build")
    if connection.wait() == "leave":
        return
    phases.restart()

    session = v1.Session(target, config=config_of(order))
    _NEVER_CLOSED.append(session)
    _initialise(session, replica, order)
    phases.end("session")

    step = Step(session, replica, order)
    progress = _Progress(order, connection)
    time_steps(step, min(spec.warmup_steps, 1), progress)
    phases.end("first_step")
    time_steps(step, max(spec.warmup_steps - 1, 0), progress)
    phases.end("warmup")

    session.run(replica.meetings["start"])
    before = connection.counters()
    window = time_steps(step, spec.steps, progress)
    elapsed_s = math.fsum(window.step_s)
    if not spec.cross_replica_sync:  # others may still be training: the run is over when all are
        session.run(replica.meetings["end"])
        elapsed_s = perf_counter() - window.started
    after = connection.counters()

    accuracy = outcome.accuracy(session, replica.evaluation) if replica.evaluation else None
    if order.is_chief and order.checkpoint:
        outcome.save(session, replica.variables, Path(order.checkpoint))
    report = TaskReport(
        job=order.job,
        index=order.index,
        num_devices=order.num_devices,
        step_s=window.step_s,
        elapsed_s=elapsed_s,
        loss=window.loss,
        startup_s=phases.taken_s,
        bytes_sent=after.bytes_sent - before.bytes_sent,
        bytes_received=after.bytes_received - before.bytes_received,
        peak_rss_bytes=after.peak_rss_bytes,
        cpu_s=after.cpu_s - before.cpu_s,
        devices=step.devices,
        accuracy=accuracy,
        variable_bytes=outcome.bytes_by_device(replica.variables),
    )
    connection.send("report", **report.to_json())


def _initialise(session: tf.compat.v1.Session, replica: Replica, order: TaskOrder) -> None:
    session.run(replica.initialise_own)
    if order.is_chief:
        session.run(replica.initialise_shared)
    session.run(replica.meetings["initialised"])


class _Phases:
    """How long each phase of a start-up took, one after the other."""

    def __init__(self) -> None:
        self.taken_s: dict[str, float] = {}
        self.restart()

    def restart(self) -> None:
        self._began = perf_counter()

    def end(self, phase: str) -> None:
        self.taken_s[phase] = perf_counter() - self._began
        self.restart()


class _Progress:
    """Called after each step, warm-up included; speaks now and then."""

    def __init__(self, order: TaskOrder, connection: Connection) -> None:
        self._connection = connection
        self._of = order.spec.warmup_steps + order.spec.steps
        self._images_per_step = order.spec.gpus * order.spec.batch_size
        self._done = self._said = 0
        self._said_at = perf_counter()

    def __call__(self) -> None:
        self._done += 1
        now = perf_counter()
        passed_s = now - self._said_at
        if passed_s < PROGRESS_S:
            return
        images_per_sec = (self._done - self._said) * self._images_per_step / passed_s
        self._connection.send("progress", step=self._done, of=self._of, images_per_sec=images_per_sec)
        self._said, self._said_at = self._done, now
