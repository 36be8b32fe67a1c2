"""The measured part of a training: one window, or several with looks at the test set between them, outside of their time."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from pytest_dtfperf.measurement import Look
from pytest_dtfperf.spec import TaskOrder
from pytest_dtfperf.training.connection import Counters
from pytest_dtfperf.training.engine import Training
from pytest_dtfperf.training.step_timer import time_steps

_SUMMED = ("bytes_sent", "bytes_received", "cpu_s")


@dataclass
class Course:
    """What was measured so far."""

    step_s: list[float] = field(default_factory=list)
    loss: list[float] = field(default_factory=list)
    elapsed_s: float = 0.0
    looks: list[Look] = field(default_factory=list)
    used: dict[str, Any] = field(default_factory=lambda: dict.fromkeys(_SUMMED, 0))

    def use(self, before: Counters, after: Counters) -> None:
        for name in _SUMMED:
            self.used[name] += getattr(after, name) - getattr(before, name)
        self.used["peak_rss_bytes"] = after.peak_rss_bytes


def attend(order: TaskOrder, training: Training, counters: Callable[[], Counters], after_each: Callable[[], None]) -> Course:
    """Train the measured steps of a worker."""
    spec = order.spec
    course = Course()
    for last, steps in _windows(spec.steps, spec.eval_during_training_every_n_steps):
        training.meet("start")
        before = counters()
        window = time_steps(training.step, steps, after_each)
        elapsed_s = math.fsum(window.step_s)
        if not spec.in_lockstep or spec.mode.single_session:
            training.meet("end")
        if not spec.in_lockstep:  # others may still be training: the window is over when all are
            elapsed_s = perf_counter() - window.started
        course.use(before, counters())
        course.elapsed_s += elapsed_s
        course.step_s += window.step_s
        course.loss += window.loss
        if spec.eval_during_training_every_n_steps is None:
            break
        if _has_learnt(order, training, course) or last:
            return course
    if spec.evaluate and order.is_chief:
        _look(order, training, course)
    return course


def lend(order: TaskOrder, training: Training, counters: Callable[[], Counters]) -> Course:
    """Stand by while the chief's session computes on this worker's devices."""
    spec = order.spec
    course = Course()
    for last, _ in _windows(spec.steps, spec.eval_during_training_every_n_steps):
        training.meet("start")
        before = counters()
        training.meet("end")
        course.use(before, counters())
        if spec.eval_during_training_every_n_steps is None or training.agree(False) or last:
            break
    return course


def _windows(steps: int, every: int | None) -> Iterator[tuple[bool, int]]:
    """Whether a window is the last, and its steps."""
    every = every or steps
    for start in range(0, steps, every):
        yield start + every >= steps, min(every, steps - start)


def _has_learnt(order: TaskOrder, training: Training, course: Course) -> bool:
    """The chief looks at the test set, and tells all whether it is enough."""
    enough = False
    if order.is_chief:
        target = order.spec.stop_at_top_1_accuracy
        enough = _look(order, training, course) >= (math.inf if target is None else target)
    return training.agree(enough)


def _look(order: TaskOrder, training: Training, course: Course) -> float:
    step = order.spec.warmup_steps + len(course.step_s)
    score = training.evaluate()
    course.looks.append(Look(step=step, trained_s=course.elapsed_s, score=score))
    return score.top_1
