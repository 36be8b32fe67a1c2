"""Series: measurements of a history that may be compared. Pure.

As for baselines, the matching part of the fingerprint decides. The noted part (driver, kernel, versions) may change within a
series, as its changes are what a series shall show.
"""

import hashlib
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pytest_dtfperf.baselines.comparability import describe_replacements, list_forbidden_differences, list_hardware_differences
from pytest_dtfperf.datamodel.fingerprint import Fingerprint
from pytest_dtfperf.formats import change, format_count
from pytest_dtfperf.history.rows import Row

NEAR = 14  # nights on either side of a break that are compared when a series is shown
HOST_PREFIX = "host "  # of the names of series of readings
LEAST = 4  # nights that a series needs to be compared with the next one, unless none has so many


@dataclass
class Series:
    """Measurements of one training on one kind of hosts, or readings of one host, the oldest first, one per session."""

    label: str
    system: str
    spec_key: str
    hosts: int
    points: list[Row] = field(default_factory=list)  # rows of `store.read_measurements`, or of `make_host_series`
    host: str = ""  # with readings: its name
    capacity: str = ""  # with readings: the name of the capacity

    @property
    def name(self) -> str:
        """The identity of the series: a digest of the training, the hosts, and the first measurement."""
        first = self.points[0]
        parts = [self.spec_key, str(self.hosts), first["fingerprint"], first["session"]]
        return (HOST_PREFIX if self.host else "") + hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def make_series(rows: Iterable[Row], fingerprints: Mapping[str, Fingerprint]) -> list[Series]:
    """Return all series. A measurement joins the latest series that it may be compared with. `rows` are the oldest first."""
    found: dict[tuple[str, int], list[Series]] = defaultdict(list)
    comparable = ComparabilityCheck(fingerprints)
    for row in rows:
        known = found[row["spec_key"], row["hosts"]]
        series = next(
            (each for each in reversed(known) if comparable(each.points[-1]["fingerprint"], row["fingerprint"])), None
        )
        if series is None:
            series = Series(row["label"], row["system"], row["spec_key"], row["hosts"])
            known.append(series)
        if series.points and series.points[-1]["session"] == row["session"]:
            series.points[-1] = row  # the last measurement in a session counts
        else:
            series.points.append(row)
    return [series for known in found.values() for series in known]


def make_host_series(rows: Iterable[Row]) -> list[Series]:
    """Return a series for each capacity of each host: readings of one cluster, one hardware and the same conditions.

    `rows` are those of `store.read_host_readings`. The median of a session's readings is its point.
    """
    found: dict[str, Series] = {}
    readings: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        parts = {name: row[name] for name in ("cluster", "host", "kind", "name", "conditions")}
        key = json.dumps(list(parts.values()), ensure_ascii=False)
        readings[key, row["session"]].append(row)
        if key not in found:
            label = f"{row['host']}: {row['name']}"
            found[key] = Series(label, row["kind"], key, 1, host=row["host"], capacity=row["name"])
    for (key, _), same in readings.items():
        per_s = statistics.median(row["per_s"] for row in same)
        found[key].points.append({**same[-1], "per_s": per_s, "mean_log": math.log(per_s), "fingerprint": ""})
    return list(found.values())


class ComparabilityCheck:
    """A function that returns whether rates of two fingerprints may be compared, given their digests.

    Results are cached, as many nights share few fingerprints.
    """

    def __init__(self, fingerprints: Mapping[str, Fingerprint]) -> None:
        self._contents = fingerprints
        self._known: dict[tuple[str, str], bool] = {}

    def __call__(self, then: str, now: str) -> bool:
        if then == now:
            return True
        if (then, now) not in self._known:
            self._known[then, now] = not list_forbidden_differences(self._contents[then], self._contents[now])
        return self._known[then, now]


@dataclass(frozen=True)
class SeriesBegin:
    """The beginning of a series after another one ended on the same hardware."""

    ended: str  # name of the series before it
    last_good: str  # its last session
    nights: int  # of that series that are compared
    change: float  # of the median rate, as a fraction; an event shows whether it is significant
    because: Sequence[str]  # the replaced parts of software and program; a key of `dtfperf history trend --json`

    def __str__(self) -> str:
        return f"{change(self.change)} against the {format_count(self.nights, 'night')} before, with {'; '.join(self.because)}"


class Successions:
    """The series that ended when another one of the same training and hosts began."""

    def __init__(self, all_series: Iterable[Series], fingerprints: Mapping[str, Fingerprint]) -> None:
        self._contents = fingerprints
        self._of_training: dict[tuple[str, int], list[Series]] = defaultdict(list)
        self._known: dict[int, list[Series]] = {}
        for series in all_series:
            self._of_training[series.spec_key, series.hosts].append(series)

    def find_ended(self, series: Series, latest: str | None = None) -> tuple[Series, int] | None:
        """Return the series that ended when a series began, and its nights until then; None if there is none.

        A series that was measured again later has not ended. If several have ended, the latest with at least LEAST nights
        counts, or else the longest.

        Args:
            series: The series that began.
            at: The start of the last session that counts, in ISO 8601; by default the last of all.
        """
        began = series.points[0]["started"]
        ended = []
        for each in self._find_earlier(series):
            nights = sum(point["started"] < began for point in each.points)
            if nights == len(each.points) or (latest is not None and each.points[nights]["started"] > latest):
                ended.append((each, nights))
        enough = [each for each in ended if each[1] >= LEAST]
        if enough:
            return max(enough, key=lambda each: str(each[0].points[each[1] - 1]["started"]))
        return max(ended, key=lambda each: each[1], default=None)

    def begin(self, series: Series) -> "SeriesBegin | None":
        """Compare the first nights of a series with the last ones of the series that ended; None if there is none."""
        found = self.find_ended(series)
        if found is None:
            return None
        ended, nights = found
        last = ended.points[max(0, nights - NEAR) : nights]
        first = series.points[:NEAR]
        sizes = [statistics.median(point["mean_log"] for point in points) for points in (last, first)]
        return SeriesBegin(
            ended=ended.name,
            last_good=last[-1]["session"],
            nights=len(last),
            change=math.expm1(sizes[1] - sizes[0]),
            because=describe_replacements(*(self._contents[point["fingerprint"]] for point in (last[-1], first[0]))),
        )

    def _find_earlier(self, series: Series) -> Sequence[Series]:
        """Return the series that began earlier on the same hardware."""
        if id(series) not in self._known:
            first = series.points[0]
            self._known[id(series)] = [
                each
                for each in self._of_training[series.spec_key, series.hosts]
                if each.points[0]["started"] < first["started"]
                and not list_hardware_differences(*(self._contents[point["fingerprint"]] for point in (each.points[0], first)))
            ]
        return self._known[id(series)]
