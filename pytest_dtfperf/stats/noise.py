"""How much rates scatter: from run to run of a session, and from session to session. Of logarithms, so about a fraction."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

LEAST_SESSIONS = 2  # whose means can differ
DEGREES_FOR_ONE_RUN = 10.0  # a spread that rests on so much makes one run worth judging: its error is 22 %, of two runs 71 %
ROUNDING = 1e-9  # no measured rates are as alike as that
BY_CHANCE = 0.01  # of the cases in which nothing is wrong with the noise, so many are reported
PERMUTATIONS = 2000


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Standard deviations of the logarithm of a rate. 0.02 is a coefficient of variation of about 2 %."""

    run: float  # of the runs of one session, and the least that is ever assumed
    degrees_of_freedom: float = 0.0  # degrees of freedom that `run` was estimated with; 0: it was assumed
    session: float = 0.0  # of what all runs of a session have in common: other hosts, another boot, another day

    def __post_init__(self) -> None:
        if not (self.run > 0 and self.degrees_of_freedom >= 0 and self.session >= 0):
            raise ValueError(f"noise is positive, not {self}")


def pooled(groups: Iterable[Sequence[float]], noise: Noise) -> tuple[float, float]:
    """The spread of single runs, and its degrees of freedom: what the groups show and what was known, by their freedom."""
    squares, degrees_of_freedom = noise.degrees_of_freedom * noise.run**2, noise.degrees_of_freedom
    for group in groups:
        logs = [math.log(rate) for rate in group]
        squares += sum((log - statistics.fmean(logs)) ** 2 for log in logs)
        degrees_of_freedom += len(logs) - 1
    return max(math.sqrt(squares / degrees_of_freedom) if degrees_of_freedom else 0.0, noise.run), degrees_of_freedom


def welch(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    """Return the degrees of freedom of the sum of two variances of means, given as (variance, its degrees of freedom).

    B. L. Welch (Biometrika 34, 1947, 28-35) takes the sum for a multiple of chi-squared. Where a variance rests on one or two
    degrees of freedom and is five times the other, a test at 5 % then errs in up to 9 %, one at 0.18 % in up to 0.4 %. The
    smaller of the two sides' degrees of freedom is safe, but costs a run more (M. R. Mickey, M. B. Brown, Annals of
    Mathematical Statistics 37, 1966, 639-643). From two degrees of freedom on, both numbers go from the geometric mean of the
    two to Welch's. For one, the first stays there: that suffices for an error rate that is spent late, by what a further run
    confirms; the second is the smaller one, for an error rate that is spent early.
    """
    least = min(one[1], other[1])
    if not least:
        return 0.0, 0.0
    approximate = (one[0] + other[0]) ** 2 / (one[0] ** 2 / one[1] + other[0] ** 2 / other[1])
    late, early = (approximate * (least / approximate) ** (1 / max(at_least, least)) for at_least in (2.0, 1.0))
    return late, early


def estimate(sessions: Sequence[Sequence[float]]) -> Noise:
    """The noise of sessions between which nothing changed, one sequence of rates each. Raises `ValueError` if they are too few.

    Random effects, one way, with groups of any size: S. R. Searle, G. Casella, C. E. McCulloch, Variance Components, 1992,
    section 3.6. A negative estimate of the variance between sessions is 0, as usual.
    """
    groups = [[math.log(rate) for rate in rates] for rates in sessions if rates]
    total = sum(map(len, groups))
    degrees_of_freedom = total - len(groups)
    if len(groups) < LEAST_SESSIONS or degrees_of_freedom < 1:
        raise ValueError(
            f"{total} runs in {len(groups)} sessions tell no noise: there must be at least {LEAST_SESSIONS} sessions, "
            "and in one of them two runs"
        )
    within = sum((log - statistics.fmean(logs)) ** 2 for logs in groups for log in logs) / degrees_of_freedom
    mean = statistics.fmean(log for logs in groups for log in logs)
    between = sum(len(logs) * (statistics.fmean(logs) - mean) ** 2 for logs in groups) / (len(groups) - 1)
    size = (total - sum(len(logs) ** 2 for logs in groups) / total) / (len(groups) - 1)
    if within < ROUNDING**2:
        raise ValueError("all runs of each session have the very same rate: that is no measurement")
    return Noise(
        run=math.sqrt(within), degrees_of_freedom=degrees_of_freedom, session=math.sqrt(max(0.0, (between - within) / size))
    )


def correlation(sessions: Sequence[Sequence[float]]) -> float | None:
    """Return how much runs resemble the run before them in their session, as a correlation; None if that may be chance.

    By permutation of the runs within their sessions (E. S. Edgington, Randomization Tests, 1980), one-sided: where runs are
    independent, `BY_CHANCE` of all cases are reported. The estimate allows for the sessions' means, which are estimated, too.
    """
    import numpy as np

    groups = [np.log(rates) - np.log(rates).mean() for rates in sessions if len(rates) > 1]
    squares = sum(float(group @ group) for group in groups)
    if len(groups) < LEAST_SESSIONS or squares < ROUNDING**2:
        return None
    random = np.random.default_rng(len(groups))
    shuffled = [random.permuted(np.tile(group, (PERMUTATIONS, 1)), axis=1) for group in groups]
    permuted = sum((group[:, 1:] * group[:, :-1]).sum(axis=1) for group in shuffled)
    found = sum(float(group[1:] @ group[:-1]) for group in groups)
    if (1 + np.count_nonzero(permuted >= found - ROUNDING * squares)) / (1 + PERMUTATIONS) > BY_CHANCE:
        return None
    return min(1.0, (found - float(np.mean(permuted))) / squares)


def do_sessions_differ(sessions: Sequence[Sequence[float]]) -> bool:
    """Return whether sessions differ by more than their runs explain: an F test, with `BY_CHANCE` of errors."""
    import numpy as np
    from scipy.special import fdtrc

    groups = [np.log(rates) for rates in sessions if rates]
    total = sum(map(len, groups))
    degrees_of_freedom = total - len(groups)
    if len(groups) < LEAST_SESSIONS or degrees_of_freedom < 1:
        return False
    mean = np.concatenate(groups).mean()
    between = sum(len(group) * float(group.mean() - mean) ** 2 for group in groups) / (len(groups) - 1)
    within = sum(float(((group - group.mean()) ** 2).sum()) for group in groups) / degrees_of_freedom
    if within < ROUNDING**2:
        return False
    return bool(fdtrc(len(groups) - 1, degrees_of_freedom, between / within) <= BY_CHANCE)
