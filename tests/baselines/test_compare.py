import random
import time
from typing import Any

import pytest

from pytest_dtfperf.baselines.compare import judge, judge_accuracy, judge_efficiency, judge_overhead
from pytest_dtfperf.baselines.entry import Entry
from pytest_dtfperf.baselines.verdict import Verdict
from pytest_dtfperf.errors import SpecError, UsageError
from tests.baselines.examples import AS_ASKED, HARDWARE, MISPLACED, SOFTWARE, entry_of, measurement_of

BASELINE = [99.0, 100.0, 101.0]  # its median is 100
RULE: dict[str, tuple[list[float], float, Verdict]] = {
    "the same": ([100, 100], 0.05, Verdict.PASSED),
    "all at the floor": ([95, 95], 0.05, Verdict.PASSED),
    "all below the floor": ([94.9, 90], 0.05, Verdict.REGRESSED),
    "one of many above the floor": ([80, 80, 80, 95], 0.05, Verdict.INCONCLUSIVE),
    "one of many below the floor": ([100, 100, 100, 94], 0.05, Verdict.INCONCLUSIVE),
    "all above the ceiling": ([106, 120], 0.05, Verdict.IMPROVED),
    "one at the ceiling": ([105, 120], 0.05, Verdict.PASSED),
    "wide but never below": ([95, 200], 0.05, Verdict.PASSED),
    "wide around everything": ([50, 200], 0.05, Verdict.INCONCLUSIVE),
    "one run, much slower": ([10], 0.05, Verdict.INCONCLUSIVE),
    "one run, the same": ([100], 0.05, Verdict.INCONCLUSIVE),
    "no margin, a trifle slower": ([99.99, 99.98], 0.0, Verdict.REGRESSED),
    "no margin, the same": ([100, 100], 0.0, Verdict.PASSED),
    "a wide margin": ([51, 52], 0.5, Verdict.PASSED),
}


@pytest.mark.parametrize("rates, margin, verdict", RULE.values(), ids=RULE)
def test_rule(rates: list[float], margin: float, verdict: Verdict) -> None:
    """A verdict is given only where every run agrees with it."""
    judgement = judge(measurement_of(rates), entry_of(BASELINE), margin=margin)
    assert judgement.verdict is verdict
    assert judgement.baseline_rate == 100
    assert judgement.change == pytest.approx(measurement_of(rates).images_per_sec / 100 - 1)
    assert "\n" not in judgement.reason


REASONS: dict[str, tuple[list[float], list[float], str]] = {
    "regressed": (BASELINE, [90, 92], "-9.0% against 100 images/sec, margin 5.0%: every run lies below 95"),
    "straddles": (BASELINE, [90, 96], "-7.0% against 100 images/sec, margin 5.0%: the runs straddle 95 (90 to 96)"),
    "one run": (BASELINE, [90], "the measurement has 1 run, 2 are the least that can tell"),
    "one sample": ([100.0], [90, 90], "the baseline has 1 run, 2 are the least that can tell"),
    "both": ([100.0], [90], "the measurement has 1 run and the baseline has 1 run, 2 are the least that can tell"),
    "noisy baseline": ([80, 100, 120], [90, 90], "the baseline's own runs spread 40.0%"),
}


@pytest.mark.parametrize("stored, rates, words", REASONS.values(), ids=REASONS)
def test_reason(stored: list[float], rates: list[float], words: str) -> None:
    """The reason gives the numbers the verdict rests on."""
    assert words in judge(measurement_of(rates), entry_of(stored), margin=0.05).reason


def test_reason_tells_what_else_changed() -> None:
    """Other software and another number of steps are shown beside the verdict and do not decide it."""
    measured = measurement_of([100, 100], software=SOFTWARE | {"tensorflow": "2.22.0"}, steps=3)
    judgement = judge(measured, entry_of(BASELINE), margin=0.05)
    assert judgement.verdict is Verdict.PASSED
    assert "software since then: tensorflow 2.21.0 -> 2.22.0" in judgement.reason
    assert "the baseline measured 100 steps, this 3" in judgement.reason


def test_no_baseline_says_how_to_accept() -> None:
    """Without a baseline the verdict is NO_BASELINE, and its reason says which option stores one."""
    judgement = judge(measurement_of([100, 100]), None, margin=0.05)
    assert judgement.verdict is Verdict.NO_BASELINE
    assert "trivial b32 gpus=2 num_ps=1" in judgement.reason
    assert "--update-baselines=new" in judgement.reason


ELSEWHERE: dict[str, tuple[dict[str, Any], str]] = {
    "another CPU": ({"hardware": HARDWARE | {"cpu": "Intel Xeon"}}, "cpu: AMD EPYC 9B45 then, Intel Xeon now"),
    "less memory": ({"hardware": HARDWARE | {"memory_gib": 4}}, "memory: 8 GiB then, 4 GiB now"),
    "more hosts": ({"hosts": 2}, "hosts: 1 then, 2 now"),
}


@pytest.mark.parametrize("where, difference", ELSEWHERE.values(), ids=ELSEWHERE)
def test_other_hardware_is_incomparable(where: dict[str, Any], difference: str) -> None:
    """However much slower: on other hardware, or spread over more hosts, nothing is said but what differs."""
    judgement = judge(measurement_of([10, 10], **where), entry_of(BASELINE), margin=0.05)
    assert judgement.verdict is Verdict.INCOMPARABLE
    assert difference in judgement.reason
    assert judgement.change is None


WHAT_DIFFERS = "requested: 1 node, 4 GPUs each; granted: 1 node, 3 GPUs each"


@pytest.mark.parametrize("entry", [entry_of(BASELINE), None], ids=["with a baseline", "without one"])
def test_hosts_other_than_asked_for_are_incomparable(entry: Entry | None) -> None:
    """Whatever the rate: where less was lent than asked for, the verdict is both lists."""
    judgement = judge(measurement_of([100, 100], placement=MISPLACED), entry, margin=0.05)
    assert judgement.verdict is Verdict.INCOMPARABLE
    assert WHAT_DIFFERS in judgement.reason
    assert judgement.change is None


def test_hosts_as_asked_for_are_judged() -> None:
    """A placement that is as requested changes no verdict, and is no part of what a baseline must match."""
    measured = measurement_of([100, 100], placement=AS_ASKED)
    assert judge(measured, entry_of(BASELINE), margin=0.05).verdict is Verdict.PASSED
    assert judge(measured, entry_of(BASELINE, placement=AS_ASKED), margin=0.05).verdict is Verdict.PASSED


@pytest.mark.parametrize("which", [0, 1])
def test_threshold_on_other_hosts_than_asked_for_is_incomparable(which: int) -> None:
    """Neither efficiency nor I/O overhead is held against a threshold when one of its two measurements was misplaced."""
    places = [MISPLACED if i == which else AS_ASKED for i in range(2)]
    anchor, scaled = (
        measurement_of([100, 100], gpus=gpus, placement=place) for gpus, place in zip((1, 2), places, strict=True)
    )
    synthetic, real = (measurement_of([100, 100], placement=place) for place in places)
    for judgement in (judge_efficiency(scaled, anchor, at_least=0.1), judge_overhead(synthetic, real, at_most=0.5)):
        assert judgement.verdict is Verdict.INCOMPARABLE
        assert WHAT_DIFFERS in judgement.reason
        assert judgement.value is None


def test_baseline_of_another_spec_is_a_mistake() -> None:
    """A baseline is never held against a measurement of something else."""
    with pytest.raises(ValueError, match="says nothing of"):
        judge(measurement_of([1, 1], batch_size=64), entry_of(BASELINE), margin=0.05)


@pytest.mark.parametrize("margin", [-0.01, 1.0, 5.0, float("nan")])
def test_margin_that_is_no_part_is_refused(margin: float) -> None:
    """A margin of 5 where 0.05 was meant would let everything pass."""
    with pytest.raises(UsageError, match=r"margin must be at least 0 and less than 1, not .*: 0.05 means 5 %"):
        judge(measurement_of([1, 1]), entry_of(BASELINE), margin=margin)


def test_more_runs_never_turn_one_certainty_into_the_other() -> None:
    """Adding runs can only make a decided verdict undecided, or leave it: PASSED never becomes REGRESSED by repeating."""
    draw = random.Random(1)
    for _ in range(500):
        rates = [draw.uniform(85, 115) for _ in range(6)]
        seen = [judge(measurement_of(rates[:count]), entry_of(BASELINE), margin=0.05).verdict for count in range(2, 7)]
        good, bad = {Verdict.PASSED, Verdict.IMPROVED}, {Verdict.REGRESSED}
        assert not (good & set(seen) and bad & set(seen)), rates


def test_faster_is_never_judged_worse() -> None:
    """Scaling every run up by the same factor never makes the verdict worse."""
    order = [Verdict.REGRESSED, Verdict.INCONCLUSIVE, Verdict.PASSED, Verdict.IMPROVED]
    for spread in (0.0, 0.02, 0.2):
        verdicts = [
            judge(measurement_of([rate * (1 - spread), rate]), entry_of(BASELINE), margin=0.05).verdict
            for rate in range(60, 160)
        ]
        assert [order.index(v) for v in verdicts] == sorted(order.index(v) for v in verdicts)


EFFICIENCY: dict[str, tuple[list[float], list[float], float, Verdict]] = {
    "well above": ([180, 182], [100, 101], 0.8, Verdict.PASSED),
    "well below": ([120, 121], [100, 101], 0.8, Verdict.REGRESSED),
    "above for some pairs of runs": ([158, 165], [99, 101], 0.8, Verdict.INCONCLUSIVE),
    "exactly, without spread": ([160, 160], [100, 100], 0.8, Verdict.PASSED),
    "more than 100 %": ([210, 212], [100, 101], 1.0, Verdict.PASSED),
    "one run": ([180], [100, 100], 0.8, Verdict.INCONCLUSIVE),
    "one run of the anchor": ([180, 180], [100], 0.8, Verdict.INCONCLUSIVE),
}


@pytest.mark.parametrize("rates, one, at_least, verdict", EFFICIENCY.values(), ids=EFFICIENCY)
def test_efficiency(rates: list[float], one: list[float], at_least: float, verdict: Verdict) -> None:
    """Efficiency is decided only where the least and the most favourable pairing of runs agree; the anchor is named."""
    anchor = measurement_of(one, gpus=1, num_ps=1)
    judgement = judge_efficiency(measurement_of(rates), anchor, at_least=at_least)
    assert judgement.verdict is verdict
    assert judgement.value == pytest.approx(measurement_of(rates).images_per_sec / (2 * anchor.images_per_sec))
    assert "anchored at trivial b32 gpus=1 num_ps=1 parameter_server (" in judgement.reason


def test_efficiency_of_the_anchor_itself() -> None:
    """One device is perfectly efficient by definition, however much its runs differ."""
    anchor = measurement_of([50, 100], gpus=1, num_ps=0)
    judgement = judge_efficiency(anchor, anchor, at_least=1.0)
    assert (judgement.verdict, judgement.value) == (Verdict.PASSED, 1.0)


def test_efficiency_on_other_hardware_is_incomparable() -> None:
    """An anchor from another machine divides nothing."""
    anchor = measurement_of([100, 100], gpus=1, num_ps=0, hardware=HARDWARE | {"cores": 8})
    judgement = judge_efficiency(measurement_of([100, 100]), anchor, at_least=0.1)
    assert judgement.verdict is Verdict.INCOMPARABLE
    assert "cores: 8 then, 2 now" in judgement.reason
    assert judgement.value is None


WRONG_ANCHORS: dict[str, tuple[dict[str, Any], str]] = {
    "two devices": ({"gpus": 2}, "efficiency needs a 1-device anchor"),
    "another batch": ({"gpus": 1, "batch_size": 16}, "batch_size is 16 in the one and 32 in the other"),
}


@pytest.mark.parametrize("changes, words", WRONG_ANCHORS.values(), ids=WRONG_ANCHORS)
def test_wrong_anchor_is_refused(changes: dict[str, Any], words: str) -> None:
    """Efficiency is divided by one device that trained the same, and by nothing else."""
    with pytest.raises(SpecError, match=words):
        judge_efficiency(measurement_of([100, 100]), measurement_of([100, 100], **changes), at_least=0.8)


OVERHEAD: dict[str, tuple[list[float], list[float], float, Verdict, float]] = {
    "small": ([100, 101], [98, 99], 0.10, Verdict.PASSED, 0.0199),
    "large": ([100, 101], [70, 71], 0.10, Verdict.REGRESSED, 0.2985),
    "negative": ([100, 100], [102, 102], 0.0, Verdict.PASSED, -0.02),
    "undecided": ([100, 110], [90, 99], 0.10, Verdict.INCONCLUSIVE, 0.1),
    "one run": ([100, 100], [99], 0.10, Verdict.INCONCLUSIVE, 0.01),
}


@pytest.mark.parametrize("synthetic, real, at_most, verdict, value", OVERHEAD.values(), ids=OVERHEAD)
def test_overhead(synthetic: list[float], real: list[float], at_most: float, verdict: Verdict, value: float) -> None:
    """I/O overhead is what real input loses of the synthetic rate, and may be negative."""
    without = measurement_of(synthetic, model="mnist")
    judgement = judge_overhead(without, measurement_of(real, model="mnist", data="mnist", data_dir="/data"), at_most=at_most)
    assert judgement.verdict is verdict
    assert judgement.value == pytest.approx(value, abs=1e-4)


def test_overhead_of_different_trainings_is_refused() -> None:
    """Real input of one training is not compared with synthetic input of another."""
    with pytest.raises(SpecError, match="gpus is 1 in the one and 2 in the other; they may differ in data only"):
        judge_overhead(measurement_of([1, 1], gpus=1), measurement_of([1, 1]), at_most=0.1)


def test_overhead_on_other_hardware_is_incomparable() -> None:
    """What real input costs is not read off two machines."""
    real = measurement_of([1, 1], model="mnist", data="mnist", data_dir="/data", hardware=HARDWARE | {"cores": 8})
    judgement = judge_overhead(measurement_of([2, 2], model="mnist"), real, at_most=0.1)
    assert (judgement.verdict, judgement.value) == (Verdict.INCOMPARABLE, None)


def test_overhead_in_percent_is_refused() -> None:
    """An overhead of at most 10 where 0.10 was meant would let everything pass."""
    with pytest.raises(UsageError, match="at_most must be at least 0 and less than 1, not 10"):
        judge_overhead(measurement_of([1, 1]), measurement_of([1, 1]), at_most=10)


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
    assert judge_accuracy(measured, at_least=0.95).verdict is verdict


def test_accuracy_that_was_not_measured_is_invalid() -> None:
    """A missing accuracy is never taken for a good one."""
    judgement = judge_accuracy(measurement_of([100, 100]), at_least=0.5)
    assert judgement.verdict is Verdict.INVALID
    assert "evaluate=True" in judgement.reason


def test_comparing_is_cheap() -> None:
    """Ten thousand comparisons end well within the time of one training step on a large model."""
    measured, entry = measurement_of([100.0] * 5), entry_of(BASELINE)
    started = time.perf_counter()
    for _ in range(10_000):
        judge(measured, entry, margin=0.05)
    assert time.perf_counter() - started < 10  # takes below one second; generous, because others use this machine too
