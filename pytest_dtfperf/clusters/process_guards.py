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
    """For a `with` block: a process of a session of its own, at the end of a pipe.

    It runs `argv`, which is to read one line from its stdin, and to leave if that is "over". Any other end of the pipe, at the
    latest that of this process, means: there is something to be cleaned up. So does the end of the block, unless the watchdog
    was cancelled before: whoever asked for hosts may have been interrupted before it learnt that it got them.
    """

    _at_work: ClassVar[list[subprocess.Popen[bytes]]] = []  # nobody waits for those; but dropped, a Popen complains

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
        """There is nothing left to clean up."""
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


# In the place of the program, until it becomes that: some milliseconds. What Python ignores, programs would go on ignoring; and
# where no locale is set, it sets one in its environment, which is not the program's.
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
    """What to start for `argv`. Raises `FileNotFoundError`, as starting it would, where there is no such program."""
    if shutil.which(argv[0], path=environment.get("PATH", os.defpath)) is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), argv[0])
    return [sys.executable, "-I", "-S", "-c", _PROGRAM, *argv]


SWEEP_S = 20.0  # looking through /proc takes a hundredth of a second; only a process that cannot be killed takes longer


def sweep_machine(sessions: Sequence[str] = (), *, abandoned: bool = False) -> None:
    """End them. A sweep that fails or hangs must not keep anybody from going on."""

    def work() -> None:
        with suppress(OSError):
            sweep.sweep(sessions, abandoned=abandoned)

    thread = threading.Thread(target=work, name="dtfperf-sweep", daemon=True)
    thread.start()
    thread.join(SWEEP_S)
