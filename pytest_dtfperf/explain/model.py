"""A step as a model of its workers' times, so that one can ask: how long would it be, had these times not changed?

Each worker has its own work, kind by kind; the step ends a fixed time after the last worker has done its own. For workers that
wait for nobody that is the slowest one's step. Where a coordinator gives each worker its next step as soon as it is ready, the
faster ones do more of them: `step_of`. What-if, as in "Understanding Stragglers in Large Model Training" (OSDI 2025): a
suspect's times are *added* to the good step and *removed* from the bad one. With several suspects the two differ, for only the
last worker counts. So a suspect's seconds are the mean over all orders in which the suspects could have come (Shapley's value),
which add up; adding and removing are its two ends.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

Cell = tuple[str, str]  # worker, kind of work

_LEAST_S = 1e-6  # of a worker's step, whatever is taken out of it
MOST_SUSPECTS = 10  # 1,024 models of the step: milliseconds, and nobody reads a longer list


@dataclass(frozen=True)
class Times:
    """Where the workers' time goes on one side: seconds of a step."""

    own: Mapping[str, Mapping[str, float]]  # worker -> kind -> seconds, without waiting for others
    step_s: float
    error_s: Mapping[str, float] = field(default_factory=dict)  # kind -> how far its mean may be off, as a standard error
    coordinated: bool = False  # a coordinator gives each worker its next step as soon as it is ready

    @property
    def floor_s(self) -> float:
        """What is left of the step beyond the workers' own work."""
        return self.step_s - step_of([sum(of_worker.values()) for of_worker in self.own.values()], self.coordinated)

    def seconds(self, worker: str, kinds: Collection[str]) -> float:
        return sum(seconds for kind, seconds in self.own.get(worker, {}).items() if kind in kinds)

    def error(self, kinds: Collection[str]) -> float:
        return math.sqrt(sum(error**2 for kind, error in self.error_s.items() if kind in kinds))


@dataclass(frozen=True)
class Suspect:
    """Times that have changed together, and may have one cause. Every changed time belongs to exactly one suspect."""

    what: str  # a row of `suspects.GROUPS`, or "rest"
    cells: Mapping[Cell, float]  # change in seconds
    floor_s: float = 0.0  # change of what comes after the last worker's own work
    location: str | None = None  # a task, host or link; None: all of them

    @property
    def workers(self) -> Sequence[str]:
        return sorted({worker for worker, _ in self.cells})

    @property
    def largest_s(self) -> float:
        """The most that any worker's own work has changed by."""
        return max((abs(self.of(worker)) for worker in self.workers), default=0.0) + abs(self.floor_s)

    def largest_of(self, kinds: Collection[str]) -> float:
        """Of these kinds of work, the most that any worker's has changed by."""
        sums = [sum(s for (each, kind), s in self.cells.items() if each == worker and kind in kinds) for worker in self.workers]
        return max(map(abs, sums), default=0.0)

    def of(self, worker: str) -> float:
        return sum(seconds for (each, _), seconds in self.cells.items() if each == worker)


@dataclass(frozen=True)
class Gain:
    """What a suspect makes of a step. Seconds."""

    seconds: float  # the mean over all orders
    added_s: float  # alone, in the good step
    removed_s: float  # alone taken out of the bad one


def step_of(own: Sequence[float], coordinated: bool) -> float:
    """Seconds of a step of all workers, of what each has to do in one of its own: as long as the last one takes. With a
    coordinator, as long as all together take for as many steps as there are workers: their harmonic mean.
    """
    if not coordinated or not own:
        return max(own, default=0.0)
    return len(own) / sum(1 / max(_LEAST_S, seconds) for seconds in own)


def gains(then: Times, suspects: Sequence[Suspect]) -> Sequence[Gain]:
    """What each suspect makes of the step; they add up to what all of them make of it."""
    assert len(suspects) <= MOST_SUSPECTS + 1
    base = {worker: sum(kinds.values()) for worker, kinds in then.own.items()}
    changes = [{worker: suspect.of(worker) for worker in suspect.workers} for suspect in suspects]
    everyone = range(len(suspects))
    steps: dict[frozenset[int], float] = {}
    for size in range(len(suspects) + 1):
        for chosen in combinations(everyone, size):
            own = [before + sum(changes[i].get(worker, 0.0) for i in chosen) for worker, before in base.items()]
            steps[frozenset(chosen)] = step_of(own, then.coordinated) + then.floor_s + sum(suspects[i].floor_s for i in chosen)
    return [_gain(i, steps, len(suspects)) for i in everyone]


def _gain(i: int, steps: Mapping[frozenset[int], float], count: int) -> Gain:
    """Weights: the part of all orders in which exactly these come before."""
    seconds = sum(
        math.factorial(len(before))
        * math.factorial(count - len(before) - 1)
        / math.factorial(count)
        * (steps[before | {i}] - step)
        for before, step in steps.items()
        if i not in before
    )
    everyone = frozenset(range(count))
    return Gain(seconds, steps[frozenset({i})] - steps[frozenset()], steps[everyone] - steps[everyone - {i}])
