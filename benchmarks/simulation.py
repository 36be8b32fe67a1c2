"""Many measurements at once, judged as `stats.comparison` judges one: for error rates that no single measurement shows.

`tests/stats/test_error_rates.py` holds the two against each other, run by run.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from scipy.special import ndtr, stdtrit

from pytest_dtfperf.stats.comparison import FALSE_ALARM_GAMMA, MISSED_GAMMA, Question
from pytest_dtfperf.stats.noise import Noise, welch
from pytest_dtfperf.stats.sequential import critical_values

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
    degrees_of_freedom: float

    @classmethod
    def alike(cls, noise: Noise, cases: int) -> "Known":
        return cls(np.full(cases, noise.run), np.full(cases, noise.session), noise.degrees_of_freedom)

    def noise(self, case: int) -> Noise:
        return Noise(run=float(self.run[case]), session=float(self.session[case]), degrees_of_freedom=self.degrees_of_freedom)

    def of(self, some: Bools) -> "Known":
        return Known(self.run[some], self.session[some], self.degrees_of_freedom)


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
    for run in range(question.least, question.most + 1):
        other = then if apart else then[:, :run]
        low, high = _interval(now[:, :run], other, known, then_known, question, apart)
        worse = high < floor
        confirmed = worse & was_worse & (now[:, run - 1] - other.mean(axis=1) < floor)
        answers = np.where(worse, np.where(confirmed, WORSE, UNCONFIRMED), OPEN)
        answers[~worse & (low > floor)] = HOLDS
        answers[~worse & (low > max(floor, ceiling))] = BETTER
        yield run, answers
        was_worse = worse


def _interval(
    now: Floats, then: Floats, known: Known, then_known: Known | None, question: Question, apart: bool
) -> tuple[Floats, Floats]:
    runs, baseline = now.shape[1], then.shape[1]
    one, two, (degrees_of_freedom, cautious) = _spreads(now, then, known, then_known)
    sessions = known.session**2 + (then_known or known).session ** 2 if apart else np.zeros(len(now))
    centre = now.mean(axis=1) - then.mean(axis=1)
    if not degrees_of_freedom.all():
        return np.full(len(now), -np.inf), np.full(len(now), np.inf)
    error = np.sqrt(one**2 / runs + two**2 / baseline + sessions)
    unit = (one**2 + two**2) / 2
    part = _rounded(one**2 / unit) if apart and then_known else np.ones(len(now))
    parts = part + 1j * _rounded(sessions / unit)
    kinds, kind = np.unique(parts, return_inverse=True) if np.ptp(parts.real) or np.ptp(parts.imag) else (parts[:1], 0)
    below: Floats = np.empty(len(kinds))
    above: Floats = np.empty(len(kinds))
    for i, each in enumerate(kinds.tolist()):
        answers_now = tuple(
            1 / ((each.real / count + (2 - each.real) / baseline if apart and count != baseline else 2 / count) + each.imag)
            for count in range(question.least, question.most + 1)
        )
        below[i] = _critical(answers_now, question.missed, MISSED_GAMMA)[runs - question.least]
        above[i] = _critical(answers_now, question.false_alarm, FALSE_ALARM_GAMMA)[runs - question.least]
    if then_known is None:
        below, above = (_quantiles(each, degrees_of_freedom[:1])[kind] for each in (below, above))
    else:
        below, above = _quantiles(below[kind], cautious), _quantiles(above[kind], degrees_of_freedom)
    return centre - below * error, centre + above * error


def _spreads(now: Floats, then: Floats, known: Known, then_known: Known | None) -> tuple[Floats, Floats, Floats]:
    """Of single runs of each side, and both kinds of degrees of freedom of the difference."""
    if then_known is None:
        spread, degrees = _spread([now, then], known)
        return spread, spread, np.full((2, len(now)), degrees)
    (one, least), (two, other) = _spread([now], known), _spread([then], then_known)
    parts = np.stack([one**2 / now.shape[1], two**2 / then.shape[1]])
    return one, two, np.array([welch((a, least), (b, other)) for a, b in parts.T.tolist()]).T


def _spread(groups: Sequence[Floats], known: Known) -> tuple[Floats, float]:
    degrees = known.degrees_of_freedom + sum(group.shape[1] - 1 for group in groups)
    squares = known.degrees_of_freedom * known.run**2 + sum(_squares(group) for group in groups)
    return np.maximum(np.sqrt(squares / degrees) if degrees else 0.0, known.run), degrees


def _rounded(extra: Floats) -> Floats:
    """To three digits, as `stats.comparison` does."""
    return np.array([float(f"{each:.3g}") for each in extra.tolist()]) if extra.any() else extra


@cache  # without a limit: of many cases with a noise of their own there are more than the function itself remembers
def _critical(answers_now: tuple[float, ...], level: float, gamma: float) -> tuple[float, ...]:
    return critical_values(answers_now, level, gamma, answers_now[-1])


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
    drift: float = 0.0  # what a rate loses over a night, evenly; a session's place in it is any

    def sessions(self, random: np.random.Generator, cases: int, runs: int) -> Floats:
        """One session of each case: (case, run)."""
        common = random.normal(0, self.session, cases) if self.session else np.zeros(cases)
        began = self.drift * random.uniform(0, 1, cases)
        slower = began[:, None] + self.drift / RUNS_OF_A_NIGHT * np.arange(runs)
        return SHAPES[self.shape](random, cases, runs) * self.cv + common[:, None] - slower

    def calibrated(self, random: np.random.Generator, cases: int, sessions: int = 5, runs: int = 5) -> Known:
        """What `stats.noise.estimate` finds, for each case, in so many sessions of so many runs."""
        found = np.stack([self.sessions(random, cases, runs) for _ in range(sessions)])  # (session, case, run)
        within = found.var(axis=2, ddof=1).mean(axis=0)
        between = runs * found.mean(axis=2).var(axis=0, ddof=1)
        of_session = np.sqrt(np.maximum(0.0, (between - within) / runs))
        return Known(np.sqrt(within), of_session, sessions * (runs - 1))


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
