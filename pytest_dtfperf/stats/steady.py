"""Whether a run was as fast at its end as at its beginning, beyond what chance makes of its steps."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import stdtr

BLOCKS = 5  # of each half: steps next to each other are alike, sums of several hardly
LEAST_STEPS = 4 * BLOCKS  # two to a block
FALSE_FLAGS = 0.01  # of runs that were steady


@dataclass(frozen=True)
class Drift:
    """How the second half of a run differs from the first."""

    change: float  # (rate of the second half - of the first) / of the first
    by_chance: float  # probability of at least so much in a steady run

    def is_more_than(self, part: float) -> bool:
        """Whether there is a drift, and one of more than this part of the rate."""
        return self.by_chance < FALSE_FLAGS and abs(self.change) > part


def drift(step_s: Sequence[float]) -> Drift | None:
    """Compare the halves of a run, by the means of blocks of steps. None: too few steps to tell.

    Steps within a run are correlated, which a test on single steps would take for certainty: batch means (G. S. Fishman,
    Management Science 24, 1978, 510-521), and Welch's t-test between those of the halves.
    """
    if len(step_s) < LEAST_STEPS:
        return None
    size = len(step_s) // (2 * BLOCKS)
    used = step_s[-2 * BLOCKS * size :]  # what does not fill a block is left out at the beginning
    blocks = [math.fsum(used[i : i + size]) / size for i in range(0, len(used), size)]
    first, second = blocks[:BLOCKS], blocks[BLOCKS:]
    change = statistics.fmean(first) / statistics.fmean(second) - 1
    errors = [statistics.variance(half) / BLOCKS for half in (first, second)]
    if not sum(errors):
        return Drift(change, 0.0 if change else 1.0)
    t = abs(statistics.fmean(first) - statistics.fmean(second)) / math.sqrt(sum(errors))
    freedom = sum(errors) ** 2 / sum(error**2 / (BLOCKS - 1) for error in errors)
    return Drift(change, 2 * float(stdtr(freedom, -t)))
