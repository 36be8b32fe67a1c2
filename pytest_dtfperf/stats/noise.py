"""How much rates scatter: from run to run of a session, and from session to session. Of logarithms, so about a fraction."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

LEAST_SESSIONS = 2  # whose means can differ
ROUNDING = 1e-9  # no measured rates are as alike as that


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


def welch(one: tuple[float, float], other: tuple[float, float]) -> float:
    """Return the degrees of freedom of the sum of two variances of means, given as (variance, its degrees of freedom).

    B. L. Welch (Biometrika 34, 1947, 28-35) takes the sum for a multiple of chi-squared. Where a variance rests on one or two
    degrees of freedom, that passes too much: where one side scatters five times as much as the other, up to 9 % in place of
    5 %. The smaller of the two sides' degrees of freedom is safe, but costs a run more (K. K. Mickey, M. B. Brown, Annals of
    Mathematical Statistics 37, 1966, 639-643). This is the latter for one degree of freedom, the geometric mean of both for
    two, and approaches Welch's from there: no stated rate is exceeded at CVs that differ tenfold (benchmarks/verdicts.py).
    """
    least = min(one[1], other[1])
    if not least:
        return 0.0
    approximate = (one[0] + other[0]) ** 2 / (one[0] ** 2 / one[1] + other[0] ** 2 / other[1])
    return float(approximate * (least / approximate) ** (1 / max(1.0, least)))


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
