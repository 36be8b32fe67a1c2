"""How far a session is, and how long the rest of it may take. Values in, values out."""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pytest_dtfperf.formats import duration

ALLOCATION_S = 10.0  # the first test may begin with an allocation and with agents that start
MAX_FACTOR = 10.0  # by which factor this session may differ from earlier ones; what is more is a matter of a single test


@dataclass(eq=False)
class Outlook:
    """The tests of one session, in all its processes. What an event or an answer costs does not grow with their number.

    `expected_s` returns how long a test takes, by earlier sessions; as this session's tests have taken longer or shorter than
    that, so will the others. Where it returns None, a test may take as long as those of this session that have ended: those of
    the same function, or else all of them. Where there are none, nothing is said.
    """

    tests: Sequence[str]  # pytest's node ids
    expected_s: Callable[[str], float | None]
    clock: Callable[[], float]
    workers: int = 1  # that run tests at once
    _expected_s: dict[str, float | None] = field(init=False)  # of each test
    _begun: dict[str, float] = field(default_factory=dict)  # test -> when
    _positions: dict[str, int] = field(default_factory=dict)  # test -> its number among those that have begun, from 1
    _running: dict[str, None] = field(default_factory=dict)
    _ended: set[str] = field(default_factory=set)
    _unbegun_s: float = 0.0  # expected of all tests that have not begun, as far as that is known
    _unbegun_unknown: Counter[str] = field(default_factory=Counter)  # function -> the others
    _took_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(lambda: [0, 0.0]))  # function -> ended, seconds
    _compared_s: list[float] = field(default_factory=lambda: [0.0, 0.0])  # of all that have ended: expected, and in fact

    def __post_init__(self) -> None:
        self._expected_s = {test: self.expected_s(test) for test in self.tests}
        for test in self._expected_s:
            self._count_unbegun(test, 1)

    def begun(self, test: str) -> None:
        if test not in self._begun:
            self._begun[test] = self.clock()
            self._positions[test] = len(self._begun)
            self._running[test] = None
            self._count_unbegun(test, -1)

    def ended(self, test: str) -> None:
        if test not in self._running:
            return
        del self._running[test]
        self._ended.add(test)
        seconds = self._elapsed_s(test)
        took = self._took_s[_function_of(test)]
        took[:] = [took[0] + 1, took[1] + seconds]
        if expected_s := self._expected_s.get(test):
            self._compared_s[:] = [self._compared_s[0] + expected_s, self._compared_s[1] + seconds]

    def _count_unbegun(self, test: str, number: int) -> None:
        if test not in self._expected_s:
            return
        expected_s = self._expected_s[test]
        if expected_s is None:
            self._unbegun_unknown[_function_of(test)] += number
        else:
            self._unbegun_s += number * expected_s

    def words(self, test: str) -> str:
        """`test 3 of 25, about 12 min left`; `more than` while a test takes longer than was expected, as with further runs."""
        if test not in self._begun:
            return ""
        position = f"test {self._positions[test]} of {len(self.tests)}"
        left_s, is_overdue = self.left_s(), self._is_overdue()
        if left_s is None or (is_overdue and left_s < 1.0):
            return position
        return f"{position}, {'more than' if is_overdue else 'about'} {duration(max(1.0, left_s))} left"

    def place(self, test: str) -> str:
        """Return `3/25`: where a test is among all."""
        return f"{self._positions[test]}/{len(self.tests)}" if test in self._positions else ""

    def left_s(self) -> float | None:
        """None: for some of the tests that are left nothing tells how long they take."""
        running = [self._left_s(test) for test in self._running]
        unknown = {function: number for function, number in self._unbegun_unknown.items() if number > 0}
        if None in running or (unknown and not self._ended):
            return None
        known = [seconds for seconds in running if seconds is not None]
        whole_s = sum(known) + self._unbegun_s * self._factor
        whole_s += sum(number * self._usual_s(function) for function, number in unknown.items())
        left = len(self._expected_s) - len(self._ended)
        return max([whole_s / min(self.workers, max(1, left)), *known])

    @property
    def _factor(self) -> float:
        """How much longer tests take in this session than was expected."""
        expected_s, in_fact_s = self._compared_s
        return min(MAX_FACTOR, max(1 / MAX_FACTOR, in_fact_s / expected_s)) if expected_s else 1.0

    def _is_overdue(self) -> bool:
        """Whether a test takes longer than was expected. Earlier sessions tell of runs alone, not of lending hosts."""
        slack_s = 0.0 if self._ended else ALLOCATION_S
        return any(self._elapsed_s(test) > whole_s + slack_s for test in self._running if (whole_s := self._whole_s(test)))

    def _elapsed_s(self, test: str) -> float:
        return self.clock() - self._begun[test]

    def _left_s(self, test: str) -> float | None:
        whole_s = self._whole_s(test)
        return None if whole_s is None else max(0.0, whole_s - self._elapsed_s(test))

    def _whole_s(self, test: str) -> float | None:
        expected_s = self._expected_s.get(test)
        if expected_s is not None:
            return expected_s * self._factor
        return self._usual_s(_function_of(test)) if self._ended else None

    def _usual_s(self, function: str) -> float:
        """Return how long those of a function took that have ended; all that have ended, where there are none."""
        alike = [self._took_s[function]] if function in self._took_s else list(self._took_s.values())
        return sum(seconds for _, seconds in alike) / sum(number for number, _ in alike)


def _function_of(test: str) -> str:
    return test.partition("[")[0]
