"""Whether a run was as fast at its end as at its beginning, beyond what chance makes of its steps."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

LEAST_BLOCKS, MOST_BLOCKS = 3, 10  # of each half: fewer show no spread, more would be shorter than need be
STEPS_OF_A_BLOCK = 12  # or more: steps next to each other are alike, sums of so many hardly
LEAST_STEPS = 30  # five to a block: with fewer, steps that are alike pass for a drift more often than stated
FALSE_FLAGS = 0.01  # at most, of runs that were steady
LEVEL = FALSE_FLAGS / 2  # of the test: blocks still resemble each other a little, which makes up to twice as many
ROUNDING = 1e-12  # of a step's time: less is no difference, but how sums are rounded


@dataclass(frozen=True)
class Drift:
    """How the second half of a run differs from the first."""

    change: float  # (rate of the second half - of the first) / of the first
    p_value: float  # probability of at least so much in a steady run

    def is_more_than(self, fraction: float) -> bool:
        """Return whether there is a drift, and one of more than this part of the rate."""
        return self.p_value < LEVEL and abs(self.change) > fraction


def drift(step_s: Sequence[float]) -> Drift | None:
    """Compare the halves of a run, by the means of blocks of steps. None: too few steps to compare.

    Steps within a run are correlated, which a test on single steps would take for certainty: batch means (G. S. Fishman,
    Management Science 24, 1978, 510-521). They are regressed on what a change can look like, a jump between the halves and an
    even ramp; the likelier of the two counts, at twice its probability for there being two (Bonferroni).
    """
    if len(step_s) < LEAST_STEPS:
        return None
    count = 2 * min(max(LEAST_BLOCKS, len(step_s) // (2 * STEPS_OF_A_BLOCK)), MOST_BLOCKS)
    size = len(step_s) // count
    used = step_s[-count * size :]  # what does not fill a block is left out at the beginning
    blocks = [math.fsum(used[i : i + size]) / size for i in range(0, len(used), size)]
    change = math.fsum(blocks[: count // 2]) / math.fsum(blocks[count // 2 :]) - 1
    ramp = [i - (count - 1) / 2 for i in range(count)]
    jump = [math.copysign(1, each) for each in ramp]
    return Drift(change, min(1.0, 2 * min(_p_value(blocks, pattern) for pattern in (jump, ramp))))


def _p_value(values: Sequence[float], pattern: Sequence[float]) -> float:
    """Probability that values which only scatter follow this course as closely, one way or the other. Its mean is 0."""
    from scipy.special import stdtr

    mean, size = statistics.fmean(values), math.fsum(each**2 for each in pattern)
    slope = math.fsum(value * each for value, each in zip(values, pattern, strict=True)) / size
    left = math.fsum((value - mean - slope * each) ** 2 for value, each in zip(values, pattern, strict=True))
    degrees_of_freedom = len(values) - 2
    if left <= degrees_of_freedom * (ROUNDING * mean) ** 2:
        return 0.0 if abs(slope) > ROUNDING * mean else 1.0
    return 2 * float(stdtr(degrees_of_freedom, -abs(slope) / math.sqrt(left / degrees_of_freedom / size)))
