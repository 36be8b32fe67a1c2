"""Guards that keep processes from outliving pytest: a watchdog, a parent-death guard, and a sweep of this machine."""

import errno
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import ClassVar, Self

from pytest_dtfperf.node import sweep

_LEAVE_S = 2.0


class Watchdog:
    """A process at the end of a pipe, for the length of a `with` block, which cleans up if pytest is killed.

    It runs `argv`, which must read one line from its stdin and exit if that is "over". Any other end of the pipe means that
    there is something to clean up. So does the end of the block, unless the watchdog was cancelled before: a request for
    hosts may have been interrupted before its answer came.
    """

    _at_work: ClassVar[list[subprocess.Popen[bytes]]] = []  # they are not waited for, but a dropped Popen warns

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str]) -> None:
        self._argv = argv
        self._environment = environment
        self._needed = True

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=self._environment,
            start_new_session=True,
        )
        return self

    def cancel(self) -> None:
        """Record that nothing is left to clean up."""
        self._needed = False

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin
        with suppress(BrokenPipeError):
            self._process.stdin.write(b"" if self._needed else b"over\n")
            self._process.stdin.close()
        if self._needed:
            self._at_work.append(self._process)
            return
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_LEAVE_S)
        self._process.kill()
        self._process.wait()


# Runs in place of the program, until it executes that, for some milliseconds. It resets the signals that Python ignores, and
# removes the locale that Python sets in its environment.
_PROGRAM = """
import ctypes, os, signal, sys
for number in (signal.SIGPIPE, signal.SIGXFSZ):
    signal.signal(number, signal.SIG_DFL)
ctypes.CDLL(None).prctl(1, int(signal.SIGCONT), 0, 0, 0)
with open("/proc/self/environ", "rb") as file:
    given = dict(entry.split(b"=", 1) for entry in file.read().split(b"\\0") if b"=" in entry)
os.execvpe(sys.argv[1], sys.argv[1:], given)
"""


def guard_against_parent_death(argv: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Return the command that runs `argv` so that it does not outlive this process while it is stopped.

    Programs that connect to hosts end when their stdin does, but one that was stopped (SIGSTOP) never reads that. So the kernel
    continues it when this process ends (PR_SET_PDEATHSIG with SIGCONT). A running program ignores that signal.

    Raises `FileNotFoundError`, as starting it would, if there is no such program.
    """
    if shutil.which(argv[0], path=environment.get("PATH", os.defpath)) is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), argv[0])
    return [sys.executable, "-I", "-S", "-c", _PROGRAM, *argv]


SWEEP_S = 20.0  # a sweep of /proc takes 0.01 s; only a process that cannot be killed takes longer


def sweep_machine(sessions: Sequence[str] = (), *, abandoned: bool = False) -> None:
    """End the processes that these sessions, or all dead ones, have left here. A sweep that fails or hangs is abandoned."""

    def work() -> None:
        with suppress(OSError):
            sweep.sweep(sessions, abandoned=abandoned)

    thread = threading.Thread(target=work, name="dtfperf-sweep", daemon=True)
    thread.start()
    thread.join(SWEEP_S)
