"""Run a task, from binding its port to sending its report."""

import importlib.util
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from time import perf_counter
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy's own threads would make it unsafe to fork this process

import pytest_dtfperf.training.first_import  # noqa: F401 - before all others
from pytest_dtfperf.datamodel.task_report import TaskReport
from pytest_dtfperf.extensions import load
from pytest_dtfperf.spec import INPUTS, MODELS, VARIABLE_UPDATES, TaskOrder
from pytest_dtfperf.spec.tables import OwnModel
from pytest_dtfperf.traces import pack_timestamps, pack_trace
from pytest_dtfperf.training import PROGRESS_S, AgentConnection, command, probing
from pytest_dtfperf.training.devices import describe_settings, keep_freed_memory, start_server
from pytest_dtfperf.training.engine import Training, run_at_shutdown
from pytest_dtfperf.training.measured_steps import MeasuredSteps, run_measured_steps, serve_devices, time_steps
from pytest_dtfperf.training.models.outline import collect_facts
from pytest_dtfperf.training.own import building
from pytest_dtfperf.training.reason import format_reason
from pytest_dtfperf.training.subprocess_call import format_exception

# Imported now, so that a zygote has them before it forks.
_ENGINES = {engine: load(engine) for engine in {mode.engine for mode in VARIABLE_UPDATES.values()}}

# The timeout of a traced step: seconds, plus a multiple of the slowest measured step.
PATIENCE_S, PATIENCE_STEPS = 10.0, 5


def run(order: Mapping[str, Any], connection: AgentConnection) -> None:
    """Run a task. The caller then ends the process immediately: closing a session would wait for tasks that are gone."""
    if "probe" in order:
        probing.run(order, connection)
        return
    if lacking := _find_missing(order):
        connection.send("missing", what=lacking[0], name=lacking[1])
        return
    task = TaskOrder.from_json(order)
    if task.spec.command:
        command.run(order, connection)
        return
    try:
        _run_task(task, connection)
    except Exception as error:
        if lines := format_reason(error):
            with suppress(OSError):  # no process listens any more
                connection.send("failed", reason=lines)
        raise


def _find_missing(order: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the kind and name of what this host lacks for the order; None: it has everything.

    It may lack a row that another package has added to a table, or a module that the mode needs.
    """
    spec, own = order["spec"], order.get("own")
    if spec.get("command"):
        return None
    if own and building.is_missing(OwnModel.from_json(own)):
        return "model", spec["model"]
    for kind, table in (("model", MODELS), ("data", INPUTS)):
        if spec[kind] not in table and not (own and kind == "model"):
            return kind, spec[kind]
    module = VARIABLE_UPDATES[spec["variable_update"]].requires
    # A module that is installed and broken is reported by its import.
    return ("module", module) if module and importlib.util.find_spec(module.partition(".")[0]) is None else None


def _run_task(task: TaskOrder, connection: AgentConnection) -> None:
    keep_freed_memory()
    building.register_own_model(task)
    (_serve if task.job == "ps" else _train)(task, connection)


def _serve(order: TaskOrder, connection: AgentConnection) -> None:
    """Run a parameter server until the agent sends it away."""
    phases = _Phases()
    start_server(order)
    phases.end("server")
    connection.send("ready")
    while connection.wait() != "leave":
        pass
    used = connection.counters()
    report = TaskReport(
        job=order.job,
        index=order.index,
        startup_s=phases.taken_s,
        cpu_s=used.cpu_s,
        peak_rss_bytes=used.peak_rss_bytes,
        settings=describe_settings(order),
    )
    connection.send("report", **report.to_json())


def _train(order: TaskOrder, connection: AgentConnection) -> None:
    """Run a worker: build, initialise, warm up, pass the barriers, measure, report."""
    phases = _Phases()
    training: Training = _ENGINES[order.spec.mode.engine](order)
    training.serve()
    phases.end("server")
    connection.send("ready")

    training.build()
    phases.end("build")
    if connection.wait() == "leave":
        return
    phases.restart()

    training.initialise()
    phases.end("session")
    measured = (
        serve_devices(order, training, connection.counters)
        if order.serves_devices
        else _measure(order, training, connection, phases)
    )
    _send_timestamps(training, connection, measured.step_s)
    if order.traced_steps:
        _trace(order, training, connection, slowest_s=max(measured.step_s, default=0.0))
    training.shut_down()
    run_at_shutdown()
    step_graph = training.step_graph  # after the shutdown, so that no task waits for this hash
    report = TaskReport(
        job=order.job,
        index=order.index,
        num_devices=order.num_devices,
        step_s=measured.step_s,
        elapsed_s=measured.elapsed_s,
        loss=measured.loss,
        startup_s=phases.taken_s,
        devices=training.devices,
        evaluations=measured.evaluations,
        variable_bytes=training.variable_bytes,
        graph=step_graph,
        settings=describe_settings(order),
        network=collect_facts(order.spec) if order.own and order.is_chief else None,
        **measured.used,
    )
    connection.send("report", **report.to_json())


def _measure(order: TaskOrder, training: Training, connection: AgentConnection, phases: "_Phases") -> MeasuredSteps:
    spec = order.spec
    progress = TaskProgress(order, connection)
    time_steps(training.step, min(spec.warmup_steps, 1), progress)
    phases.end("first_step")
    time_steps(training.step, max(spec.warmup_steps - 1, 0), progress)
    phases.end("warmup")
    measured = run_measured_steps(order, training, connection.counters, progress)
    if order.is_chief and order.checkpoint:
        training.save(Path(order.checkpoint))
    return measured


def _send_timestamps(training: Training, connection: AgentConnection, step_s: Sequence[float]) -> None:
    """Send the step timestamps. An error is reported, and costs only the timestamps."""
    with _reporting_error(connection, "timestamps"):
        if timestamps := training.timestamps(step_s):
            connection.send("timestamps", data=pack_timestamps(timestamps))


def _trace(order: TaskOrder, training: Training, connection: AgentConnection, slowest_s: float) -> None:
    """Send the trace. An error is reported, and costs only the trace."""
    steps = order.spec.warmup_steps + order.spec.steps

    def report_progress() -> None:
        connection.send("progress", step=steps, total_steps=steps)

    with _reporting_error(connection, "trace"):
        if trace := training.trace(PATIENCE_S + PATIENCE_STEPS * slowest_s, report_progress):
            connection.send("trace", data=pack_trace(trace))


@contextmanager
def _reporting_error(connection: AgentConnection, kind: str) -> Iterator[None]:
    """Within the context, report any error as the message of this kind: the measurement is complete without it."""
    try:
        yield
    except Exception as error:
        why = format_exception(error)
        print(f"no {kind}: {why}", flush=True)
        connection.send(kind, error=why[:300])


class _Phases:
    """The durations of the consecutive phases of a start-up."""

    def __init__(self) -> None:
        self.taken_s: dict[str, float] = {}
        self.restart()

    def restart(self) -> None:
        self._began = perf_counter()

    def end(self, phase: str) -> None:
        self.taken_s[phase] = perf_counter() - self._began
        self.restart()


class TaskProgress:
    """A callable that counts steps, warm-up included, and reports progress at most every `PROGRESS_S`."""

    def __init__(self, order: TaskOrder, connection: AgentConnection) -> None:
        self._connection = connection
        self._total_steps = order.spec.warmup_steps + order.spec.steps
        self._images_per_step = order.spec.gpus * order.spec.batch_size
        self._done = self._reported = 0
        self._reported_at = perf_counter()

    def __call__(self) -> None:
        self._done += 1
        now = perf_counter()
        passed_s = now - self._reported_at
        if passed_s < PROGRESS_S:
            return
        images_per_sec = (self._done - self._reported) * self._images_per_step / passed_s
        self._connection.send("progress", step=self._done, total_steps=self._total_steps, images_per_sec=images_per_sec)
        self._reported, self._reported_at = self._done, now
