"""Simulate and judge many measurements at once by the rules of `stats.comparison`, to count the errors of its answers.

`tests/stats/test_error_rates.py` compares both implementations, run by run.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np
from scipy.special import ndtr, stdtrit

from pytest_dtfperf.stats.comparison import FALSE_ALARM_GAMMA, MISSED_GAMMA, RARE_SLOWDOWN, Question
from pytest_dtfperf.stats.noise import (
    CLEARLY,
    DEGREES_FOR_ONE_RUN,
    PERHAPS,
    RUNS_FOR_EACH,
    Noise,
    count_most_rare,
    runs_to_confirm,
    welch,
)
from pytest_dtfperf.stats.sequential import compute_critical_values

Floats = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
Bools = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]
Counts = np.ndarray[tuple[int, ...], np.dtype[np.int64]]

OPEN, UNCONFIRMED, WORSE, HOLDS, BETTER = range(5)
NAMES = ("open", "unconfirmed", "worse", "holds", "better")  # as `stats.comparison.Answer` has them


@dataclass(frozen=True)
class CaseNoises:
    """The known noise of each case: the fields of `stats.noise.Noise` as arrays."""

    run: Floats
    session: Floats
    degrees: Floats

    @classmethod
    def repeat(cls, noise: Noise, cases: int) -> "CaseNoises":
        return cls(np.full(cases, noise.run), np.full(cases, noise.session), np.full(cases, noise.degrees_of_freedom))

    @property
    def squares(self) -> Floats:
        squares: Floats = self.degrees * self.run**2
        return squares

    @property
    def least_degrees(self) -> float:
        return float(self.degrees.min())

    def noise(self, case: int) -> Noise:
        return Noise(run=float(self.run[case]), session=float(self.session[case]), degrees_of_freedom=float(self.degrees[case]))

    def select(self, chosen: Bools | slice) -> "CaseNoises":
        return CaseNoises(self.run[chosen], self.session[chosen], self.degrees[chosen])


@dataclass(frozen=True)
class Outcomes:
    """How each case ended."""

    answers: Counts
    runs: Counts  # that it took

    def fraction(self, *answers: int) -> float:
        return float(np.isin(self.answers, answers).mean())

    @property
    def mean_runs(self) -> float:
        return float(self.runs.mean())


def judge(
    current: Floats,
    baseline: Floats,
    noises: CaseNoises,
    question: Question,
    *,
    is_stored: bool = True,
    baseline_noises: CaseNoises | None = None,
) -> Outcomes:
    """Return how each case ends: with its first final answer, or after its last run.

    Args:
        current: Logarithms of rates, (case, run).
        baseline: Likewise.
        noises: The known noise of the current training.
        question: The question, of all cases.
        is_stored: Whether the baseline is from another session and complete from the start. Otherwise runs alternate.
        baseline_noises: The known noise of the baseline; None: both sides are the same training and scatter alike.
    """
    cases = len(current)
    answers, runs = np.full(cases, OPEN), np.full(cases, question.most)
    is_open = np.ones(cases, dtype=bool)
    for run, answers_now in iterate_answers(
        current, baseline, noises, question, is_stored=is_stored, baseline_noises=baseline_noises
    ):
        decided = is_open & (answers_now >= WORSE)
        answers[is_open] = answers_now[is_open]
        runs[decided] = run
        is_open &= ~decided
    return Outcomes(answers, runs)


def iterate_answers(
    current: Floats,
    baseline: Floats,
    noises: CaseNoises,
    question: Question,
    *,
    is_stored: bool = True,
    baseline_noises: CaseNoises | None = None,
) -> Iterator[tuple[int, Counts]]:
    """Yield the number of runs and the answers after each run, also of cases with an earlier final answer."""
    floor, ceiling = np.log(question.floor), np.log(question.ceiling)
    was_worse = np.zeros(len(current), dtype=bool)
    needed = runs_to_confirm(question.false_alarm)
    few = question.most < max(needed, question.least + 1)
    degrees = min(noises.least_degrees, (baseline_noises or noises).least_degrees)
    stored = _slow(baseline, baseline_noises or noises, question.missed) if is_stored else None
    for run in range(question.least, question.most + 1):
        comparison = _Comparison.from_runs(
            current[:, :run], baseline if is_stored else baseline[:, :run], noises, baseline_noises, question, is_stored, stored
        )
        low, high = comparison.interval()
        worse = high < floor
        last = comparison.current.counted[:, -1] & (current[:, run - 1] - comparison.baseline.mean < floor)
        if few:
            confirmed = worse & (high + np.log(RARE_SLOWDOWN) < floor)
            confirmed &= (run >= question.most) and (degrees >= DEGREES_FOR_ONE_RUN)
        else:
            confirmed = worse & was_worse & last & (run >= needed)
        answers = np.where(worse, np.where(confirmed, WORSE, UNCONFIRMED), OPEN)
        answers[~worse & (low > floor)] = HOLDS
        answers[~worse & (low > max(floor, ceiling))] = BETTER
        yield run, answers
        was_worse = worse


@dataclass(frozen=True)
class _Sample:
    """The runs of one side of each case, and which of them count."""

    rates: Floats
    counted: Bools

    @cached_property
    def count(self) -> Counts:
        count: Counts = self.counted.sum(axis=1)
        return count

    @cached_property
    def mean(self) -> Floats:
        mean: Floats = np.where(self.counted, self.rates, 0.0).sum(axis=1) / self.count
        return mean

    @cached_property
    def squares(self) -> Floats:
        squares: Floats = (np.where(self.counted, self.rates - self.mean[:, None], 0.0) ** 2).sum(axis=1)
        return squares

    def select(self, chosen: Bools) -> "_Sample":
        return _Sample(self.rates[chosen], self.counted[chosen])


def _slow(rates: Floats, noises: CaseNoises, level: float, other: _Sample | None = None) -> tuple[_Sample, _Sample]:
    """The runs without rare ones, and without those that may be such, as `stats.noise.slow_runs` finds them."""
    cases, runs = rates.shape
    slow, doubtful = np.zeros(cases, dtype=np.int64), np.zeros(cases, dtype=np.int64)
    order = np.argsort(-rates, axis=1, kind="stable")
    rank = np.argsort(order, axis=1, kind="stable")
    fastest_first = np.take_along_axis(rates, order, axis=1)
    for slowest in range(1, runs):
        rest = fastest_first[:, : runs - slowest]
        squares, degrees = noises.squares + _squares(rest), noises.degrees + rest.shape[1] - 1
        if other:
            squares, degrees = squares + other.squares, degrees + other.count - 1
        is_known = degrees > 0
        spread = np.maximum(np.sqrt(squares / np.maximum(degrees, 1)), noises.run)
        distance = (rest.mean(axis=1) - fastest_first[:, runs - slowest]) / (spread * np.sqrt(1 + 1 / rest.shape[1]))
        clearly, perhaps = (_limits(part, degrees) for part in (CLEARLY, PERHAPS))
        slow[is_known & (distance > clearly)] = slowest
        if slowest <= count_most_rare(runs, level):
            doubtful[is_known & (distance > perhaps)] = slowest
    rare = np.where(slow * RUNS_FOR_EACH <= runs, slow, 0)
    return _Sample(rates, rank < (runs - rare)[:, None]), _Sample(rates, rank < (runs - np.maximum(rare, doubtful))[:, None])


def _limits(part: float, degrees: Floats) -> Floats:
    """Quantiles of Student's t; degrees of freedom are whole numbers."""
    whole = np.maximum(degrees, 1).astype(np.int64)
    table: Floats = -stdtrit(np.arange(1.0, whole.max() + 1), part)
    return table[whole - 1]


@dataclass(frozen=True)
class _Comparison:
    """Both sides of each case after a number of runs."""

    current: _Sample
    baseline: _Sample
    current_certain: _Sample  # without runs that may be rare
    baseline_certain: _Sample
    noises: CaseNoises
    baseline_noises: CaseNoises | None
    question: Question
    is_stored: bool

    @classmethod
    def from_runs(
        cls,
        current: Floats,
        baseline: Floats,
        noises: CaseNoises,
        baseline_noises: CaseNoises | None,
        question: Question,
        is_stored: bool,
        stored: tuple[_Sample, _Sample] | None,
    ) -> "_Comparison":
        before, before_certain = stored or _slow(baseline, baseline_noises or noises, question.missed)
        after, after_certain = _slow(current, noises, question.false_alarm, before_certain if baseline_noises is None else None)
        return cls(after, before, after_certain, before_certain, noises, baseline_noises, question, is_stored)

    def interval(self) -> tuple[Floats, Floats]:
        low, high = self._interval(self.current, self.baseline, slice(None))
        chosen = self.current_certain.count < self.current.count
        if chosen.any():
            high[chosen] = np.maximum(
                high[chosen], self._interval(self.current_certain.select(chosen), self.baseline.select(chosen), chosen)[1]
            )
        chosen = self.baseline_certain.count < self.baseline.count
        if chosen.any():
            low[chosen] = np.minimum(
                low[chosen], self._interval(self.current.select(chosen), self.baseline_certain.select(chosen), chosen)[0]
            )
        return low, high

    def _interval(self, current: _Sample, baseline: _Sample, chosen: Bools | slice) -> tuple[Floats, Floats]:
        question, run = self.question, current.rates.shape[1]
        noises = self.noises.select(chosen)
        baseline_noises = self.baseline_noises and self.baseline_noises.select(chosen)
        one, two, degrees_of_freedom, cautious = _spreads(current, baseline, noises, baseline_noises)
        sessions = (
            noises.session**2 + (baseline_noises or noises).session ** 2 if self.is_stored else np.zeros(len(current.rates))
        )
        centre = current.mean - baseline.mean
        error = np.sqrt(one**2 / current.count + two**2 / baseline.count + sessions)
        unit = (one**2 + two**2) / 2
        parts = _round(one**2 / unit) if baseline_noises else np.ones(len(centre))
        extras = _round(sessions / unit)
        _, kind = np.unique(parts + 1j * extras, return_inverse=True)
        kinds, first, kind = np.unique(
            (kind * 100 + current.count) * 100 + baseline.count, return_index=True, return_inverse=True
        )
        below, above = np.empty(len(kinds)), np.empty(len(kinds))
        for i, case in enumerate(first.tolist()):
            sides = int(current.count[case]), int(baseline.count[case]), float(parts[case]), float(extras[case])
            information, here = _information(run, *sides, question, self.is_stored)
            so_far, total = information[: here + 1], information[-1]
            below[i] = _critical(so_far, question.missed, MISSED_GAMMA, total)
            above[i] = _critical(so_far, question.false_alarm, FALSE_ALARM_GAMMA, total)
        is_known = degrees_of_freedom > 0
        low = centre - _quantiles_of(below, kind, cautious) * error
        high = centre + _quantiles_of(above, kind, degrees_of_freedom) * error
        return np.where(is_known, low, -np.inf), np.where(is_known, high, np.inf)


def _quantiles_of(critical: Floats, kind: Counts, degrees_of_freedom: Floats) -> Floats:
    """Quantiles of each case, computed once for each kind and number of degrees of freedom; 0 of them are taken for 1."""
    _, first, each = np.unique(kind + 1j * degrees_of_freedom, return_index=True, return_inverse=True)
    return _quantiles(critical[kind[first]], np.where(degrees_of_freedom > 0, degrees_of_freedom, 1.0)[first])[each]


@cache
def _information(
    run: int, runs: int, baseline_runs: int, part: float, extra: float, question: Question, is_stored: bool
) -> tuple[tuple[float, ...], int]:
    """Return the information at each analysis, and the index of the current one, which has `runs` of `run` runs."""

    def information(current: int, baseline: int) -> float:
        return 1 / ((2 / current if current == baseline else part / current + (2 - part) / baseline) + extra)

    this = information(runs, baseline_runs)
    planned = {
        count: information(count, baseline_runs if is_stored else count) for count in range(question.least, question.most + 1)
    }
    before = [each for count, each in planned.items() if count < run and each < this]
    after = [each for count, each in planned.items() if count > run and each > this]
    return (*before, this, *after), len(before)


def _spreads(
    current: _Sample, baseline: _Sample, noises: CaseNoises, baseline_noises: CaseNoises | None
) -> tuple[Floats, Floats, Floats, Floats]:
    """Return the spreads of single runs of either side, and both kinds of degrees of freedom of the difference."""
    if baseline_noises is None:
        spread, degrees = _spread([current, baseline], noises)
        return spread, spread, degrees, degrees
    (one, least), (two, other) = _spread([current], noises), _spread([baseline], baseline_noises)
    parts = np.stack([one**2 / current.count, two**2 / baseline.count, least, other])
    degrees, cautious = np.array([welch((a, b), (c, d)) for a, c, b, d in parts.T.tolist()]).T
    return one, two, degrees, cautious


def _spread(samples: Sequence[_Sample], noises: CaseNoises) -> tuple[Floats, Floats]:
    degrees: Floats = noises.degrees + sum(sample.count - 1 for sample in samples)
    squares = noises.squares + sum(sample.squares for sample in samples)
    return np.maximum(np.where(degrees > 0, np.sqrt(squares / np.maximum(degrees, 1)), 0.0), noises.run), degrees


def _round(extra: Floats) -> Floats:
    """Round to three digits, as `stats.comparison` does."""
    return np.array([float(f"{each:.3g}") for each in extra.tolist()]) if extra.any() else extra


@cache  # without a limit: of many cases with a noise of their own there are more than the function itself remembers
def _critical(so_far: tuple[float, ...], level: float, gamma: float, total: float) -> float:
    return compute_critical_values(so_far, level, gamma, total)[-1]


def _quantiles(critical: Floats, degrees_of_freedom: Floats) -> Floats:
    found: Floats = -stdtrit(degrees_of_freedom, ndtr(-critical))
    return found


def _squares(rates: Floats) -> Floats:
    squares: Floats = rates.var(axis=1) * rates.shape[1]
    return squares


@dataclass(frozen=True, kw_only=True)
class NoiseModel:
    """A distribution of logarithms of rates around 0."""

    cv: float = 0.02  # standard deviation of single runs
    shape: str = "normal"  # one of SHAPES
    session: float = 0.0  # standard deviation of what all runs of a session have in common
    rare: float = 0.0  # part of the runs that are slower by `slower`, unseen
    slower: float = 0.0
    drift: float = 0.0  # what a rate loses over a night, evenly; a session's place in it is any

    def draw_sessions(self, random: np.random.Generator, cases: int, runs: int) -> Floats:
        """Return the runs of one session of each case: (case, run)."""
        common = random.normal(0, self.session, cases) if self.session else np.zeros(cases)
        began = self.drift * random.uniform(0, 1, cases)
        slower = began[:, None] + self.drift / RUNS_OF_A_NIGHT * np.arange(runs)
        rates = SHAPES[self.shape](random, cases, runs) * self.cv + common[:, None] - slower
        return rates + np.log1p(-self.slower) * (random.uniform(size=rates.shape) < self.rare) if self.rare else rates

    def calibrate(self, random: np.random.Generator, cases: int, sessions: int = 5, runs: int = 5) -> CaseNoises:
        """Return the noise that `stats.noise.estimate_noise` finds for each case from `sessions` sessions of `runs` runs."""
        found = np.stack([self.draw_sessions(random, cases, runs) for _ in range(sessions)], axis=1)  # (case, session, run)
        counted = _find_counted(found)
        count = counted.sum(axis=2)
        mean = np.where(counted, found, 0.0).sum(axis=2) / count
        squares = (np.where(counted, found - mean[:, :, None], 0.0) ** 2).sum(axis=(1, 2))
        total = count.sum(axis=1)
        degrees = total - sessions
        within = squares / degrees
        overall = (mean * count).sum(axis=1) / total
        between = (count * (mean - overall[:, None]) ** 2).sum(axis=1) / (sessions - 1)
        size = (total - (count**2).sum(axis=1) / total) / (sessions - 1)
        of_session = np.sqrt(np.maximum(0.0, (between - within) / size))
        return CaseNoises(np.sqrt(within), of_session, degrees.astype(float))


def _find_counted(found: Floats) -> Bools:
    """Return which runs of each case's sessions count, by the rule of `stats.noise.estimate_noise`."""
    cases, sessions, runs = found.shape
    distances = (found - np.median(found, axis=2, keepdims=True)).reshape(cases, -1)
    order = np.argsort(distances, axis=1, kind="stable")
    rank = np.argsort(order, axis=1, kind="stable").reshape(found.shape)
    rare = np.zeros(cases, dtype=np.int64)
    everyone = np.arange(cases)
    for slowest in range(1, sessions * runs // RUNS_FOR_EACH + 1):
        kept = rank >= slowest
        count = kept.sum(axis=2)
        mean = np.where(kept, found, 0.0).sum(axis=2) / np.maximum(count, 1)
        degrees = sessions * runs - slowest - sessions
        if degrees < 1:
            break
        spread = np.sqrt((np.where(kept, found - mean[:, :, None], 0.0) ** 2).sum(axis=(1, 2)) / degrees)
        run = order[:, slowest - 1]
        own = run // runs
        distance = mean[everyone, own] - found.reshape(cases, -1)[everyone, run]
        limit = -stdtrit(degrees, CLEARLY) * spread * np.sqrt(1 + 1 / np.maximum(count[everyone, own], 1))
        rare[(count.min(axis=1) > 0) & (distance > limit)] = slowest
    return rank >= rare[:, None, None]


RUNS_OF_A_NIGHT = 240  # 24 cases of 10 runs


def _draw_normal(random: np.random.Generator, cases: int, runs: int) -> Floats:
    return random.normal(size=(cases, runs))


def _draw_heavy(random: np.random.Generator, cases: int, runs: int) -> Floats:
    values: Floats = random.standard_t(3, size=(cases, runs)) / np.sqrt(3)
    return values


def _draw_slow_runs(random: np.random.Generator, cases: int, runs: int) -> Floats:
    """Return runs of which one in twenty is slower, by five standard deviations: 10 % for a coefficient of variation of 2 %."""
    return random.normal(size=(cases, runs)) - 5 * (random.uniform(size=(cases, runs)) < 0.05)


def _draw_correlated(random: np.random.Generator, cases: int, runs: int) -> Floats:
    """Return runs that are correlated with the previous one: autoregressive of the first order, 0.5."""
    steps = random.normal(size=(cases, runs)) * np.sqrt(1 - 0.5**2)
    values = [random.normal(size=cases)]
    for run in range(1, runs):
        values.append(0.5 * values[-1] + steps[:, run])
    return np.stack(values, axis=1)


SHAPES = {"normal": _draw_normal, "heavy tails": _draw_heavy, "slow runs": _draw_slow_runs, "correlated": _draw_correlated}


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Cases of one kind: the true ratio and noise, the calibration, and the question."""

    noise_model: NoiseModel
    ratio: float
    question: Question
    baseline_runs: int = 10
    calibrated: str = "no"  # or "runs": sessions are known not to differ; or "sessions", by 5 of them; or "many sessions"

    def outcomes(self, random: np.random.Generator, cases: int) -> Outcomes:
        baseline = self.noise_model.draw_sessions(random, cases, self.baseline_runs)
        current = self.noise_model.draw_sessions(random, cases, self.question.most) + np.log(self.ratio)
        return judge(current, baseline, self.draw_noises(random, cases), self.question)

    def draw_noises(self, random: np.random.Generator, cases: int) -> CaseNoises:
        if self.calibrated == "no":
            return CaseNoises.repeat(ASSUMED, cases)
        if self.calibrated == "many sessions":
            return self.noise_model.calibrate(random, cases, sessions=20, runs=2)
        found = self.noise_model.calibrate(random, cases)
        return found if self.calibrated == "sessions" else replace(found, session=np.zeros(cases))

    def with_ratio(self, ratio: float) -> "Trial":
        return replace(self, ratio=ratio)


ASSUMED = Noise(run=0.01)
