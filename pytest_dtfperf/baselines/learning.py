"""What a way of training costs in learning: the steps, and the seconds, until the test set is answered well enough."""

import statistics
from dataclasses import dataclass

from pytest_dtfperf.baselines.verdict import Judgement, Verdict
from pytest_dtfperf.errors import SpecError, UsageError
from pytest_dtfperf.formats import percent
from pytest_dtfperf.measurement import Measurement, Run


@dataclass(frozen=True)
class Effort:
    """What it took to reach the target, the median over runs."""

    steps: float  # warm-up included
    trained_s: float  # of measured steps alone


def effort_of(measurement: Measurement) -> Effort | None:
    """None: some run never reached the target. Raises `SpecError` if the spec names none."""
    target = measurement.spec.stop_at_top_1_accuracy
    if target is None:
        raise SpecError(f"{measurement.spec.label} has no target: say stop_at_top_1_accuracy")
    efforts = [_effort(run, target) for run in measurement.runs]
    reached = [effort for effort in efforts if effort is not None]
    if len(reached) < len(efforts):
        return None
    return Effort(statistics.median(e.steps for e in reached), statistics.median(e.trained_s for e in reached))


def _effort(run: Run, target: float) -> Effort | None:
    return next(
        (Effort(evaluation.step, evaluation.trained_s) for evaluation in run.evaluations if evaluation.score.top_1 >= target),
        None,
    )


def judge_learning(measurement: Measurement, anchor: Measurement, *, at_most: float) -> Judgement:
    """Whether the target took at most so many times the anchor's steps. Seconds are told; judging them is the rate's affair.

    The value is the ratio of steps. Both must have the same target.
    """
    if not at_most > 0:
        raise UsageError(f"at_most must be more than 0, not {at_most!r}: 1.5 means half as many steps again")
    if measurement.spec.stop_at_top_1_accuracy != anchor.spec.stop_at_top_1_accuracy:
        raise SpecError(f"{measurement.spec.label} and {anchor.spec.label} have different targets")
    usual, found = effort_of(anchor), effort_of(measurement)
    target = f"top-1 accuracy of {percent(measurement.spec.stop_at_top_1_accuracy or 0.0)}"
    if usual is None:
        return Judgement(Verdict.INVALID, f"{anchor.spec.label}, to be compared with, never reached a {_best(anchor, target)}")
    if found is None:
        return Judgement(Verdict.REGRESSED, f"{measurement.spec.label} never reached a {_best(measurement, target)}")
    value = found.steps / usual.steps
    reason = (
        f"a {target} took {measurement.spec.label} {found.steps:g} steps ({found.trained_s:.3g} s), "
        f"{anchor.spec.label} {usual.steps:g} ({usual.trained_s:.3g} s): {value:.2f} times the steps, allowed {at_most:g}, "
        f"and {found.trained_s / usual.trained_s:.2f} times the seconds"
    )
    return Judgement(Verdict.PASSED if value <= at_most else Verdict.REGRESSED, reason, value=value)


def _best(measurement: Measurement, target: str) -> str:
    tops = [evaluation.score.top_1 for run in measurement.runs for evaluation in run.evaluations]
    steps = measurement.spec.warmup_steps + measurement.spec.steps
    return f"{target} in {steps} steps (best: {percent(max(tops, default=0.0))})"
