"""How well the mean of a night's runs is known, by how much runs of one night scatter."""

import math
from collections.abc import Sequence


def half_widths(nights: Sequence[tuple[int, float | None]], *, confidence: float = 0.95) -> list[float | None]:
    """Half of the interval of each night's mean, in the unit of the spreads; `nights`: (number of runs, their spread).

    The spread is a standard deviation with n - 1; None of a single run. Nights are taken to scatter alike within: variances are
    pooled by degrees of freedom, and the interval is Student's t with all of these (as in a one-way layout: H. Scheffe, The
    Analysis of Variance, 1959, section 3.2). It knows nothing of what a whole night has in common. All None where no night
    has two runs.
    """
    from scipy.special import stdtrit

    known = [(runs, spread) for runs, spread in nights if runs > 1 and spread is not None]
    degrees_of_freedom = sum(runs - 1 for runs, _ in known)
    if not degrees_of_freedom:
        return [None for _ in nights]
    pooled = math.sqrt(sum((runs - 1) * spread**2 for runs, spread in known) / degrees_of_freedom)
    critical = float(stdtrit(degrees_of_freedom, (1 + confidence) / 2))
    return [critical * pooled / math.sqrt(runs) for runs, _ in nights]
