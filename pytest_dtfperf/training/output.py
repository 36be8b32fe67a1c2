"""Read the output of an external command, and the steps that it reports with `pytest_dtfperf.steps`.

The output is written to the task's log, and read line by line as a terminal would show it: colours, titles and links are left
out, backspaces take characters back, and a movement of the cursor begins another line. Impossible steps are refused.
"""

import json
import os
import re
import unicodedata
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from time import monotonic, perf_counter
from typing import Any

from pytest_dtfperf.spec.printed_number import UnclearNumber, find
from pytest_dtfperf.traces import MOST_STEPS, StepTimestamps
from pytest_dtfperf.training import PROGRESS_S, AgentConnection

_REPORT_LINE_BYTES = 4096  # of which a program's line needs 200
_READ_BYTES = 1 << 16
_KEYS = {"pid", "began", "ended", "images", "warmup"}


class ImpossibleSteps(Exception):
    """An error for a reported line that cannot be true; the text has the reason."""


class ReportedSteps:
    """The pipe into which a program reports its steps, found by its `path`, and the reported steps.

    `images` is the number of images of a step where the program does not report it, and the maximum that it can have; None: the
    perf test does not set one. All clocks are this host's CLOCK_MONOTONIC, also the program's.
    """

    def __init__(self, images: int | None, clock: Callable[[], float] = monotonic) -> None:
        self.step_s: list[float] = []  # of measured steps
        self.between_s: list[float | None] = []  # from the previous step's end to its begin; None: it is the first
        self.images = 0.0  # in measured steps
        self.window_s = 0.0  # from the end of the warm-up, or the first step's beginning, to the last measured step's end
        self.wrong: str | None = None  # the reason why all steps are refused
        self._given, self._clock = images, clock
        self._most_images = 0.0  # of a step
        self._opened, self._last_end, self._warmups = clock(), 0.0, 0
        self._window_began: float | None = None
        self._pid: int | None = None
        self._rest = b""
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        # Children of the program find this path, too, and it ends with this process.
        self.path = f"/proc/{os.getpid()}/fd/{self._write}"

    @property
    def window_at_s(self) -> float:
        """Return the seconds from the pipe's creation to the begin of the measured window."""
        return 0.0 if self._window_began is None else self._window_began - self._opened

    def fileno(self) -> int:
        return self._read

    def take(self, on_step: Callable[[], object] = lambda: None) -> None:
        """Read all data that has arrived, and call `on_step` for each step."""
        with suppress(BlockingIOError):
            while data := os.read(self._read, _READ_BYTES):
                *lines, self._rest = (self._rest + data).split(b"\n")
                for line in lines:
                    self.take_line(line)
                    on_step()
                if len(self._rest) > _REPORT_LINE_BYTES:
                    self._rest = b""
                    self._refuse(f"a line of more than {_REPORT_LINE_BYTES} bytes")

    def timestamps(self, worker: str) -> StepTimestamps:
        """Return the timestamps of the begin and end of each measured step; those within a step are unknown."""
        unknown = [None] * len(self.step_s)
        return StepTimestamps(
            worker=worker,
            python_us=unknown,
            variables_us=unknown,
            gradients_us=unknown,
            end_us=[round(1e6 * seconds) for seconds in self.step_s],
            cpu_us=unknown,
            between_us=[None if seconds is None else round(1e6 * seconds) for seconds in self.between_s],
        )

    def end(self) -> None:
        """Read the remaining data and check all steps together, after the program has ended."""
        self.take()
        if self._rest:
            self._refuse("its last line is cut")
        if self._warmups and not self.step_s:
            self._refuse(f"all of its {self._warmups} steps were warm-up: Steps(warmup=...) must leave some to measure")
        if self.step_s and self._given is not None and self._most_images < self._given:
            self._refuse(
                f"no step has more than {self._most_images:g} images, and the perf test's batch_size makes {self._given} of "
                "this task's devices: images_per_step is of one task, on all its devices. Make both agree, or leave one out"
            )
        os.close(self._read)
        os.close(self._write)

    def take_line(self, line: bytes) -> None:
        if self.wrong:
            return
        try:
            self._add(_parse_line(line))
        except ImpossibleSteps as why:
            self._refuse(f"step {self._warmups + len(self.step_s) + 1} {why}")

    def _refuse(self, why: str) -> None:
        self.wrong = self.wrong or why

    def _add(self, step: dict[str, Any]) -> None:
        began, ended = _number(step, "began"), _number(step, "ended")
        self._check_source(step)
        if ended <= began:
            raise ImpossibleSteps(f"took {ended - began:.6g} s")
        if began < self._last_end:
            raise ImpossibleSteps(f"began {self._last_end - began:.6g} s before the one before it had ended")
        if began < self._opened or ended > self._clock():
            raise ImpossibleSteps("lies outside of the time in which the program ran, by this host's monotonic clock")
        images = self._count_images(step)
        self._most_images = max(self._most_images, images)
        if step["warmup"]:
            self._add_warmup(ended)
        else:
            self._add_measured(began, ended, images)
        self._last_end = ended

    def _check_source(self, step: dict[str, Any]) -> None:
        if type(step["pid"]) is not int or type(step["warmup"]) is not bool:
            raise ImpossibleSteps("is not as pytest_dtfperf.steps writes it")
        if self._pid not in (None, step["pid"]):
            raise ImpossibleSteps("is of a second process: one process of a task may report steps, for all that it trains")
        self._pid = step["pid"]

    def _add_warmup(self, ended: float) -> None:
        if self.step_s:
            raise ImpossibleSteps("is warm-up after a measured one: one Steps for a program")
        self._warmups += 1
        self._window_began = ended

    def _add_measured(self, began: float, ended: float, images: float) -> None:
        if len(self.step_s) == MOST_STEPS:
            raise ImpossibleSteps(f"is one too many: at most {MOST_STEPS} are measured")
        if self._window_began is None:
            self._window_began = began
        self.step_s.append(ended - began)
        self.between_s.append(began - self._last_end if self._last_end else None)
        self.images += images
        self.window_s = ended - self._window_began

    def _count_images(self, step: dict[str, Any]) -> float:
        if step["images"] is None and self._given is not None:
            return self._given
        if step["images"] is None:
            raise ImpossibleSteps("has no number of images: set Steps(images_per_step=...), or batch_size=... in the perf test")
        images = _number(step, "images")
        if images <= 0:
            raise ImpossibleSteps(f"has {images:g} images")
        if self._given is not None and images > self._given:
            raise ImpossibleSteps(
                f"has {images:g} images, where the perf test's batch_size allows {self._given} on this task's devices: "
                "images_per_step is of one task, not of all"
            )
        return images


def _parse_line(line: bytes) -> dict[str, Any]:
    try:
        step = json.loads(line)
    except (ValueError, RecursionError):
        step = None
    if not isinstance(step, dict) or step.keys() != _KEYS:
        raise ImpossibleSteps("is not as pytest_dtfperf.steps writes it")
    return step


def _number(step: dict[str, Any], name: str) -> float:
    value = step[name]
    if type(value) not in (int, float) or not abs(value) <= 1e15:
        raise ImpossibleSteps(f"has a {name!r} that is no number")
    return float(value)


_PLAIN = re.compile(
    r"[^\x00-\x08\x0a-\x1f\x7f-\x9f\xad\u0600-\u0605\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\udc80-\udcff]*"
)
# ECMA-48: a control sequence, with its parameters and its final character; a control string, to its end; any other escape.
# C1 controls are one character, too; as one byte, which is no UTF-8, only colours are known by what they are.
_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)(?P<parameters>[0-?]*)[ -/]*(?P<final>[@-~]|$)"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c|(?=\x1b)|$)"
    r"|\udc9b[0-9;]*m"
    r"|\x1b[ -/]*(?P<escape>[0-~])"
)
_STAYS = "mhlnqtrcu"  # finals that draw and move nothing
_OTHER_LINE = "\n\v\f\x84\x85\x8d\u2028\u2029"
_WIDEST = 4096  # columns that a sequence may skip


def split_lines(data: bytes) -> list[str]:
    """Return the visible text of a line of bytes: one line, or several in the order of writing, where it moves the cursor."""
    text = data.decode(errors="surrogateescape")
    if _PLAIN.fullmatch(text):
        return [text]
    found, at = _Lines(), 0
    for sequence in _SEQUENCE.finditer(text):
        found.write(text[at : sequence.start()])
        found.obey(sequence)
        at = sequence.end()
    found.write(text[at:])
    return found.end()


class _Lines:
    def __init__(self) -> None:
        self._done: list[str] = []
        self._line: list[str] = []
        self._column = 0

    def write(self, text: str) -> None:
        if self._column == len(self._line) and _PLAIN.fullmatch(text):
            self._line.extend(text)
            self._column += len(text)
            return
        for each in text:
            if each == "\b":
                self._column = max(0, self._column - 1)
            elif each in _OTHER_LINE:
                self._begin()
            elif "\udc80" <= each <= "\udcff":
                self._put("\ufffd")
            elif each == "\t" or unicodedata.category(each) not in ("Cc", "Cf"):
                self._put(each)

    def obey(self, sequence: re.Match[str]) -> None:
        final = sequence["final"]
        if final is None:
            if sequence["escape"] and len(sequence[0]) == 2:
                self._begin()
            return
        number = re.match("[0-9]*", sequence["parameters"])
        count = min(int(number[0]), _WIDEST) if number and number[0] else 1
        if final == "D":
            self._column = max(0, self._column - max(1, count))
        elif final == "C":
            self._column = min(self._column + max(1, count), _WIDEST)
        elif final == "K" and sequence["parameters"] in ("", "0"):
            del self._line[self._column :]
        elif final and final not in _STAYS:
            self._begin()

    def end(self) -> list[str]:
        self._begin()
        return self._done

    def _put(self, character: str) -> None:
        self._line.extend(" " * (self._column - len(self._line)))
        self._line[self._column : self._column + 1] = character
        self._column += 1

    def _begin(self) -> None:
        if self._line:
            self._done.append("".join(self._line))
        self._line, self._column = [], 0


LAST_LINES = 20
LINE_BYTES = 1 << 16  # of a line; a longer one is read in pieces
KEPT_BYTES = 4096  # of a piece, read again with the next one: a number may be in both
_CUT = 128  # characters at the cut ends of a piece, in which no number is read
_QUOTED = 200  # characters around an unclear number
STREAM_S = 0.1  # likewise, from one message with lines to the next
STREAM_CHARACTERS = 16_384  # of lines in one message: as many as a controller of 100 tasks can receive
LINE_CHARACTERS = 4096  # of one line, and of other quotes
_END_OF_LINE = re.compile(rb"[\r\n]+")  # progress bars use only carriage returns
_STDOUT = 1


class Output:
    """The output of a program. Each line shows that the program is alive, and may contain the rate.

    With `streams`, lines go to the controller as they come: call `flush` ten times a second or more often. Where lines come
    faster than they are sent, only the number of the other lines is reported.
    """

    def __init__(self, pattern: str, connection: AgentConnection, *, streams: bool = False) -> None:
        self.rate: str | None = None  # the number that the pattern's first group found last, as it is printed
        self.unclear: tuple[str, str] | None = None  # why the last one cannot be read, and its line; then there is no rate
        self.last_lines: deque[str] = deque(maxlen=LAST_LINES)
        self._pattern = re.compile(pattern)
        self._connection = connection
        self._rest = b""
        self._kept = b""  # of the line that is being read, where it is long
        self._signs = 0
        self._reported_at = self._streamed_at = float("-inf")
        self._streams = streams
        self._waiting: list[str] = []
        self._room = STREAM_CHARACTERS
        self._left_out = 0

    def take(self, data: bytes) -> None:
        os.write(_STDOUT, data)
        *lines, self._rest = _END_OF_LINE.split(self._rest + data)
        for line in lines:
            self._read_line(line)
        if len(self._rest) > LINE_BYTES:
            self._process_line(self._rest, is_cut=True)
            self._kept, self._rest = (self._kept + self._rest)[-KEPT_BYTES:], b""

    def end(self) -> None:
        """Read the incomplete last line, after the end of the output."""
        self._read_line(self._rest)
        self._rest = b""
        self.flush(now=True)

    def _read_line(self, line: bytes) -> None:
        self._process_line(line)
        self._kept = b""

    def flush(self, *, now: bool = False) -> None:
        """Send the waiting lines, unless the last message was less than `STREAM_S` ago."""
        if (self._waiting or self._left_out) and (now or perf_counter() - self._streamed_at >= STREAM_S):
            self._streamed_at = perf_counter()
            self._connection.send("output", lines=self._waiting, left_out=self._left_out)
            self._waiting, self._room, self._left_out = [], STREAM_CHARACTERS, 0

    def _process_line(self, line: bytes, *, is_cut: bool = False) -> None:
        if self._kept or line.strip():
            self._find_rate(line, is_cut=is_cut)
        text = line.decode(errors="replace")
        if not text.strip():
            return
        self.last_lines.append(text[:LINE_CHARACTERS])
        if self._streams:
            self._stream(text[:LINE_CHARACTERS])
        self.sign_of_life()

    def _find_rate(self, line: bytes, *, is_cut: bool) -> None:
        """Find the rate in a line. Of several numbers the last one counts, whether it is clear or not."""
        seen = split_lines(self._kept + line)
        for number, text in enumerate(seen):
            begin = _CUT if self._kept and number == 0 else 0
            end = len(text) - _CUT if is_cut and number == len(seen) - 1 else len(text)
            try:
                found = find(self._pattern, text, begin=begin, end=end)
            except UnclearNumber as why:
                self.rate, self.unclear = None, (str(why), _quote_around(text, why.position))
            else:
                if found is not None:
                    self.rate, self.unclear = found, None

    def _stream(self, line: str) -> None:
        if self._left_out or len(line) > self._room:
            self._left_out += 1
        else:
            self._waiting.append(line)
            self._room -= len(line) + 1
        self.flush()

    def sign_of_life(self) -> None:
        """Report progress, for a line or for a step that was reported without one."""
        self._signs += 1
        now = perf_counter()
        if now - self._reported_at >= PROGRESS_S:
            self._reported_at = now
            self._connection.send("progress", step=self._signs, total_steps=0)  # the number of lines is not known in advance


def _quote_around(line: str, position: int) -> str:
    """Return the text around the number that begins at `at`."""
    begin, end = max(0, position - _QUOTED), position + _QUOTED
    return f"{'...' * (begin > 0)}{line[begin:end]}{'...' * (end < len(line))}"
