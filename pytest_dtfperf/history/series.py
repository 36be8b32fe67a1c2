"""Which measurements of a history are nights of the same series: those that may be compared. Pure.

As with baselines, what must match of a fingerprint decides; what is only noted (driver, kernel, versions) may change within a
series, for that is what one wants to find.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pytest_dtfperf.baselines.comparability import must_match
from pytest_dtfperf.history.rows import Row


@dataclass
class Series:
    """Measurements of one training on one kind of hosts, the oldest first; one of each session."""

    label: str
    system: str
    spec_key: str
    hosts: int
    points: list[Row] = field(default_factory=list)  # as `store.measured` gives them

    @property
    def name(self) -> str:
        """Of what it has in common, and of the measurement that it began with."""
        first = self.points[0]
        words = [self.spec_key, str(self.hosts), first["fingerprint"], first["session"]]
        return hashlib.sha256("\n".join(words).encode()).hexdigest()[:32]


def series_of(rows: Iterable[Row], fingerprints: Mapping[str, Mapping[str, Any]]) -> list[Series]:
    """`rows`: the oldest first. A measurement goes on with the series that it may be compared with, the latest of several."""
    found: dict[tuple[str, int], list[Series]] = defaultdict(list)
    comparable = Comparable(fingerprints)
    for row in rows:
        known = found[row["spec_key"], row["hosts"]]
        series = next(
            (each for each in reversed(known) if comparable(each.points[-1]["fingerprint"], row["fingerprint"])), None
        )
        if series is None:
            series = Series(row["label"], row["system"], row["spec_key"], row["hosts"])
            known.append(series)
        if series.points and series.points[-1]["session"] == row["session"]:
            series.points[-1] = row  # measured again in its session: the last counts
        else:
            series.points.append(row)
    return [series for known in found.values() for series in known]


class Comparable:
    """Whether rates of two fingerprints, told by their digests, may be compared.

    Each pair is looked at once: nights are many, and have few.
    """

    def __init__(self, fingerprints: Mapping[str, Mapping[str, Any]]) -> None:
        self._contents = fingerprints
        self._known: dict[tuple[str, str], bool] = {}

    def __call__(self, then: str, now: str) -> bool:
        if then == now:
            return True
        if (then, now) not in self._known:
            self._known[then, now] = not must_match(self._contents[then], self._contents[now])
        return self._known[then, now]
