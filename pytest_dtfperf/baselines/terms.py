"""The policy of a comparison: the required effect, and the error rates. Pure functions."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pytest_dtfperf.baselines import verdict
from pytest_dtfperf.codec import JsonData, describe
from pytest_dtfperf.errors import UsageError
from pytest_dtfperf.stats.comparison import Question
from pytest_dtfperf.stats.noise import DEGREES_FOR_ONE_RUN, Noise, runs_to_confirm

ASSUMED = Noise(run=0.01)  # without a calibration: the least coefficient of variation that is plausible for a machine

_PROBABILITY: Mapping[str, Any] = {"at_least": 1e-12, "below": 1}
_RUNS: Mapping[str, Any] = {"at_least": 1, "at_most": 10_000}


@dataclass(frozen=True, kw_only=True)
class ComparisonPolicy(JsonData):
    """The strictness of a comparison."""

    margin: float = field(default=verdict.MARGIN, metadata=describe("How much slower, as a fraction", at_least=0, below=1))
    # Threshold of checks that have one: least efficiency, largest overhead, ...
    threshold: float | None = field(
        default=None, metadata=describe("What had to be reached, if anything", at_least=-1e6, at_most=1e6)
    )
    false_alarm: float = field(default=verdict.FALSE_ALARMS, metadata=describe("Of this check", **_PROBABILITY))
    missed: float = field(default=verdict.MISSED, metadata=describe("Of this check", **_PROBABILITY))
    least: int | None = field(
        default=None, metadata=describe("Runs before a verdict; null: as few as the known noise allows", **_RUNS)
    )
    most: int = field(default=verdict.MOST_RUNS, metadata=describe("Runs there can be", **_RUNS))

    def __post_init__(self) -> None:
        _check_fraction("margin", self.margin)

    def question(self, floor: float, *noises: Noise, ceiling: float | None = None) -> Question:
        """Ask whether a ratio of rates reaches `floor`. `noises`: of the sides that get runs."""
        least = min(self.least or max(map(get_least_runs, noises)), self.most)
        above: dict[str, Any] = {} if ceiling is None else {"ceiling": ceiling}
        return Question(
            floor=floor,
            false_alarm=self.false_alarm,
            missed=self.missed,
            least=least,
            most=self.most,
            **above,
        )


def get_least_runs(noise: Noise) -> int:
    """Return two, for a spread, or one if the spread is known well enough."""
    return 1 if noise.degrees_of_freedom >= DEGREES_FOR_ONE_RUN else verdict.LEAST_RUNS


def count_runs_to_confirm(false_alarm: float) -> int:
    """Return how many runs are needed to confirm a loss, given the probability of a false alarm."""
    return max(runs_to_confirm(false_alarm), verdict.LEAST_RUNS + 1)


def share(budget: float, *, tests: int, red: int, check: int, checks: int | None = None) -> float:
    """Return the part of a session's budget of false alarms that a test's n-th check (0, 1, ...) may spend.

    Each test that is not red yet gets an equal part of it: with `red` tests fewer than all (S. Holm, Scandinavian Journal of
    Statistics 6, 1979, 65-70; in any order: when the first true hypothesis is rejected, at most the false ones were before).
    The `checks` that a test declares share its part evenly. Without a declaration, their number is unknown before the last:
    the n-th check, counted from 1, gets 1 / (n (n + 1)) of the part, which is half of it, a sixth, a twelfth, ...

    Raises `UsageError` for a check beyond the declared ones, because their parts are the whole budget.
    """
    of_test = budget / max(1, tests - red)
    if checks is None:
        return of_test / ((check + 1) * (check + 2))
    if check >= checks:
        raise UsageError(
            f"check {check + 1} of a test that declares checks={checks}: its part of the false alarms is spent. "
            f"Declare all of its checks: dtfperf(checks={check + 1})"
        )
    return of_test / checks


def _check_fraction(name: str, value: float) -> None:
    if not 0 <= value < 1:
        raise UsageError(f"{name} must be at least 0 and less than 1, not {value!r}: 0.05 means 5 %")
