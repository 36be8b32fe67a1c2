"""A measurement against its baseline: verdict and reason."""

from dataclasses import replace
from typing import Any

import pytest

from pytest_dtfperf.baselines.compare import judge
from pytest_dtfperf.baselines.entry import CalibratedNoise, Entry
from pytest_dtfperf.baselines.terms import ComparisonPolicy
from pytest_dtfperf.baselines.verdict import Verdict
from pytest_dtfperf.errors import UsageError
from tests.baselines.examples import AS_ASKED, HARDWARE, MISPLACED, SOFTWARE, entry_of, measurement_of
from tests.records.host_states import BUSY

BASELINE = [99.0, 100.0, 101.0, 100.0, 100.0]  # its median is 100, and its runs spread by 0.7 %
TERMS = ComparisonPolicy(margin=0.05)


def add_noise(entry: Entry, run: float) -> Entry:
    """Return the entry with noise that is known from thirty runs."""
    known = CalibratedNoise(run=run, degrees_of_freedom=30, session=0.0, sessions=6, date="2026-01-30T00:00:00Z")
    return replace(entry, noise=known)


RULE: dict[str, tuple[list[float], float, Verdict]] = {
    "the same": ([100, 100.5], 0.05, Verdict.PASSED),
    "a little slower": ([98.5, 99], 0.05, Verdict.PASSED),
    "at the margin": ([95.2, 94.8, 95], 0.05, Verdict.INCONCLUSIVE),
    "within the margin, but not surely": ([96, 95.8], 0.05, Verdict.INCONCLUSIVE),
    "much slower, but seen once only": ([80, 80.5], 0.05, Verdict.INCONCLUSIVE),
    "much slower, and confirmed": ([80, 80.5, 81], 0.05, Verdict.REGRESSED),
    "much slower, and the next run is not": ([80, 80.5, 99], 0.05, Verdict.INCONCLUSIVE),
    "much faster": ([120, 121], 0.05, Verdict.IMPROVED),
    "faster than the margin, but not surely": ([105.2, 106], 0.05, Verdict.PASSED),
    "wide around everything": ([50, 200, 100], 0.05, Verdict.INCONCLUSIVE),
    "one run, much slower": ([10], 0.05, Verdict.INCONCLUSIVE),
    "one run, the same": ([100], 0.05, Verdict.INCONCLUSIVE),
    "no margin": ([100, 100], 0.0, Verdict.INCONCLUSIVE),
    "a wide margin": ([60, 61], 0.5, Verdict.PASSED),
}


@pytest.mark.parametrize("rates, margin, verdict", RULE.values(), ids=RULE)
def test_verdict_follows_from_the_interval(rates: list[float], margin: float, verdict: Verdict) -> None:
    """A verdict is decided only if the interval of the change does not contain the margin; otherwise more runs are needed."""
    judgement = judge(measurement_of(rates), entry_of(BASELINE), replace(TERMS, margin=margin))
    assert judgement.verdict is verdict, judgement.reason
    assert judgement.baseline_rate == 100
    assert judgement.needs_runs is (verdict is Verdict.INCONCLUSIVE)
    assert "\n" not in judgement.reason


REASONS: dict[str, tuple[list[float], list[float], str]] = {
    "regressed": (
        BASELINE,
        [90, 90.5, 91],
        "-9.5 % against 100.0 images/sec: 88.7 % to 92.6 % of it, margin 5.0 %; 3 runs, noise 1.0 %",
    ),
    "unconfirmed": (
        BASELINE,
        [80, 80.5],
        "it is worse, but 3 runs are needed to confirm that (--repeats=3): up to 10.0 % of runs may be slow by chance",
    ),
    "open": (BASELINE, [91, 99], "about 20 runs are needed for a verdict (--repeats=20)"),
    "hopeless": (
        [80.0, 120.0],
        [90, 110],
        "against a baseline of 2 runs with such noise, no number of runs is enough for that margin",
    ),
    "one run": (
        [100.0],
        [90],
        "no interval yet, margin 5.0 %; 1 run, noise 1.0 %; too few runs for a verdict: at least 3 are needed (--repeats=3)",
    ),
}


@pytest.mark.parametrize("stored, rates, words", REASONS.values(), ids=REASONS)
def test_reason_has_the_numbers_of_the_verdict(stored: list[float], rates: list[float], words: str) -> None:
    """The reason has the numbers that the verdict depends on, and the next action for an undecided one."""
    reason = judge(measurement_of(rates), entry_of(stored), TERMS).reason
    assert words in reason
    assert "the baseline measured" not in reason, "as many steps"


RARE: dict[str, tuple[list[float], list[float], str]] = {
    "current": (BASELINE, [100.2, 80, 100.1, 99.9, 100], "1 of 5 runs was 20.0 % slower than the others and counts as rare"),
    "baseline": (
        [100, 100.2, 80, 99.9, 100],
        [100, 100.5, 99.8, 100.1],
        "1 of 5 runs of the baseline was 20.0 % slower than the others and counts as rare",
    ),
    "two": (BASELINE, [100, 79, 100.2, 80, 100], "2 of 5 runs were 20.6 % slower than the others: too many to count as rare"),
}


@pytest.mark.parametrize("stored, rates, words", RARE.values(), ids=RARE)
def test_reason_names_the_side_with_slow_runs(stored: list[float], rates: list[float], words: str) -> None:
    """The reason has the number of slow runs, their side, how much slower they were, and whether they count as rare."""
    reason = judge(measurement_of(rates), add_noise(entry_of(stored), 0.005), TERMS).reason
    assert reason.endswith(f"; {words}")


def test_change_is_the_ratio_of_geometric_means() -> None:
    """The change is the ratio of the geometric means over runs."""
    judgement = judge(measurement_of([90, 110]), entry_of([100, 100]), TERMS)
    assert judgement.change == pytest.approx((90 * 110) ** 0.5 / 100 - 1)


def test_calibrated_noise_is_a_lower_limit() -> None:
    """Similar runs are judged with the calibrated noise if that is larger."""
    quiet, noisy = entry_of(BASELINE), add_noise(entry_of(BASELINE), run=0.04)
    measured = measurement_of([97, 97, 97])
    assert judge(measured, quiet, TERMS).verdict is Verdict.PASSED
    judgement = judge(measured, noisy, TERMS)
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert "noise 4.0 %" in judgement.reason


def test_one_run_passes_with_calibrated_noise() -> None:
    """With calibrated noise one run can pass but not regress, and `least` requires more runs."""
    entry = add_noise(entry_of(BASELINE), run=0.005)
    assert judge(measurement_of([100]), entry, TERMS).verdict is Verdict.PASSED
    assert judge(measurement_of([70]), entry, TERMS).verdict is Verdict.INCONCLUSIVE
    assert judge(measurement_of([100]), entry, replace(TERMS, least=2)).verdict is Verdict.INCONCLUSIVE


def test_disturbed_runs_are_left_out() -> None:
    """A disturbed run is left out with a note; if all runs were disturbed, the verdict is TAINTED."""
    measured = measurement_of([100, 60, 100.5])
    one = replace(measured.runs[1], disturbances=[BUSY])
    judgement = judge(replace(measured, runs=[measured.runs[0], one, measured.runs[2]]), entry_of(BASELINE), TERMS)
    assert judgement.verdict is Verdict.PASSED
    assert "1 disturbed run left out" in judgement.reason
    tainted = judge(replace(measured, runs=[one, one]), entry_of(BASELINE), TERMS)
    assert tainted.verdict is Verdict.TAINTED
    assert f"{BUSY}. Measure when the machine is quiet" in tainted.reason


def test_unsteady_runs_are_inconclusive() -> None:
    """Runs with a second half that is slower by more than the margin are INCONCLUSIVE, and more runs do not help."""
    measured = measurement_of([100, 100])
    step_s = {"worker:0": [0.01 + 0.00001 * (step % 3) for step in range(50)] + [0.012] * 50}
    judgement = judge(replace(measured, runs=[replace(run, step_s=step_s) for run in measured.runs]), entry_of(BASELINE), TERMS)
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert not judgement.needs_runs
    assert "no steady state: the second half of 2 of 2 runs had 84.1 % to 84.1 %" in judgement.reason
    assert "--warmup-steps" in judgement.reason


SLOWER, A_LITTLE_SLOWER = 0.012, 0.0103  # than 0.01 s, beyond the margin and within it
STEADY: dict[str, tuple[list[float], Verdict]] = {
    "all within the margin": ([A_LITTLE_SLOWER, A_LITTLE_SLOWER], Verdict.PASSED),
    "one of two": ([SLOWER, 0.01], Verdict.PASSED),
    "two of three": ([SLOWER, 0.01, SLOWER], Verdict.INCONCLUSIVE),
}


@pytest.mark.parametrize("seconds, verdict", STEADY.values(), ids=STEADY)
def test_one_unsteady_run_of_two_is_accepted(seconds: list[float], verdict: Verdict) -> None:
    """Slower second halves within the margin, or in half of the runs, do not make a verdict INCONCLUSIVE."""
    measured = measurement_of([100.0] * len(seconds))
    first = [0.01 + 0.00001 * (step % 3) for step in range(50)]
    runs = [replace(run, step_s={"worker:0": first + [s] * 50}) for run, s in zip(measured.runs, seconds, strict=True)]
    judgement = judge(replace(measured, runs=runs), entry_of(BASELINE), TERMS)
    assert judgement.verdict is verdict
    assert ("no steady state" in judgement.reason) is (verdict is Verdict.INCONCLUSIVE)


def test_short_windows_are_noted() -> None:
    """The reason notes windows that are short for the margin."""
    measured = measurement_of([100, 100])
    short = replace(measured, runs=[replace(run, elapsed_s=0.2) for run in measured.runs])
    assert "measured windows of 0.2 s are short for this margin" in judge(short, entry_of(BASELINE), TERMS).reason
    assert "windows of" not in judge(measured, entry_of(BASELINE), TERMS).reason


def test_reason_has_other_changes() -> None:
    """Changed software and another number of steps are in the reason and do not decide the verdict."""
    measured = measurement_of([100, 100], software=SOFTWARE | {"tensorflow": "2.22.0"}, steps=3)
    judgement = judge(measured, entry_of(BASELINE), TERMS)
    assert judgement.verdict is Verdict.PASSED
    assert "changed since the baseline: tensorflow 2.21.0 -> 2.22.0" in judgement.reason
    assert "the baseline measured 100 steps, this 3" in judgement.reason


def test_missing_baseline_names_the_option() -> None:
    """Without a baseline the verdict is NO_BASELINE, and its reason has the option that stores one."""
    judgement = judge(measurement_of([100, 100]), None, TERMS)
    assert judgement.verdict is Verdict.NO_BASELINE
    assert "trivial b32 gpus=2 num_ps=1" in judgement.reason
    assert "--update-baselines=new" in judgement.reason


ELSEWHERE: dict[str, tuple[dict[str, Any], str]] = {
    "another CPU": ({"hardware": HARDWARE | {"cpu": "Intel Xeon"}}, "cpu: AMD EPYC 9B45 before, Intel Xeon after"),
    "less memory": ({"hardware": HARDWARE | {"memory_gib": 4}}, "memory: 8 GiB before, 4 GiB after"),
    "more hosts": ({"hosts": 2}, "hosts: 1 before, 2 after"),
    "another major version": ({"software": SOFTWARE | {"tensorflow": "3.0.0"}}, "tensorflow: 2.x before, 3.x after"),
}


@pytest.mark.parametrize("where, difference", ELSEWHERE.values(), ids=ELSEWHERE)
def test_other_fingerprint_is_incomparable(where: dict[str, Any], difference: str) -> None:
    """A required part that differs makes the verdict INCOMPARABLE, with the difference, both rates and the change."""
    judgement = judge(measurement_of([80, 80], **where), entry_of(BASELINE), TERMS)
    assert judgement.verdict is Verdict.INCOMPARABLE
    assert difference in judgement.reason
    assert "): 80.00 images/sec here, -20.0 % against its 100.0; --update-baselines" in judgement.reason
    assert judgement.change is None
    assert judgement.verdict.fails(strict=True)


def test_other_variable_placement_is_incomparable() -> None:
    """Another variable placement makes the verdict INCOMPARABLE, with both placements."""
    now, baseline = measurement_of([10, 10], num_ps=2, variable_placement="split"), entry_of(BASELINE, num_ps=2)
    judgement = judge(now, baseline, TERMS)
    assert judgement.verdict is Verdict.INCOMPARABLE
    assert "measured with variable_placement=greedy, this with variable_placement=split: 10.00 images/sec" in judgement.reason
    assert "here, -90.0 % against its 100.0; --update-baselines adds this one" in judgement.reason
    assert judgement.change is None


def test_baseline_of_another_training_is_an_error() -> None:
    """A baseline of another batch size is a ValueError, also with another placement."""
    with pytest.raises(ValueError, match="says nothing of"):
        judge(measurement_of([10, 10], batch_size=9, variable_placement="split"), entry_of(BASELINE), TERMS)


WHAT_DIFFERS = "requested: 1 node, 4 GPUs each; granted: 1 node, 3 GPUs each"


@pytest.mark.parametrize("entry", [entry_of(BASELINE), None], ids=["with a baseline", "without one"])
def test_hosts_other_than_requested_are_incomparable(entry: Entry | None) -> None:
    """If less was allocated than requested, the verdict is INCOMPARABLE with both lists."""
    judgement = judge(measurement_of([100, 100], placement=MISPLACED), entry, TERMS)
    assert judgement.verdict is Verdict.INCOMPARABLE
    assert WHAT_DIFFERS in judgement.reason
    assert ("0.0 % against its 100.0" in judgement.reason) == (entry is not None)
    assert judgement.change is None


def test_hosts_as_requested_are_judged() -> None:
    """An allocation as requested does not affect the verdict, and a baseline need not match it."""
    measured = measurement_of([100, 100], placement=AS_ASKED)
    assert judge(measured, entry_of(BASELINE), TERMS).verdict is Verdict.PASSED
    assert judge(measured, entry_of(BASELINE, placement=AS_ASKED), TERMS).verdict is Verdict.PASSED


def test_baseline_of_another_spec_is_a_mistake() -> None:
    """A baseline is never held against a measurement of something else."""
    with pytest.raises(ValueError, match="says nothing of"):
        judge(measurement_of([1, 1], batch_size=64), entry_of(BASELINE), TERMS)


@pytest.mark.parametrize("margin", [-0.01, 1.0, 5.0, float("nan")])
def test_margin_outside_of_its_range_is_refused(margin: float) -> None:
    """A margin below 0 or from 1 on is refused, with an example."""
    with pytest.raises(UsageError, match=r"margin must be at least 0 and less than 1, not .*: 0.05 means 5 %"):
        ComparisonPolicy(margin=margin)


def test_faster_runs_have_no_worse_verdict() -> None:
    """A verdict never becomes worse if all rates are multiplied by the same larger factor."""
    order = [Verdict.REGRESSED, Verdict.INCONCLUSIVE, Verdict.PASSED, Verdict.IMPROVED]
    for spread in (0.0, 0.02, 0.2):
        verdicts = [
            judge(measurement_of([rate * (1 - spread), rate, rate]), entry_of(BASELINE), TERMS).verdict
            for rate in range(60, 160)
        ]
        assert [order.index(v) for v in verdicts] == sorted(order.index(v) for v in verdicts)
