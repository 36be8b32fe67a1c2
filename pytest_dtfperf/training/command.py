"""A task that runs an external command and reports it as our own training. Needs no TensorFlow.

    agent -- forks --> this task -- starts --> the program, in the task's process group
                       log, progress, report <-- its output

Whatever ends the task ends the program: it is killed with its parent, and where the kernel kills the task, the task takes its
whole process group along.
"""

import ctypes
import os
import re
import resource
import select
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from threading import Event, Thread
from time import perf_counter
from typing import Any, NoReturn

from pytest_dtfperf.datamodel.task_report import TaskReport
from pytest_dtfperf.spec import TaskOrder
from pytest_dtfperf.spec.command import rate_pattern_of
from pytest_dtfperf.spec.spec import task_arguments, task_variables
from pytest_dtfperf.stamps import InvalidStamps, pack
from pytest_dtfperf.steps import VARIABLE
from pytest_dtfperf.training.connection import AgentConnection
from pytest_dtfperf.training.output import Output
from pytest_dtfperf.training.reported_steps import ReportedSteps

CANNOT_START = 127  # the exit code of shells where a program does not exist
_TICK_S = 0.1  # how late the end of a program that has left its output to somebody else may be noticed
_REST_S = 2.0  # for output that was printed and not yet read, where a child of the program prints on and on
_READ_BYTES = 1 << 16
_PR_SET_PDEATHSIG = 1
# What this process was given for our own TensorFlow and numpy (node/zygote.py), and the program's user has not set.
_OURS = ("OPENBLAS_NUM_THREADS", "TF_CPP_MIN_LOG_LEVEL", "TF_GRPC_REUSE_PORT")

# Slurm's step describes the agent, the one process on its host, in these variables: no task is that process. And TF_CONFIG,
# which a host may have of another cluster.
_OF_THE_AGENT = re.compile(
    r"TF_CONFIG|PMI2?_.*|PMIX_(?!MCA_).*"
    r"|SLURM_(?:PROCID|LOCALID|NODEID|GTIDS|TASK_PID|NTASKS.*|NPROCS|TASKS_PER_NODE|STEP.*|SRUN_.*|DISTRIBUTION|CPU_BIND.*)"
)

_libc = ctypes.CDLL(None)


class Program:
    """Start the program. Where it cannot start, write the reason to the log and end this process.

    What it reports of its steps, if it does, comes through `steps`.
    """

    def __init__(self, order: TaskOrder, steps: ReportedSteps | None = None) -> None:
        argv, folder, environment = task_arguments(order), order.spec.command_dir, _environment(order)
        self._steps = steps
        if steps:
            environment[VARIABLE] = steps.path
        print("$", shlex.join(argv), flush=True)
        if folder is not None and not os.path.isdir(folder):
            refuse(
                f"there is no folder {folder} on this host for it to run in: set command_dir=..., a folder that is on all hosts"
            )
        try:
            self._process = subprocess.Popen(
                argv,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                preexec_fn=partial(_die_with, os.getpid()),
            )
        except OSError as exc:
            refuse(_why_not(argv[0], environment["PATH"], exc))
        assert self._process.stdout is not None
        self._output = self._process.stdout.fileno()
        self.peak_rss_bytes = 0  # of this process, not of those that it starts

    def wait(self, output: Output) -> int:
        """Feed `output` to the end. Returns the exit code, or minus the signal. What outlives the program is not waited for."""
        pipes: list[Any] = [self._output, *([self._steps] if self._steps else [])]
        ended_at: float | None = None
        while True:
            ready = select.select(pipes, [], [], _TICK_S)[0]
            if self._steps in ready and self._steps:
                self._steps.take(output)
            if self._output in ready:
                data = os.read(self._output, _READ_BYTES)
                if data:
                    output.take(data)
                else:
                    pipes.remove(self._output)  # closed; its steps may go on
            if self._process.poll() is not None:
                ended_at = perf_counter() if ended_at is None else ended_at
                if not ready or self._output not in pipes or perf_counter() - ended_at > _REST_S:
                    break
            self._note_memory()
            output.flush()
        output.end()
        if self._steps:
            self._steps.end()
        return self._process.wait()

    def end(self, own_s: float, grace_s: float) -> None:
        """Let it go on for `own_s`; then end it by SIGTERM, or by SIGKILL if that takes too long."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(own_s)
        self._process.terminate()
        try:
            self._process.wait(grace_s)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def _note_memory(self) -> None:
        """Its highest memory so far. The kernel's account of dead children would do, but a child begins with its parent's."""
        with suppress(OSError), open(f"/proc/{self._process.pid}/status", "rb") as file:
            for line in file:
                if line.startswith(b"VmHWM:"):
                    self.peak_rss_bytes = int(line.split()[1]) * 1024


def take_group_along() -> None:
    """Have the kernel signal this process when its parent ends, and then end the whole process group.

    A program may have started others, which would survive it.
    """
    if os.getpgrp() == os.getpid():
        signal.signal(signal.SIGHUP, lambda *_: os.killpg(0, signal.SIGKILL))
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGHUP, 0, 0, 0)


def _die_with(parent: int) -> None:
    """Have the kernel kill this fork with the task."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before the kernel had the request
        os._exit(CANNOT_START)


def _environment(order: TaskOrder) -> dict[str, str]:
    """Return the host's variables, the task's devices, the spec's variables, and the tasks' interpreter as `python`."""
    with open("/proc/self/environ", "rb") as file:  # as it was when the agent started, whatever has been set since
        hosts = dict(entry.split("=", 1) for entry in os.fsdecode(file.read()).split("\0") if "=" in entry)
    found = {name: value for name, value in os.environ.items() if name not in _OURS}
    found |= {name: hosts[name] for name in _OURS if name in hosts}
    found = {name: value for name, value in found.items() if not _OF_THE_AGENT.fullmatch(name)}
    folders, own = found.get("PATH", os.defpath).split(os.pathsep), os.path.dirname(sys.executable)
    found["PATH"] = os.pathsep.join(folders if own in folders else [own, *folders])
    # Python keeps what it prints into a pipe until it has 8 KiB: no line would come for minutes.
    return {"PYTHONUNBUFFERED": "1", **found, **task_variables(order)}


def _why_not(program: str, path: str, exc: OSError) -> str:
    if not isinstance(exc, FileNotFoundError):
        return f"cannot start {program}: {exc.strerror}"
    if os.sep in program:
        return f"cannot start {program}: there is no such file on this host, or not what it is a script for"
    return f"cannot start {program}: there is no such program on this host's PATH, {path}"


def refuse(why: str) -> NoReturn:
    """End this process with a last message in the log."""
    print(why, flush=True)
    sys.exit(CANNOT_START)


GRACE_S = 1.0  # between a parameter server's SIGTERM and its SIGKILL


def run(order: Mapping[str, Any], connection: AgentConnection) -> None:
    """Run a task that has a command, and end with the exit code or signal of its program."""
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


def _work(order: TaskOrder, connection: AgentConnection) -> None:
    output = Output(rate_pattern_of(order.spec), connection, streams=order.streams)
    before, began = connection.counters(), perf_counter()
    steps = ReportedSteps(order.spec.batch_size * order.num_devices or None)
    program = Program(order, None if order.streams else steps)  # a launched program has no rate
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


def _send_stamps(order: TaskOrder, connection: AgentConnection, steps: ReportedSteps) -> None:
    """Send the stamps of a program that reports its steps. Too many for a message are logged; the rate stays valid."""
    if steps.wrong or not steps.step_s or order.job != "worker":
        return
    try:
        connection.send("stamps", data=pack([steps.stamps(order.name)]))
    except InvalidStamps as error:
        connection.send("stamps", error=f"they {error}")


def _serve(order: TaskOrder, connection: AgentConnection) -> None:
    """Run a parameter server's program, which may end well by itself; this task stays until it is sent away."""
    program, leaving = Program(order), Event()
    Thread(target=_end_on_order, args=(connection, program, leaving, order.grace_s), daemon=True).start()
    code = program.wait(Output(rate_pattern_of(order.spec), connection, streams=order.streams))
    if not leaving.is_set():
        _end_as(code)
    leaving.wait()
    _report(order, connection, program)


def _end_on_order(connection: AgentConnection, program: Program, leaving: Event, grace_s: float) -> None:
    with suppress(ConnectionError):  # the agent is gone
        while connection.wait() != "leave":
            pass
    leaving.set()
    program.end(grace_s, GRACE_S)


def _end_as(code: int) -> None:
    """Return after a good end; else end this task with the same exit code or signal, so that reports about it are right."""
    if code > 0:
        sys.exit(code)
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the program has left its own
        with suppress(OSError, ValueError):  # SIGKILL's cannot be changed, and need not
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)


def _report(order: TaskOrder, connection: AgentConnection, program: Program, **found: Any) -> None:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = used.ru_utime + used.ru_stime
    report = TaskReport(job=order.job, index=order.index, cpu_s=cpu_s, peak_rss_bytes=program.peak_rss_bytes, **found)
    connection.send("report", **report.to_json())
