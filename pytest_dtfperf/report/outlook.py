"""How far a session is, and how long the rest of it may take. Values in, values out."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pytest_dtfperf.formats import duration

LENDING_S = 10.0  # a test may begin with an allocation and with agents that start


@dataclass(eq=False)
class Outlook:
    """The tests of one session, in all its processes.

    `expected_s` says how long a test took in earlier sessions. Where they do not tell, it may take as long as those of this
    session that have ended: those of the same function, or else all of them. Where there are none, nothing is said.
    """

    tests: Sequence[str]  # pytest's node ids
    expected_s: Callable[[str], float | None]
    clock: Callable[[], float]
    workers: int = 1  # that run tests at once
    _begun: dict[str, float] = field(default_factory=dict)  # test -> when
    _took_s: dict[str, float] = field(default_factory=dict)  # test -> seconds, of those that have ended

    def begun(self, test: str) -> None:
        self._begun.setdefault(test, self.clock())

    def ended(self, test: str) -> None:
        if test in self._begun:
            self._took_s[test] = self.clock() - self._begun[test]

    def words(self, test: str) -> str:
        """`test 3 of 25, about 12 min left`; `more than` while a test takes longer than was expected, as with further runs."""
        if test not in self._begun:
            return ""
        position = f"test {list(self._begun).index(test) + 1} of {len(self.tests)}"
        left_s, is_overdue = self.left_s(), self._is_overdue()
        if left_s is None or (is_overdue and left_s < 1.0):
            return position
        return f"{position}, {'more than' if is_overdue else 'about'} {duration(max(1.0, left_s))} left"

    def left_s(self) -> float | None:
        """None: for some of the tests that are left nothing tells how long they take."""
        left = [self._left_s(test) for test in self.tests if test not in self._took_s]
        known = [seconds for seconds in left if seconds is not None]
        return sum(known) / min(self.workers, max(1, len(left))) if len(known) == len(left) else None

    def _is_overdue(self) -> bool:
        """Whether a test takes much longer than was expected. Earlier sessions tell of runs alone, not of lending hosts."""
        running = [test for test in self._begun if test not in self._took_s]
        return any(self._elapsed_s(test) > 2 * whole_s + LENDING_S for test in running if (whole_s := self._whole_s(test)))

    def _elapsed_s(self, test: str) -> float:
        return self.clock() - self._begun[test]

    def _left_s(self, test: str) -> float | None:
        whole_s = self._whole_s(test)
        return whole_s if whole_s is None or test not in self._begun else max(0.0, whole_s - self._elapsed_s(test))

    def _whole_s(self, test: str) -> float | None:
        expected_s = self.expected_s(test)
        if expected_s is not None or not self._took_s:
            return expected_s
        alike = [took_s for other, took_s in self._took_s.items() if _function(other) == _function(test)]
        return statistics.fmean(alike or self._took_s.values())


def _function(test: str) -> str:
    return test.partition("[")[0]
