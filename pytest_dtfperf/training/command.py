"""A task that runs an external command, and tells of it as of our own training. Needs no TensorFlow.

    agent -- forks --> this task -- starts --> the program, in the task's process group
                       log, progress, report <-- its output

Whatever ends the task ends the program: it is killed with its parent, and where the kernel kills the task, the task takes its
whole process group along.
"""

import os
import resource
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from threading import Event, Thread
from time import perf_counter
from typing import Any

from pytest_dtfperf.measurement import TaskReport
from pytest_dtfperf.spec import TaskOrder
from pytest_dtfperf.spec.command import rate_pattern_of
from pytest_dtfperf.stamps import InvalidStamps, pack
from pytest_dtfperf.training.connection import Connection
from pytest_dtfperf.training.output import Output
from pytest_dtfperf.training.program import Program, refuse, take_group_along
from pytest_dtfperf.training.reported_steps import ReportedSteps

GRACE_S = 1.0  # between a parameter server's SIGTERM and its SIGKILL


def run(order: Mapping[str, Any], connection: Connection) -> None:
    """Live the life of a task whose spec has a command, and end as badly as the program does."""
    if "probe" in order:
        refuse("what a host can do is measured with TensorFlow, and entry = 'pytest_dtfperf.training.command:run' needs none")
    task = TaskOrder.from_json(order)
    if not task.spec.command:
        refuse(
            "entry = 'pytest_dtfperf.training.command:run' is for other programs alone, and this spec has no command: "
            "pytest_dtfperf.training.task:run, which is usual, trains, too"
        )
    take_group_along()
    connection.send("ready")  # nothing is prepared: programs start together and wait for each other, as TensorFlow's do
    if connection.wait() != "leave":
        (_serve if task.stays else _work)(task, connection)


def _work(order: TaskOrder, connection: Connection) -> None:
    output = Output(rate_pattern_of(order.spec), connection, streams=order.streams)
    before, began = connection.counters(), perf_counter()
    steps = ReportedSteps(order.spec.batch_size * order.num_devices or None)
    program = Program(order, None if order.streams else steps)  # of what is launched nobody asks for a rate
    code = program.wait(output)
    elapsed_s, used = perf_counter() - began, connection.counters().since(before)
    _end_as(code)
    _send_stamps(order, connection, steps)
    _report(
        order,
        connection,
        program,
        num_devices=order.num_devices,
        elapsed_s=elapsed_s,
        bytes_sent=used.bytes_sent,
        bytes_received=used.bytes_received,
        reported_rate=output.rate,
        unclear_rate=output.unclear and output.unclear[0],
        last_lines=output.unclear[1:] if output.unclear else () if output.rate else tuple(output.last_lines),
        step_s=[] if steps.wrong else steps.step_s,
        images=steps.images,
        window_s=steps.window_s,
        window_at_s=steps.window_at_s,
        impossible_steps=steps.wrong,
    )


def _send_stamps(order: TaskOrder, connection: Connection, steps: ReportedSteps) -> None:
    """Of who reports its steps. Where they are too many for a message, that is said, and the rate is none the worse."""
    if steps.wrong or not steps.step_s or order.job != "worker":
        return
    try:
        connection.send("stamps", data=pack([steps.stamps(order.name)]))
    except InvalidStamps as error:
        connection.send("stamps", error=f"they {error}")


def _serve(order: TaskOrder, connection: Connection) -> None:
    """A parameter server never ends by itself, or it ends well; in either case this task stays until it is sent away."""
    program, leaving = Program(order), Event()
    Thread(target=_end_when_told, args=(connection, program, leaving, order.grace_s), daemon=True).start()
    code = program.wait(Output(rate_pattern_of(order.spec), connection, streams=order.streams))
    if not leaving.is_set():
        _end_as(code)
    leaving.wait()
    _report(order, connection, program)


def _end_when_told(connection: Connection, program: Program, leaving: Event, grace_s: float) -> None:
    with suppress(ConnectionError):  # the agent is gone
        while connection.wait() != "leave":
            pass
    leaving.set()
    program.end(grace_s, GRACE_S)


def _end_as(code: int) -> None:
    """Return after a good end; else end this task with the same exit code or signal, so that what is said of it is true."""
    if code > 0:
        sys.exit(code)
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the program has left its own
        with suppress(OSError, ValueError):  # SIGKILL's cannot be changed, and need not
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)


def _report(order: TaskOrder, connection: Connection, program: Program, **found: Any) -> None:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = used.ru_utime + used.ru_stime
    report = TaskReport(job=order.job, index=order.index, cpu_s=cpu_s, peak_rss_bytes=program.peak_rss_bytes, **found)
    connection.send("report", **report.to_json())
