"""The time budget of a session: the share of each test, how many steps fit into it, and when it has no more runs."""

import time
from collections.abc import Callable

from pytest_dtfperf.formats import duration, format_count, format_time_budget
from pytest_dtfperf.spec import Spec

LEAST_STEPS = 3  # measured steps of a run: the median of fewer is one of them
RUNS = 2  # of a measurement, for a spread: the steps of each must leave time for the others
STEPS_SHARE = 0.5  # of a test's time, for measured steps: starting tasks and building graphs takes the rest


class TimeBudget:
    """The time of one session, shared evenly among the remaining tests. Time that a test does not use is for later ones."""

    def __init__(self, total_s: float, tests: Callable[[], int], clock: Callable[[], float] = time.monotonic) -> None:
        """Start the clock.

        Args:
            total_s: seconds that all tests may take together.
            tests: returns how many tests there are; more may become known later.
        """
        self.total_s = total_s
        self._tests = tests
        self._clock = clock
        self._began_s = clock()
        self._ends_s: dict[str, float] = {}  # test -> end of its time
        self.left_out: list[str] = []  # tests for which no time was left
        self.shortened: set[str] = set()  # tests with fewer runs than without a budget

    @property
    def option(self) -> str:
        """The option that sets this budget."""
        return f"--time-budget={format_time_budget(self.total_s)}"

    @property
    def remaining_s(self) -> float:
        return self._began_s + self.total_s - self._clock()

    def begin(self, test: str) -> bool:
        """Assign a test its share of the remaining time. If nothing is left, return False, and note the test as left out."""
        if test in self._ends_s:
            return True
        if self.remaining_s <= 0:
            if test not in self.left_out:
                self.left_out.append(test)
            return False
        tests_left = max(1, self._tests() - len(self._ends_s) - len(self.left_out))
        self._ends_s[test] = self._clock() + self.remaining_s / tests_left
        return True

    def get_remaining_s(self, test: str) -> float:
        """Return the seconds that remain of a test's share; below 0 if it has taken more."""
        return self._ends_s[test] - self._clock()

    def has_time(self, test: str, *, runs: int, fewest: int, run_s: float) -> bool:
        """Return whether a measurement may have another run, and note the test as shortened if not.

        Below the fewest runs for a verdict, a measurement takes time from later tests, but only as long as there is some.

        Args:
            runs: how many it has.
            fewest: how many a verdict needs.
            run_s: seconds that its last run took.
        """
        left_s = self.remaining_s
        if runs >= fewest and test in self._ends_s:
            left_s = min(left_s, self.get_remaining_s(test))
        if left_s >= run_s:
            return True
        self.shortened.add(test)
        return False

    def choose_steps(self, spec: Spec, step_s: float, test: str) -> int:
        """Return how many steps of `step_s` seconds a run can have, at most those of the spec."""
        each_s = STEPS_SHARE * max(0.0, self.get_remaining_s(test)) / RUNS
        return min(spec.steps, max(LEAST_STEPS, int(each_s / step_s) - spec.warmup_steps))

    def describe(self) -> list[str]:
        """Return a line on tests that were left out or shortened; empty if there are none."""
        lines = []
        if self.left_out:
            names = ", ".join(name.rpartition("::")[2] for name in self.left_out)
            spent = duration(self.total_s - self.remaining_s)
            lines.append(f"{self.option} was spent after {spent}. Left out: {names}. Give more time, or none to set no limit")
        if self.shortened:
            count = len(self.shortened)
            lines.append(
                f"{self.option} left fewer runs for {format_count(count, 'test')}: with more time, intervals are narrower"
            )
        return lines
