"""Error rates of verdicts, held against the stated ones, by simulation. `python -m benchmarks.verdicts [TABLE ...]`

docs/statistics.md has these tables. Everything is drawn from a fixed seed; all tables take some minutes.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from benchmarks.nights import BUDGET, CASES, NightPlan
from benchmarks.simulation import ASSUMED, BETTER, HOLDS, WORSE, CaseNoises, Floats, NoiseModel, Outcomes, Trial, judge
from pytest_dtfperf.baselines.compare import VERDICTS
from pytest_dtfperf.baselines.terms import ComparisonPolicy, share
from pytest_dtfperf.baselines.thresholds import compare_in_turns
from pytest_dtfperf.datamodel.fingerprint import Fingerprint
from pytest_dtfperf.datamodel.measurement import Measurement, Run
from pytest_dtfperf.spec import Spec
from pytest_dtfperf.stats.comparison import Answer, Question, runs_needed
from pytest_dtfperf.stats.noise import Noise, compute_drift

SEED = 20_241
SPREADS = (0.005, 0.01, 0.02, 0.03, 0.05)
MARGINS = (0.02, 0.05, 0.10)
FALSE_ALARM = BUDGET / CASES
STEPS, FIXED_RUNS = 110, 5  # of the fixed protocol that the cost is compared with
KNOWLEDGE = {
    "no": "nothing",
    "runs": "only runs, 5 times 5",
    "sessions": "5 sessions of 5",
    "many sessions": "20 sessions of 2",
}


def trial(cv: float, margin: float, calibrated: str = "runs", baseline: int = 10, shape: str = "normal") -> Trial:
    """With the plugin's defaults, one of 24 cases, exactly at its margin."""
    least = 2 if calibrated == "no" else 1
    question = Question(floor=1 - margin, ceiling=1 + margin, false_alarm=FALSE_ALARM, least=least)
    return Trial(
        noise_model=NoiseModel(cv=cv, shape=shape),
        ratio=1 - margin,
        question=question,
        baseline_runs=baseline,
        calibrated=calibrated,
    )


def error_rates(random: np.random.Generator, cases: int) -> Iterator[str]:
    """Of single cases: at the margin, without change, and with a loss of twice the margin."""
    for calibrated, baseline in (("runs", 10), ("runs", 5), ("runs", 2), ("no", 10), ("no", 5), ("no", 2)):
        yield f"\nCalibrated: {KNOWLEDGE[calibrated]}. Runs of the baseline: {baseline}.\n"
        yield from _head(
            "CV | margin | false alarms at the margin | missed at the margin | false alarms, no change | passed, no change "
            "| runs, no change | found, twice the margin | missed, twice the margin | runs, twice the margin | runs needed"
        )
        for cv in SPREADS:
            for margin in MARGINS:
                limit = trial(cv, margin, calibrated, baseline)
                at, same, worse = (
                    limit.with_ratio(ratio).outcomes(random, cases) for ratio in (1 - margin, 1.0, 1 - 2 * margin)
                )
                noise = Noise(run=cv, degrees_of_freedom=20) if calibrated == "runs" else Noise(run=max(cv, ASSUMED.run))
                needed = runs_needed(baseline, noise, margin, FALSE_ALARM)
                yield _row(
                    f"{cv:.1%}",
                    f"{margin:.0%}",
                    f"{at.fraction(WORSE):.3%}",
                    f"{at.fraction(HOLDS, BETTER):.2%}",
                    f"{same.fraction(WORSE):.3%}",
                    f"{same.fraction(HOLDS, BETTER):.1%}",
                    f"{same.mean_runs:.2f}",
                    f"{worse.fraction(WORSE):.1%}",
                    f"{worse.fraction(HOLDS, BETTER):.3%}",
                    f"{worse.mean_runs:.2f}",
                    "never" if needed is None else str(needed),
                )


def shapes(random: np.random.Generator, cases: int) -> Iterator[str]:
    """Noise that is not what the test takes it for. Margin 5 %, baselines of 10."""
    yield from _head(
        "noise | CV | calibrated | false alarms at the margin | missed at the margin | false alarms, no change "
        "| passed, no change | found, twice the margin | missed, twice the margin"
    )
    kinds: dict[str, Callable[[NoiseModel], NoiseModel]] = {
        "normal": lambda noise_model: noise_model,
        "Student's t, 3 df": lambda noise_model: replace(noise_model, shape="heavy tails"),
        "1 of 20 runs 5 CV slower": lambda noise_model: replace(noise_model, shape="slow runs"),
        "autoregressive, 0.5": lambda noise_model: replace(noise_model, shape="correlated"),
        "drift of 2 % a night": lambda noise_model: replace(noise_model, drift=0.02),
    }
    for name, kind in kinds.items():
        for cv in (0.01, 0.02):
            for calibrated in ("no", "runs", "sessions"):
                limit = trial(cv, 0.05, calibrated)
                limit = replace(limit, noise_model=kind(limit.noise_model))
                yield _row(name, f"{cv:.0%}", KNOWLEDGE[calibrated], *_ends(limit, random, cases))


def rare_runs(random: np.random.Generator, cases: int) -> Iterator[str]:
    """Runs that are slow once in a while, on both sides and in the calibration. Margin 5 %, baselines of 10."""
    yield from _head(
        "runs that are slower | by | CV | calibrated | false alarms at the margin | missed at the margin "
        "| false alarms, no change | passed, no change | found, twice the margin | missed, twice the margin"
    )
    kinds = [(0.02, 0.2), (0.05, 0.1), (0.05, 0.2), (0.05, 0.4), (0.1, 0.1), (0.1, 0.2)]
    for part, slower in kinds:
        for cv in (0.01, 0.02):
            for calibrated in ("no", "runs"):
                limit = trial(cv, 0.05, calibrated)
                limit = replace(limit, noise_model=replace(limit.noise_model, rare=part, slower=slower))
                ends = _ends(limit, random, cases)
                yield _row(f"{part:.0%}", f"{slower:.0%}", f"{cv:.0%}", KNOWLEDGE[calibrated], *ends)


def rare_nights(random: np.random.Generator, cases: int) -> Iterator[str]:
    """Nights of 200 tests without change, CV 1 %, margin 5 %, with runs that are slow once in a while: nights that are red."""
    yield from _head("runs that are slower | by | calibrated | red nights | undecided cases")
    for part, slower in ((0.02, 0.2), (0.05, 0.1), (0.05, 0.2), (0.05, 0.4), (0.1, 0.2)):
        for calibrated in ("no", "runs"):
            kind = trial(0.01, 0.05, calibrated)
            kind = replace(kind, noise_model=replace(kind.noise_model, rare=part, slower=slower))
            ended = NightPlan(trial=kind, ratios=[1.0] * 200).nights(random, cases // 20)
            yield _row(
                f"{part:.0%}",
                f"{slower:.0%}",
                KNOWLEDGE[calibrated],
                f"{ended.fraction_red:.2%}",
                f"{ended.fraction_undecided:.1%}",
            )


def sessions(random: np.random.Generator, cases: int) -> Iterator[str]:
    """What all runs of a session have in common. CV 2 %, margin 5 %, baselines of 10."""
    yield from _head(
        "sessions differ by | calibrated | false alarms at the margin | missed at the margin | false alarms, no change "
        "| passed, no change | found, twice the margin | missed, twice the margin"
    )
    for session in (0.0, 0.005, 0.01, 0.02):  # standard deviation
        for calibrated, words in KNOWLEDGE.items():
            limit = trial(0.02, 0.05, calibrated)
            limit = replace(limit, noise_model=replace(limit.noise_model, session=session))
            yield _row(f"{session:.1%}", words, *_ends(limit, random, cases))


def _ends(limit: Trial, random: np.random.Generator, cases: int) -> Iterator[str]:
    margin = 1 - limit.ratio
    at, same, worse = (limit.with_ratio(ratio).outcomes(random, cases) for ratio in (limit.ratio, 1.0, 1 - 2 * margin))
    yield f"{at.fraction(WORSE):.3%}"
    yield f"{at.fraction(HOLDS, BETTER):.1%}"
    yield f"{same.fraction(WORSE):.3%}"
    yield f"{same.fraction(HOLDS, BETTER):.1%}"
    yield f"{worse.fraction(WORSE):.1%}"
    yield f"{worse.fraction(HOLDS, BETTER):.3%}"


def cost(random: np.random.Generator, cases: int) -> Iterator[str]:
    """Steps of a decision, as a part of those of 5 runs of 110 steps. CV 2 %, margin 5 %."""
    yield from _head("calibrated | runs of the baseline | no change | loss of 10 % | gain of 10 %")
    for calibrated in ("runs", "sessions", "many sessions", "no"):
        for baseline in (20, 10, 5, 2):
            kind = trial(0.02, 0.05, calibrated, baseline)
            runs = [kind.with_ratio(ratio).outcomes(random, cases).mean_runs for ratio in (1.0, 0.9, 1.1)]
            yield _row(KNOWLEDGE[calibrated], str(baseline), *(f"{each * STEPS / (FIXED_RUNS * STEPS):.0%}" for each in runs))


def nights(random: np.random.Generator, cases: int) -> Iterator[str]:
    """24 cases a night, budget 5 %. Nights, not cases, are counted; baselines of 10 are drawn anew for each."""
    count = cases // 4
    yield from _head(
        "CV | margin | calibrated | red, no change | undecided cases | runs of a night | red, all cases at their margin "
        "| one case loses twice the margin: found | passed"
    )
    for cv, margin in ((0.01, 0.05), (0.02, 0.05), (0.03, 0.05), (0.05, 0.05), (0.02, 0.02), (0.05, 0.10)):
        for calibrated in ("runs", "no"):
            plan = NightPlan(trial=trial(cv, margin, calibrated))
            same = plan.nights(random, count)
            limit = replace(plan, ratios=[1 - margin] * CASES).nights(random, count)
            worse = replace(plan, ratios=[1 - 2 * margin, *[1.0] * (CASES - 1)]).nights(random, count)
            yield _row(
                f"{cv:.0%}",
                f"{margin:.0%}",
                KNOWLEDGE[calibrated],
                f"{same.fraction_red:.2%}",
                f"{same.fraction_undecided:.1%}",
                f"{same.runs_of_a_night:.0f}",
                f"{limit.fraction_red:.2%}",
                f"{worse.fraction_found(0):.1%}",
                f"{worse.fraction_passed(0):.2%}",
            )


def fixed_baselines(random: np.random.Generator, cases: int) -> Iterator[str]:
    """The same baselines for 1,000 nights; and that 40 times. CV 2 %, margin 5 %, nothing calibrated: red nights."""
    yield from _head("runs of the baseline | all cases are | sessions differ by | mean | median | 95 of 100 below | worst")
    for baseline in (10, 5):
        kind = trial(0.02, 0.05, "no", baseline)
        for ratio, where in ((1.0, "as before"), (0.95, "at their margin")):
            for session in (0.0, 0.01):
                plan = NightPlan(
                    trial=replace(kind, noise_model=replace(kind.noise_model, session=session)), ratios=[ratio] * CASES
                )
                red = [plan.nights(random, 1000, plan.baselines(random)).fraction_red for _ in range(max(1, cases // 1000))]
                parts = float(np.mean(red)), *(float(np.quantile(red, part)) for part in (0.5, 0.95, 1.0))
                yield _row(str(baseline), where, f"{session:.0%}", *(f"{part:.1%}" for part in parts))


def several_losses(random: np.random.Generator, cases: int) -> Iterator[str]:
    """Losses in several cases: what the order of Holm adds. CV 3 %, margin 5 %, baselines of 10, calibrated."""
    count = cases // 4
    yield from _head(
        "cases that lost 10 % | found by Holm | found by Bonferroni | others red by Holm | others red by Bonferroni"
    )
    for slow in (1, 6, 12, 20):
        plan = NightPlan(trial=trial(0.03, 0.05), ratios=[0.9] * slow + [0.95] * (CASES - slow))
        ended = [replace(plan, is_holm=is_holm).nights(random, count) for is_holm in (True, False)]
        found = [float((each.answers[:, :slow] == WORSE).mean()) for each in ended]
        others = [float((each.answers[:, slow:] == WORSE).any(axis=1).mean()) for each in ended]
        yield _row(str(slow), *(f"{each:.1%}" for each in found), *(f"{each:.2%}" for each in others))


def in_turn(random: np.random.Generator, cases: int) -> Iterator[str]:
    """Two specs of one speed in one session of 20 runs in which the machine loses speed evenly. CV 1 %, margin 5 %."""
    question = replace(trial(0.01, 0.05).question, false_alarm=BUDGET)
    yield from _head("drift over the session | in turn: worse | holds | better | one after the other: worse | holds | better")
    for lost in (0.0, 0.05, 0.10, 0.20):
        rates: Floats = NoiseModel(cv=0.01).draw_sessions(random, cases, 20) - lost * np.arange(20) / 20
        noises = CaseNoises.repeat(Noise(run=0.01, degrees_of_freedom=20), cases)
        turns = judge(rates[:, 1::2], rates[:, ::2], noises, question, is_stored=False, baseline_noises=noises)
        after = judge(rates[:, 10:], rates[:, :10], noises, question)
        parts = [f"{each.fraction(answer):.1%}" for each in (turns, after) for answer in (WORSE, HOLDS, BETTER)]
        yield _row(f"{lost:.0%}", *parts)


def unlike_spreads(random: np.random.Generator, cases: int) -> Iterator[str]:
    """Two trainings in turn whose runs scatter unlike, as n devices and their anchor. Asked: 90 %, of 24 tests."""
    yield from _head(
        "CV of n devices | CV of the anchor | calibrated | red at 90 % | passed at 90 % | passed at 95 % | runs of each "
        "| found at 80 % | runs of each"
    )
    for calibrated in ("both", "neither", "n devices", "the anchor"):
        for cv, anchor_cv in ((0.01, 0.01), (0.01, 0.05), (0.05, 0.01), (0.02, 0.02), (0.02, 0.10)):
            at, good, bad = (unlike_pair(random, cases, cv, anchor_cv, calibrated, ratio) for ratio in (0.9, 0.95, 0.8))
            yield _row(
                f"{cv:.0%}",
                f"{anchor_cv:.0%}",
                calibrated,
                f"{at.fraction(WORSE):.3%}",
                f"{at.fraction(HOLDS, BETTER):.1%}",
                f"{good.fraction(HOLDS, BETTER):.0%}",
                f"{good.mean_runs:.1f}",
                f"{bad.fraction(WORSE):.0%}",
                f"{bad.mean_runs:.1f}",
            )


def earlier_anchor(random: np.random.Generator, cases: int) -> Iterator[str]:
    """An anchor that was measured earlier in the session than n devices. Asked: 90 %, CV 1 %, one test, 10 runs at most."""
    count = max(1, cases // 20)
    yield from _head(
        "the machine became faster by | when | calibrated | red at 90 % | passed at 90 % | passed at 95 % | runs of n devices "
        "| of the anchor | red at 85 % | passed at 85 %"
    )
    for change in (0.0, -0.1, 0.1, -0.02):
        for when in ("before n devices", "after them") if change else ("never",):
            for calibrated in (True, False):
                at, good, bad = (
                    [_earlier_case(random, np.log1p(change), when, calibrated, ratio) for _ in range(count)]
                    for ratio in (0.9, 0.95, 0.85)
                )
                yield _row(
                    f"{change:.0%}",
                    when,
                    "yes" if calibrated else "no",
                    *(f"{np.mean([each[0] == verdict for each in at]):.2%}" for verdict in ("REGRESSED", "PASSED")),
                    f"{np.mean([each[0] == 'PASSED' for each in good]):.1%}",
                    *(f"{np.mean([each[i] for each in good]):.1f}" for i in (1, 2)),
                    *(f"{np.mean([each[0] == verdict for each in bad]):.1%}" for verdict in ("REGRESSED", "PASSED")),
                )


def _earlier_case(
    random: np.random.Generator, change: float, when: str, is_calibrated: bool, ratio: float
) -> tuple[str, int, int]:
    """The verdict, and how many runs of n devices and of the anchor it took from the beginning."""
    noise = replace(ASSUMED, degrees_of_freedom=20) if is_calibrated else ASSUMED
    terms = ComparisonPolicy(false_alarm=share(BUDGET, tests=1, red=0, check=0))
    question = terms.question(0.9, noise, noise)
    now = 0.0  # of the machine

    def with_runs(measured: Measurement, log_rate: float, *rounds: float) -> Measurement:
        rates = np.exp(log_rate + now + random.normal(0, 0.01, len(rounds)))
        return measured.with_runs([_make_run(rate, at) for rate, at in zip(rates.tolist(), rounds, strict=True)])

    empty = Measurement(spec=Spec(model="trivial", batch_size=1), runs=(), hosts=(), fingerprint=Fingerprint())
    first = range(question.least)
    one = with_runs(empty, 0.0, *(float(each) for each in first))
    now = change if when == "before n devices" else now
    many = with_runs(empty, float(np.log(ratio)), *(10.0 + each for each in first))
    now = change
    one = with_runs(one, 0.0, *(20.0 + each for each in first))
    found = compare_in_turns(many, one, (noise, noise), 0.9, terms)
    for at in range(question.most):
        answer = found.estimate.answer
        if answer not in (Answer.OPEN, Answer.UNCONFIRMED):
            break
        one, many = with_runs(one, 0.0, 30.0 + at), with_runs(many, float(np.log(ratio)), 30.0 + at)
        found = compare_in_turns(many, one, (noise, noise), 0.9, terms)
    return VERDICTS[found.estimate.answer], len(many.runs), len(one.runs)


def _make_run(images_per_sec: float, round_s: float) -> Run:
    return Run(
        images_per_sec=images_per_sec,
        elapsed_s=1.0,
        step_s={},
        loss=(),
        startup_s={},
        bytes_sent=0,
        bytes_received=0,
        peak_rss_bytes={},
        cpu_s={},
        wall_s=1.0,
        round_s=round_s,
    )


def unlike_pair(
    random: np.random.Generator,
    cases: int,
    cv: float,
    anchor_cv: float,
    calibrated: str,
    ratio: float,
    false_alarm: float = FALSE_ALARM * 7 / 8,  # of a first check, with others to come
) -> Outcomes:
    """How checks of an efficiency of at least 90 % end where it is `ratio`."""
    models = NoiseModel(cv=cv), NoiseModel(cv=anchor_cv)
    is_known = calibrated in ("both", "n devices"), calibrated in ("both", "the anchor")
    noises, anchor_noises = (
        replace(model.calibrate(random, cases), session=np.zeros(cases)) if each else CaseNoises.repeat(ASSUMED, cases)
        for model, each in zip(models, is_known, strict=True)
    )
    question = Question(floor=0.9, false_alarm=false_alarm, least=1 if all(is_known) else 2)
    current, baseline = (model.draw_sessions(random, cases, question.most) for model in models)
    return judge(current + np.log(ratio), baseline, noises, question, is_stored=False, baseline_noises=anchor_noises)


def steady_runs(random: np.random.Generator, cases: int) -> Iterator[str]:
    """Runs that are flagged as unsteady; at most 1 % is stated where nothing drifts. Step times with a CV of 2 %."""
    count = min(cases, 10_000)
    yield from _head(
        "steps | correlation with the one before | nothing drifts | second half 5 % slower | 10 % slower from beginning to end"
    )
    for steps in (30, 50, 100, 300):
        jump, ramp = np.where(np.arange(steps) < steps // 2, 1.0, 1.05), np.linspace(1, 1.1, steps)
        for resemblance in (0.0, 0.5, 0.8):
            step_s = np.exp(0.02 * draw_correlated_steps(random, count, steps, resemblance))
            some = step_s[: count // 5]
            drifting = (f"{_measure_flagged_fraction(some * pattern):.1%}" for pattern in (jump, ramp))
            yield _row(str(steps), f"{resemblance:.1f}", f"{_measure_flagged_fraction(step_s):.2%}", *drifting)


def draw_correlated_steps(random: np.random.Generator, cases: int, steps: int, resemblance: float) -> Floats:
    """Standard normal steps, each correlated with the one before: (case, step)."""
    values: Floats = random.normal(size=(cases, steps))
    for step in range(1, steps):
        values[:, step] = resemblance * values[:, step - 1] + np.sqrt(1 - resemblance**2) * values[:, step]
    return values


def _measure_flagged_fraction(step_s: Floats) -> float:
    found = [compute_drift(each) for each in step_s.tolist()]
    return float(np.mean([each is not None and each.is_more_than(0) for each in found]))


def _head(columns: str) -> list[str]:
    names = columns.split(" | ")
    return [_row(*names), _row(*["---"] * len(names))]


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


Table = Callable[[np.random.Generator, int], Iterator[str]]
TABLES: dict[str, Table] = {
    "error-rates": error_rates,
    "shapes": shapes,
    "rare": rare_runs,
    "rare-nights": rare_nights,
    "sessions": sessions,
    "cost": cost,
    "nights": nights,
    "fixed-baselines": fixed_baselines,
    "several": several_losses,
    "in-turn": in_turn,
    "unlike": unlike_spreads,
    "earlier": earlier_anchor,
    "steady": steady_runs,
}


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.verdicts", description="Error rates of verdicts, by simulation."
    )
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"of {', '.join(TABLES)}; all by default")
    parser.add_argument("--cases", type=int, default=40_000, help="simulated for every number (%(default)s)")
    chosen = parser.parse_args(arguments)
    if unknown := sorted(set(chosen.tables) - set(TABLES)):
        parser.error(f"there is no table {', '.join(unknown)}; there are {', '.join(TABLES)}")
    for name in chosen.tables or TABLES:
        began = time.monotonic()
        print(f"\n## {name}: {TABLES[name].__doc__}\n")
        for line in TABLES[name](np.random.default_rng(SEED), chosen.cases):
            print(line, flush=True)
        print(f"\n{chosen.cases} cases, {time.monotonic() - began:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1:])
