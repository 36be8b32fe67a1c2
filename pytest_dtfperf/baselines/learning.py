"""What a way of training costs in learning: the steps, and the seconds, until the test set is answered well enough."""

import math
import statistics
from dataclasses import dataclass

from pytest_dtfperf.baselines.compare import VERDICTS
from pytest_dtfperf.baselines.terms import ASSUMED, Terms
from pytest_dtfperf.baselines.verdict import Judgement, Verdict
from pytest_dtfperf.errors import SpecError, UsageError
from pytest_dtfperf.formats import counted, percent
from pytest_dtfperf.measurement import Measurement, Run
from pytest_dtfperf.stats.comparison import against_each_other
from pytest_dtfperf.stats.noise import Noise


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
    efforts = _efforts(measurement, target)
    if len(efforts) < len(measurement.runs):
        return None
    return Effort(statistics.median(e.steps for e in efforts), statistics.median(e.trained_s for e in efforts))


def _efforts(measurement: Measurement, target: float) -> list[Effort]:
    """Return those of the runs that have reached the target."""
    return [effort for run in measurement.runs if (effort := _effort(run, target))]


def _effort(run: Run, target: float) -> Effort | None:
    return next(
        (Effort(evaluation.step, evaluation.trained_s) for evaluation in run.evaluations if evaluation.score.top_1 >= target),
        None,
    )


def judge_learning(measurement: Measurement, anchor: Measurement, terms: Terms) -> Judgement:
    """Judge whether the target took at most so many times (`terms.threshold`) the anchor's steps.

    Runs differ in how many steps they take, so one run of either side decides nothing. Seconds are shown and not judged. The
    value is the ratio of steps. Both must have the same target; a run that never reaches it is a loss, whatever others do.
    """
    at_most = terms.threshold
    if at_most is None or not at_most > 0:
        raise UsageError(f"at_most must be more than 0, not {at_most!r}: 1.5 means half as many steps again")
    if measurement.spec.stop_at_top_1_accuracy != anchor.spec.stop_at_top_1_accuracy:
        raise SpecError(f"{measurement.spec.label} and {anchor.spec.label} have different targets")
    usual, found = effort_of(anchor), effort_of(measurement)
    aim = measurement.spec.stop_at_top_1_accuracy or 0.0
    target = f"top-1 accuracy of {percent(aim)}"
    if usual is None:
        return Judgement(Verdict.INVALID, f"{anchor.spec.label}, to be compared with, never reached a {_best(anchor, target)}")
    if found is None:
        return Judgement(Verdict.REGRESSED, f"{measurement.spec.label} never reached a {_best(measurement, target)}")
    value = found.steps / usual.steps
    if terms.has_one_noise:  # which knew none of learning
        reason = (
            f"a {target} took {measurement.spec.label} {found.steps:g} steps ({found.trained_s:.3g} s), "
            f"{anchor.spec.label} {usual.steps:g} ({usual.trained_s:.3g} s): {value:.2f} times the steps, allowed {at_most:g}, "
            f"and {found.trained_s / usual.trained_s:.2f} times the seconds"
        )
        return Judgement(Verdict.PASSED if value <= at_most else Verdict.REGRESSED, reason, value=value)
    (now, noise), (then, then_noise) = (_learning_speeds(each, aim) for each in (measurement, anchor))
    estimate = against_each_other(now, then, noise, then_noise, terms.question(1 / at_most, noise, then_noise))
    is_known = estimate.degrees_of_freedom and estimate.low
    known = f"{1 / estimate.high:.2f} to {1 / estimate.low:.2f}" if is_known else "not known yet"
    reason = (
        f"a {target} took {measurement.spec.label} {found.steps:g} steps ({found.trained_s:.3g} s), "
        f"{anchor.spec.label} {usual.steps:g} ({usual.trained_s:.3g} s): {value:.2f} times the steps ({known}), "
        f"allowed {at_most:g}, and {found.trained_s / usual.trained_s:.2f} times the seconds; "
        f"{counted(len(measurement.runs), 'run')} against {len(anchor.runs)}"
    )
    return Judgement(VERDICTS[estimate.answer], reason, value=value, estimate=estimate)


def _learning_speeds(measurement: Measurement, target: float) -> tuple[list[float], Noise]:
    """Return one over the steps of each run, and the least noise of these: evaluations are as coarse as they are far apart."""
    steps = [effort.steps for effort in _efforts(measurement, target)]
    apart = measurement.spec.eval_during_training_every_n_steps or 0
    return [1 / each for each in steps], Noise(run=max(ASSUMED.run, apart / math.sqrt(12) / statistics.median(steps)))


def _best(measurement: Measurement, target: str) -> str:
    tops = [evaluation.score.top_1 for run in measurement.runs for evaluation in run.evaluations]
    steps = measurement.spec.warmup_steps + measurement.spec.steps
    return f"{target} in {steps} steps (best: {percent(max(tops, default=0.0))})"
