"""One srun as the channel to every node: it copies its stdin to all of them, and labels their lines with the task's number.

`srun --label` cuts lines into pieces of 1,024 bytes and labels each: a full piece is continued, and an empty piece follows
a line that ends with a full one. So lines of any length arrive whole. The shell around a node's process reports its end
(`request.wrapper`) in the same stream, because srun does not report a process that exits in order.
"""

import os
import re
import selectors
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import IO

from pytest_dtfperf.clusters.children import LINE_BYTES, LineTooLong, guard_against_parent_death, make_exit_loss, write_all
from pytest_dtfperf.clusters.protocol import LossReason, Lost
from pytest_dtfperf.clusters.slurm.request import ENDED, STARTED
from pytest_dtfperf.clusters.slurm.states import SrunMessages
from pytest_dtfperf.errors import AllocationError, AllocationOver, HostLost, format_exit, quote_lines
from pytest_dtfperf.formats import printable_bytes

PIECE = 1024  # size of pieces of labelled lines in Slurm's I/O code since 20.11
_LABELLED = re.compile(rb" *(\d{1,9}): (.*)", re.DOTALL)
_ENDED = re.compile(rb"(.*)" + re.escape(ENDED) + rb"(\d{1,3})", re.DOTALL)
_WRITE_S = 5.0  # a working srun reads within milliseconds; one that leaves its pipe full for so long hangs
_LEAVE_S = 3.0  # agents exit at once when their stdin is closed; srun then needs a round trip to every node
_GIVE_UP_S = 5.0  # after its signal to end the step, srun signals every node and waits for them
_STDERR_S = 0.05  # delay of a process's last line on stderr after its last line on stdout
_LAST_LINES = 50  # of a node's stderr that are kept
_WORD_BYTES = 4096  # of each: a report of a node's end must fit into the limit of its output
_SILENCE_S = 2.0  # during a run, every agent sends a sign of life once a second; a suspended job stops without a message


class LabelledLines:
    """Joins labelled pieces, and splits them into lines."""

    def __init__(self) -> None:
        self.too_long: set[int] = set()  # tasks with endless lines: their output is ignored from then on
        self._rest = b""
        self._begun: dict[int, bytearray] = {}

    def feed(self, data: bytes) -> list[tuple[int | None, bytes]]:
        """Return the complete lines as (task, line); task None: an unlabelled message of srun itself."""
        *pieces, self._rest = (self._rest + data).split(b"\n")
        return [line for piece in pieces if (line := self._join(piece)) is not None]

    def _join(self, text: bytes) -> tuple[int | None, bytes] | None:
        labelled = _LABELLED.fullmatch(text)
        if labelled is None:
            return None, text
        task, piece = int(labelled[1]), labelled[2]
        if len(self._begun.get(task, b"")) > LINE_BYTES:
            self.too_long.add(task)
            del self._begun[task]
        if task in self.too_long:
            return None
        if len(piece) == PIECE:
            self._begun.setdefault(task, bytearray()).extend(piece)
            return None
        return task, bytes(self._begun.pop(task, b"")) + piece


class SrunChannel:
    """A step of one process per node, from its start to its end.

    `why_over` asks Slurm why the job ended, and returns a message, or None while it runs. Its argument is the nodes that
    srun knows to have failed. `clean_up` is called at the end if a process did not exit in order, and may have left processes
    behind.
    """

    def __init__(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        nodes: Sequence[str],
        *,
        why_over: Callable[[Sequence[str]], str | None],
        clean_up: Callable[[], object],
        start_s: float,
    ) -> None:
        self._nodes = nodes
        self._why_over = why_over
        self._clean_up = clean_up
        self._sending = threading.Lock()  # orders and pings come from two threads; a line must stay whole
        self._deaf = False  # srun accepts no more lines
        self._closing = False
        self._arrived: deque[tuple[int, bytes | Lost]] = deque()
        self._last_lines = [deque[bytes](maxlen=_LAST_LINES) for _ in nodes]  # end of each node's stderr
        self._messages = SrunMessages()  # from srun itself
        self._started: set[int] = set()
        self._codes: dict[int, int] = {}  # exit codes of ended processes
        self._lost: set[int] = set()
        self._latest: Lost | None = None  # the latest loss
        self._listened = time.monotonic()
        self._heard = [self._listened for _ in nodes]
        self._patience_s = _SILENCE_S
        self._srun = _start_srun(argv, environment)
        self._stdin, stdout, stderr = _get_pipes(self._srun)
        self._pieces = {stderr: LabelledLines(), stdout: LabelledLines()}
        self._stdout = stdout
        self._selector = selectors.DefaultSelector()
        for pipe in self._pieces:
            self._selector.register(pipe, selectors.EVENT_READ, pipe)
        try:
            self._wait_for_start(start_s)
        except BaseException:  # Ctrl-C too: the caller does not have the step yet
            self.close()
            raise

    def send(self, line: bytes) -> None:
        if self._latest and len(self._lost) == len(self._nodes):
            raise HostLost(f"no agent is left on {', '.join(self._nodes)}: {self._latest.description}")
        with self._sending:
            self._deaf = self._deaf or not write_all(self._stdin.fileno(), line + b"\n", _WRITE_S)
        if self._deaf:
            why = self._end_of_job() or f"srun, the line to {', '.join(self._nodes)}, takes no more orders"
            raise HostLost(why)

    def receive(self, timeout_s: float) -> tuple[int, bytes | Lost] | None:
        deadline = time.monotonic() + timeout_s
        while not self._arrived:
            self._ask_if_silent()
            left_s = max(0.0, deadline - time.monotonic())
            self._listen(left_s)
            if not left_s:
                break
        return self._arrived.popleft() if self._arrived else None

    def explain_silence(self, host: int) -> Lost | None:
        return self._check_taken_back()

    def close(self) -> None:
        self._closing = True
        with self._sending:
            self._deaf = True
            self._stdin.close()
        self._listen_until_srun_ends(_LEAVE_S)
        if self._srun.poll() is None:
            self._srun.terminate()  # it then ends its step on every node
            self._srun.send_signal(signal.SIGCONT)  # also if it is stopped
            self._listen_until_srun_ends(_GIVE_UP_S)
        self._srun.kill()  # has no effect on one that has exited
        self._srun.wait()
        if set(self._codes.values()) != {0} or len(self._codes) < len(self._nodes):
            self._clean_up()
        self._selector.close()
        for pipe in self._pieces:
            pipe.close()

    # Input

    def _listen(self, timeout_s: float) -> None:
        """Process what arrives within the time; returns as soon as there is something."""
        if time.monotonic() - self._listened > 1.0:
            self._heard = [time.monotonic() for _ in self._nodes]  # there was no listener before: that was no silence
        try:
            self._take_in(timeout_s)
        finally:
            self._listened = time.monotonic()

    def _take_in(self, timeout_s: float) -> None:
        if not self._selector.get_map():
            time.sleep(min(timeout_s, 0.1))  # srun has ended, which was reported
            return
        ready = {key.data for key, _ in self._selector.select(timeout_s)}
        for pipe in self._pieces:
            if pipe in ready:
                self._read_pipe(pipe)
        if (self._codes.keys() | self._messages.ended) - self._lost:
            self._receive_last_lines()
            for task in sorted((self._codes.keys() | self._messages.ended) - self._lost):
                self._lose(task, self._check_taken_back() or self._format_end(task))
        if not self._selector.get_map():
            self._lose_the_others()

    def _ask_if_silent(self) -> None:
        """Ask Slurm for the reason if an agent is silent. The interval grows, because starting agents are silent, too.

        One silent agent is enough: when a job ends, an agent runs until its node is notified.
        """
        living = set(range(len(self._nodes))) - self._lost
        silent_s = max((time.monotonic() - self._heard[task] for task in living), default=0.0)
        if silent_s < _SILENCE_S:
            self._patience_s = _SILENCE_S
        if silent_s < self._patience_s or not self._selector.get_map():
            return
        self._patience_s *= 2
        if why := self._check_taken_back():
            for task in living:
                self._lose(task, why)

    def _read_pipe(self, pipe: IO[bytes]) -> None:
        data = os.read(pipe.fileno(), 1 << 16)
        if not data:
            self._selector.unregister(pipe)
        pieces = self._pieces[pipe]
        lines = pieces.feed(data)
        for endless in pieces.too_long & set(range(len(self._nodes))) - self._lost:
            self._lose(endless, Lost(LossReason.FLOODED, str(LineTooLong())))
        for task, line in lines:
            if task is None or task >= len(self._nodes):
                self._messages.feed(printable_bytes(line))
                continue
            self._heard[task] = time.monotonic()
            if pipe is not self._stdout:
                self._last_lines[task].append(line[:_WORD_BYTES])
            elif line == STARTED:
                self._started.add(task)
            else:
                self._receive_line(task, line)

    def _receive_line(self, task: int, line: bytes) -> None:
        """Process a line of the agent. The shell's report may follow within the last, incomplete line of a killed agent."""
        found = _ENDED.fullmatch(line)
        if found is None:
            self._arrived.append((task, line))
            return
        self._codes[task] = int(found[2])
        if found[1]:
            self._arrived.append((task, found[1]))

    def _receive_last_lines(self) -> None:
        """Read on as long as a process's last lines on stderr may still arrive."""
        deadline = time.monotonic() + _STDERR_S
        while (left_s := deadline - time.monotonic()) > 0 and self._selector.get_map():
            for key, _ in self._selector.select(left_s):
                self._read_pipe(key.data)

    def _lose_the_others(self) -> None:
        """Mark the other tasks as lost after srun ended without a report of them: because of a node, the job, or itself."""
        left = [task for task in range(len(self._nodes)) if task not in self._lost]
        if not left:
            return
        why = self._check_taken_back() or _make_srun_loss(self._srun)
        for task in left:
            self._last_lines[task].extend(word.encode() for word in self._messages.get_lines(task) or self._messages.of_all)
            self._lose(task, why)

    def _lose(self, task: int, how: Lost) -> None:
        self._lost.add(task)
        self._latest = how
        self._arrived += [(task, line) for line in self._last_lines[task]]
        self._arrived.append((task, how))

    def _format_end(self, task: int) -> Lost:
        """Return how a process ended: from its shell's report, or from srun's if the shell was killed, too."""
        if task in self._codes:
            return _make_loss(self._codes[task])
        return Lost(LossReason.ENDED, f"the agent's shell has ended: {', '.join(self._messages.get_lines(task))}")

    def _check_taken_back(self) -> Lost | None:
        why = self._end_of_job()
        return Lost(LossReason.TAKEN_BACK, why) if why else None

    def _end_of_job(self) -> str | None:
        return None if self._closing else self._why_over(self._messages.failed_nodes)

    def _listen_until_srun_ends(self, within_s: float) -> None:
        """Read the pipes until srun ends: full pipes would keep it from ending."""
        deadline = time.monotonic() + within_s
        while self._selector.get_map() and (left_s := deadline - time.monotonic()) > 0:
            self._listen(left_s)
        with suppress(subprocess.TimeoutExpired):
            self._srun.wait(max(0.0, deadline - time.monotonic()))

    # Start

    def _wait_for_start(self, within_s: float) -> None:
        deadline = time.monotonic() + within_s
        while len(self._started) < len(self._nodes):
            if self._lost - self._started:
                raise self._failure(min(self._lost - self._started))
            if time.monotonic() > deadline:
                missing = [name for task, name in enumerate(self._nodes) if task not in self._started]
                output = quote_lines(self._messages.of_all)
                raise AllocationError(
                    f"srun has started nothing on {', '.join(missing)} within {within_s:g} s{output}", hosts=missing
                )
            self._ask_if_silent()
            self._listen(0.5)

    def _failure(self, task: int) -> AllocationError:
        """Return why a task has not started: on the nodes that srun names, which ends the others' tasks, else on its own."""
        why = self._end_of_job()
        if why:
            return AllocationOver(why)
        failed = [node for node in self._nodes if node in self._messages.failed_nodes]
        lines = [] if failed else [printable_bytes(line) for line in self._last_lines[task]]
        nodes = failed or [self._nodes[task]]
        output = quote_lines(lines or self._messages.of_all)
        return AllocationError(f"the agent on {', '.join(nodes)} could not be started{output}", hosts=nodes)


def _start_srun(argv: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start srun in a session of its own: Ctrl-C in the terminal reaches only pytest, which then ends its agents in order."""
    pipe = subprocess.PIPE
    try:
        return subprocess.Popen(
            guard_against_parent_death(argv, environment),
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            env=environment,
            start_new_session=True,
            bufsize=0,
        )
    except OSError as exc:
        raise AllocationError(f"cannot start {argv[0]}: {exc}") from exc


def _get_pipes(process: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes], IO[bytes]]:
    assert process.stdin
    assert process.stdout
    assert process.stderr
    for pipe in (process.stdin, process.stdout, process.stderr):
        os.set_blocking(pipe.fileno(), False)
    return process.stdin, process.stdout, process.stderr


def _make_loss(code: int) -> Lost:
    """Return how a node's process ended, by its shell's exit code: 128 plus the signal's number for a killed one."""
    return make_exit_loss(128 - code if code > 128 else code)


def _make_srun_loss(srun: subprocess.Popen[bytes]) -> Lost:
    try:
        code = srun.wait(_GIVE_UP_S)
    except subprocess.TimeoutExpired:
        return Lost(LossReason.CUT_OFF, "srun still runs, but prints no more")
    return Lost(LossReason.CUT_OFF, f"srun, which connects to it, {format_exit(code)}")
