"""Child processes at the end of two pipes, their lines, and a channel over them.

On this machine, an agent is such a child. For another host, the child is the program that connects to it. Guards keep such
processes from outliving pytest: a watchdog, a parent-death guard, and a sweep of this machine.
"""

import errno
import os
import select
import selectors
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import ClassVar, Self

from pytest_dtfperf.clusters.protocol import LossReason, Lost
from pytest_dtfperf.errors import HostLost, format_exit
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


LINE_BYTES = 16 << 20  # the longest line is the report of a long training: 40 bytes a step, for 400,000 steps


def write_all(fd: int, data: bytes, within_s: float) -> bool:
    """Write to a non-blocking pipe; False if it was closed at the other end, or stayed full for too long."""
    rest = memoryview(data)
    deadline = time.monotonic() + within_s
    while rest:
        try:
            rest = rest[os.write(fd, rest) :]
        except BlockingIOError:
            if not select.select([], [fd], [], max(0.0, deadline - time.monotonic()))[1]:
                return False
        except BrokenPipeError:
            return False
    return True


class LineTooLong(Exception):
    """A line is longer than any of an agent."""

    def __init__(self) -> None:
        super().__init__(f"it sent more than {LINE_BYTES >> 20} MiB without the end of a line")


class LineBuffer:
    """Splits data that arrives in pieces into complete lines."""

    def __init__(self) -> None:
        self._begun = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that are complete now. Raises `LineTooLong`."""
        first, *others = data.split(b"\n")
        self._begun += first
        if len(self._begun) > LINE_BYTES:
            raise LineTooLong
        if not others:
            return []
        lines = [bytes(self._begun), *others[:-1]]
        self._begun = bytearray(others[-1])
        return lines


class TooMuchOutput(Exception):
    """A command printed more than its limit."""


def read_output(process: "subprocess.Popen[bytes]", most_bytes: int, is_over: Callable[[], bool]) -> tuple[bytes, bytes] | None:
    """Return what a command prints to its two pipes until both are closed; None if `is_over` returned True before.

    Calls `is_over` at least twice a second. Raises `TooMuchOutput` once one of them has brought more than `most_bytes`.
    """
    printed = {pipe: bytearray() for pipe in (process.stdout, process.stderr) if pipe}
    with selectors.DefaultSelector() as selector:
        for pipe in printed:
            selector.register(pipe, selectors.EVENT_READ)
        while selector.get_map():
            if is_over():
                return None
            for key, _ in selector.select(timeout=0.5):
                data = os.read(key.fd, 1 << 16)
                output = printed[key.fileobj]  # type: ignore[index]  # those that were registered
                output += data
                if len(output) > most_bytes:
                    raise TooMuchOutput
                if not data:
                    selector.unregister(key.fileobj)
    out, err = printed.values()
    return bytes(out), bytes(err)


LEAVE_S = 2.0  # after its pipe is closed, a working agent kills its processes at once; one that takes longer hangs
_WRITE_S = 5.0  # a working agent reads within milliseconds; one that leaves its pipe full for so long hangs
_LAST_WORDS_BYTES = 4096


class Child:
    """One process, its pipes, and its stderr. Raises `OSError` if it cannot be started."""

    def __init__(self, host: int, argv: Sequence[str], env: Mapping[str, str], files: Collection[int] = ()) -> None:
        """Start it with `env` as its whole environment, plus DTFPERF_HOST_INDEX. It inherits these `files`."""
        self.host = host
        self.deaf = False  # it accepts no more lines
        self._lines = LineBuffer()
        with ExitStack() as unless_started:
            self._stderr = unless_started.enter_context(tempfile.TemporaryFile(prefix="dtfperf-"))
            # A session of its own: Ctrl-C in the terminal reaches only pytest, which then ends its agents in order.
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                env={**env, "DTFPERF_HOST_INDEX": str(host)},
                start_new_session=True,
                bufsize=0,
                pass_fds=files,
            )
            unless_started.pop_all()  # from here on, `end` closes it
        assert self._process.stdin
        assert self._process.stdout
        self.stdin, self.stdout = self._process.stdin, self._process.stdout
        os.set_blocking(self.stdin.fileno(), False)
        os.set_blocking(self.stdout.fileno(), False)

    @property
    def pid(self) -> int:
        return self._process.pid

    def write(self, data: bytes, within_s: float = _WRITE_S) -> bool:
        """Return whether all data was written."""
        self.deaf = self.deaf or not write_all(self.stdin.fileno(), data, within_s)
        return not self.deaf

    def read_lines(self) -> list[bytes] | None:
        """Return the lines that are complete now; None at the end of the output. Raises `LineTooLong`."""
        try:
            data = os.read(self.stdout.fileno(), 1 << 16)
        except BlockingIOError:
            return []
        if not data:
            return None
        return self._lines.feed(data)

    def stderr(self) -> bytes:
        """Return the end of its stderr."""
        size = self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, size - _LAST_WORDS_BYTES))
        return self._stderr.read()

    def get_last_lines(self) -> list[bytes]:
        """Return the lines of its stderr; complete once `wait_for_end` has waited for its end."""
        return self.stderr().splitlines()

    def wait_for_end(self) -> Lost:
        """Return how it ended. A process that has closed its pipes may still run."""
        code = self.exit_code(LEAVE_S)
        return (
            Lost(LossReason.UNRESPONSIVE, "the agent is still there, but does not listen")
            if code is None
            else make_exit_loss(code)
        )

    def exit_code(self, patience_s: float = 0.0) -> int | None:
        """Return the exit code, or minus the signal's number; None while it runs."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(patience_s)
        return None

    def hang_up(self) -> None:
        """Close its stdin, which ends its heartbeat."""
        self.deaf = True
        self.stdin.close()

    def end(self, patience_s: float) -> bool:
        """Wait for it to exit, and kill it if it does not. Returns whether it exited in order."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(patience_s)
        self._process.kill()  # has no effect on one that has exited
        self._process.wait()
        self.stdin.close()
        self.stdout.close()
        self._stderr.close()
        return self._process.returncode == 0


class ChildrenChannel:
    """A `Channel` over children, one per host and in the hosts' order.

    `empty_message` is the error message when no child is left. `clean_up` is called at the end if a child did not exit in
    order, and so may have left processes behind.
    """

    def __init__(
        self, children: Sequence[Child], *, empty_message: str, clean_up: Callable[[], object], leave_s: float = LEAVE_S
    ) -> None:
        self._children = children
        self._empty_message = empty_message
        self._clean_up = clean_up
        self._leave_s = leave_s
        self._sending = threading.Lock()  # orders and pings come from two threads; a line must stay whole
        self._arrived: deque[tuple[int, bytes | Lost]] = deque()
        self._latest: Lost | None = None  # the latest loss
        self._selector = selectors.DefaultSelector()
        for child in children:
            self._selector.register(child.stdout, selectors.EVENT_READ, child)

    def send(self, line: bytes) -> None:
        with self._sending:
            listening = [child.write(line + b"\n") for child in self._children]
        if not any(listening):
            how = self._latest or self._children[-1].wait_for_end()
            raise HostLost(f"{self._empty_message}: {how.description}")

    def receive(self, timeout_s: float) -> tuple[int, bytes | Lost] | None:
        if not self._arrived:
            self._listen(timeout_s)
        return self._arrived.popleft() if self._arrived else None

    def explain_silence(self, host: int) -> Lost | None:
        """Return None: nothing more is known of a silent host while the connection to it exists."""
        return None

    def close(self) -> None:
        with self._sending:
            for child in self._children:
                child.hang_up()
        deadline = time.monotonic() + self._leave_s
        clean = [child.end(max(0.0, deadline - time.monotonic())) for child in self._children]
        if not all(clean):  # an agent that exits by itself leaves nothing behind
            self._clean_up()
        self._selector.close()

    def _listen(self, timeout_s: float) -> None:
        deaf = [key.data for key in self._selector.get_map().values() if key.data.deaf]
        for key, _ in [] if deaf else self._selector.select(timeout_s):
            child: Child = key.data
            try:
                lines = child.read_lines()
            except LineTooLong as exc:
                self._lose(child, Lost(LossReason.FLOODED, str(exc)))  # its pipe is not read any more, so it can write no more
                continue
            if lines is None:
                deaf.append(child)
            else:
                self._arrived += [(child.host, line) for line in lines]
        for child in deaf:
            how = child.wait_for_end()
            self._lose(child, how, child.get_last_lines())

    def _lose(self, child: Child, how: Lost, last_lines: Sequence[bytes] = ()) -> None:
        self._selector.unregister(child.stdout)
        self._latest = how
        self._arrived += [(child.host, line) for line in last_lines]
        self._arrived.append((child.host, how))


def make_exit_loss(code: int) -> Lost:
    """Return how an agent ended, by an exit code of Python: minus the signal's number for a killed one."""
    return Lost(LossReason.ENDED, f"the agent {format_exit(code)}")
