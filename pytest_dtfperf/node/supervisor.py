"""Watches over the one command that a controller runs on this host: whatever ends first, nothing remains.

    controller == ssh ==> sshd -- stdin, stdout --> agent -- ... --> tasks
                            ` end of the line? ..... supervisor (the agent's parent)

The agent has the line to itself. The supervisor never reads from it, but sees its end, and waits for the agent, which adopts
none once it is dead. When the agent ends, when the line ends and the agent does not leave, when the agent hangs for
longer than its time-out or takes longer than it may, everything below is killed, daemons included. Should the supervisor itself
be killed, so are the agent and its tasks, by the kernel; what had daemonised is found by its environment (`node/sweep.py`).

Before that it answers orders, one JSON object per line: `sweep` ends what dead sessions have left; `run` is the last.
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

from pytest_dtfperf.node import interfaces, processes, run_folder, sweep
from pytest_dtfperf.node.boot import MARK, fail, read_line, report
from pytest_dtfperf.node.processes import LEAVE_ON, Leave, ignore_signals, leave_on_signals

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

CONTROLLER = "DTFPERF_CONTROLLER"  # the owner of a process, as `Owner.text` writes it
GRACE_S = 1.0  # an agent with a line that ends kills what is below it at once and leaves
CANNOT_START = 127  # the exit code of shells where a program does not exist
_TICK_S = 0.5


class TooLong(Exception):
    """What was run took longer than it may, or stood still for longer than its time-out."""


def main(header: Mapping[str, Any], borrowed: str | None) -> None:
    """To the end, whatever ends it. `borrowed` is a folder to remove then."""
    leave_on_signals()
    processes.adopt_orphans()
    code, ended, late = 1, None, False
    if borrowed:
        with suppress(OSError):
            run_folder.sign(borrowed)  # should this be killed, the next one removes it
    try:
        code = ended = _serve(header)
    except TooLong:
        late = True
    except (Leave, BrokenPipeError, SystemExit) as exc:
        code = exc.code if isinstance(exc, SystemExit) and isinstance(exc.code, int) else 1
    except Exception:  # the supervisor must end what it started after any error; the traceback has the error
        import traceback

        traceback.print_exc()
    ignore_signals()
    survivors = processes.end_below()
    run_folder.remove_abandoned()
    if borrowed:
        shutil.rmtree(borrowed, ignore_errors=True)
    with suppress(OSError):  # the reader may be gone
        os.set_blocking(2, False)
        os.write(2, f"\n{MARK}{json.dumps({'ended': ended, 'late': late, 'survivors': survivors})}\n".encode())
    os._exit(code if code >= 0 else 128 - code)


def _serve(header: Mapping[str, Any]) -> int:
    """Returns the exit code of what was run, or minus the signal that has killed it."""
    if "environment" in header:
        from pytest_dtfperf.node import environment

        wanted = header["environment"]
        if code := watch(lambda: environment.make(wanted)):
            return code
        environment.enter(wanted)
    report(at="ready", **(survey() if header.get("survey") else {}))
    while True:
        order = json.loads(_next_order(header["patience_s"]))
        if "run" in order:
            return _run(**order["run"])
        report(at="swept", survivors=sweep.sweep(order["sweep"]))


def _run(
    argv: Sequence[str], env: Mapping[str, str], heartbeat_timeout_s: float | None = None, within_s: float | None = None
) -> int:
    environment = {**os.environ, **env}
    program = _find(argv[0], environment.get("PATH", os.defpath))
    if program is None:
        fail("program", program=argv[0])
    return watch(
        lambda: _become(program, argv, environment),
        heartbeat_timeout_s=heartbeat_timeout_s,
        within_s=within_s,
        began=lambda: report(at="started"),
    )


def watch(
    become: Callable[[], object],
    *,
    heartbeat_timeout_s: float | None = None,
    within_s: float | None = None,
    began: Callable[[], object] = lambda: None,
) -> int:
    """Fork a process that runs `become`, see to its end and that of all below, and return its exit code."""
    sigchld = processes.SigchldPipe()
    supervisor, (waits, go) = os.getpid(), os.pipe()
    pid = os.fork()
    if pid == 0:
        processes.die_with(supervisor)
        os.close(go)
        os.read(waits, 1)  # until the controller has the message: from then on, the line is this process's
        sigchld.close()
        for number in (*LEAVE_ON, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        _do(become)
    os.close(waits)
    began()
    os.close(go)
    try:
        return _Supervised(pid, heartbeat_timeout_s, within_s).wait(sigchld)
    finally:
        sigchld.close()


class _Supervised:
    """What is watched over."""

    def __init__(self, pid: int, heartbeat_timeout_s: float | None, within_s: float | None) -> None:
        self._pid = pid
        self._heartbeat_timeout_s = heartbeat_timeout_s
        self._deadline = None if within_s is None else time.monotonic() + within_s
        self._hung_up: float | None = None  # when the line has ended
        self._still: float | None = None  # since when it has been stopped
        self._code: int | None = None

    def wait(self, sigchld: processes.SigchldPipe) -> int:
        """Return its exit code, once nothing is left below."""
        poll = select.poll()
        poll.register(sigchld, select.POLLIN)
        poll.register(0, select.POLLRDHUP)  # which needs no reading: what comes in is for what is watched
        while self._code is None:
            for fd, _ in poll.poll(_TICK_S * 1000):
                if fd == sigchld.fileno():
                    sigchld.drain()
                    self._code = processes.reap_children().get(self._pid, self._code)
                else:
                    poll.unregister(0)
                    self._hung_up = time.monotonic()
            if self._code is None:
                self._check(time.monotonic())
        processes.end_below()
        return self._code

    def _check(self, now: float) -> None:
        if self._hung_up is not None and now - self._hung_up > GRACE_S:
            raise Leave
        if self._deadline is not None and now > self._deadline:
            raise TooLong
        seen = processes.inspect(self._pid)
        self._still = (self._still or now) if seen and seen.stopped else None
        if self._heartbeat_timeout_s is not None and self._still is not None and now - self._still > self._heartbeat_timeout_s:
            raise TooLong  # it cannot see to its own heartbeat


def survey() -> dict[str, Any]:
    """Return what the controller must know of this host before it can use it."""
    return {
        "hostname": socket.gethostname(),
        "addresses": interfaces.own(),
        "reached_at": (os.environ.get("SSH_CONNECTION", "").split() + [""] * 3)[2],  # client, its port, this host, its port
        "left": _sessions(),
    }


def _sessions() -> dict[str, list[str]]:
    """Controller -> its sessions that have processes here."""
    found: dict[str, list[str]] = {}
    for process in processes.everything():
        environment = sweep.environment(process.pid)
        if CONTROLLER in environment and sweep.SESSION in environment:
            sessions = found.setdefault(environment[CONTROLLER], [])
            if environment[sweep.SESSION] not in sessions:
                sessions.append(environment[sweep.SESSION])
    return found


def _next_order(patience_s: float) -> bytes:
    """Return the next order. Raises `Leave` where none comes in that time."""
    if not select.select([0], [], [], patience_s)[0]:
        raise Leave
    return read_line()


def _find(program: str, path: str) -> str | None:
    """Return the program's path; None where there is none."""
    if os.sep in program:
        candidates = [os.path.expanduser(program)]
    else:
        candidates = [os.path.join(folder, program) for folder in path.split(os.pathsep) if folder]
    return next((each for each in candidates if os.path.isfile(each) and os.access(each, os.X_OK)), None)


def _become(program: str, argv: Sequence[str], environment: Mapping[str, str]) -> None:
    os.chdir("/")
    try:
        os.execve(program, list(argv), environment)
    except OSError as exc:
        print(f"cannot start {program}: {exc.strerror}", file=sys.stderr, flush=True)
        os._exit(CANNOT_START)


def _do(become: Callable[[], object]) -> NoReturn:
    try:
        become()
        os._exit(0)
    except SystemExit as exc:
        os._exit(exc.code if isinstance(exc.code, int) else 1)
    except BaseException:
        import traceback

        traceback.print_exc()
        os._exit(1)
