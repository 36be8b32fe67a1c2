"""What has become longer: two anatomies of one training in, seconds by kind of work out, which add up to the step's change."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_dtfperf.codec import JsonData
from pytest_dtfperf.explain.anatomy import Anatomy


@dataclass(frozen=True)
class Change(JsonData):
    """One kind of work on the critical path, or of the slowest worker where none is known, then and now. Seconds per step."""

    kind: str
    before_s: float
    after_s: float
    locations: Mapping[str, float]  # task or link -> change; those on small parts of a path are in none

    @property
    def seconds(self) -> float:
        return self.after_s - self.before_s

    @property
    def location(self) -> str | None:
        """That has changed most in the direction of the whole; None if no location is known that did."""
        same = {location: seconds for location, seconds in self.locations.items() if seconds * self.seconds > 0}
        return max(same, key=lambda location: abs(same[location]), default=None)


def difference(before: Anatomy, after: Anatomy) -> Sequence[Change]:
    """By kind, the largest change first. They add up to `after.wall_s - before.wall_s`.

    By kind and not by location: which of several equal workers is on the path is chance, and differs from step to step.
    """
    then, now = _by_location(before), _by_location(after)
    changes = [_change(kind, then.get(kind, {}), now.get(kind, {})) for kind in {**then, **now}]
    return sorted(changes, key=lambda change: (-abs(change.seconds), change.kind))


def _by_location(anatomy: Anatomy) -> Mapping[str, Mapping[str | None, float]]:
    found: dict[str, Counter[str | None]] = {}
    for part in anatomy.parts:
        found.setdefault(part.kind, Counter())[part.location] += part.seconds  # type: ignore[assignment]  # typeshed: whole numbers
    return found


def _change(kind: str, then: Mapping[str | None, float], now: Mapping[str | None, float]) -> Change:
    locations = {at: now.get(at, 0.0) - then.get(at, 0.0) for at in {**then, **now} if at is not None}
    return Change(kind, sum(then.values()), sum(now.values()), locations)
