"""Judgement of efficiency, input overhead, accuracy and learning speed: one or two measurements of a session. Pure.

Runs that are made in turn, round by round, share the state of the machine. If no round is shared, the side that was measured
first is measured again after the other: both answers must then agree, and their interval contains the drift of the machine.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from pytest_dtfperf.baselines.comparability import list_host_differences
from pytest_dtfperf.baselines.compare import (
    NO_INTERVAL,
    VERDICTS,
    explain_no_answer,
    find_disturbed,
    find_misplaced,
    get_noise,
    interval,
    judge,
)
from pytest_dtfperf.baselines.entry import Entry
from pytest_dtfperf.baselines.judgement import Judgement, describe_estimate
from pytest_dtfperf.baselines.terms import ASSUMED, ComparisonPolicy, get_least_runs
from pytest_dtfperf.baselines.verdict import MOST_EFFICIENT, Verdict
from pytest_dtfperf.datamodel.measurement import Measurement, Run, efficiency, io_overhead
from pytest_dtfperf.errors import SpecError, UsageError
from pytest_dtfperf.formats import change, format_count, percent, rate
from pytest_dtfperf.spec import NOT_IN_KEY, Spec
from pytest_dtfperf.stats.comparison import Answer, RatioEstimate, compare_alternating, compare_drifting
from pytest_dtfperf.stats.noise import Noise


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The result of comparing two measurements of a session by the ratio of their rates."""

    measurement: Measurement  # only with the compared runs, as is `other`
    other: Measurement
    estimate: RatioEstimate
    note: str = ""  # reason for excluded runs


def compare_in_turns(
    measurement: Measurement, other: Measurement, noises: tuple[Noise, Noise], floor: float, terms: ComparisonPolicy
) -> Comparison:
    """Compare two rates by their comparable runs: does their ratio reach `floor`?

    The two ways to compare measurements that were not in turn share the error rates, because the second is used if the first
    is inconclusive.
    """
    question = terms.question(floor, *noises)
    if are_in_turn(measurement, other):
        estimate = compare_alternating(measurement.rates, other.rates, *noises, question)
        return Comparison(measurement=measurement, other=other, estimate=estimate)
    half = replace(question, false_alarm=question.false_alarm / 2, missed=question.missed / 2)
    if shared := shared_rounds(measurement, other):
        one, two = _select_rounds(measurement, shared), _select_rounds(other, shared)
        note = "only runs that were made in turn are compared"
        if one is None or two is None:
            return _make_unknown(measurement, other, note)
        estimate = compare_alternating(one.rates, two.rates, *noises, half)
        return Comparison(measurement=one, other=two, estimate=estimate, note=note)
    for first, second in ((other, measurement), (measurement, other)):
        before, after = _select_around(first, second, runs_around(noises))
        if before and after:
            groups = [[run.images_per_sec for run in runs] for runs in (before, after)]
            bracketing, between = replace(first, runs=[*before, *after]), second.rates
            if first is other:
                estimate, sides = compare_drifting([between], groups, *noises, half), (measurement, bracketing)
            else:
                estimate, sides = compare_drifting(groups, [between], *noises, half), (bracketing, other)
            moved = sum(groups[1]) / len(groups[1]) / (sum(groups[0]) / len(groups[0])) - 1
            note = f"{first.spec.label} was measured before and after it ({change(moved)})"
            return Comparison(measurement=sides[0], other=sides[1], estimate=estimate, note=note)
    return _make_unknown(
        measurement, other, "they were not measured in turn, so that a change of the machine would count as a difference"
    )


def are_in_turn(measurement: Measurement, other: Measurement) -> bool:
    """Return whether each round has a run of both, or rounds are unknown, as in records of earlier versions."""
    rounds, others = _rounds(measurement), _rounds(other)
    return None in rounds | others or rounds == others


def shared_rounds(measurement: Measurement, other: Measurement) -> set[float | None]:
    """Return the rounds that have a run of both, disturbed or not."""
    return _rounds(measurement) & _rounds(other)


def runs_around(noises: tuple[Noise, Noise]) -> int:
    """Return how many runs of one side are compared before the other, and as many after it: one, if the noise is known."""
    return max(map(get_least_runs, noises))


def to_measure_again(measurement: Measurement, other: Measurement, least: int) -> Measurement | None:
    """Return the side that lacks a run after the other, of `least`; None if the two can be compared, or share a round."""
    if are_in_turn(measurement, other) or shared_rounds(measurement, other):
        return None
    for first, second in ((measurement, other), (other, measurement)):
        before, after = _select_around(first, second, least)
        if before and len(after) >= least:
            return None
    ordered = sorted((measurement, other), key=lambda each: min(run.round_s or 0.0 for run in each.samples))
    return ordered[0]


def _select_around(first: Measurement, second: Measurement, least: int) -> tuple[list[Run], list[Run]]:
    """Return the nearest runs of `first` before all of `second`, and after them: up to `least` of each."""
    rounds = [run.round_s or 0.0 for run in second.samples]
    before = [run for run in first.samples if (run.round_s or 0.0) < min(rounds)]
    after = [run for run in first.samples if (run.round_s or 0.0) > max(rounds)]
    return before[-least:], after[:least]


def _select_rounds(measurement: Measurement, rounds: set[float | None]) -> Measurement | None:
    runs: Sequence[Run] = [run for run in measurement.runs if run.round_s in rounds and not run.disturbances]
    return replace(measurement, runs=runs) if runs else None


def _rounds(measurement: Measurement) -> set[float | None]:
    return {run.round_s for run in measurement.runs}


def _make_unknown(measurement: Measurement, other: Measurement, note: str) -> Comparison:
    ratio = measurement.images_per_sec / other.images_per_sec
    estimate = RatioEstimate(ratio=ratio, low=0.0, high=float("inf"), spread=0.0, degrees_of_freedom=0.0, answer=Answer.OPEN)
    return Comparison(measurement=measurement, other=other, estimate=estimate, note=note)


def judge_efficiency(
    measurement: Measurement,
    anchor: Measurement,
    terms: ComparisonPolicy,
    *,
    entry: Entry | None = None,
    anchor_entry: Entry | None = None,
) -> Judgement:
    """Compare scaling efficiency with a threshold. `anchor` is the 1-device measurement in the denominator.

    The entries are the baselines of the two: if they show that only the anchor has moved, the verdict is ANCHOR.
    """
    at_least = _threshold(terms)
    if not 0 < at_least <= MOST_EFFICIENT:
        raise UsageError(f"at_least must be more than 0 and at most {MOST_EFFICIENT:g}, not {at_least!r}: 0.9 means 90 %")
    _check_anchor(measurement, anchor)
    if reason := find_misplaced(measurement, anchor) or _describe_elsewhere(
        anchor, measurement, "the 1-device anchor ran on other hosts"
    ):
        return Judgement(Verdict.INCOMPARABLE, reason, baseline_rate=anchor.images_per_sec)
    if tainted := find_disturbed(measurement, anchor):
        return Judgement(Verdict.TAINTED, tainted, baseline_rate=anchor.images_per_sec)
    gpus = measurement.spec.gpus
    if measurement == anchor:  # relative to itself it is 1, whatever its spread
        value, text = _efficiency(measurement, anchor)
        verdict = Verdict.PASSED if value >= at_least else Verdict.REGRESSED
        return Judgement(
            verdict, f"{text}, required at least {percent(at_least)}", baseline_rate=anchor.images_per_sec, value=value
        )
    noises = get_noise(measurement, entry), get_noise(anchor, anchor_entry)
    found = compare_in_turns(measurement, anchor, noises, at_least * gpus, terms)
    estimate, (value, text) = found.estimate, _efficiency(found.measurement, found.other)
    reason = f"{text}: {interval(estimate, gpus)}, required at least {percent(at_least)}; {_runs(found)}"
    reason += _explain_no_answer(found, terms, "the anchor")
    verdict = VERDICTS[estimate.answer]
    if moved := _anchor_alone_moved(verdict, measurement, anchor, terms, entry, anchor_entry):
        verdict, reason = Verdict.ANCHOR, f"{moved}; {reason}"
    ends = describe_estimate(estimate, lambda ratio: ratio / gpus)
    return Judgement(verdict, reason, baseline_rate=found.other.images_per_sec, value=value, **ends)


def _efficiency(measurement: Measurement, anchor: Measurement) -> tuple[float, str]:
    """Return the efficiency, and the sentence that begins with it."""
    value = efficiency(measurement, anchor)
    at = f"relative to {anchor.spec.label} ({rate(anchor.images_per_sec)} images/sec)"
    return value, f"efficiency {percent(value)} of {measurement.spec.gpus} devices, {at}"


def judge_overhead(
    synthetic: Measurement,
    real: Measurement,
    terms: ComparisonPolicy,
    *,
    entry: Entry | None = None,
    synthetic_entry: Entry | None = None,
) -> Judgement:
    """Compare the cost of real input, as a fraction of the synthetic rate, with a threshold. It may be negative.

    The entries are the baselines of the two, which may have calibrated noise. `entry` is that of the real input.
    """
    at_most = _threshold(terms)
    if not 0 <= at_most < 1:
        raise UsageError(f"at_most must be at least 0 and less than 1, not {at_most!r}: 0.05 means 5 %")
    _check_same(synthetic, real, may_differ=("data",))
    if reason := find_misplaced(synthetic, real) or _describe_elsewhere(
        synthetic, real, "the synthetic input was measured on other hosts"
    ):
        return Judgement(Verdict.INCOMPARABLE, reason)
    if tainted := find_disturbed(synthetic, real):
        return Judgement(Verdict.TAINTED, tainted)
    noises = get_noise(real, entry), get_noise(synthetic, synthetic_entry)
    compared = compare_in_turns(real, synthetic, noises, 1 - at_most, terms)
    estimate, real, synthetic = compared.estimate, compared.measurement, compared.other
    value = io_overhead(synthetic.images_per_sec, real.images_per_sec)
    ends = describe_estimate(estimate, lambda ratio: 1 - ratio)
    found = f"{percent(ends['low'])} to {percent(ends['high'])}" if estimate.has_interval else NO_INTERVAL
    reason = (
        f"I/O overhead {percent(value)} of {real.spec.label} against synthetic input "
        f"({rate(synthetic.images_per_sec)} images/sec): {found}, allowed at most {percent(at_most)}; {_runs(compared)}"
    )
    reason += _explain_no_answer(compared, terms, "the synthetic input")
    return Judgement(VERDICTS[estimate.answer], reason, baseline_rate=synthetic.images_per_sec, value=value, **ends)


def judge_accuracy(measurement: Measurement, terms: ComparisonPolicy) -> Judgement:
    """Compare accuracy on the test set with a threshold. Every run must reach it, because it has no timing noise."""
    at_least = _threshold(terms)
    if at_least > 1:
        raise UsageError(f"at_least must be at most 1, not {at_least!r}: 0.95 means 95 %")
    found = [run.accuracy for run in measurement.runs if run.accuracy is not None]
    if not found:
        reason = f"no run of {measurement.spec.label} measured its accuracy: the spec needs evaluate=True"
        return Judgement(Verdict.INVALID, reason)
    text = f"accuracy {percent(statistics.median(found))} of {measurement.spec.label}, required at least {percent(at_least)}"
    text += f" (runs: {percent(min(found))} to {percent(max(found))})"
    if min(found) >= at_least:
        return Judgement(Verdict.PASSED, text, value=measurement.accuracy)
    if max(found) < at_least:
        return Judgement(Verdict.REGRESSED, text, value=measurement.accuracy)
    return Judgement(Verdict.INCONCLUSIVE, f"{text}: some runs reach it, others do not", value=measurement.accuracy)


def _anchor_alone_moved(
    verdict: Verdict,
    measurement: Measurement,
    anchor: Measurement,
    terms: ComparisonPolicy,
    entry: Entry | None,
    anchor_entry: Entry | None,
) -> str:
    """Return a message if only the anchor has moved, so that efficiency is meaningless; else empty."""
    if entry is None or anchor_entry is None or verdict not in (Verdict.REGRESSED, Verdict.PASSED):
        return ""
    alone = replace(terms, threshold=None)
    cluster, one = judge(measurement, entry, alone), judge(anchor, anchor_entry, alone)
    if cluster.verdict is not Verdict.PASSED:
        return ""
    ones, clusters = (change(each.change or 0.0) for each in (one, cluster))
    then = entry.images_per_sec / (measurement.spec.gpus * anchor_entry.images_per_sec)
    if verdict is Verdict.REGRESSED and one.verdict is Verdict.IMPROVED and then >= _threshold(terms):
        return f"the 1-device run got faster ({ones}), not the cluster slower ({clusters})"
    if verdict is Verdict.PASSED and one.verdict is Verdict.REGRESSED and then < _threshold(terms):
        return f"the 1-device run got slower ({ones}), the rate of the cluster did not change ({clusters})"
    return ""


def _explain_no_answer(found: Comparison, terms: ComparisonPolicy, other: str) -> str:
    runs = min(len(found.measurement.rates), len(found.other.rates))
    return explain_no_answer(found.estimate, terms, runs, bound="the threshold", other=other)


def _runs(found: Comparison) -> str:
    text = f"{format_count(len(found.measurement.rates), 'run')} against {len(found.other.rates)}"
    return f"{text}; {found.note}" if found.note else text


def _threshold(terms: ComparisonPolicy) -> float:
    if terms.threshold is None or not math.isfinite(terms.threshold):
        raise UsageError(f"a check against a threshold needs one, not {terms.threshold!r}")
    return terms.threshold


def _describe_elsewhere(one: Measurement, other: Measurement, what: str) -> str:
    found = list_host_differences(one.fingerprint, other.fingerprint)
    return f"{what}: {'; '.join(found)}" if found else ""


def _check_anchor(measurement: Measurement, anchor: Measurement) -> None:
    if anchor.spec.gpus != 1:
        raise SpecError(f"efficiency needs a 1-device anchor, not {anchor.spec.label}")
    _check_same(anchor, measurement, may_differ=("gpus", "num_ps"))


def _check_same(one: Measurement, other: Measurement, *, may_differ: tuple[str, ...]) -> None:
    ignored = {*may_differ, *NOT_IN_KEY} - {"learning_rate"}  # another learning rate is another training
    for name in (field.name for field in fields(Spec)):
        value, found = getattr(one.spec, name), getattr(other.spec, name)
        if name not in ignored and found != value:
            raise SpecError(
                f"{one.spec.label} and {other.spec.label} cannot be compared: {name} is {value!r} in the one and {found!r} "
                f"in the other; they may differ in {', '.join(may_differ)} only"
            )


@dataclass(frozen=True)
class Effort:
    """The effort to reach the target, the median over runs."""

    steps: float  # warm-up included
    trained_s: float  # only of measured steps


def find_effort(measurement: Measurement) -> Effort | None:
    """Return the effort; None if a run never reached the target. Raises `SpecError` if the spec has none."""
    target = measurement.spec.stop_at_top_1_accuracy
    if target is None:
        raise SpecError(f"{measurement.spec.label} has no target: set stop_at_top_1_accuracy")
    efforts = _list_efforts(measurement, target)
    if len(efforts) < len(measurement.runs):
        return None
    return Effort(statistics.median(e.steps for e in efforts), statistics.median(e.trained_s for e in efforts))


def _list_efforts(measurement: Measurement, target: float) -> list[Effort]:
    """Return the efforts of the runs that have reached the target."""
    return [effort for run in measurement.runs if (effort := _find_effort(run, target))]


def _find_effort(run: Run, target: float) -> Effort | None:
    return next(
        (Effort(evaluation.step, evaluation.trained_s) for evaluation in run.evaluations if evaluation.score.top_1 >= target),
        None,
    )


def judge_learning(measurement: Measurement, anchor: Measurement, terms: ComparisonPolicy) -> Judgement:
    """Judge whether the target took at most so many times (`terms.threshold`) the anchor's steps.

    Runs differ in their number of steps, so one run of either side is not decisive. Seconds are shown and not judged. The
    value is the ratio of steps. Both must have the same target; a run that never reaches it is a loss, independent of others.
    """
    at_most = terms.threshold
    if at_most is None or not at_most > 0:
        raise UsageError(f"at_most must be more than 0, not {at_most!r}: 1.5 means half as many steps again")
    if measurement.spec.stop_at_top_1_accuracy != anchor.spec.stop_at_top_1_accuracy:
        raise SpecError(f"{measurement.spec.label} and {anchor.spec.label} have different targets")
    usual, found = find_effort(anchor), find_effort(measurement)
    aim = measurement.spec.stop_at_top_1_accuracy or 0.0
    target = f"top-1 accuracy of {percent(aim)}"
    if usual is None:
        return Judgement(
            Verdict.INVALID, f"{anchor.spec.label}, the other side of the comparison, never reached a {_best(anchor, target)}"
        )
    if found is None:
        return Judgement(Verdict.REGRESSED, f"{measurement.spec.label} never reached a {_best(measurement, target)}")
    value = found.steps / usual.steps
    (speeds, noise), (usual_speeds, usual_noise) = (_learning_speeds(each, aim) for each in (measurement, anchor))
    question = terms.question(1 / at_most, noise, usual_noise)
    estimate = compare_alternating(speeds, usual_speeds, noise, usual_noise, question)
    ends = describe_estimate(estimate, lambda ratio: 1 / ratio)
    known = f"{ends['low']:.2f} to {ends['high']:.2f}" if estimate.has_interval else NO_INTERVAL
    reason = (
        f"{measurement.spec.label} needed {found.steps:g} steps ({found.trained_s:.3g} s) for a {target}, and "
        f"{anchor.spec.label} {usual.steps:g} steps ({usual.trained_s:.3g} s): {value:.2f} times the steps ({known}, "
        f"allowed at most {at_most:g}) and {found.trained_s / usual.trained_s:.2f} times the seconds; "
        f"{format_count(len(measurement.runs), 'run')} against {len(anchor.runs)}"
    )
    return Judgement(VERDICTS[estimate.answer], reason, value=value, **ends)


def _learning_speeds(measurement: Measurement, target: float) -> tuple[list[float], Noise]:
    """Return the inverse of each run's steps, and the least noise of these: the resolution is the interval of evaluations."""
    steps = [effort.steps for effort in _list_efforts(measurement, target)]
    interval_steps = measurement.spec.eval_during_training_every_n_steps or 0
    return [1 / each for each in steps], Noise(run=max(ASSUMED.run, interval_steps / math.sqrt(12) / statistics.median(steps)))


def _best(measurement: Measurement, target: str) -> str:
    tops = [evaluation.score.top_1 for run in measurement.runs for evaluation in run.evaluations]
    steps = measurement.spec.warmup_steps + measurement.spec.steps
    return f"{target} in {steps} steps (best: {percent(max(tops, default=0.0))})"
