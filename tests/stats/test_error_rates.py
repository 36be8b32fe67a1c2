"""Tests of the stated error rates of verdicts, by simulation. `python -m benchmarks.verdicts` has more of them."""

import math
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.nights import BUDGET, CASES, NightPlan
from benchmarks.simulation import ASSUMED, BETTER, HOLDS, NAMES, WORSE, CaseNoises, NoiseModel, iterate_answers
from benchmarks.verdicts import FALSE_ALARM, FIXED_RUNS, MARGINS, SPREADS, trial, unlike_pair
from pytest_dtfperf.stats.comparison import Question, compare_alternating, compare_with_stored, runs_needed
from pytest_dtfperf.stats.noise import Noise, estimate_noise
from tests import campaign

SEED = 11
SIMULATED, NIGHTS = (2_500, 1000) if campaign.WHOLE else (800, 300)

pytestmark = pytest.mark.campaign


def compute_tolerance(rate: float, cases: int = SIMULATED) -> float:
    """Return the excess over this rate that chance causes once in ten thousand times."""
    return 3.7 * math.sqrt(rate / cases)


@pytest.mark.parametrize(
    "is_stored, same_training",
    [(True, True), (True, False), (False, False)],
    ids=["against stored", "against published", "in turn"],
)
@pytest.mark.parametrize("calibrated", ["no", "runs", "sessions"])
def test_simulation_has_the_answers_of_the_plugin(calibrated: str, is_stored: bool, same_training: bool) -> None:
    """Many simulated cases at once have, run by run, the answer that each one has alone."""
    random, cases = np.random.default_rng(SEED), 40
    kind = trial(0.02, 0.05, calibrated, baseline=5)
    question = replace(kind.question, false_alarm=0.05, most=6)
    noise_model = replace(kind.noise_model, session=0.01)
    ratios = np.log(random.choice([0.88, 0.92, 0.95, 0.97, 1.0, 1.1], cases))
    current = noise_model.draw_sessions(random, cases, 6) + ratios[:, None]
    baseline = noise_model.draw_sessions(random, cases, 5 if is_stored else 6)
    noises = replace(kind, noise_model=noise_model).draw_noises(random, cases)
    baseline_noises = (
        None if same_training else replace(kind, noise_model=replace(noise_model, cv=0.03)).draw_noises(random, cases)
    )
    seen = set()
    simulated = iterate_answers(current, baseline, noises, question, is_stored=is_stored, baseline_noises=baseline_noises)
    for run, answers in simulated:
        for case in range(cases):
            noise = noises.noise(case)
            baseline_noise = baseline_noises.noise(case) if baseline_noises else None
            other_logs = baseline[case, :] if is_stored else baseline[case, :run]
            one, other = np.exp(current[case, :run]).tolist(), np.exp(other_logs).tolist()
            if is_stored:
                estimate = compare_with_stored(one, other, noise, question, baseline_noise=baseline_noise)
            else:
                assert baseline_noise
                estimate = compare_alternating(one, other, noise, baseline_noise, question)
            assert estimate.answer == NAMES[answers[case]]
            seen.add(estimate.answer)
    assert seen >= {"open", "unconfirmed", "worse", "holds"}


def test_simulation_has_the_noise_of_the_plugin() -> None:
    """The simulated noise of many places is that of each place's sessions alone."""
    noise_model, cases = NoiseModel(cv=0.02, session=0.01), 20
    noises = noise_model.calibrate(np.random.default_rng(SEED), cases)
    random = np.random.default_rng(SEED)
    sessions = [noise_model.draw_sessions(random, cases, 5) for _ in range(5)]
    for case in range(cases):
        noise, _ = estimate_noise([np.exp(each[case]).tolist() for each in sessions])
        assert (noise.run, noise.session, noise.degrees_of_freedom) == pytest.approx(
            (noises.run[case], noises.session[case], noises.degrees[case])
        )


@pytest.mark.parametrize("baseline", [10, 5, 2])
@pytest.mark.parametrize("calibrated", ["no", "runs"])
def test_errors_at_the_margin_are_as_rare_as_stated(calibrated: str, baseline: int) -> None:
    """With the true ratio exactly at the margin, neither error is more frequent than stated."""
    random = np.random.default_rng(SEED)
    for cv in SPREADS:
        for margin in MARGINS:
            ended = trial(cv, margin, calibrated, baseline).outcomes(random, SIMULATED)
            where = f"CV {cv:.1%}, margin {margin:.0%}"
            assert ended.fraction(WORSE) <= FALSE_ALARM + compute_tolerance(FALSE_ALARM), where
            assert ended.fraction(HOLDS, BETTER) <= 0.05 + compute_tolerance(0.05), where


@pytest.mark.parametrize("calibrated", ["both", "neither", "n devices", "the anchor"])
@pytest.mark.parametrize("cv, anchor_cv", [(0.01, 0.05), (0.05, 0.01)])
def test_errors_of_unequal_sides_are_as_rare_as_stated(cv: float, anchor_cv: float, calibrated: str) -> None:
    """At the threshold neither error is more frequent than stated, although one side scatters five times as much."""
    cases = SIMULATED // 5
    ended = unlike_pair(np.random.default_rng(SEED), cases, cv, anchor_cv, calibrated, ratio=0.9, false_alarm=BUDGET)
    assert ended.fraction(WORSE) <= BUDGET + compute_tolerance(BUDGET, cases)
    assert ended.fraction(HOLDS, BETTER) <= 0.05 + compute_tolerance(0.05, cases)


@pytest.mark.parametrize("calibrated", ["no", "runs"])
def test_false_alarms_without_a_change_are_ten_times_rarer(calibrated: str) -> None:
    """Without a change, false alarms are at least ten times rarer than stated."""
    random = np.random.default_rng(SEED)
    found = [trial(cv, margin, calibrated).with_ratio(1.0).outcomes(random, SIMULATED) for cv in SPREADS for margin in MARGINS]
    assert sum(each.fraction(WORSE) for each in found) / len(found) <= FALSE_ALARM / 10


@pytest.mark.parametrize("baseline", [10, 5, 2])
@pytest.mark.parametrize("calibrated", ["no", "runs"])
def test_loss_of_twice_the_margin_is_found(calibrated: str, baseline: int) -> None:
    """A loss of twice the margin is found in 95 % of cases if `runs_needed` is within the budget, and passes in at most 5 % of
    all.
    """
    random, found = np.random.default_rng(SEED), 0
    for cv in SPREADS:
        for margin in MARGINS:
            kind = trial(cv, margin, calibrated, baseline)
            ended = kind.with_ratio(1 - 2 * margin).outcomes(random, SIMULATED)
            spread = max(cv, ASSUMED.run) if calibrated == "no" else cv
            noise = Noise(run=spread, degrees_of_freedom=0 if calibrated == "no" else 20)
            needed = runs_needed(baseline, noise, margin, FALSE_ALARM)
            where = f"CV {cv:.1%}, margin {margin:.0%}: {needed} runs"
            if needed is not None and needed <= kind.question.most:
                found += 1
                assert ended.fraction(WORSE) >= 0.95, where
            assert ended.fraction(HOLDS, BETTER) <= 0.05, where
    assert found >= 2


@pytest.mark.parametrize("calibrated", ["no", "runs"])
def test_gain_of_twice_the_margin_passes(calibrated: str) -> None:
    """A gain of twice the margin passes, after few runs."""
    ended = trial(0.02, 0.05, calibrated).with_ratio(1.1).outcomes(np.random.default_rng(SEED), SIMULATED)
    assert ended.fraction(HOLDS, BETTER) >= 0.999
    assert ended.mean_runs <= 2.1


def test_decision_costs_two_fifths_of_a_fixed_protocol() -> None:
    """An unchanged case takes at most 42 % of the runs of a fixed protocol with calibrated noise, and at most half without."""
    random = np.random.default_rng(SEED)
    for baseline in (10, 5):
        assert trial(0.02, 0.05, "runs", baseline).with_ratio(1.0).outcomes(random, SIMULATED).mean_runs <= 0.42 * FIXED_RUNS
    assert trial(0.02, 0.05, "no").with_ratio(1.0).outcomes(random, SIMULATED).mean_runs <= 0.5 * FIXED_RUNS


@pytest.mark.parametrize("shape", ["heavy tails", "slow runs"])
@pytest.mark.parametrize("calibrated", ["no", "runs"])
def test_errors_with_other_noise_are_at_most_twice_as_frequent(shape: str, calibrated: str) -> None:
    """Heavy tails, or a slow run in twenty, make at most twice the stated errors at the margin."""
    ended = trial(0.02, 0.05, calibrated, shape=shape).outcomes(np.random.default_rng(SEED), SIMULATED)
    assert ended.fraction(WORSE) <= 2 * FALSE_ALARM + compute_tolerance(2 * FALSE_ALARM)
    assert ended.fraction(HOLDS, BETTER) <= 0.10


@pytest.mark.parametrize("calibrated", ["no", "runs"])
@pytest.mark.parametrize("slower", [0.1, 0.2, 0.4])
def test_rare_slow_runs_make_no_more_errors(slower: float, calibrated: str) -> None:
    """A slow run in twenty makes no more errors than stated, and 90 % of losses of twice the margin are found."""
    kind = trial(0.01, 0.05, calibrated)
    kind = replace(kind, noise_model=replace(kind.noise_model, rare=0.05, slower=slower))
    random = np.random.default_rng(SEED)
    ended, found = (kind.with_ratio(ratio).outcomes(random, SIMULATED) for ratio in (0.95, 0.9))
    assert ended.fraction(WORSE) <= FALSE_ALARM + compute_tolerance(FALSE_ALARM)
    assert ended.fraction(HOLDS, BETTER) <= 0.05 + compute_tolerance(0.05)
    assert found.fraction(WORSE) >= 0.9


@pytest.mark.parametrize("calibrated", ["no", "runs"])
@pytest.mark.parametrize("cv, margin", [(0.02, 0.05), (0.05, 0.05), (0.03, 0.10)])
def test_nights_without_a_change_are_rarely_red(cv: float, margin: float, calibrated: str) -> None:
    """Of nights of 24 cases without a change, no more are red than the budget allows, also at the margin."""
    random = np.random.default_rng(SEED)
    plan = NightPlan(trial=trial(cv, margin, calibrated))
    assert plan.nights(random, NIGHTS).fraction_red <= BUDGET / 5
    limit = replace(plan, ratios=[1 - margin] * CASES)
    assert limit.nights(random, NIGHTS).fraction_red <= BUDGET + compute_tolerance(BUDGET, NIGHTS)


@pytest.mark.parametrize("calibrated", ["no", "runs"])
def test_slow_case_of_24_is_found(calibrated: str) -> None:
    """One slow case of 24 is found in 94 % of nights, passes in at most one of 1,000, and makes few others red."""
    ended = NightPlan(trial=trial(0.02, 0.05, calibrated), ratios=[0.9, *[1.0] * (CASES - 1)]).nights(
        np.random.default_rng(SEED), NIGHTS
    )
    assert ended.fraction_found(0) >= 0.94
    assert ended.fraction_passed(0) <= 0.001
    assert (ended.answers[:, 1:] == WORSE).any(axis=1).mean() <= BUDGET / 5


def test_holm_finds_more_slow_cases() -> None:
    """With many slow cases, Holm finds more of them than equal shares of the error, and keeps to the budget."""
    slow, limit = (20, 4) if campaign.WHOLE else (8, 2)
    plan = NightPlan(trial=trial(0.03, 0.05), ratios=[0.9] * slow + [0.95] * limit)
    holm, equal = (replace(plan, is_holm=each).nights(np.random.default_rng(SEED), NIGHTS) for each in (True, False))
    assert (holm.answers[:, :slow] == WORSE).mean() > (equal.answers[:, :slow] == WORSE).mean() + 0.02
    assert (holm.answers[:, slow:] == WORSE).any(axis=1).mean() <= BUDGET + compute_tolerance(BUDGET, NIGHTS)


def test_runs_in_turn_remove_drift() -> None:
    """On a machine that loses 20 % in a session, two equal specs are equal in turn, and not one after the other."""
    cases, noise = SIMULATED // 5, Noise(run=0.01, degrees_of_freedom=20)
    rates = NoiseModel(cv=0.01).draw_sessions(np.random.default_rng(SEED), SIMULATED, 20) - 0.2 * np.arange(20) / 20
    question, few, all_known = (
        Question(floor=0.95, false_alarm=0.05),
        CaseNoises.repeat(noise, cases),
        CaseNoises.repeat(noise, SIMULATED),
    )
    current, baseline = rates[:cases, 1::2], rates[:cases, ::2]
    simulated = iterate_answers(current, baseline, few, question, is_stored=False, baseline_noises=few)
    in_turn = [answers for _, answers in simulated]
    afterwards = [answers for _, answers in iterate_answers(rates[:, 10:], rates[:, :10], all_known, question)]
    assert (np.stack(in_turn) == WORSE).any(axis=0).mean() <= 0.05
    assert (np.stack(afterwards) == WORSE).any(axis=0).mean() >= 0.9
