"""Processes as Linux shows them in /proc: their ancestors and state, which die with their parent, and how to end them all."""

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
_DEAD = ("Z", "X")
_KERNEL_LISTS_CHILDREN = os.path.exists("/proc/thread-self/children")  # CONFIG_PROC_CHILDREN
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_KILL_S = 5.0  # SIGKILL works at once; a process in uninterruptible sleep (a dead file server) may take longer, or not end
_POLL_S = 0.005
# Once is not enough: a process that forks and exits, as daemons do, can be gone when it is looked at, and its child not yet
# there when the others were listed.
_EMPTY_ROUNDS = 2
MOST_THREADS = 500  # threads with a waiting time that is read: each costs 20 us, nearly all of it the kernel's

_libc = ctypes.CDLL(None, use_errno=True)


class Process:
    """One line of /proc/<pid>/stat."""

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
    """Return the process as it is now, or None if there is none, or /proc does not show it (hidepid). "self" is this one."""
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


def everything(*, dead: bool = False) -> Iterator[Process]:
    """Yield every process that is not dead, or those too that are dead and not yet reaped."""
    for name in os.listdir("/proc"):
        if name.isdigit() and (process := inspect(int(name))) and (dead or process.state not in _DEAD):
            yield process


def below(root: int, *, dead: bool = False) -> list[Process]:
    """Return every living process below `root`, or those too that are dead and not yet reaped."""
    children_of = partial(_children_of, dead=dead) if _KERNEL_LISTS_CHILDREN else _families(dead=dead).get
    found: list[Process] = []
    to_visit = [root]
    while to_visit:
        born = children_of(to_visit.pop()) or []
        found += born
        to_visit += [child.pid for child in born]
    return found


def cpu_s_of_all(root: int) -> float:
    """User and system time of this process, of everything below it, and of whatever was there and has ended."""
    there = [process for process in (inspect(root), *below(root, dead=True)) if process]
    return sum(process.cpu_s + process.reaped_cpu_s for process in there)


def waited_s_of_all(root: int) -> dict[int, float] | None:
    """Thread -> seconds in which it was ready and had no core, of this process and everything below it, that is there.

    None where the kernel does not count it (CONFIG_SCHED_INFO), and of more threads than can be asked without being felt.
    """
    found: dict[int, float] = {}
    for pid in (root, *(process.pid for process in below(root))):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            threads = os.listdir(f"/proc/{pid}/task")
            if len(found) + len(threads) > MOST_THREADS:
                return None
            for thread in threads:
                if (waited := _waited_s(f"/proc/{pid}/task/{thread}/schedstat")) is not None:
                    found[int(thread)] = waited
    return found or None


def _waited_s(path: str) -> float | None:
    """Return the second of its numbers: time on the CPU, time of waiting for one, how often it had one."""
    try:
        with open(path, "rb") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, IndexError):  # ended, or not counted here
        return None


def _children_of(parent: int, *, dead: bool = False) -> list[Process]:
    """A process's children, of all its threads, as the kernel lists them: the cost does not grow with the other processes."""
    pids: list[bytes] = []
    # It has ended since, and its children have another parent; or /proc does not show it.
    with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
        for thread in os.listdir(f"/proc/{parent}/task"):
            with open(f"/proc/{parent}/task/{thread}/children", "rb") as file:
                pids += file.read().split()
    seen = (inspect(int(pid)) for pid in pids)
    return [process for process in seen if process and (dead or process.state not in _DEAD)]


def _families(*, dead: bool = False) -> dict[int, list[Process]]:
    """Return every process by its parent, for kernels that do not list children."""
    children: dict[int, list[Process]] = {}
    for process in everything(dead=dead):
        children.setdefault(process.parent, []).append(process)
    return children


def adopt_orphans() -> None:
    """Become the parent of every descendant that daemonises, so that it stays below this process."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with(parent: int) -> None:
    """Be killed by the kernel when `parent` (to be exact: the thread of it that forked this process) ends."""
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


def go_on_after_parent() -> None:
    """Have the kernel continue this process when the parent ends, if stopped by then: else it would stay stopped.

    A process that is to be killed then stays so.
    """
    asked = ctypes.c_int()
    _libc.prctl(_PR_GET_PDEATHSIG, ctypes.byref(asked), 0, 0, 0)
    if not asked.value:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGCONT, 0, 0, 0)


class SigchldPipe:
    """Something to select on, readable once a child has died."""

    def __init__(self) -> None:
        self._read_end, self._write_end = socket.socketpair()
        self._read_end.setblocking(False)
        self._write_end.setblocking(False)
        signal.set_wakeup_fd(self._write_end.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # a handler of its own, or the signal would not wake anybody

    def fileno(self) -> int:
        return self._read_end.fileno()

    def drain(self) -> None:
        with suppress(BlockingIOError):
            self._read_end.recv(4096)

    def close(self) -> None:
        """For a fork, which has no children to hear of."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._read_end.close()
        self._write_end.close()


def reap_children() -> dict[int, int]:
    """Reap this process's own dead children: process id -> exit code, or minus the signal."""
    dead: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return dead
        if not pid:
            return dead
        dead[pid] = os.waitstatus_to_exitcode(status)


def end_below(spare: Collection[int] = (), *, grace_s: float = 0.0, reap: Callable[[], object] = reap_children) -> list[int]:
    """End everything below this process but `spare`. Returns the process ids of what even SIGKILL did not end."""
    return end(lambda: [each.pid for each in below(os.getpid()) if each.pid not in spare], grace_s=grace_s, reap=reap)


def end(find: Callable[[], Collection[int]], *, grace_s: float = 0.0, reap: Callable[[], object] = lambda: None) -> list[int]:
    """End all that `find` finds, and what they start until then: SIGTERM, `grace_s`, SIGKILL. Returns what survived even that.

    `reap` is called between rounds, for the dead among them that are the caller's own children.
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
    with suppress(ProcessLookupError, PermissionError):  # it was faster; or it is another user's by now (sudo)
        os.kill(pid, number)


TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

LEAVE_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Leave(Exception):
    """There is nothing more to do here."""

    def __init__(self, why: str = "", code: int = 0) -> None:
        super().__init__(why)
        self.code = code  # to exit with


def leave_on_signals() -> None:
    """Raise `Leave` in the main thread on signals from now on."""
    for number in LEAVE_ON:
        signal.signal(number, _leave)


def ignore_signals() -> None:
    """While what was started is ended."""
    for number in LEAVE_ON:
        signal.signal(number, signal.SIG_IGN)


def _leave(number: int, _: object) -> NoReturn:
    raise Leave(f"ended by {signal.Signals(number).name}")
