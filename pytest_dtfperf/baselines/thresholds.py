"""Does it scale, is reading cheap, has it learnt? Two measurements of one session, or one, against a threshold."""

import math
import statistics
from dataclasses import fields, replace

from pytest_dtfperf.baselines.comparability import other_hosts
from pytest_dtfperf.baselines.compare import (
    VERDICTS,
    about_slow_runs,
    disturbed,
    interval,
    judge,
    misplaced,
    noise_of,
    why_undecided,
)
from pytest_dtfperf.baselines.entry import Entry
from pytest_dtfperf.baselines.terms import Terms
from pytest_dtfperf.baselines.turns import Comparison, compare
from pytest_dtfperf.baselines.usual import MOST_EFFICIENT
from pytest_dtfperf.baselines.verdict import Judgement, Verdict
from pytest_dtfperf.errors import SpecError, UsageError
from pytest_dtfperf.formats import change, counted, percent, rate
from pytest_dtfperf.measurement import Measurement, efficiency, io_overhead
from pytest_dtfperf.spec import NOT_IN_KEY, Spec
from pytest_dtfperf.stats.comparison import Answer


def judge_efficiency(
    measurement: Measurement,
    anchor: Measurement,
    terms: Terms,
    *,
    entry: Entry | None = None,
    anchor_entry: Entry | None = None,
) -> Judgement:
    """Compare scaling efficiency with a threshold. `anchor` is the 1-device measurement it is divided by.

    The entries are the baselines of the two: where they tell that the anchor alone has moved, the verdict is ANCHOR.
    """
    at_least = _threshold(terms)
    if not 0 < at_least <= MOST_EFFICIENT:
        raise UsageError(f"at_least must be more than 0 and at most {MOST_EFFICIENT:g}, not {at_least!r}: 0.9 means 90 %")
    _check_anchor(measurement, anchor)
    if reason := misplaced(measurement, anchor) or _elsewhere(anchor, measurement, "the 1-device anchor ran on something else"):
        return Judgement(Verdict.INCOMPARABLE, reason, baseline_rate=anchor.images_per_sec)
    if tainted := disturbed(measurement, anchor):
        return Judgement(Verdict.TAINTED, tainted, baseline_rate=anchor.images_per_sec)
    gpus = measurement.spec.gpus
    if measurement == anchor:  # divided by itself, run for run: whatever its spread, it is 1
        value, text = _efficiency(measurement, anchor)
        verdict = Verdict.PASSED if value >= at_least else Verdict.REGRESSED
        return Judgement(
            verdict, f"{text}, asked for at least {percent(at_least)}", baseline_rate=anchor.images_per_sec, value=value
        )
    noises = noise_of(measurement, entry), noise_of(anchor, anchor_entry)
    found = compare(measurement, anchor, noises, at_least * gpus, terms)
    estimate, (value, text) = found.estimate, _efficiency(found.measurement, found.other)
    reason = f"{text}: {interval(estimate, gpus)}, asked for at least {percent(at_least)}; {_runs(found)}"
    reason += _why_open(found, terms, "the anchor")
    verdict = VERDICTS[estimate.answer]
    if moved := _anchor_alone_moved(verdict, measurement, anchor, terms, entry, anchor_entry):
        verdict, reason = Verdict.ANCHOR, f"{moved}; {reason}"
    return Judgement(verdict, reason, baseline_rate=found.other.images_per_sec, value=value, estimate=estimate)


def _efficiency(measurement: Measurement, anchor: Measurement) -> tuple[float, str]:
    """Return the efficiency, and the sentence that begins with it."""
    value = efficiency(measurement, anchor)
    at = f"anchored at {anchor.spec.label} ({rate(anchor.images_per_sec)} images/sec)"
    return value, f"efficiency {percent(value)} of {measurement.spec.gpus} devices, {at}"


def judge_overhead(
    synthetic: Measurement,
    real: Measurement,
    terms: Terms,
    *,
    entry: Entry | None = None,
    synthetic_entry: Entry | None = None,
) -> Judgement:
    """Compare the part of the synthetic rate that real input costs with a threshold. It may be negative.

    The entries are the baselines of the two, which may have calibrated noise. `entry` is that of the real input.
    """
    at_most = _threshold(terms)
    if not 0 <= at_most < 1:
        raise UsageError(f"at_most must be at least 0 and less than 1, not {at_most!r}: 0.05 means 5 %")
    _check_same(synthetic, real, but=("data",))
    if reason := misplaced(synthetic, real) or _elsewhere(
        synthetic, real, "the synthetic input was measured on something else"
    ):
        return Judgement(Verdict.INCOMPARABLE, reason)
    if tainted := disturbed(synthetic, real):
        return Judgement(Verdict.TAINTED, tainted)
    noises = noise_of(real, entry), noise_of(synthetic, synthetic_entry)
    compared = compare(real, synthetic, noises, 1 - at_most, terms)
    estimate, real, synthetic = compared.estimate, compared.measurement, compared.other
    value = io_overhead(synthetic.images_per_sec, real.images_per_sec)
    known = estimate.degrees_of_freedom and estimate.low
    found = f"{percent(1 - estimate.high)} to {percent(1 - estimate.low)}" if known else "not known yet"
    reason = (
        f"I/O overhead {percent(value)} of {real.spec.label} against synthetic input "
        f"({rate(synthetic.images_per_sec)} images/sec): {found}, allowed at most {percent(at_most)}; {_runs(compared)}"
    )
    reason += _why_open(compared, terms, "the synthetic input")
    return Judgement(VERDICTS[estimate.answer], reason, baseline_rate=synthetic.images_per_sec, value=value, estimate=estimate)


def judge_accuracy(measurement: Measurement, terms: Terms) -> Judgement:
    """Compare accuracy on the test set with a threshold. Every run must reach it: one that does not is no noise of a clock."""
    at_least = _threshold(terms)
    if at_least > 1:
        raise UsageError(f"at_least must be at most 1, not {at_least!r}: 0.95 means 95 %")
    found = [run.accuracy for run in measurement.runs if run.accuracy is not None]
    if not found:
        reason = f"no run of {measurement.spec.label} measured its accuracy: the spec needs evaluate=True"
        return Judgement(Verdict.INVALID, reason)
    text = f"accuracy {percent(statistics.median(found))} of {measurement.spec.label}, asked for at least {percent(at_least)}"
    text += f" (runs: {percent(min(found))} to {percent(max(found))})"
    if min(found) >= at_least:
        return Judgement(Verdict.PASSED, text, value=measurement.accuracy)
    if max(found) < at_least:
        return Judgement(Verdict.REGRESSED, text, value=measurement.accuracy)
    return Judgement(Verdict.INCONCLUSIVE, f"{text}: the runs straddle it", value=measurement.accuracy)


def _anchor_alone_moved(
    verdict: Verdict,
    measurement: Measurement,
    anchor: Measurement,
    terms: Terms,
    entry: Entry | None,
    anchor_entry: Entry | None,
) -> str:
    """That the cluster is as fast as it was and its anchor is not: efficiency says nothing of the cluster then. Else empty."""
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
        return f"the 1-device run got slower ({ones}), the cluster is what it was ({clusters})"
    return ""


def _why_open(found: Comparison, terms: Terms, name: str) -> str:
    """Return why there is no answer and what would decide, and which runs were slow; nothing where neither is so."""
    if not terms.sets_rare_aside:
        return ""
    estimate = found.estimate
    why = why_undecided(estimate, terms, min(len(found.measurement.rates), len(found.other.rates)))
    if not why and estimate.answer is Answer.OPEN:
        why = "; what is asked for lies within that: more runs would decide (--repeats)"
    return "".join([why, *(f"; {each}" for each in about_slow_runs(estimate, name))])


def _runs(found: Comparison) -> str:
    text = f"{counted(len(found.measurement.rates), 'run')} against {len(found.other.rates)}"
    return f"{text}; {found.note}" if found.note else text


def _threshold(terms: Terms) -> float:
    if terms.threshold is None or not math.isfinite(terms.threshold):
        raise UsageError(f"a check against a threshold needs one, not {terms.threshold!r}")
    return terms.threshold


def _elsewhere(one: Measurement, other: Measurement, what: str) -> str:
    found = other_hosts(one.fingerprint, other.fingerprint)
    return f"{what}: {'; '.join(found)}" if found else ""


def _check_anchor(measurement: Measurement, anchor: Measurement) -> None:
    if anchor.spec.gpus != 1:
        raise SpecError(f"efficiency needs a 1-device anchor, not {anchor.spec.label}")
    _check_same(anchor, measurement, but=("gpus", "num_ps"))


def _check_same(one: Measurement, other: Measurement, *, but: tuple[str, ...]) -> None:
    ignored = {*but, *NOT_IN_KEY} - {"learning_rate"}  # another learning rate is another training, if no slower one
    for name in (field.name for field in fields(Spec)):
        value, found = getattr(one.spec, name), getattr(other.spec, name)
        if name not in ignored and found != value:
            raise SpecError(
                f"{one.spec.label} and {other.spec.label} cannot be compared: {name} is {value!r} in the one and {found!r} "
                f"in the other; they may differ in {', '.join(but)} only"
            )
