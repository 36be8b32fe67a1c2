"""Two trainers, turn by turn: ratios that hold while the machine's speed drifts. Pure."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.trainers import TrainingResult

HEADER = (
    f"{'model':<11}{'cell':<24}{'images/s':>9}{'other':>9}{'ratio':>7}  {'spread':<14}"
    f"{'start s':>8}{'warm':>7}{'other':>7}{'part':>6}{'warm':>6}"
)


@dataclass(frozen=True)
class Interval:
    """Of a ratio: its geometric mean, and between what it is with 95 % confidence; 0 and infinity where nothing says."""

    centre: float
    low: float
    high: float


def compare_pairs(pairs: Sequence[tuple[float, float]]) -> Interval:
    """How many times the second the first is: Student's t on the logarithms of the pairs' ratios."""
    from scipy.special import stdtrit

    logs = [math.log(one / other) for one, other in pairs]
    mean = statistics.fmean(logs)
    if len(logs) < 2:
        return Interval(math.exp(mean), 0.0, math.inf)
    half = float(stdtrit(len(logs) - 1, 0.975)) * statistics.stdev(logs) / math.sqrt(len(logs))
    return Interval(math.exp(mean), math.exp(mean - half), math.exp(mean + half))


@dataclass(frozen=True)
class Round:
    """One training by each, one right after the other."""

    one: TrainingResult
    other: TrainingResult

    @property
    def speed(self) -> float:
        """How many times as fast `one` trains."""
        return self.one.images_per_sec / self.other.images_per_sec

    @property
    def start(self) -> float:
        """The part of `other`'s start that `one` takes, from nothing to the first measured step."""
        return self.one.start_s / self.other.start_s

    @property
    def warm_start(self) -> float:
        return self.one.warm_start_s / self.other.start_s


@dataclass
class Comparison:
    """All rounds of one model in one cell; or why there are none."""

    model: str
    cell: str
    is_distributed: bool
    rounds: list[Round] = field(default_factory=list)
    note: str = ""  # what is missing, or went wrong

    failed: bool = False

    def fail(self, why: str) -> None:
        """What has been measured before does not count: it may be part of what went wrong."""
        self.failed, self.note, self.rounds = True, f"failed: {why}", []

    @property
    def speed(self) -> float:
        return self._median(lambda each: each.speed)

    def line(self) -> str:
        """A row below `HEADER`: medians, and the spread of the ratio."""
        where = f"{self.model:<11}{self.cell:<24}"
        if not self.rounds:
            return f"{where}{self.note}"
        one, other = self._median(lambda each: each.one.images_per_sec), self._median(lambda each: each.other.images_per_sec)
        speeds = [each.speed for each in self.rounds]
        spread = f"{min(speeds):.2f} to {max(speeds):.2f}"
        starts = (
            f"{self._median(lambda each: each.one.start_s):>8.1f}"
            f"{self._median(lambda each: each.one.warm_start_s):>7.1f}"
            f"{self._median(lambda each: each.other.start_s):>7.1f}"
            f"{self._median(lambda each: each.start):>6.2f}"
            f"{self._median(lambda each: each.warm_start):>6.2f}"
        )
        return f"{where}{one:>9.1f}{other:>9.1f}{self.speed:>7.2f}  {spread:<14}{starts}  {self.note}".rstrip()

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "ratio": self.speed if self.rounds else None}

    def _median(self, value: Callable[[Round], float]) -> float:
        return statistics.median(value(each) for each in self.rounds)


def conclusion(comparisons: Sequence[Comparison]) -> str:
    """The slowest cell, and the geometric mean over the distributed ones: what the project's aims are stated in."""
    measured = [each for each in comparisons if each.rounds]
    if not measured:
        return "nothing could be compared"
    slowest = min(measured, key=lambda each: each.speed)
    lines = [f"slowest: {slowest.model} {slowest.cell}, {slowest.speed:.2f} times as fast"]
    if distributed := [each.speed for each in measured if each.is_distributed]:
        mean = statistics.geometric_mean(distributed)
        lines.append(f"geometric mean over {len(distributed)} distributed cells: {mean:.2f} times as fast")
    lines.append(f"not compared: {len(comparisons) - len(measured)} of {len(comparisons)}")
    return "\n".join(lines)
