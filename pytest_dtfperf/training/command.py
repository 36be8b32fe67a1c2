"""Run an external command as a task, and report it as a training. This module needs no TensorFlow.

    agent -- forks --> this task -- starts --> the program, in the task's process group
                       log, progress, report <-- its output

The program never outlives the task: it is killed with its parent, and where the kernel kills the task, the task takes its whole
process group along.
"""

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
from pytest_dtfperf.node import processes
from pytest_dtfperf.spec import TaskOrder
from pytest_dtfperf.spec.command import rate_pattern_of
from pytest_dtfperf.spec.spec import task_arguments, task_variables
from pytest_dtfperf.steps import VARIABLE
from pytest_dtfperf.traces import InvalidTimestamps, pack_timestamps
from pytest_dtfperf.training import AgentConnection
from pytest_dtfperf.training.output import Output, ReportedSteps

CANNOT_START = 127  # the exit code of shells where a program does not exist
_TICK_S = 0.1  # the delay until the end of a program is noticed that has passed its output on to another process
_REST_S = 2.0  # for the remaining output, where a child of the program goes on printing
_READ_BYTES = 1 << 16
# Variables that this process has for its own TensorFlow and numpy (node/zygote.py), and not from the user.
_OURS = ("OPENBLAS_NUM_THREADS", "TF_CPP_MIN_LOG_LEVEL", "TF_GRPC_REUSE_PORT")

# Slurm's step describes the agent, the one process on its host, in these variables: no task is that process. And TF_CONFIG,
# which a host may have of another cluster.
_OF_THE_AGENT = re.compile(
    r"TF_CONFIG|PMI2?_.*|PMIX_(?!MCA_).*"
    r"|SLURM_(?:PROCID|LOCALID|NODEID|GTIDS|TASK_PID|NTASKS.*|NPROCS|TASKS_PER_NODE|STEP.*|SRUN_.*|DISTRIBUTION|CPU_BIND.*)"
)


class Program:
    """The program of a task's command, started in a process of its own.

    Where it cannot start, the reason is written to the log and this process ends. `steps` receives what the program reports of
    its steps.
    """

    def __init__(self, order: TaskOrder, steps: ReportedSteps | None = None) -> None:
        argv, folder, environment = task_arguments(order), order.spec.command_dir, _build_environment(order)
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
                preexec_fn=partial(processes.die_with, os.getpid()),
            )
        except OSError as exc:
            refuse(_format_start_error(argv[0], environment["PATH"], exc))
        assert self._process.stdout is not None
        self._output = self._process.stdout.fileno()
        self.peak_rss_bytes = 0  # of the program itself, without its children

    def wait(self, output: Output) -> int:
        """Feed `output` until the program ends, and return its exit code, or minus the signal that ended it.

        Processes that outlive the program are not waited for.
        """
        pipes: list[Any] = [self._output, *([self._steps] if self._steps else [])]
        ended_at: float | None = None
        while True:
            ready = select.select(pipes, [], [], _TICK_S)[0]
            if self._steps in ready and self._steps:
                self._steps.take(output.sign_of_life)
            if self._output in ready:
                data = os.read(self._output, _READ_BYTES)
                if data:
                    output.take(data)
                else:
                    pipes.remove(self._output)  # closed, while steps may still be reported
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
        """Let the program go on for `own_s` seconds.

        Then end it by SIGTERM, or by SIGKILL if that takes more than `grace_s`.
        """
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(own_s)
        self._process.terminate()
        try:
            self._process.wait(grace_s)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def _note_memory(self) -> None:
        """Note the program's highest memory so far.

        The kernel's account of dead children would not do: a child begins with the memory of its parent.
        """
        with suppress(OSError), open(f"/proc/{self._process.pid}/status", "rb") as file:
            for line in file:
                if line.startswith(b"VmHWM:"):
                    self.peak_rss_bytes = int(line.split()[1]) * 1024


def _build_environment(order: TaskOrder) -> dict[str, str]:
    """Return the host's variables, the task's devices, the spec's variables, and the tasks' interpreter as `python`."""
    with open("/proc/self/environ", "rb") as file:  # the environment when the agent started
        hosts = dict(entry.split("=", 1) for entry in os.fsdecode(file.read()).split("\0") if "=" in entry)
    found = {name: value for name, value in os.environ.items() if name not in _OURS}
    found |= {name: hosts[name] for name in _OURS if name in hosts}
    found = {name: value for name, value in found.items() if not _OF_THE_AGENT.fullmatch(name)}
    folders, own = found.get("PATH", os.defpath).split(os.pathsep), os.path.dirname(sys.executable)
    found["PATH"] = os.pathsep.join(folders if own in folders else [own, *folders])
    # Python buffers 8 KiB of output into a pipe: no line would come for minutes.
    return {"PYTHONUNBUFFERED": "1", **found, **task_variables(order)}


def _format_start_error(program: str, path: str, exc: OSError) -> str:
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
    processes.end_group_with_parent()
    connection.send("ready")  # nothing is prepared: programs start together and wait for each other, as TensorFlow's do
    if connection.wait() != "leave":
        (_serve if task.stays else _run_worker)(task, connection)


def _run_worker(order: TaskOrder, connection: AgentConnection) -> None:
    output = Output(rate_pattern_of(order.spec), connection, streams=order.streams)
    before, began = connection.counters(), perf_counter()
    steps = ReportedSteps(order.spec.batch_size * order.num_devices or None)
    program = Program(order, None if order.streams else steps)  # a launched program has no rate
    code = program.wait(output)
    elapsed_s, used = perf_counter() - began, connection.counters().subtract(before)
    _end_as(code)
    _send_timestamps(order, connection, steps)
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


def _send_timestamps(order: TaskOrder, connection: AgentConnection, steps: ReportedSteps) -> None:
    """Send the timestamps of a program that reports its steps. Too many for a message are logged; the rate stays valid."""
    if steps.wrong or not steps.step_s or order.job != "worker":
        return
    try:
        connection.send("timestamps", data=pack_timestamps([steps.timestamps(order.name)]))
    except InvalidTimestamps as error:
        connection.send("timestamps", error=f"they {error}")


def _serve(order: TaskOrder, connection: AgentConnection) -> None:
    """Run a parameter server's program, and stay until the agent sends this task away. The program may end before."""
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
    """End this task with the program's exit code or signal, for correct reports; after exit code 0, only return."""
    if code > 0:
        sys.exit(code)
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the program has left its own
        with suppress(OSError, ValueError):  # the handler of SIGKILL cannot be changed
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)


def _report(order: TaskOrder, connection: AgentConnection, program: Program, **found: Any) -> None:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = used.ru_utime + used.ru_stime
    report = TaskReport(job=order.job, index=order.index, cpu_s=cpu_s, peak_rss_bytes=program.peak_rss_bytes, **found)
    connection.send("report", **report.to_json())
