"""Is it worse? Values in, a judgement out; nothing is read, written or measured here.

The rule is plain and never guesses. A verdict is given only where every single run agrees with it: the runs of a
measurement must all lie below what the margin allows before it counts as a regression, and all above before it counts as
passed. Runs on both sides are INCONCLUSIVE, and so is a single run, because one number has no spread. The launcher repeats
until the verdict is decided or its budget is spent.
"""

from collections.abc import Iterable, Sequence
from dataclasses import fields

from pytest_dtfperf.baselines.entry import Entry
from pytest_dtfperf.baselines.system import differences, software_changes
from pytest_dtfperf.baselines.verdict import Judgement, Verdict
from pytest_dtfperf.errors import SpecError, UsageError
from pytest_dtfperf.measurement import Measurement, efficiency, io_overhead
from pytest_dtfperf.spec import MODE_OPTIONS, NOT_IN_KEY, Spec

LEAST_RUNS = 2  # below it there is no spread, and so no telling a change from noise


def judge(measurement: Measurement, entry: Entry | None, *, margin: float) -> Judgement:
    """Compare a measurement with its baseline. `margin` is the part that may be lost: 0.05 is 5 %."""
    _check_part("margin", margin)
    if measurement.misplaced:
        reason, rate = _misplaced(measurement), entry.images_per_sec if entry else None
        return Judgement(Verdict.INCOMPARABLE, reason, baseline_rate=rate)
    if entry is None:
        return Judgement(Verdict.NO_BASELINE, no_baseline(measurement))
    if entry.key != measurement.spec.key:
        raise ValueError(f"the baseline of {entry.key!r} says nothing of {measurement.spec.key!r}")
    foreign = entry.foreign_to(measurement.fingerprint.get("hardware", {}), len(measurement.hosts))
    if foreign:
        reason = f"the baseline was measured on other hardware ({'; '.join(foreign)}); --update-baselines adds this one"
        return Judgement(Verdict.INCOMPARABLE, reason, baseline_rate=entry.images_per_sec)
    change = measurement.images_per_sec / entry.images_per_sec - 1
    verdict, reason = _compare(measurement.rates, entry, change, margin)
    return Judgement(verdict, "; ".join([reason, *_caveats(measurement, entry, margin)]), change, entry.images_per_sec)


def judge_efficiency(measurement: Measurement, anchor: Measurement, *, at_least: float) -> Judgement:
    """Compare scaling efficiency with a threshold. `anchor` is the 1-device measurement it is divided by."""
    _check_anchor(measurement, anchor)
    if misplaced := _misplaced(measurement, anchor):
        return Judgement(Verdict.INCOMPARABLE, misplaced)
    foreign = _elsewhere(anchor, measurement)
    if foreign:
        return Judgement(Verdict.INCOMPARABLE, f"the 1-device anchor ran on other hardware: {foreign}")
    value = efficiency(measurement, anchor)
    name = f"efficiency {value:.2%} of {measurement.spec.gpus} devices, anchored at {anchor.spec.label}"
    name += f" ({anchor.images_per_sec:.6g} images/sec)"
    worst = min(measurement.rates) / (measurement.spec.gpus * max(anchor.rates))
    best = max(measurement.rates) / (measurement.spec.gpus * min(anchor.rates))
    if measurement == anchor:
        worst = best = value  # divided by itself, run for run: whatever its spread, it is 1
    text = f"{name}, asked for at least {at_least:.2%} (runs: {worst:.2%} to {best:.2%})"
    too_few = _too_few(measurement=measurement.rates, anchor=anchor.rates)
    verdict, reason = _decide(text, too_few, holds=worst >= at_least, fails=best < at_least)
    return Judgement(verdict, reason, baseline_rate=anchor.images_per_sec, value=value)


def judge_overhead(synthetic: Measurement, real: Measurement, *, at_most: float) -> Judgement:
    """Compare the part of the synthetic rate that real input costs with a threshold. It may be negative."""
    _check_part("at_most", at_most)
    _check_same(synthetic, real, but=("data",))
    if misplaced := _misplaced(synthetic, real):
        return Judgement(Verdict.INCOMPARABLE, misplaced)
    foreign = _elsewhere(synthetic, real)
    if foreign:
        return Judgement(Verdict.INCOMPARABLE, f"the synthetic input was measured on other hardware: {foreign}")
    value = io_overhead(synthetic.images_per_sec, real.images_per_sec)
    name = f"I/O overhead {value:.2%} of {real.spec.label} against synthetic input ({synthetic.images_per_sec:.6g} images/sec)"
    best = io_overhead(min(synthetic.rates), max(real.rates))
    worst = io_overhead(max(synthetic.rates), min(real.rates))
    text = f"{name}, allowed at most {at_most:.2%} (runs: {best:.2%} to {worst:.2%})"
    too_few = _too_few(synthetic=synthetic.rates, real=real.rates)
    verdict, reason = _decide(text, too_few, holds=worst <= at_most, fails=best > at_most)
    return Judgement(verdict, reason, baseline_rate=synthetic.images_per_sec, value=value)


def judge_accuracy(measurement: Measurement, *, at_least: float) -> Judgement:
    """Compare accuracy on the test set with a threshold. One run decides: training is deterministic, clocks are not."""
    found = [run.accuracy for run in measurement.runs if run.accuracy is not None]
    if not found:
        reason = f"no run of {measurement.spec.label} measured its accuracy: the spec needs evaluate=True"
        return Judgement(Verdict.INVALID, reason)
    text = f"accuracy {measurement.accuracy:.2%} of {measurement.spec.label}, asked for at least {at_least:.2%}"
    text += f" (runs: {min(found):.2%} to {max(found):.2%})"
    verdict, reason = _decide(text, "", holds=min(found) >= at_least, fails=max(found) < at_least)
    return Judgement(verdict, reason, value=measurement.accuracy)


def no_baseline(measurement: Measurement) -> str:
    """Say that nothing is stored, and how to change that."""
    return f"no baseline is stored for {measurement.spec.label}; accept this one with --update-baselines=new"


def _compare(rates: Sequence[float], entry: Entry, change: float, margin: float) -> tuple[Verdict, str]:
    baseline = entry.images_per_sec
    floor, ceiling = (1 - margin) * baseline, (1 + margin) * baseline
    against = f"{change:+.1%} against {baseline:.6g} images/sec, margin {margin:.1%}"
    too_few = _too_few(measurement=rates, baseline=entry.samples)
    if too_few:
        return Verdict.INCONCLUSIVE, f"{too_few}; {against}"
    if max(rates) < floor:
        return Verdict.REGRESSED, f"{against}: every run lies below {floor:.6g}"
    if min(rates) > ceiling:
        return Verdict.IMPROVED, f"{against}: every run lies above {ceiling:.6g}"
    if min(rates) >= floor:
        return Verdict.PASSED, f"{against}: every run reaches {floor:.6g}"
    return Verdict.INCONCLUSIVE, f"{against}: the runs straddle {floor:.6g} ({min(rates):.6g} to {max(rates):.6g})"


def _decide(text: str, too_few: str, *, holds: bool, fails: bool) -> tuple[Verdict, str]:
    """`holds` is the demand met by the least favourable pairing of runs, `fails` the one missed by the most favourable."""
    if too_few:
        return Verdict.INCONCLUSIVE, f"{text}; {too_few}"
    if holds:
        return Verdict.PASSED, text
    if fails:
        return Verdict.REGRESSED, text
    return Verdict.INCONCLUSIVE, f"{text}: the runs straddle it"


def _too_few(**runs: Sequence[float]) -> str:
    short = [
        f"the {side} has {len(rates)} run{'s' * (len(rates) != 1)}" for side, rates in runs.items() if len(rates) < LEAST_RUNS
    ]
    return f"{' and '.join(short)}, {LEAST_RUNS} are the least that can tell" if short else ""


def _caveats(measurement: Measurement, entry: Entry, margin: float) -> Iterable[str]:
    """What a reader should know before believing the number."""
    if entry.spread > margin:
        yield f"the baseline's own runs spread {entry.spread:.1%}"
    if entry.steps != measurement.spec.steps:
        yield f"the baseline measured {entry.steps} steps, this {measurement.spec.steps}"
    changed = software_changes(entry.software, measurement.fingerprint.get("software", {}))
    if changed:
        yield f"software since then: {', '.join(changed)}"


def _elsewhere(one: Measurement, other: Measurement) -> str:
    return "; ".join(differences(one.fingerprint.get("hardware", {}), other.fingerprint.get("hardware", {})))


def _misplaced(*measurements: Measurement) -> str:
    """Of which of these the hosts were not those that were asked for; empty: of none."""
    return "; ".join(
        f"{each.spec.label} ran on hosts that are not what was asked for ({each.misplaced})"
        for each in measurements
        if each.misplaced
    )


def _check_anchor(measurement: Measurement, anchor: Measurement) -> None:
    if anchor.spec.gpus != 1:
        raise SpecError(f"efficiency needs a 1-device anchor, not {anchor.spec.label}")
    how_they_share = ("variable_update", "cross_replica_sync", "variable_placement", *MODE_OPTIONS)
    _check_same(anchor, measurement, but=("gpus", "num_ps", *how_they_share))


def _check_same(one: Measurement, other: Measurement, *, but: tuple[str, ...]) -> None:
    ignored = {*but, *NOT_IN_KEY} - {"learning_rate"}  # another learning rate is another training, if no slower one
    for name in (field.name for field in fields(Spec)):
        value, found = getattr(one.spec, name), getattr(other.spec, name)
        if name not in ignored and found != value:
            raise SpecError(
                f"{one.spec.label} and {other.spec.label} cannot be compared: {name} is {value!r} in the one and {found!r} "
                f"in the other; they may differ in {', '.join(but)} only"
            )


def _check_part(name: str, value: float) -> None:
    if not 0 <= value < 1:
        raise UsageError(f"{name} must be at least 0 and less than 1, not {value!r}: 0.05 means 5 %")
