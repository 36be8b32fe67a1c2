"""A measurement against a published number: one value, of a spread that nobody has written down."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from pytest_dtfperf.baselines.compare import VERDICTS, about_slow_runs, disturbed, interval, misplaced, noise_of, why_undecided
from pytest_dtfperf.baselines.entry import Entry
from pytest_dtfperf.baselines.references import Reference
from pytest_dtfperf.baselines.terms import Terms
from pytest_dtfperf.baselines.verdict import Judgement, Verdict
from pytest_dtfperf.formats import change, counted, percent, rate
from pytest_dtfperf.measurement import Measurement
from pytest_dtfperf.plain import Plain
from pytest_dtfperf.stats.comparison import Answer, against_stored
from pytest_dtfperf.stats.noise import Noise

# The report of 2017 and Google's page average five runs and print no spread. So much is taken for known of them: an assumption,
# and said with every verdict that rests on it.
PUBLISHED = Noise(run=0.02, degrees_of_freedom=30)
_GPU_MODEL = re.compile(r"\b[A-Z]{1,3}\d{2,4}[A-Z]?\b")  # K80, P100, GH200
_CPU_MODEL = re.compile(r"\b[EWX]\d?-\d{4}\b|\b(?:Gold|Platinum) \d{4}\b|\bEPYC \w+\b")


@dataclass(frozen=True, kw_only=True)
class PublishedRate(Plain):
    """What of a published number a comparison rests on."""

    system: str
    citation: str
    images_per_sec: float
    gpu: str | None
    cpu: str | None
    gpus_per_node: int

    @classmethod
    def of(cls, reference: Reference) -> Self:
        machine = reference.machine
        return cls(
            system=reference.system,
            citation=reference.citation,
            images_per_sec=reference.images_per_sec,
            gpu=machine.gpu,
            cpu=machine.cpu,
            gpus_per_node=machine.gpus_per_node,
        )


def judge_published(
    measurement: Measurement, published: PublishedRate, terms: Terms, *, entry: Entry | None = None
) -> Judgement:
    """Compare a measurement with a published rate. On other hardware than it was published of, it is INCOMPARABLE.

    `entry` is the measurement's own baseline, which may have calibrated its noise.
    """
    stored = published.images_per_sec
    if reason := misplaced(measurement) or _elsewhere(published, measurement.fingerprint.get("hardware", {})):
        now = measurement.images_per_sec
        reason += f": {rate(now)} images/sec here, {change(now / stored - 1)} against its {rate(stored)}"
        return Judgement(Verdict.INCOMPARABLE, reason, baseline_rate=stored)
    if tainted := disturbed(measurement):
        return Judgement(Verdict.TAINTED, tainted, baseline_rate=stored)
    noise = PUBLISHED if terms.has_one_noise else noise_of(measurement, entry)
    then_noise = None if terms.has_one_noise else PUBLISHED
    assumed = "at least 2.0 % is assumed of either" if terms.has_one_noise else "2.0 % is assumed of the published value"
    question = terms.question(1 - terms.margin, noise, ceiling=1 + terms.margin)
    estimate = against_stored(measurement.rates, [stored], noise, question, then_noise=then_noise)
    reason = (
        f"{change(estimate.ratio - 1)} against {rate(published.images_per_sec)} images/sec ({published.citation}): "
        f"{interval(estimate)} of it, margin {percent(terms.margin)}; {counted(len(measurement.rates), 'run')} against one "
        f"value, noise {percent(estimate.spread)} ({assumed})"
    )
    if terms.sets_rare_aside:
        why = why_undecided(estimate, terms, len(measurement.rates))
        if not why and estimate.answer is Answer.OPEN:
            why = "; the margin lies within that: more runs would decide (--repeats)"
        reason = "; ".join([reason + why, *about_slow_runs(estimate, "the published value")])
    return Judgement(VERDICTS[estimate.answer], reason, change=estimate.ratio - 1, baseline_rate=stored, estimate=estimate)


def _elsewhere(published: PublishedRate, hardware: Mapping[str, Any]) -> str:
    """What of the hardware is not what the number was published of; empty if nothing is."""
    gpus = Counter(gpu["name"] for gpu in hardware.get("gpus") or ())
    here = ", ".join(f"{count} x {name}" for name, count in sorted(gpus.items())) or hardware.get("cpu") or "unknown hardware"
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
