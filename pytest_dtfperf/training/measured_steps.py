"""Train the measured steps: in one window, or in several windows with evaluations between them, which are not measured.

A window is timed in a loop without branches, so that all of its work is in the measured time.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from time import perf_counter
from typing import TYPE_CHECKING, Any

from pytest_dtfperf.datamodel.task_report import Evaluation
from pytest_dtfperf.errors import InvalidMeasurement
from pytest_dtfperf.node.probes import Counters
from pytest_dtfperf.spec import TaskOrder

if TYPE_CHECKING:  # it imports TensorFlow
    from pytest_dtfperf.training.engine import Training


@dataclass(frozen=True)
class Window:
    """Consecutive steps that were timed without a gap."""

    started: float  # perf_counter seconds
    step_s: tuple[float, ...]  # adds up to the whole window: a step lasts until the next begins
    loss: tuple[float, ...]


def time_steps(step: Callable[[], float], steps: int, after_each: Callable[[], None]) -> Window:
    """Run `step`, which returns its loss, `steps` times. `after_each` is called within the next step's time.

    Raises `InvalidMeasurement` if the count is wrong.
    """
    timestamps = [perf_counter()]
    losses = []
    for _ in range(steps):
        losses.append(step())
        timestamps.append(perf_counter())
        after_each()
    step_s = tuple(end - begin for begin, end in pairwise(timestamps))
    if not len(step_s) == len(losses) == steps:
        raise InvalidMeasurement(f"{len(step_s)} times and {len(losses)} losses were taken, {steps} steps were asked for")
    return Window(timestamps[0], step_s, tuple(losses))


_SUMMED = ("bytes_sent", "bytes_received", "cpu_s")


@dataclass
class MeasuredSteps:
    """The durations, losses, evaluations and resources of the steps measured so far."""

    step_s: list[float] = field(default_factory=list)
    loss: list[float] = field(default_factory=list)
    elapsed_s: float = 0.0
    evaluations: list[Evaluation] = field(default_factory=list)
    used: dict[str, Any] = field(default_factory=lambda: dict.fromkeys(_SUMMED, 0))

    def add_usage(self, before: Counters, after: Counters) -> None:
        used = after.subtract(before)
        for name in _SUMMED:
            self.used[name] += getattr(used, name)
        self.used["peak_rss_bytes"] = after.peak_rss_bytes


def run_measured_steps(
    order: TaskOrder, training: "Training", counters: Callable[[], Counters], after_each: Callable[[], None]
) -> MeasuredSteps:
    """Train the measured steps of a worker."""
    spec = order.spec
    measured = MeasuredSteps()
    for last, steps in _iterate_windows(spec.steps, spec.eval_during_training_every_n_steps):
        training.barrier("start")
        before = counters()
        window = time_steps(training.step, steps, after_each)
        elapsed_s = math.fsum(window.step_s)
        if not spec.in_lockstep or spec.mode.single_session:
            training.barrier("end")
        if not spec.in_lockstep:  # the window ends when all workers have trained its steps
            elapsed_s = perf_counter() - window.started
        measured.add_usage(before, counters())
        measured.elapsed_s += elapsed_s
        measured.step_s += window.step_s
        measured.loss += window.loss
        if spec.eval_during_training_every_n_steps is None:
            break
        if _has_learnt(order, training, measured) or last:
            return measured
    if spec.evaluate and order.is_chief:
        _evaluate(order, training, measured)
    return measured


def serve_devices(order: TaskOrder, training: "Training", counters: Callable[[], Counters]) -> MeasuredSteps:
    """Stand by while the chief's session computes on this worker's devices."""
    spec = order.spec
    measured = MeasuredSteps()
    for last, _ in _iterate_windows(spec.steps, spec.eval_during_training_every_n_steps):
        training.barrier("start")
        before = counters()
        training.barrier("end")
        measured.add_usage(before, counters())
        if spec.eval_during_training_every_n_steps is None or training.broadcast(False) or last:
            break
    return measured


def _iterate_windows(steps: int, interval: int | None) -> Iterator[tuple[bool, int]]:
    """Yield for each window whether it is the last, and the number of its steps."""
    interval = interval or steps
    for start in range(0, steps, interval):
        yield start + interval >= steps, min(interval, steps - start)


def _has_learnt(order: TaskOrder, training: "Training", measured: MeasuredSteps) -> bool:
    """Return in all workers whether the accuracy is enough. The chief evaluates and sends the result to the others."""
    enough = False
    if order.is_chief:
        target = order.spec.stop_at_top_1_accuracy
        enough = _evaluate(order, training, measured) >= (math.inf if target is None else target)
    return training.broadcast(enough)


def _evaluate(order: TaskOrder, training: "Training", measured: MeasuredSteps) -> float:
    step = order.spec.warmup_steps + len(measured.step_s)
    score = training.evaluate()
    measured.evaluations.append(Evaluation(step=step, trained_s=measured.elapsed_s, score=score))
    return score.top_1
