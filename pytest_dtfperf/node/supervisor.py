"""The supervisor of the one command that a controller runs on this host. When either ends, nothing remains.

    controller == ssh ==> sshd -- stdin, stdout --> agent -- ... --> tasks
                            ` end of stdin? ....... supervisor (the agent's parent)

Only the agent reads stdin. The supervisor sees its end and waits for the agent. When the agent ends, when stdin ends but the
agent does not, when the agent is stopped for longer than its time-out, the supervisor kills all its
descendants, daemons included. If the supervisor itself is killed, the kernel kills the agent and its tasks; daemons are found
by their environment (`node/sweep.py`).

Before that it executes orders, one JSON object per line: `sweep` ends the processes of dead sessions; `run` is the last order.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from pytest_dtfperf.node import interfaces, processes, sweep
from pytest_dtfperf.node.boot import MARK, fail, read_line, report
from pytest_dtfperf.node.processes import LEAVE_ON, Leave, ignore_signals, leave_on_signals

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

CONTROLLER = "DTFPERF_CONTROLLER"  # the owner of a process, as `Owner.text` writes it
GRACE_S = 1.0  # an agent exits at once when its stdin ends
CANNOT_START = 127  # the exit code of shells for a missing program
_TICK_S = 0.5


def main(header: Mapping[str, Any], temporary_folder: str | None) -> None:
    """Execute orders, end all processes and exit. The temporary folder is removed at the end."""
    leave_on_signals()
    processes.adopt_orphans()
    code, ended = 1, None
    if temporary_folder:
        with suppress(OSError):
            sweep.set_folder_owner(temporary_folder)  # if this process is killed, the next supervisor removes it
    try:
        code = ended = _serve(header)
    except (Leave, BrokenPipeError, SystemExit) as exc:
        code = exc.code if isinstance(exc, SystemExit) and isinstance(exc.code, int) else 1
    except Exception:  # the supervisor must end what it started after any error; the traceback has the error
        import traceback

        traceback.print_exc()
    ignore_signals()
    survivors = processes.end_descendants()
    sweep.remove_abandoned_folders()
    if temporary_folder:
        shutil.rmtree(temporary_folder, ignore_errors=True)
    with suppress(OSError):  # the reader may be gone
        os.set_blocking(2, False)
        os.write(2, f"\n{MARK}{json.dumps({'ended': ended, 'survivors': survivors})}\n".encode())
    os._exit(code if code >= 0 else 128 - code)


def _serve(header: Mapping[str, Any]) -> int:
    """Execute the controller's orders. Returns the exit code of the command, or minus the signal that killed it."""
    if "environment" in header:
        from pytest_dtfperf.node import environment

        wanted = header["environment"]
        if code := supervise(lambda: environment.make(wanted)):
            return code
        environment.enter(wanted)
    report(at="ready", **(survey_host() if header.get("survey") else {}))
    while True:
        order = json.loads(_read_order(header["patience_s"]))
        if "run" in order:
            return _run(**order["run"])
        report(at="swept", survivors=sweep.sweep(order["sweep"]))


def _run(argv: Sequence[str], env: Mapping[str, str], heartbeat_timeout_s: float | None = None) -> int:
    environment = {**os.environ, **env}
    program = _find_program(argv[0], environment.get("PATH", os.defpath))
    if program is None:
        fail("program", program=argv[0])
    return supervise(
        lambda: _execute(program, argv, environment),
        heartbeat_timeout_s=heartbeat_timeout_s,
        began=lambda: report(at="started"),
    )


def supervise(
    function: Callable[[], object],
    *,
    heartbeat_timeout_s: float | None = None,
    began: Callable[[], object] = lambda: None,
) -> int:
    """Fork a process that runs `function`, wait for it and end its descendants, and return its exit code."""
    sigchld = processes.SigchldPipe()
    supervisor, (waits, go) = os.getpid(), os.pipe()
    pid = os.fork()
    if pid == 0:
        processes.die_with(supervisor)
        os.close(go)
        os.read(waits, 1)  # until the controller has the message: from then on, this process alone reads stdin
        sigchld.close()
        for number in (*LEAVE_ON, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        _run_child(function)
    os.close(waits)
    began()
    os.close(go)
    try:
        return _SupervisedProcess(pid, heartbeat_timeout_s).wait(sigchld)
    finally:
        sigchld.close()


class _SupervisedProcess:
    """The command under supervision."""

    def __init__(self, pid: int, heartbeat_timeout_s: float | None) -> None:
        self._pid = pid
        self._heartbeat_timeout_s = heartbeat_timeout_s
        self._hung_up_at: float | None = None  # when stdin ended
        self._stopped_since: float | None = None
        self._code: int | None = None

    def wait(self, sigchld: processes.SigchldPipe) -> int:
        """Return the exit code, once all descendants have ended."""
        poll = select.poll()
        poll.register(sigchld, select.POLLIN)
        poll.register(0, select.POLLRDHUP)  # without reading: the input is for the command
        while self._code is None:
            for fd, _ in poll.poll(_TICK_S * 1000):
                if fd == sigchld.fileno():
                    sigchld.drain()
                    self._code = processes.reap_children().get(self._pid, self._code)
                else:
                    poll.unregister(0)
                    self._hung_up_at = time.monotonic()
            if self._code is None:
                self._check(time.monotonic())
        processes.end_descendants()
        return self._code

    def _check(self, now: float) -> None:
        if self._hung_up_at is not None and now - self._hung_up_at > GRACE_S:
            raise Leave
        seen = processes.inspect(self._pid)
        self._stopped_since = (self._stopped_since or now) if seen and seen.stopped else None
        if self._heartbeat_timeout_s is None or self._stopped_since is None:
            return
        if now - self._stopped_since > self._heartbeat_timeout_s:
            raise Leave  # it cannot watch its own heartbeat


def survey_host() -> dict[str, Any]:
    """Return what the controller must know about this host before it uses it."""
    return {
        "hostname": socket.gethostname(),
        "addresses": interfaces.list_addresses(),
        "reached_at": (os.environ.get("SSH_CONNECTION", "").split() + [""] * 3)[2],  # client, its port, this host, its port
        "left": _list_sessions(),
    }


def _list_sessions() -> dict[str, list[str]]:
    """Return the sessions with processes on this host, by their controller."""
    found: dict[str, list[str]] = {}
    for process in processes.iterate_processes():
        environment = sweep.read_environment(process.pid)
        if CONTROLLER in environment and sweep.SESSION in environment:
            sessions = found.setdefault(environment[CONTROLLER], [])
            if environment[sweep.SESSION] not in sessions:
                sessions.append(environment[sweep.SESSION])
    return found


def _read_order(patience_s: float) -> bytes:
    """Return the next order. Raises `Leave` if none arrives in time."""
    if not select.select([0], [], [], patience_s)[0]:
        raise Leave
    return read_line()


def _find_program(program: str, path: str) -> str | None:
    """Return the path of the program; None if it does not exist."""
    if os.sep in program:
        candidates = [os.path.expanduser(program)]
    else:
        candidates = [os.path.join(folder, program) for folder in path.split(os.pathsep) if folder]
    return next((each for each in candidates if os.path.isfile(each) and os.access(each, os.X_OK)), None)


def _execute(program: str, argv: Sequence[str], environment: Mapping[str, str]) -> None:
    os.chdir("/")
    try:
        os.execve(program, list(argv), environment)
    except OSError as exc:
        print(f"cannot start {program}: {exc.strerror}", file=sys.stderr, flush=True)
        os._exit(CANNOT_START)


def _run_child(function: Callable[[], object]) -> NoReturn:
    try:
        function()
        os._exit(0)
    except SystemExit as exc:
        os._exit(exc.code if isinstance(exc.code, int) else 1)
    except BaseException:
        import traceback

        traceback.print_exc()
        os._exit(1)
