"""Comparison of a measurement with its baseline or with a published rate: values in, a judgement out. Pure.

A published rate is one value without a stated spread, so a spread is assumed for it.
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from pytest_dtfperf.baselines.comparability import describe_notes, format_exchange, is_same_but_for_exchange
from pytest_dtfperf.baselines.entry import Entry
from pytest_dtfperf.baselines.judgement import Judgement, PublishedRate, describe_estimate
from pytest_dtfperf.baselines.terms import ASSUMED, ComparisonPolicy, count_runs_to_confirm
from pytest_dtfperf.baselines.verdict import LEAST_RUNS, Verdict
from pytest_dtfperf.datamodel.explanation import CauseKind
from pytest_dtfperf.datamodel.fingerprint import Hardware
from pytest_dtfperf.datamodel.host_state import Disturbance, choose_distinct
from pytest_dtfperf.datamodel.measurement import CLOCK_SLACK_S, Measurement
from pytest_dtfperf.formats import change, format_count, percent, rate
from pytest_dtfperf.stats.comparison import Answer, RatioEstimate, compare_with_stored, runs_needed
from pytest_dtfperf.stats.noise import RARE, Noise, compute_drift

VERDICTS = {
    Answer.HOLDS: Verdict.PASSED,
    Answer.BETTER: Verdict.IMPROVED,
    Answer.WORSE: Verdict.REGRESSED,
    Answer.UNCONFIRMED: Verdict.INCONCLUSIVE,
    Answer.OPEN: Verdict.INCONCLUSIVE,
}


def judge(measurement: Measurement, entry: Entry | None, terms: ComparisonPolicy) -> Judgement:
    """Compare a measurement with its baseline."""
    baseline_rate = entry.images_per_sec if entry else None
    if measurement.misplaced:
        reason = find_misplaced(measurement) + (format_rate_against(measurement, entry.images_per_sec) if entry else "")
        return Judgement(Verdict.INCOMPARABLE, reason, baseline_rate=baseline_rate)
    if entry is None:
        return Judgement(Verdict.NO_BASELINE, describe_no_baseline(measurement))
    if entry.key != measurement.spec.key:
        if not is_same_but_for_exchange(entry.key, measurement.spec.key):
            raise ValueError(f"the baseline of {entry.key!r} says nothing of {measurement.spec.key!r}")
        differing = format_exchange(entry.key, measurement.spec.key)
        reason = f"the baseline was measured with {differing}{format_rate_against(measurement, entry.images_per_sec)}; "
        reason += "--update-baselines adds this one"
        return Judgement(Verdict.INCOMPARABLE, reason, baseline_rate=baseline_rate)
    if foreign := entry.list_differences(measurement.fingerprint, len(measurement.hosts)):
        reason = f"the baseline was measured on other hosts ({'; '.join(foreign)})"
        reason += f"{format_rate_against(measurement, entry.images_per_sec)}; --update-baselines adds this one"
        return Judgement(Verdict.INCOMPARABLE, reason, baseline_rate=baseline_rate)
    if tainted := find_disturbed(measurement):
        return Judgement(Verdict.TAINTED, tainted, baseline_rate=baseline_rate)
    noise = entry.noise or ASSUMED
    question = terms.question(1 - terms.margin, noise, ceiling=1 + terms.margin)
    estimate = compare_with_stored(measurement.rates, entry.samples, noise, question)
    verdict, reason = VERDICTS[estimate.answer], _format_reason(estimate, entry, terms, len(measurement.rates))
    if verdict is not Verdict.INCONCLUSIVE and (unsteady := _describe_unsteady(measurement, terms.margin)):
        verdict, reason = Verdict.INCONCLUSIVE, f"{unsteady}; {reason}"
    reason = "; ".join([reason, *describe_slow_runs(estimate, "the baseline"), *_list_caveats(measurement, entry, terms)])
    return _conclude(verdict, reason, estimate, entry.images_per_sec)


def _conclude(verdict: Verdict, reason: str, estimate: RatioEstimate, stored: float) -> Judgement:
    found = describe_estimate(estimate, lambda ratio: ratio - 1)
    return Judgement(verdict, reason, change=estimate.ratio - 1, baseline_rate=stored, **found)


def format_rate_against(measurement: Measurement, stored: float) -> str:
    """Return the rate and its change, because a loss may come with another graph or version."""
    now = measurement.images_per_sec
    return f": {rate(now)} images/sec here, {change(now / stored - 1)} against its {rate(stored)}"


def describe_no_baseline(measurement: Measurement) -> str:
    """Return a message that no baseline is stored, and how to store one."""
    return f"no baseline is stored for {measurement.spec.label}; accept this one with --update-baselines=new"


def find_misplaced(*measurements: Measurement) -> str:
    """Return which of these measurements were on other hosts than requested; empty: none."""
    return "; ".join(
        f"{each.spec.label} ran on other hosts than requested ({each.misplaced})" for each in measurements if each.misplaced
    )


def find_disturbed(*measurements: Measurement) -> str:
    """Return which of these measurements have only disturbed runs, and why; empty: none."""
    disturbed = [each for each in measurements if each.disturbances]
    reasons = [f"every run of {each.spec.label} was disturbed: {join_disturbances(each.disturbances)}" for each in disturbed]
    return "; ".join(reasons) + hint(reason for each in disturbed for reason in each.disturbances)


def join_disturbances(disturbances: Iterable[Disturbance]) -> str:
    return "; ".join(map(str, choose_distinct(disturbances)))


def hint(disturbances: Iterable[Disturbance]) -> str:
    """Return how to avoid disturbances, if other processes caused them, which is reported of dedicated hosts only."""
    is_shared = any(each.kind is CauseKind.OTHERS for each in disturbances)
    message = ". Measure when the machine is quiet; if other load is normal there, set dedicated = false in clusters.toml"
    return message * is_shared


def get_noise(measurement: Measurement, entry: Entry | None) -> Noise:
    """Return the calibrated noise of its baseline; the assumed noise if there is none for a comparable baseline."""
    if (
        entry is None
        or entry.key != measurement.spec.key
        or entry.list_differences(measurement.fingerprint, len(measurement.hosts))
    ):
        return ASSUMED
    return entry.noise or ASSUMED


NO_INTERVAL = "no interval yet"


def interval(estimate: RatioEstimate, whole: float = 1.0, suffix: str = "") -> str:
    """Format `95.1 % to 98.2 %` with the suffix, as fractions of `whole`."""
    if not estimate.has_interval:
        return NO_INTERVAL
    return f"{percent(estimate.low / whole)} to {percent(estimate.high / whole)}{suffix}"


def _format_reason(estimate: RatioEstimate, entry: Entry, terms: ComparisonPolicy, runs: int) -> str:
    """Format `-4.1 % against 100.0 images/sec: 94.8 % to 97.0 % of it, margin 5.0 %; 3 runs, noise 1.2 %`."""
    text = (
        f"{change(estimate.ratio - 1)} against {rate(entry.images_per_sec)} images/sec: {interval(estimate, suffix=' of it')}, "
    )
    text += f"margin {percent(terms.margin)}; {format_count(runs, 'run')}, noise {percent(estimate.spread)}"
    return text + _explain_open(estimate, entry, terms, runs)


def _explain_open(estimate: RatioEstimate, entry: Entry, terms: ComparisonPolicy, runs: int) -> str:
    if (found := explain_too_few_runs(estimate, terms, runs)) or estimate.answer is not Answer.OPEN:
        return found
    noise = replace(entry.noise or ASSUMED, run=estimate.spread)
    needed = runs_needed(len(entry.samples), noise, terms.margin, terms.false_alarm)
    if needed is None:
        known = format_count(len(entry.samples), "run")
        return f"; against a baseline of {known} with such noise, no number of runs is enough for that margin"
    if needed > runs:
        return f"; about {needed} runs are needed for a verdict (--repeats={needed})"
    return (
        f"; the margin is within this interval: more runs (--repeats), or a margin of {percent(1 - estimate.low)}, would decide"
    )


def explain_too_few_runs(estimate: RatioEstimate, terms: ComparisonPolicy, runs: int) -> str:
    """Return what is missing for an interval, or for a confirmed loss, if there are too few runs; else empty."""
    needed = count_runs_to_confirm(terms.false_alarm)
    if estimate.answer is Answer.OPEN and not estimate.has_interval:
        if runs < needed:
            return f"; too few runs for a verdict: at least {needed} are needed (--repeats={needed})"
        return f"; the other side has too few runs for a verdict: at least {LEAST_RUNS} are needed"
    if estimate.answer is not Answer.UNCONFIRMED:
        return ""
    if runs < needed:
        return (
            f"; it is worse, but {needed} runs are needed to confirm that (--repeats={needed}): up to {percent(RARE)} of runs "
            "may be slow by chance"
        )
    return f"; it is worse, but no further run has confirmed that: one more would decide (--repeats={runs + 1})"


def explain_no_answer(estimate: RatioEstimate, terms: ComparisonPolicy, runs: int, *, bound: str, other: str) -> str:
    """Return why there is no decision, what would decide, and which runs were slow; empty if neither applies.

    Args:
        bound: What the interval must exclude: "the margin".
        other: Name of the second side: "the anchor".
    """
    why = explain_too_few_runs(estimate, terms, runs)
    if not why and estimate.answer is Answer.OPEN:
        why = f"; {bound} is within this interval: more runs would decide (--repeats)"
    return "".join([why, *(f"; {each}" for each in describe_slow_runs(estimate, other))])


def describe_slow_runs(estimate: RatioEstimate, other: str) -> Iterable[str]:
    """Yield how many runs were slower than the others of their side, and whether that is rare. `other`: the second side."""
    for found, suffix in ((estimate.current_slow, ""), (estimate.baseline_slow, f" of {other}")):
        if found.slow:
            were = "was" if found.slow == 1 else "were"
            slow = f"{found.slow} of {format_count(found.runs, 'run')}{suffix}"
            text = f"{slow} {were} {percent(found.slower)} slower than the others"
            count = "counts" if found.slow == 1 else "count"
            yield f"{text} and {count} as rare" if found.rare else f"{text}: too many to count as rare"


def _describe_unsteady(measurement: Measurement, margin: float) -> str:
    """Return a note if most runs became faster or slower by more than the margin while they were measured; else empty."""
    chief = "worker:0"
    found = [
        each for run in measurement.samples if (each := compute_drift(run.step_s.get(chief, ()))) and each.is_more_than(margin)
    ]
    if 2 * len(found) <= len(measurement.samples):
        return ""
    changes = sorted(each.change for each in found)
    which = f"{len(found)} of {format_count(len(measurement.samples), 'run')}"
    ran = f"{percent(1 + changes[0])} to {percent(1 + changes[-1])} of the first half's rate"
    return f"no steady state: the second half of {which} had {ran}; more --warmup-steps may help"


def _list_caveats(measurement: Measurement, entry: Entry, terms: ComparisonPolicy) -> Iterable[str]:
    """Yield reservations about the result."""
    shortest = min(run.elapsed_s for run in measurement.samples)
    if shortest * terms.margin < CLOCK_SLACK_S:
        yield (
            f"measured windows of {shortest:.2g} s are short for this margin: a task that is off its core for "
            f"{CLOCK_SLACK_S:g} s loses as much"
        )
    if left_out := len(measurement.runs) - len(measurement.samples):
        yield f"{format_count(left_out, 'disturbed run')} left out"
    if entry.steps != measurement.spec.steps:
        yield f"the baseline measured {entry.steps} steps, this {measurement.spec.steps}"
    if changed := describe_notes(entry.fingerprint, measurement.fingerprint):
        yield f"changed since the baseline: {', '.join(changed)}"


# The report of 2017 and Google's page average five runs and print no spread. This noise is an assumption about them, and
# is stated with every verdict that uses it.
PUBLISHED = Noise(run=0.02, degrees_of_freedom=30)
_GPU_MODEL = re.compile(r"\b[A-Z]{1,3}\d{2,4}[A-Z]?\b")  # K80, P100, GH200
_CPU_MODEL = re.compile(r"\b[EWX]\d?-\d{4}\b|\b(?:Gold|Platinum) \d{4}\b|\bEPYC \w+\b")


def judge_published(
    measurement: Measurement, published: PublishedRate, terms: ComparisonPolicy, *, entry: Entry | None = None
) -> Judgement:
    """Compare a measurement with a published rate. On other hardware than that of the publication, it is INCOMPARABLE.

    `entry` is the measurement's own baseline, which may have calibrated its noise.
    """
    stored = published.images_per_sec
    if reason := find_misplaced(measurement) or find_other_hardware(published, measurement.fingerprint.hardware):
        return Judgement(Verdict.INCOMPARABLE, reason + format_rate_against(measurement, stored), baseline_rate=stored)
    if tainted := find_disturbed(measurement):
        return Judgement(Verdict.TAINTED, tainted, baseline_rate=stored)
    noise = get_noise(measurement, entry)
    question = terms.question(1 - terms.margin, noise, ceiling=1 + terms.margin)
    estimate = compare_with_stored(measurement.rates, [stored], noise, question, baseline_noise=PUBLISHED)
    reason = (
        f"{change(estimate.ratio - 1)} against {rate(published.images_per_sec)} images/sec ({published.citation}): "
        f"{interval(estimate, suffix=' of it')}, margin {percent(terms.margin)}; "
        f"{format_count(len(measurement.rates), 'run')} against one "
        f"value, noise {percent(estimate.spread)} (2.0 % is assumed of the published value)"
    )
    reason += explain_no_answer(estimate, terms, len(measurement.rates), bound="the margin", other="the published value")
    return _conclude(VERDICTS[estimate.answer], reason, estimate, stored)


def find_other_hardware(published: PublishedRate, hardware: Hardware) -> str:
    """Return which hardware differs from that of the publication; empty if none does."""
    gpus = Counter(gpu.name for gpu in hardware.gpus)
    here = ", ".join(f"{count} x {name}" for name, count in sorted(gpus.items())) or hardware.cpu or "unknown hardware"
    if published.gpu:
        there = f"{published.gpus_per_node} x {published.gpu}"
        alike = sum(gpus.values()) == published.gpus_per_node and all(_model(name) == _model(published.gpu) for name in gpus)
    else:
        there = published.cpu or "unknown hardware"
        alike = not gpus and _model(there, _CPU_MODEL) == _model(here, _CPU_MODEL) != ""
    return "" if alike else f"{published.citation} was measured on hosts of {there}, this on {here}"


def _model(name: str, pattern: re.Pattern[str] = _GPU_MODEL) -> str:
    found = pattern.search(name)
    return found[0] if found else ""
