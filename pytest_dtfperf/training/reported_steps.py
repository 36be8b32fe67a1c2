"""Receive the steps that an external command reports with `pytest_dtfperf.steps`, and refuse impossible ones."""

import json
import os
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Any, Protocol

from pytest_dtfperf.traces import StepTimestamps

MOST_STEPS = 400_000  # as many as a report may hold (`messages/received.py`)
_LINE_BYTES = 4096  # of which a program's line needs 200
_READ_BYTES = 1 << 16
_KEYS = {"pid", "began", "ended", "images", "warmup"}


class StepListener(Protocol):
    """A receiver of each reported step as a sign of life."""

    def sign_of_life(self) -> None:
        """Note that a step has been reported."""


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

    def take(self, listener: StepListener | None = None) -> None:
        """Read all data that has arrived."""
        with suppress(BlockingIOError):
            while data := os.read(self._read, _READ_BYTES):
                *lines, self._rest = (self._rest + data).split(b"\n")
                for line in lines:
                    self.take_line(line)
                    if listener:
                        listener.sign_of_life()
                if len(self._rest) > _LINE_BYTES:
                    self._rest = b""
                    self._refuse(f"a line of more than {_LINE_BYTES} bytes")

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
        images = self._images_of(step)
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

    def _images_of(self, step: dict[str, Any]) -> float:
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
