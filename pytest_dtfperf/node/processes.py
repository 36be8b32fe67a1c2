"""Processes as Linux shows them in /proc: list descendants, tie a child to its parent, and end process trees."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from functools import partial

_PR_SET_PDEATHSIG = 1
_PR_GET_PDEATHSIG = 2
_PR_SET_CHILD_SUBREAPER = 36
STOPPED = ("T", "t")  # by a signal, by a debugger
DEAD = ("Z", "X")
_KERNEL_LISTS_CHILDREN = os.path.exists("/proc/thread-self/children")  # CONFIG_PROC_CHILDREN
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_KILL_S = 5.0  # SIGKILL works at once; a process in uninterruptible sleep (a dead file server) may take longer, or not end
_POLL_S = 0.005
# One round is not enough: a process that forks and exits, as daemons do, may end before it is read, and its child may start
# after the others were listed.
_EMPTY_ROUNDS = 2
MOST_THREADS = 500  # reading the waiting time of a thread takes 20 us

_libc = ctypes.CDLL(None, use_errno=True)


class Process:
    """A process, parsed from /proc/<pid>/stat."""

    def __init__(self, pid: int, parent: int, state: str, cpu_s: float, reaped_cpu_s: float, started: int) -> None:
        self.pid = pid
        self.parent = parent
        self.state = state  # R, S, D, T (stopped), t (held by a debugger), Z, ...
        self.cpu_s = cpu_s  # user and system time
        self.reaped_cpu_s = reaped_cpu_s  # of those children that it has reaped, and of theirs
        self.started = started  # clock ticks since boot: with the pid, a unique name of a process

    @property
    def stopped(self) -> bool:
        return self.state in STOPPED


def inspect(pid: int | str) -> Process | None:
    """Return the process with this id, or this process for "self"; None if it does not exist or /proc hides it (hidepid)."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The second field is the command's name in parentheses, and may itself hold blanks and parentheses.
            text = file.read()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    number, fields = text.partition(b" ")[0], text.rpartition(b")")[2].split()
    user, system, reaped_user, reaped_system = map(int, fields[11:15])
    return Process(
        int(number),
        int(fields[1]),
        fields[0].decode(),
        (user + system) / TICKS_PER_S,
        (reaped_user + reaped_system) / TICKS_PER_S,
        int(fields[19]),
    )


def iterate_processes(*, dead: bool = False) -> Iterator[Process]:
    """Yield every living process; with `dead`, also those that have ended and were not reaped."""
    for name in os.listdir("/proc"):
        if name.isdigit() and (process := inspect(int(name))) and (dead or process.state not in DEAD):
            yield process


def list_descendants(root: int, *, dead: bool = False) -> list[Process]:
    """Return every living descendant of `root`; with `dead`, also those that have ended and were not reaped."""
    children_of = partial(_list_children, dead=dead) if _KERNEL_LISTS_CHILDREN else _map_children(dead=dead).get
    found: list[Process] = []
    to_visit = [root]
    while to_visit:
        born = children_of(to_visit.pop()) or []
        found += born
        to_visit += [child.pid for child in born]
    return found


def read_cpu_s(root: int) -> float:
    """Return the user and system time of this process and all its descendants, ended ones included."""
    there = [process for process in (inspect(root), *list_descendants(root, dead=True)) if process]
    return sum(process.cpu_s + process.reaped_cpu_s for process in there)


def read_waited_s(root: int) -> dict[int, float] | None:
    """Return, by thread, the seconds in which it was runnable but had no core, for this process and its descendants.

    None if the kernel does not count it (CONFIG_SCHED_INFO), or if there are more than `MOST_THREADS` threads.
    """
    found: dict[int, float] = {}
    for pid in (root, *(process.pid for process in list_descendants(root))):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            threads = os.listdir(f"/proc/{pid}/task")
            if len(found) + len(threads) > MOST_THREADS:
                return None
            for thread in threads:
                if (waited := _read_thread_waited_s(f"/proc/{pid}/task/{thread}/schedstat")) is not None:
                    found[int(thread)] = waited
    return found or None


def _read_thread_waited_s(path: str) -> float | None:
    """Return the second value of schedstat: the time of waiting for a core. The others are CPU time and time slices."""
    try:
        with open(path, "rb") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, IndexError):  # ended, or not counted here
        return None


def _list_children(parent: int, *, dead: bool = False) -> list[Process]:
    """Return the children of all threads of a process, as the kernel lists them. Other processes add no cost."""
    pids: list[bytes] = []
    # It has ended since, and its children have another parent; or /proc does not show it.
    with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
        for thread in os.listdir(f"/proc/{parent}/task"):
            with open(f"/proc/{parent}/task/{thread}/children", "rb") as file:
                pids += file.read().split()
    seen = (inspect(int(pid)) for pid in pids)
    return [process for process in seen if process and (dead or process.state not in DEAD)]


def _map_children(*, dead: bool = False) -> dict[int, list[Process]]:
    """Return every process by its parent, for kernels that do not list children."""
    children: dict[int, list[Process]] = {}
    for process in iterate_processes(dead=dead):
        children.setdefault(process.parent, []).append(process)
    return children


def adopt_orphans() -> None:
    """Become the parent of every descendant that daemonises, so that it remains a descendant."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with(parent: int) -> None:
    """Let the kernel kill this process when `parent` ends (exactly: the thread that forked this process)."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before the kernel had the request
        os._exit(1)


def end_group_with_parent() -> None:
    """Have the kernel signal this process when its parent ends, and then kill the whole process group that it leads.

    A program may have started others, which would survive it.
    """
    if os.getpgrp() == os.getpid():
        signal.signal(signal.SIGHUP, lambda *_: os.killpg(0, signal.SIGKILL))
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGHUP, 0, 0, 0)


def continue_after_parent() -> None:
    """Let the kernel continue this process if it is stopped when its parent ends. It would stay stopped otherwise.

    A process that is to be killed at its parent's end is not changed.
    """
    requested = ctypes.c_int()
    _libc.prctl(_PR_GET_PDEATHSIG, ctypes.byref(requested), 0, 0, 0)
    if not requested.value:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGCONT, 0, 0, 0)


class SigchldPipe:
    """A file to select on, which is readable once a child has ended."""

    def __init__(self) -> None:
        self._read_end, self._write_end = socket.socketpair()
        self._read_end.setblocking(False)
        self._write_end.setblocking(False)
        signal.set_wakeup_fd(self._write_end.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # without a handler, the signal would not write to the pipe

    def fileno(self) -> int:
        return self._read_end.fileno()

    def drain(self) -> None:
        with suppress(BlockingIOError):
            self._read_end.recv(4096)

    def close(self) -> None:
        """Close it in a forked process, which has no children."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._read_end.close()
        self._write_end.close()


def reap_children() -> dict[int, int]:
    """Reap this process's own ended children. Returns exit codes by process id, or minus the signal."""
    dead: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return dead
        if not pid:
            return dead
        dead[pid] = os.waitstatus_to_exitcode(status)


def end_descendants(
    spare: Collection[int] = (), *, grace_s: float = 0.0, reap: Callable[[], object] = reap_children
) -> list[int]:
    """End all descendants of this process except `spare`. Returns the ids of processes that survived SIGKILL."""
    return end_processes(
        lambda: [each.pid for each in list_descendants(os.getpid()) if each.pid not in spare], grace_s=grace_s, reap=reap
    )


def end_processes(
    find: Callable[[], Collection[int]], *, grace_s: float, reap: Callable[[], object] = lambda: None
) -> list[int]:
    """End all processes that `find` returns, also those started later: SIGTERM, `grace_s`, SIGKILL. Returns survivors' ids.

    `reap` is called between rounds, to reap those that are the caller's own children.
    """
    if grace_s > 0 and not _signal_until_gone(find, signal.SIGTERM, grace_s, reap):
        return []
    return _signal_until_gone(find, signal.SIGKILL, _KILL_S, reap)


def _signal_until_gone(
    find: Callable[[], Collection[int]], number: signal.Signals, patience_s: float, reap: Callable[[], object]
) -> list[int]:
    signalled: set[int] = set()
    deadline = time.monotonic() + patience_s
    empty_rounds = 0
    while True:
        left = list(find())
        empty_rounds = 0 if left else empty_rounds + 1
        if empty_rounds == _EMPTY_ROUNDS:
            return []
        for pid in left:
            if number is signal.SIGKILL or pid not in signalled:
                kill(pid, number)
        signalled.update(left)
        reap()
        if left and time.monotonic() > deadline:
            return left
        time.sleep(_POLL_S)


def kill(pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    with suppress(ProcessLookupError, PermissionError):  # it has ended, or has become another user's (sudo)
        os.kill(pid, number)


def kill_group(group: int, number: signal.Signals = signal.SIGKILL) -> None:
    with suppress(ProcessLookupError):  # all of its processes have ended
        os.killpg(group, number)


def reset_signals() -> None:
    """Give this fork of an agent its own signals."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, *LEAVE_ON):
        signal.signal(number, signal.SIG_DFL)


def close_inherited_files(kept: int) -> None:
    """Close all files of the agent in its fork, such as channels and ports, except the standard streams and `kept`."""
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd > 2 and fd != kept:
            with suppress(OSError):  # the one that listed them
                os.close(fd)


TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

LEAVE_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Leave(Exception):
    """The program shall end; the message has the reason."""

    def __init__(self, why: str = "", code: int = 0) -> None:
        super().__init__(why)
        self.code = code  # to exit with


def leave_on_signals() -> None:
    """Raise `Leave` in the main thread on SIGTERM, SIGINT and SIGHUP from now on."""
    for number in LEAVE_ON:
        signal.signal(number, _leave)


def ignore_signals() -> None:
    """Ignore SIGTERM, SIGINT and SIGHUP while the descendants are ended."""
    for number in LEAVE_ON:
        signal.signal(number, signal.SIG_IGN)


def _leave(number: int, _: object) -> NoReturn:
    raise Leave(f"ended by {signal.Signals(number).name}")
