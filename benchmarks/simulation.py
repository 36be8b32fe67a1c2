"""Many measurements at once, judged as `stats.comparison` judges one: for error rates that no single measurement shows.

`tests/stats/test_error_rates.py` holds the two against each other, run by run.
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
class Known:
    """What is known of the noise, of each case. As `stats.noise.Noise`, with arrays."""

    run: Floats
    session: Floats
    degrees: Floats

    @classmethod
    def alike(cls, noise: Noise, cases: int) -> "Known":
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

    def of(self, some: Bools | slice) -> "Known":
        return Known(self.run[some], self.session[some], self.degrees[some])


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


def judged(
    now: Floats, then: Floats, known: Known, question: Question, *, apart: bool = True, then_known: Known | None = None
) -> Outcomes:
    """Measure until the answer is there or the runs are spent. `now`, `then`: logarithms of rates, (case, run).

    `apart`: in two sessions, where `then` is complete from the start. Otherwise in turn, where it grows with `now`.
    `then_known`: what is known of the noise of `then`; None: both sides are the same training and scatter alike.
    """
    cases = len(now)
    answers, runs = np.full(cases, OPEN), np.full(cases, question.most)
    is_open = np.ones(cases, dtype=bool)
    for run, answers_now in analysed(now, then, known, question, apart=apart, then_known=then_known):
        decided = is_open & (answers_now >= WORSE)
        answers[is_open] = answers_now[is_open]
        runs[decided] = run
        is_open &= ~decided
    return Outcomes(answers, runs)


def analysed(
    now: Floats, then: Floats, known: Known, question: Question, *, apart: bool = True, then_known: Known | None = None
) -> Iterator[tuple[int, Counts]]:
    """The answers after each run, whether or not there was one before."""
    floor, ceiling = np.log(question.floor), np.log(question.ceiling)
    was_worse = np.zeros(len(now), dtype=bool)
    needed = runs_to_confirm(question.false_alarm)
    few = question.most < max(needed, question.least + 1)
    degrees = min(known.least_degrees, (then_known or known).least_degrees)
    stored = _slow(then, then_known or known, question.missed) if apart else None
    for run in range(question.least, question.most + 1):
        compared = _Compared.of(now[:, :run], then if apart else then[:, :run], known, then_known, question, apart, stored)
        low, high = compared.interval()
        worse = high < floor
        last = compared.now.kept[:, -1] & (now[:, run - 1] - compared.then.mean < floor)
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
    """The runs of one side that count, of each case."""

    rates: Floats
    kept: Bools

    @cached_property
    def count(self) -> Counts:
        count: Counts = self.kept.sum(axis=1)
        return count

    @cached_property
    def mean(self) -> Floats:
        mean: Floats = np.where(self.kept, self.rates, 0.0).sum(axis=1) / self.count
        return mean

    @cached_property
    def squares(self) -> Floats:
        squares: Floats = (np.where(self.kept, self.rates - self.mean[:, None], 0.0) ** 2).sum(axis=1)
        return squares

    def of(self, some: Bools) -> "_Sample":
        return _Sample(self.rates[some], self.kept[some])


def _slow(rates: Floats, known: Known, level: float, other: _Sample | None = None) -> tuple[_Sample, _Sample]:
    """The runs without rare ones, and without those that may be such, as `stats.noise.slow_runs` finds them."""
    cases, runs = rates.shape
    slow, doubtful = np.zeros(cases, dtype=np.int64), np.zeros(cases, dtype=np.int64)
    order = np.argsort(-rates, axis=1, kind="stable")
    rank = np.argsort(order, axis=1, kind="stable")
    fastest_first = np.take_along_axis(rates, order, axis=1)
    for slowest in range(1, runs):
        rest = fastest_first[:, : runs - slowest]
        squares, degrees = known.squares + _squares(rest), known.degrees + rest.shape[1] - 1
        if other:
            squares, degrees = squares + other.squares, degrees + other.count - 1
        is_known = degrees > 0
        spread = np.maximum(np.sqrt(squares / np.maximum(degrees, 1)), known.run)
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
class _Compared:
    """Both sides of each case after some run."""

    now: _Sample
    then: _Sample
    now_certain: _Sample  # without those that may be rare
    then_certain: _Sample
    known: Known
    then_known: Known | None
    question: Question
    apart: bool

    @classmethod
    def of(
        cls,
        now: Floats,
        then: Floats,
        known: Known,
        then_known: Known | None,
        question: Question,
        apart: bool,
        stored: tuple[_Sample, _Sample] | None,
    ) -> "_Compared":
        before, before_certain = stored or _slow(then, then_known or known, question.missed)
        after, after_certain = _slow(now, known, question.false_alarm, before_certain if then_known is None else None)
        return cls(after, before, after_certain, before_certain, known, then_known, question, apart)

    def interval(self) -> tuple[Floats, Floats]:
        low, high = self._interval(self.now, self.then, slice(None))
        some = self.now_certain.count < self.now.count
        if some.any():
            high[some] = np.maximum(high[some], self._interval(self.now_certain.of(some), self.then.of(some), some)[1])
        some = self.then_certain.count < self.then.count
        if some.any():
            low[some] = np.minimum(low[some], self._interval(self.now.of(some), self.then_certain.of(some), some)[0])
        return low, high

    def _interval(self, now: _Sample, then: _Sample, some: Bools | slice) -> tuple[Floats, Floats]:
        question, run = self.question, now.rates.shape[1]
        known = self.known.of(some)
        then_known = self.then_known and self.then_known.of(some)
        one, two, degrees_of_freedom, cautious = _spreads(now, then, known, then_known)
        sessions = known.session**2 + (then_known or known).session ** 2 if self.apart else np.zeros(len(now.rates))
        centre = now.mean - then.mean
        error = np.sqrt(one**2 / now.count + two**2 / then.count + sessions)
        unit = (one**2 + two**2) / 2
        parts = _rounded(one**2 / unit) if then_known else np.ones(len(centre))
        extras = _rounded(sessions / unit)
        _, kind = np.unique(parts + 1j * extras, return_inverse=True)
        kinds, first, kind = np.unique((kind * 100 + now.count) * 100 + then.count, return_index=True, return_inverse=True)
        below, above = np.empty(len(kinds)), np.empty(len(kinds))
        for i, case in enumerate(first.tolist()):
            sides = int(now.count[case]), int(then.count[case]), float(parts[case]), float(extras[case])
            information, here = _information(run, *sides, question, self.apart)
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
    run: int, runs: int, baseline: int, part: float, extra: float, question: Question, apart: bool
) -> tuple[tuple[float, ...], int]:
    """At every analysis, and which of them this is, which has so many runs left of `run`."""

    def information(now: int, then: int) -> float:
        return 1 / ((2 / now if now == then else part / now + (2 - part) / then) + extra)

    this = information(runs, baseline)
    planned = {count: information(count, baseline if apart else count) for count in range(question.least, question.most + 1)}
    before = [each for count, each in planned.items() if count < run and each < this]
    after = [each for count, each in planned.items() if count > run and each > this]
    return (*before, this, *after), len(before)


def _spreads(now: _Sample, then: _Sample, known: Known, then_known: Known | None) -> tuple[Floats, Floats, Floats, Floats]:
    """Of single runs of each side, and both kinds of degrees of freedom of the difference."""
    if then_known is None:
        spread, degrees = _spread([now, then], known)
        return spread, spread, degrees, degrees
    (one, least), (two, other) = _spread([now], known), _spread([then], then_known)
    parts = np.stack([one**2 / now.count, two**2 / then.count, least, other])
    degrees, cautious = np.array([welch((a, b), (c, d)) for a, c, b, d in parts.T.tolist()]).T
    return one, two, degrees, cautious


def _spread(samples: Sequence[_Sample], known: Known) -> tuple[Floats, Floats]:
    degrees: Floats = known.degrees + sum(sample.count - 1 for sample in samples)
    squares = known.squares + sum(sample.squares for sample in samples)
    return np.maximum(np.where(degrees > 0, np.sqrt(squares / np.maximum(degrees, 1)), 0.0), known.run), degrees


def _rounded(extra: Floats) -> Floats:
    """To three digits, as `stats.comparison` does."""
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
    """What rates do where they are measured: logarithms of them around 0."""

    cv: float = 0.02  # standard deviation of single runs
    shape: str = "normal"  # one of SHAPES
    session: float = 0.0  # standard deviation of what all runs of a session have in common
    rare: float = 0.0  # part of the runs that are slower by `slower`, unseen
    slower: float = 0.0
    drift: float = 0.0  # what a rate loses over a night, evenly; a session's place in it is any

    def sessions(self, random: np.random.Generator, cases: int, runs: int) -> Floats:
        """One session of each case: (case, run)."""
        common = random.normal(0, self.session, cases) if self.session else np.zeros(cases)
        began = self.drift * random.uniform(0, 1, cases)
        slower = began[:, None] + self.drift / RUNS_OF_A_NIGHT * np.arange(runs)
        rates = SHAPES[self.shape](random, cases, runs) * self.cv + common[:, None] - slower
        return rates + np.log1p(-self.slower) * (random.uniform(size=rates.shape) < self.rare) if self.rare else rates

    def calibrated(self, random: np.random.Generator, cases: int, sessions: int = 5, runs: int = 5) -> Known:
        """What `stats.noise.estimate_noise` finds, for each case, in so many sessions of so many runs."""
        found = np.stack([self.sessions(random, cases, runs) for _ in range(sessions)], axis=1)  # (case, session, run)
        kept = _kept(found)
        count = kept.sum(axis=2)
        mean = np.where(kept, found, 0.0).sum(axis=2) / count
        squares = (np.where(kept, found - mean[:, :, None], 0.0) ** 2).sum(axis=(1, 2))
        total = count.sum(axis=1)
        degrees = total - sessions
        within = squares / degrees
        overall = (mean * count).sum(axis=1) / total
        between = (count * (mean - overall[:, None]) ** 2).sum(axis=1) / (sessions - 1)
        size = (total - (count**2).sum(axis=1) / total) / (sessions - 1)
        of_session = np.sqrt(np.maximum(0.0, (between - within) / size))
        return Known(np.sqrt(within), of_session, degrees.astype(float))


def _kept(found: Floats) -> Bools:
    """Which runs count, of each case's sessions, as `stats.noise.estimate_noise` has it."""
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


def _normal(random: np.random.Generator, cases: int, runs: int) -> Floats:
    return random.normal(size=(cases, runs))


def _heavy(random: np.random.Generator, cases: int, runs: int) -> Floats:
    values: Floats = random.standard_t(3, size=(cases, runs)) / np.sqrt(3)
    return values


def _slowed(random: np.random.Generator, cases: int, runs: int) -> Floats:
    """A run in twenty is slower, by five standard deviations: 10 % where the coefficient of variation is 2 %."""
    return random.normal(size=(cases, runs)) - 5 * (random.uniform(size=(cases, runs)) < 0.05)


def _correlated(random: np.random.Generator, cases: int, runs: int) -> Floats:
    """Each run resembles the one before: autoregressive of the first order, 0.5."""
    steps = random.normal(size=(cases, runs)) * np.sqrt(1 - 0.5**2)
    values = [random.normal(size=cases)]
    for run in range(1, runs):
        values.append(0.5 * values[-1] + steps[:, run])
    return np.stack(values, axis=1)


SHAPES = {"normal": _normal, "heavy tails": _heavy, "slow runs": _slowed, "correlated": _correlated}


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Cases of one kind: what is true, what is known, what is asked."""

    noise_model: NoiseModel
    ratio: float
    question: Question
    baseline: int = 10  # runs that it has
    calibrated: str = "no"  # or "runs": sessions are known not to differ; or "sessions", by 5 of them; or "many sessions"

    def outcomes(self, random: np.random.Generator, cases: int) -> Outcomes:
        then = self.noise_model.sessions(random, cases, self.baseline)
        now = self.noise_model.sessions(random, cases, self.question.most) + np.log(self.ratio)
        return judged(now, then, self.known(random, cases), self.question)

    def known(self, random: np.random.Generator, cases: int) -> Known:
        if self.calibrated == "no":
            return Known.alike(ASSUMED, cases)
        if self.calibrated == "many sessions":
            return self.noise_model.calibrated(random, cases, sessions=20, runs=2)
        found = self.noise_model.calibrated(random, cases)
        return found if self.calibrated == "sessions" else replace(found, session=np.zeros(cases))

    def but(self, ratio: float) -> "Trial":
        return replace(self, ratio=ratio)


ASSUMED = Noise(run=0.01)
