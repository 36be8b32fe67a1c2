"""Efficiency, overhead and accuracy against thresholds."""

import re
from dataclasses import replace
from typing import Any

import pytest

from pytest_dtfperf.baselines.checks import ask
from pytest_dtfperf.baselines.entry import CalibratedNoise, Entry
from pytest_dtfperf.baselines.terms import ComparisonPolicy
from pytest_dtfperf.baselines.thresholds import judge_accuracy, judge_efficiency, judge_overhead
from pytest_dtfperf.baselines.verdict import Verdict
from pytest_dtfperf.errors import SpecError, UsageError
from tests.baselines.examples import AS_ASKED, HARDWARE, MISPLACED, entry_of, measurement_of


def make_policy(threshold: float) -> ComparisonPolicy:
    return ComparisonPolicy(threshold=threshold)


EFFICIENCY: dict[str, tuple[list[float], list[float], float, Verdict]] = {
    "well above": ([180, 182], [100, 101], 0.8, Verdict.PASSED),
    "well below, seen once": ([120, 121], [100, 101], 0.8, Verdict.INCONCLUSIVE),
    "well below, and confirmed": ([120, 121, 120, 121], [100, 101, 100, 101], 0.8, Verdict.REGRESSED),
    "near the threshold": ([158, 165], [99, 101], 0.8, Verdict.INCONCLUSIVE),
    "exactly, without spread": ([160, 160], [100, 100], 0.8, Verdict.INCONCLUSIVE),
    "more than 100 %": ([210, 212, 211], [100, 101, 100], 1.0, Verdict.PASSED),
    "one run": ([180], [100, 100], 0.8, Verdict.INCONCLUSIVE),
    "one run of the anchor": ([180, 180], [100], 0.8, Verdict.INCONCLUSIVE),
}


@pytest.mark.parametrize("rates, one, at_least, verdict", EFFICIENCY.values(), ids=EFFICIENCY)
def test_efficiency_is_decided_by_its_interval(rates: list[float], one: list[float], at_least: float, verdict: Verdict) -> None:
    """An efficiency is decided only if its interval does not contain the threshold; the reason names the anchor."""
    anchor = measurement_of(one, gpus=1, num_ps=1)
    judgement = judge_efficiency(measurement_of(rates), anchor, make_policy(at_least))
    assert judgement.verdict is verdict
    assert judgement.value == pytest.approx(measurement_of(rates).images_per_sec / (2 * anchor.images_per_sec))
    assert "relative to trivial b32 gpus=1 num_ps=1 parameter_server (" in judgement.reason


def test_efficiency_reason_has_its_interval() -> None:
    """The reason has the interval of the efficiency, as a fraction of all devices."""
    judgement = judge_efficiency(measurement_of([180, 181, 182]), measurement_of([100, 100, 101], gpus=1), make_policy(0.8))
    low, high = re.findall(r"\): (\S+) % to (\S+) %, required at least 80.0 %; 3 runs against 3$", judgement.reason)[0]
    assert 80 < float(low) < 90.05 < float(high) < 110


def test_anchor_has_an_efficiency_of_one() -> None:
    """The anchor's own efficiency is 1, with any noise."""
    anchor = measurement_of([50, 100], gpus=1, num_ps=0)
    judgement = judge_efficiency(anchor, anchor, make_policy(1.0))
    assert (judgement.verdict, judgement.value) == (Verdict.PASSED, 1.0)


def test_efficiency_on_other_hardware_is_incomparable() -> None:
    """An anchor of other hardware makes the verdict INCOMPARABLE, without a value."""
    anchor = measurement_of([100, 100], gpus=1, num_ps=0, hardware=HARDWARE | {"cores": 8})
    judgement = judge_efficiency(measurement_of([100, 100]), anchor, make_policy(0.1))
    assert judgement.verdict is Verdict.INCOMPARABLE
    assert "cores: 8 before, 2 after" in judgement.reason
    assert judgement.value is None


ONE: dict[str, Any] = {"gpus": 1, "num_ps": 1}
TWO: dict[str, Any] = {"gpus": 2, "num_ps": 1}
MOVED: dict[str, tuple[list[float], list[float], Verdict, str]] = {
    "anchor faster": ([170, 171, 170, 171], [120, 121, 120, 121], Verdict.ANCHOR, "the 1-device run got faster (+20."),
    "cluster slower": ([120, 121, 120, 121], [100, 101, 100, 101], Verdict.REGRESSED, "efficiency 60."),
    "both": ([140, 141, 140, 141], [120, 121, 120, 121], Verdict.REGRESSED, "efficiency 58."),
    "neither": ([170, 171, 170], [100, 101, 100], Verdict.PASSED, "efficiency 85."),
}


@pytest.mark.parametrize("rates, one, verdict, words", MOVED.values(), ids=MOVED)
def test_faster_anchor_alone_is_the_anchor_verdict(rates: list[float], one: list[float], verdict: Verdict, words: str) -> None:
    """A poor efficiency is ANCHOR only if the cluster's rate is unchanged and the 1-device rate became higher."""
    entry, anchor_entry = entry_of([170, 171, 170, 169], **TWO), entry_of([100, 101, 100, 99], **ONE)
    judgement = judge_efficiency(
        measurement_of(rates, **TWO), measurement_of(one, **ONE), make_policy(0.8), entry=entry, anchor_entry=anchor_entry
    )
    assert judgement.verdict is verdict, judgement.reason
    assert words in judgement.reason


def test_slower_anchor_alone_is_the_anchor_verdict() -> None:
    """An efficiency that is good only because the 1-device rate became lower is ANCHOR."""
    entry, anchor_entry = entry_of([150, 151, 150, 149], **TWO), entry_of([100, 101, 100, 99], **ONE)
    two, one = measurement_of([150, 151, 150], **TWO), measurement_of([80, 81, 80], **ONE)
    judgement = judge_efficiency(two, one, make_policy(0.8), entry=entry, anchor_entry=anchor_entry)
    assert judgement.verdict is Verdict.ANCHOR, judgement.reason
    assert "the 1-device run got slower (-19." in judgement.reason


# Of two devices then and now, and of one now, which had 100 then.
STAYED: dict[str, tuple[list[float], list[float], list[float], Verdict]] = {
    "as poor as it was": ([150, 151, 150, 149], [150, 151, 150, 151], [120, 121, 120, 121], Verdict.REGRESSED),
    "as good as it was": ([170, 171, 170, 169], [170, 171, 170], [80, 81, 80], Verdict.PASSED),
    "the cluster got faster": ([150, 151, 150, 149], [200, 201, 200], [80, 81, 80], Verdict.PASSED),
}


@pytest.mark.parametrize("then, rates, one, verdict", STAYED.values(), ids=STAYED)
def test_changed_anchor_without_effect_is_not_the_anchor_verdict(
    then: list[float], rates: list[float], one: list[float], verdict: Verdict
) -> None:
    """A changed anchor is no ANCHOR if the efficiency was on the same side before, or the cluster's rate changed, too."""
    entry, anchor_entry = entry_of(then, **TWO), entry_of([100, 101, 100, 99], **ONE)
    judgement = judge_efficiency(
        measurement_of(rates, **TWO), measurement_of(one, **ONE), make_policy(0.8), entry=entry, anchor_entry=anchor_entry
    )
    assert judgement.verdict is verdict, judgement.reason
    assert "1-device run got" not in judgement.reason


QUIET = CalibratedNoise(run=0.002, degrees_of_freedom=40, session=0.0, sessions=6, date="2026-01-30T00:00:00Z")
OTHERS_NOISE: dict[str, Entry] = {
    "of other hosts": entry_of([150, 151], hardware=HARDWARE | {"interconnect": "Ethernet 100 Gb/s"}, **TWO),
    "of more hosts": entry_of([150, 151], hosts=2, **TWO),
    "of another precision on the wire": entry_of([150, 151], wire_precision="bf16", **TWO),
}


@pytest.mark.parametrize("case", OTHERS_NOISE)
def test_efficiency_uses_only_noise_of_its_own_case(case: str) -> None:
    """Calibrated noise of other hosts or another training is ignored; noise of both own baselines gives an interval."""
    now = HARDWARE | {"interconnect": "Ethernet 10 Gb/s"}
    two, one = measurement_of([155], hardware=now, **TWO), measurement_of([100], hardware=now, **ONE)
    others = replace(OTHERS_NOISE[case], noise=QUIET)
    judgement = judge_efficiency(two, one, make_policy(0.8), entry=others)
    assert judgement == judge_efficiency(two, one, make_policy(0.8))
    assert judgement.verdict is Verdict.INCONCLUSIVE
    own = replace(entry_of([150, 151], hardware=now, **TWO), noise=QUIET)
    assert "no interval yet" in judge_efficiency(two, one, make_policy(0.8), entry=own).reason
    own_anchor = replace(entry_of([100, 101], hardware=now, **ONE), noise=QUIET)
    judgement = judge_efficiency(two, one, make_policy(0.8), entry=own, anchor_entry=own_anchor)
    assert "no interval yet" not in judgement.reason


WRONG_ANCHORS: dict[str, tuple[dict[str, Any], str]] = {
    "two devices": ({"gpus": 2}, "efficiency needs a 1-device anchor"),
    "another batch": ({"gpus": 1, "batch_size": 16}, "batch_size is 16 in the one and 32 in the other"),
    "another learning rate": ({"gpus": 1, "learning_rate": 0.5}, "learning_rate is 0.5 in the one"),
}


@pytest.mark.parametrize("changes, words", WRONG_ANCHORS.values(), ids=WRONG_ANCHORS)
def test_wrong_anchor_is_refused(changes: dict[str, Any], words: str) -> None:
    """An anchor with several devices or another training is refused."""
    with pytest.raises(SpecError, match=words):
        judge_efficiency(measurement_of([100, 100]), measurement_of([100, 100], **changes), make_policy(0.8))


OVERHEAD: dict[str, tuple[list[float], list[float], float, Verdict, float]] = {
    "small": ([100, 101, 100], [98, 99, 98], 0.10, Verdict.PASSED, 0.02),
    "large": ([100, 101, 100.5, 100.5], [70, 71, 70.5, 70.5], 0.10, Verdict.REGRESSED, 0.2985),
    "negative": ([100, 100, 100], [110, 110, 110], 0.0, Verdict.PASSED, -0.1),
    "undecided": ([100, 110], [90, 99], 0.10, Verdict.INCONCLUSIVE, 0.1),
    "one run": ([100, 100], [99], 0.10, Verdict.INCONCLUSIVE, 0.01),
}


@pytest.mark.parametrize("synthetic, real, at_most, verdict, value", OVERHEAD.values(), ids=OVERHEAD)
def test_overhead_is_the_loss_against_synthetic_input(
    synthetic: list[float], real: list[float], at_most: float, verdict: Verdict, value: float
) -> None:
    """The I/O overhead is the loss against the synthetic rate, and may be negative."""
    without = measurement_of(synthetic, model="mnist")
    judgement = judge_overhead(
        without, measurement_of(real, model="mnist", data="mnist", data_dir="/data"), make_policy(at_most)
    )
    assert judgement.verdict is verdict
    assert judgement.value == pytest.approx(value, abs=1e-4)


def test_overhead_reason_has_its_interval() -> None:
    """The reason has the interval of the overhead, or states that there is none yet."""
    judgement = judge_overhead(measurement_of([100, 101, 100]), measurement_of([98, 99, 98]), make_policy(0.1))
    low, high = re.findall(r"\): (\S+) % to (\S+) %, allowed at most 10.0 %; 3 runs against 3$", judgement.reason)[0]
    assert -10 < float(low) < 2.0 < float(high) < 10
    single = judge_overhead(measurement_of([100]), measurement_of([98]), make_policy(0.1))
    assert "): no interval yet, allowed at most 10.0 %; 1 run against 1" in single.reason


def test_overhead_of_few_scattered_runs_has_no_digits_without_meaning() -> None:
    """The end of an interval that is wider than any effect is stated as a bound, and not with twenty digits."""
    judgement = judge_overhead(measurement_of([250, 360]), measurement_of([280, 400]), make_policy(0.25))
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert ": below -10000 % to " in judgement.reason


@pytest.mark.parametrize("which", [0, 1])
def test_threshold_on_wrong_hosts_is_incomparable(which: int) -> None:
    """Efficiency and overhead are INCOMPARABLE if one of the two measurements had wrong hosts."""
    placements = [MISPLACED if i == which else AS_ASKED for i in range(2)]
    anchor, scaled = (
        measurement_of([100, 100], gpus=gpus, placement=placement) for gpus, placement in zip((1, 2), placements, strict=True)
    )
    synthetic, real = (measurement_of([100, 100], placement=placement) for placement in placements)
    for judgement in (judge_efficiency(scaled, anchor, make_policy(0.1)), judge_overhead(synthetic, real, make_policy(0.5))):
        assert judgement.verdict is Verdict.INCOMPARABLE
        assert "requested: 1 node, 4 GPUs each; granted: 1 node, 3 GPUs each" in judgement.reason
        assert judgement.reason.count("ran on other hosts than requested") == 1
        assert judgement.value is None


@pytest.mark.parametrize("which", [0, 1])
def test_threshold_with_only_disturbed_runs_is_tainted(which: int) -> None:
    """Efficiency and overhead are TAINTED if all runs of one measurement were disturbed."""
    disturbed = [range(3) if i == which else () for i in range(2)]
    anchor, scaled = (
        measurement_of([100, 101, 100], gpus=gpus, disturbed=runs) for gpus, runs in zip((1, 2), disturbed, strict=True)
    )
    synthetic, real = (measurement_of([100, 101, 100], disturbed=runs) for runs in disturbed)
    for judgement in (judge_efficiency(scaled, anchor, make_policy(0.9)), judge_overhead(synthetic, real, make_policy(0.5))):
        assert judgement.verdict is Verdict.TAINTED
        assert judgement.reason.count("was disturbed") == judgement.reason.count("was disturbed: somebody else's job") == 1
        assert judgement.value is None


@pytest.mark.parametrize("threshold", [None, float("nan"), float("inf")])
def test_check_needs_a_finite_threshold(threshold: float | None) -> None:
    """A check against a threshold refuses None, NaN and infinity."""
    terms, measured = ComparisonPolicy(threshold=threshold), measurement_of([100.0], accuracies=[0.9])
    with pytest.raises(UsageError, match=f"a check against a threshold needs one, not {threshold!r}"):
        judge_accuracy(measured, terms)


def test_overhead_of_different_trainings_is_refused() -> None:
    """Real and synthetic input of different trainings are not compared."""
    with pytest.raises(SpecError, match="gpus is 1 in the one and 2 in the other; they may differ in data only"):
        judge_overhead(measurement_of([1, 1], gpus=1), measurement_of([1, 1]), make_policy(0.1))


def test_overhead_uses_the_calibrated_noise() -> None:
    """The calibrated noise of either training widens the interval of the overhead; that of other hosts is ignored."""
    real: dict[str, Any] = {"model": "mnist", "data": "mnist", "data_dir": "/data"}
    noisy = CalibratedNoise(run=0.05, degrees_of_freedom=40, session=0.0, sessions=6, date="2026-01-30T00:00:00Z")
    entry = replace(entry_of([98, 99], **real), noise=noisy)
    synthetic, measured = measurement_of([100, 100.5, 100], model="mnist"), measurement_of([96, 96.5, 96], **real)
    unknown = judge_overhead(synthetic, measured, make_policy(0.1))
    assert (unknown.verdict, judge_overhead(synthetic, measured, make_policy(0.1), entry=entry).verdict) == (
        Verdict.PASSED,
        Verdict.INCONCLUSIVE,
    )
    others = replace(entry, hosts=2)
    assert judge_overhead(synthetic, measured, make_policy(0.1), entry=others) == unknown
    asked = ask("overhead", make_policy(0.1), measured, synthetic, entry=entry)
    assert asked.verdict is Verdict.INCONCLUSIVE
    of_synthetic = replace(entry_of([100, 101], model="mnist"), noise=noisy)
    assert ask("overhead", make_policy(0.1), measured, synthetic, other_entry=of_synthetic).verdict is Verdict.INCONCLUSIVE


def test_overhead_on_other_hardware_is_incomparable() -> None:
    """Real and synthetic input on different hardware are INCOMPARABLE, without a value."""
    real = measurement_of([1, 1], model="mnist", data="mnist", data_dir="/data", hardware=HARDWARE | {"cores": 8})
    judgement = judge_overhead(measurement_of([2, 2], model="mnist"), real, make_policy(0.1))
    assert (judgement.verdict, judgement.value) == (Verdict.INCOMPARABLE, None)


def test_overhead_in_percent_is_refused() -> None:
    """An overhead in percent is refused."""
    with pytest.raises(UsageError, match="at_most must be at least 0 and less than 1, not 10"):
        judge_overhead(measurement_of([1, 1]), measurement_of([1, 1]), make_policy(10))


@pytest.mark.parametrize("at_least", [0, -0.5, 2.1, 90])
def test_impossible_efficiency_is_refused(at_least: float) -> None:
    """A required efficiency of at most 0 or more than 2 is refused, with an example."""
    with pytest.raises(UsageError, match=f"at_least must be more than 0 and at most 2, not {at_least}: 0.9 means 90 %"):
        judge_efficiency(measurement_of([180, 182]), measurement_of([100, 101], gpus=1), make_policy(at_least))


def test_largest_allowed_efficiency_is_judged() -> None:
    """A required efficiency of exactly 2 is judged."""
    judgement = judge_efficiency(
        measurement_of([180, 182, 181, 181]), measurement_of([100, 101, 100, 101], gpus=1), make_policy(2.0)
    )
    assert judgement.verdict is Verdict.REGRESSED


@pytest.mark.parametrize("at_least", [1.1, 95])
def test_impossible_accuracy_is_refused(at_least: float) -> None:
    """A required accuracy of more than 1 is refused, with an example."""
    with pytest.raises(UsageError, match=f"at_least must be at most 1, not {at_least}: 0.95 means 95 %"):
        judge_accuracy(measurement_of([100.0], accuracies=[0.97]), make_policy(at_least))


ACCURACY: dict[str, tuple[list[float], Verdict]] = {
    "reached": ([0.96], Verdict.PASSED),
    "reached by all": ([0.96, 0.95], Verdict.PASSED),
    "missed by one": ([0.96, 0.94], Verdict.INCONCLUSIVE),
    "missed": ([0.90, 0.94], Verdict.REGRESSED),
}


@pytest.mark.parametrize("found, verdict", ACCURACY.values(), ids=ACCURACY)
def test_every_run_must_reach_the_accuracy(found: list[float], verdict: Verdict) -> None:
    """Every run must reach the accuracy, and one run is enough."""
    measured = measurement_of([100.0] * len(found), accuracies=found)
    assert judge_accuracy(measured, make_policy(0.95)).verdict is verdict


def test_accuracy_that_was_not_measured_is_invalid() -> None:
    """A measurement without an accuracy is INVALID, with the option that measures it."""
    judgement = judge_accuracy(measurement_of([100, 100]), make_policy(0.5))
    assert judgement.verdict is Verdict.INVALID
    assert "evaluate=True" in judgement.reason
