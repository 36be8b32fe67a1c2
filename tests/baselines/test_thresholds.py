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


def asking(threshold: float) -> ComparisonPolicy:
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
def test_efficiency(rates: list[float], one: list[float], at_least: float, verdict: Verdict) -> None:
    """Efficiency is decided only where its interval has left the threshold behind; the anchor is named."""
    anchor = measurement_of(one, gpus=1, num_ps=1)
    judgement = judge_efficiency(measurement_of(rates), anchor, asking(at_least))
    assert judgement.verdict is verdict
    assert judgement.value == pytest.approx(measurement_of(rates).images_per_sec / (2 * anchor.images_per_sec))
    assert "relative to trivial b32 gpus=1 num_ps=1 parameter_server (" in judgement.reason


def test_an_efficiency_s_interval_is_around_it() -> None:
    """The reason says between what the efficiency may lie, in parts of all devices, as the efficiency itself is."""
    judgement = judge_efficiency(measurement_of([180, 181, 182]), measurement_of([100, 100, 101], gpus=1), asking(0.8))
    low, high = re.findall(r"\): (\S+) % to (\S+) %, required at least 80.0 %; 3 runs against 3$", judgement.reason)[0]
    assert 80 < float(low) < 90.05 < float(high) < 110


def test_efficiency_of_the_anchor_itself() -> None:
    """One device is perfectly efficient by definition, however much its runs differ."""
    anchor = measurement_of([50, 100], gpus=1, num_ps=0)
    judgement = judge_efficiency(anchor, anchor, asking(1.0))
    assert (judgement.verdict, judgement.value) == (Verdict.PASSED, 1.0)


def test_efficiency_on_other_hardware_is_incomparable() -> None:
    """An anchor from another machine divides nothing."""
    anchor = measurement_of([100, 100], gpus=1, num_ps=0, hardware=HARDWARE | {"cores": 8})
    judgement = judge_efficiency(measurement_of([100, 100]), anchor, asking(0.1))
    assert judgement.verdict is Verdict.INCOMPARABLE
    assert "cores: 8 then, 2 now" in judgement.reason
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
def test_anchor_that_alone_moved_is_named(rates: list[float], one: list[float], verdict: Verdict, words: str) -> None:
    """Poor efficiency is no fault of the cluster where it is as fast as its baseline and one device got faster than its own."""
    entry, anchor_entry = entry_of([170, 171, 170, 169], **TWO), entry_of([100, 101, 100, 99], **ONE)
    judgement = judge_efficiency(
        measurement_of(rates, **TWO), measurement_of(one, **ONE), asking(0.8), entry=entry, anchor_entry=anchor_entry
    )
    assert judgement.verdict is verdict, judgement.reason
    assert words in judgement.reason


def test_anchor_that_got_slower_does_not_pass() -> None:
    """Efficiency that is good only because one device got slower says ANCHOR, too."""
    entry, anchor_entry = entry_of([150, 151, 150, 149], **TWO), entry_of([100, 101, 100, 99], **ONE)
    two, one = measurement_of([150, 151, 150], **TWO), measurement_of([80, 81, 80], **ONE)
    judgement = judge_efficiency(two, one, asking(0.8), entry=entry, anchor_entry=anchor_entry)
    assert judgement.verdict is Verdict.ANCHOR, judgement.reason
    assert "the 1-device run got slower (-19." in judgement.reason


# Of two devices then and now, and of one now, which had 100 then.
STAYED: dict[str, tuple[list[float], list[float], list[float], Verdict]] = {
    "as poor as it was": ([150, 151, 150, 149], [150, 151, 150, 151], [120, 121, 120, 121], Verdict.REGRESSED),
    "as good as it was": ([170, 171, 170, 169], [170, 171, 170], [80, 81, 80], Verdict.PASSED),
    "the cluster got faster": ([150, 151, 150, 149], [200, 201, 200], [80, 81, 80], Verdict.PASSED),
}


@pytest.mark.parametrize("then, rates, one, verdict", STAYED.values(), ids=STAYED)
def test_anchor_that_moved_is_no_excuse(then: list[float], rates: list[float], one: list[float], verdict: Verdict) -> None:
    """Where efficiency was on the same side of the threshold then, or the cluster's rate is another, too, that is no ANCHOR."""
    entry, anchor_entry = entry_of(then, **TWO), entry_of([100, 101, 100, 99], **ONE)
    judgement = judge_efficiency(
        measurement_of(rates, **TWO), measurement_of(one, **ONE), asking(0.8), entry=entry, anchor_entry=anchor_entry
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
def test_efficiency_takes_no_others_noise(case: str) -> None:
    """How much rates scatter is believed of a baseline of these hosts and this training alone: of a quieter place it would
    turn red what nobody knows."""
    now = HARDWARE | {"interconnect": "Ethernet 10 Gb/s"}
    two, one = measurement_of([155], hardware=now, **TWO), measurement_of([100], hardware=now, **ONE)
    others = replace(OTHERS_NOISE[case], noise=QUIET)
    judgement = judge_efficiency(two, one, asking(0.8), entry=others)
    assert judgement == judge_efficiency(two, one, asking(0.8))
    assert judgement.verdict is Verdict.INCONCLUSIVE
    own = replace(entry_of([150, 151], hardware=now, **TWO), noise=QUIET)
    assert "no interval yet" in judge_efficiency(two, one, asking(0.8), entry=own).reason
    own_anchor = replace(entry_of([100, 101], hardware=now, **ONE), noise=QUIET)
    judgement = judge_efficiency(two, one, asking(0.8), entry=own, anchor_entry=own_anchor)
    assert "no interval yet" not in judgement.reason


WRONG_ANCHORS: dict[str, tuple[dict[str, Any], str]] = {
    "two devices": ({"gpus": 2}, "efficiency needs a 1-device anchor"),
    "another batch": ({"gpus": 1, "batch_size": 16}, "batch_size is 16 in the one and 32 in the other"),
    "another learning rate": ({"gpus": 1, "learning_rate": 0.5}, "learning_rate is 0.5 in the one"),
}


@pytest.mark.parametrize("changes, words", WRONG_ANCHORS.values(), ids=WRONG_ANCHORS)
def test_wrong_anchor_is_refused(changes: dict[str, Any], words: str) -> None:
    """Efficiency is divided by one device that trained the same, and by nothing else."""
    with pytest.raises(SpecError, match=words):
        judge_efficiency(measurement_of([100, 100]), measurement_of([100, 100], **changes), asking(0.8))


OVERHEAD: dict[str, tuple[list[float], list[float], float, Verdict, float]] = {
    "small": ([100, 101, 100], [98, 99, 98], 0.10, Verdict.PASSED, 0.02),
    "large": ([100, 101, 100.5, 100.5], [70, 71, 70.5, 70.5], 0.10, Verdict.REGRESSED, 0.2985),
    "negative": ([100, 100, 100], [110, 110, 110], 0.0, Verdict.PASSED, -0.1),
    "undecided": ([100, 110], [90, 99], 0.10, Verdict.INCONCLUSIVE, 0.1),
    "one run": ([100, 100], [99], 0.10, Verdict.INCONCLUSIVE, 0.01),
}


@pytest.mark.parametrize("synthetic, real, at_most, verdict, value", OVERHEAD.values(), ids=OVERHEAD)
def test_overhead(synthetic: list[float], real: list[float], at_most: float, verdict: Verdict, value: float) -> None:
    """I/O overhead is what real input loses of the synthetic rate, and may be negative."""
    without = measurement_of(synthetic, model="mnist")
    judgement = judge_overhead(without, measurement_of(real, model="mnist", data="mnist", data_dir="/data"), asking(at_most))
    assert judgement.verdict is verdict
    assert judgement.value == pytest.approx(value, abs=1e-4)


def test_an_overhead_s_interval_is_around_it() -> None:
    """The reason says between what the overhead may lie, from the least to the most, and where nobody knows it yet."""
    judgement = judge_overhead(measurement_of([100, 101, 100]), measurement_of([98, 99, 98]), asking(0.1))
    low, high = re.findall(r"\): (\S+) % to (\S+) %, allowed at most 10.0 %; 3 runs against 3$", judgement.reason)[0]
    assert -10 < float(low) < 2.0 < float(high) < 10
    single = judge_overhead(measurement_of([100]), measurement_of([98]), asking(0.1))
    assert "): no interval yet, allowed at most 10.0 %; 1 run against 1" in single.reason


@pytest.mark.parametrize("which", [0, 1])
def test_threshold_on_other_hosts_than_asked_for_is_incomparable(which: int) -> None:
    """Neither efficiency nor I/O overhead is held against a threshold when one of its two measurements was misplaced."""
    placements = [MISPLACED if i == which else AS_ASKED for i in range(2)]
    anchor, scaled = (
        measurement_of([100, 100], gpus=gpus, placement=placement) for gpus, placement in zip((1, 2), placements, strict=True)
    )
    synthetic, real = (measurement_of([100, 100], placement=placement) for placement in placements)
    for judgement in (judge_efficiency(scaled, anchor, asking(0.1)), judge_overhead(synthetic, real, asking(0.5))):
        assert judgement.verdict is Verdict.INCOMPARABLE
        assert "requested: 1 node, 4 GPUs each; granted: 1 node, 3 GPUs each" in judgement.reason
        assert judgement.reason.count("ran on other hosts than requested") == 1
        assert judgement.value is None


@pytest.mark.parametrize("which", [0, 1])
def test_what_was_disturbed_throughout_is_held_against_no_threshold(which: int) -> None:
    """However good or bad: where no run of one of the two measurements can be believed, both verdicts are TAINTED."""
    disturbed = [range(3) if i == which else () for i in range(2)]
    anchor, scaled = (
        measurement_of([100, 101, 100], gpus=gpus, disturbed=runs) for gpus, runs in zip((1, 2), disturbed, strict=True)
    )
    synthetic, real = (measurement_of([100, 101, 100], disturbed=runs) for runs in disturbed)
    for judgement in (judge_efficiency(scaled, anchor, asking(0.9)), judge_overhead(synthetic, real, asking(0.5))):
        assert judgement.verdict is Verdict.TAINTED
        assert judgement.reason.count("was disturbed") == judgement.reason.count("was disturbed: somebody else's job") == 1
        assert judgement.value is None


@pytest.mark.parametrize("threshold", [None, float("nan"), float("inf")])
def test_a_check_needs_a_threshold(threshold: float | None) -> None:
    """What is no number would be neither reached nor missed."""
    terms, measured = ComparisonPolicy(threshold=threshold), measurement_of([100.0], accuracies=[0.9])
    with pytest.raises(UsageError, match=f"a check against a threshold needs one, not {threshold!r}"):
        judge_accuracy(measured, terms)


def test_overhead_of_different_trainings_is_refused() -> None:
    """Real input of one training is not compared with synthetic input of another."""
    with pytest.raises(SpecError, match="gpus is 1 in the one and 2 in the other; they may differ in data only"):
        judge_overhead(measurement_of([1, 1], gpus=1), measurement_of([1, 1]), asking(0.1))


def test_overhead_knows_the_calibrated_noise() -> None:
    """Runs that happen to be alike are believed to scatter as much as was found out of this training; of another's, nothing."""
    real: dict[str, Any] = {"model": "mnist", "data": "mnist", "data_dir": "/data"}
    noisy = CalibratedNoise(run=0.05, degrees_of_freedom=40, session=0.0, sessions=6, date="2026-01-30T00:00:00Z")
    entry = replace(entry_of([98, 99], **real), noise=noisy)
    synthetic, measured = measurement_of([100, 100.5, 100], model="mnist"), measurement_of([96, 96.5, 96], **real)
    unknown = judge_overhead(synthetic, measured, asking(0.1))
    assert (unknown.verdict, judge_overhead(synthetic, measured, asking(0.1), entry=entry).verdict) == (
        Verdict.PASSED,
        Verdict.INCONCLUSIVE,
    )
    others = replace(entry, hosts=2)
    assert judge_overhead(synthetic, measured, asking(0.1), entry=others) == unknown
    asked = ask("overhead", asking(0.1), measured, synthetic, entry=entry)
    assert asked.verdict is Verdict.INCONCLUSIVE
    of_synthetic = replace(entry_of([100, 101], model="mnist"), noise=noisy)
    assert ask("overhead", asking(0.1), measured, synthetic, other_entry=of_synthetic).verdict is Verdict.INCONCLUSIVE


def test_overhead_on_other_hardware_is_incomparable() -> None:
    """What real input costs is not read off two machines."""
    real = measurement_of([1, 1], model="mnist", data="mnist", data_dir="/data", hardware=HARDWARE | {"cores": 8})
    judgement = judge_overhead(measurement_of([2, 2], model="mnist"), real, asking(0.1))
    assert (judgement.verdict, judgement.value) == (Verdict.INCOMPARABLE, None)


def test_overhead_in_percent_is_refused() -> None:
    """An overhead of at most 10 where 0.10 was meant would let everything pass."""
    with pytest.raises(UsageError, match="at_most must be at least 0 and less than 1, not 10"):
        judge_overhead(measurement_of([1, 1]), measurement_of([1, 1]), asking(10))


@pytest.mark.parametrize("at_least", [0, -0.5, 2.1, 90])
def test_an_efficiency_that_none_can_be_is_refused(at_least: float) -> None:
    """90 was meant as 0.9, and would be REGRESSED whatever was measured; nothing is asked with 0 or less."""
    with pytest.raises(UsageError, match=f"at_least must be more than 0 and at most 2, not {at_least}: 0.9 means 90 %"):
        judge_efficiency(measurement_of([180, 182]), measurement_of([100, 101], gpus=1), asking(at_least))


def test_the_most_that_an_efficiency_can_be_may_be_asked_for() -> None:
    """Twice as fast as perfect is the most."""
    judgement = judge_efficiency(
        measurement_of([180, 182, 181, 181]), measurement_of([100, 101, 100, 101], gpus=1), asking(2.0)
    )
    assert judgement.verdict is Verdict.REGRESSED


@pytest.mark.parametrize("at_least", [1.1, 95])
def test_an_accuracy_that_none_can_be_is_refused(at_least: float) -> None:
    """Nobody answers more than all of the test set, so that 95 was meant as 0.95."""
    with pytest.raises(UsageError, match=f"at_least must be at most 1, not {at_least}: 0.95 means 95 %"):
        judge_accuracy(measurement_of([100.0], accuracies=[0.97]), asking(at_least))


ACCURACY: dict[str, tuple[list[float], Verdict]] = {
    "reached": ([0.96], Verdict.PASSED),
    "reached by all": ([0.96, 0.95], Verdict.PASSED),
    "missed by one": ([0.96, 0.94], Verdict.INCONCLUSIVE),
    "missed": ([0.90, 0.94], Verdict.REGRESSED),
}


@pytest.mark.parametrize("found, verdict", ACCURACY.values(), ids=ACCURACY)
def test_accuracy(found: list[float], verdict: Verdict) -> None:
    """Every run must have learnt, and one run suffices."""
    measured = measurement_of([100.0] * len(found), accuracies=found)
    assert judge_accuracy(measured, asking(0.95)).verdict is verdict


def test_accuracy_that_was_not_measured_is_invalid() -> None:
    """A missing accuracy is never taken for a good one."""
    judgement = judge_accuracy(measurement_of([100, 100]), asking(0.5))
    assert judgement.verdict is Verdict.INVALID
    assert "evaluate=True" in judgement.reason
