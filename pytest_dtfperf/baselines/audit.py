"""The audit of stored baselines: findings about those that are not reliable any more. Pure: nothing is measured."""

import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from pytest_dtfperf.baselines.comparability import system_name
from pytest_dtfperf.baselines.entry import Entry
from pytest_dtfperf.baselines.terms import ASSUMED, ComparisonPolicy, share
from pytest_dtfperf.baselines.verdict import FALSE_ALARMS
from pytest_dtfperf.datamodel.measurement import Measurement
from pytest_dtfperf.formats import change, percent
from pytest_dtfperf.spec import Spec
from pytest_dtfperf.stats.comparison import runs_needed
from pytest_dtfperf.stats.noise import pool_spreads

MISSING, UNOWNED, OLD, BEATEN, TIGHT = "no baseline", "no test", "old", "beaten", "too tight"
USUAL = ComparisonPolicy()  # the default margin and maximum of runs


@dataclass(frozen=True, kw_only=True)
class AuditFinding:
    """A finding about one case on one system that the user should check."""

    kind: str
    system: str
    case: str
    message: str  # the problem, and how to continue


@dataclass(frozen=True, kw_only=True)
class Sighting:
    """A measurement that a session has compared with a baseline, or would have if there had been one."""

    session: str  # its id, which begins with the time
    test: str
    measurement: Measurement
    margin: float | None = None  # in this session

    @property
    def case(self) -> tuple[str, str]:
        return system_name(self.measurement.fingerprint.hardware), self.measurement.spec.key

    def is_of(self, entry: Entry) -> bool:
        """Return whether it would be compared with this entry."""
        return entry.key == self.measurement.spec.key and not entry.list_differences(
            self.measurement.fingerprint, len(self.measurement.hosts)
        )


@dataclass(frozen=True, kw_only=True)
class AuditInputs:
    """The inputs of an audit."""

    entries: Mapping[str, Sequence[Entry]]  # by system
    margins: Mapping[str, float]  # by system, if its file sets one
    sightings: Sequence[Sighting]  # oldest session first
    tests: Collection[str] | None  # node ids; None: unknown
    now: datetime
    max_age_days: int
    beaten: int  # consecutive sessions

    def margin(self, system: str, entry: Entry) -> float:
        """Return the case's latest margin, else that of its system's file, else the default."""
        given = [seen.margin for seen in self.find_sightings(entry) if seen.margin is not None]
        return given[-1] if given else self.margins.get(system, USUAL.margin)

    def find_sightings(self, entry: Entry) -> list[Sighting]:
        return [sighting for sighting in self.sightings if sighting.is_of(entry)]


def audit(known: AuditInputs) -> list[AuditFinding]:
    """Return all findings, the gravest first."""
    of_each = [
        AuditFinding(kind=kind, system=system, case=label_of(entry.key), message=message)
        for kind, check in CHECKS.items()
        for system, entries in known.entries.items()
        for entry in entries
        if (message := check(known, system, entry))
    ]
    return [*_find_missing_baselines(known), *of_each]


def _find_missing_baselines(known: AuditInputs) -> Iterable[AuditFinding]:
    latest = {sighting.case: sighting for sighting in known.sightings}
    owners = functions(known.tests) if known.tests is not None else None
    for (system, key), sighting in latest.items():
        is_known = any(sighting.is_of(entry) for entry in known.entries.get(system, ()))
        if not is_known and (owners is None or function(sighting.test) in owners):
            message = f"session {sighting.session} had nothing to compare it with; accept it: --update-baselines=new"
            yield AuditFinding(kind=MISSING, system=system, case=label_of(key), message=message)


def _describe_unowned_entry(known: AuditInputs, system: str, entry: Entry) -> str:
    if known.tests is None or function(entry.provenance.test) in functions(known.tests):
        return ""
    test = function(entry.provenance.test)
    return f"{test} is not among the tests: name the file it has moved to, or remove its baseline (dtfperf baselines remove)"


def _describe_old(known: AuditInputs, system: str, entry: Entry) -> str:
    measured = datetime.fromisoformat(entry.provenance.date)
    age = known.now - (measured if measured.tzinfo else measured.replace(tzinfo=UTC))
    if age <= timedelta(days=known.max_age_days):
        return ""
    return f"measured {age.days} days ago; measure it again: --update-baselines"


def _beaten(known: AuditInputs, system: str, entry: Entry) -> str:
    margin = known.margin(system, entry)
    later = [sighting for sighting in known.find_sightings(entry) if sighting.session > entry.provenance.session]
    by_session: dict[str, list[float]] = {}
    for sighting in later:
        by_session.setdefault(sighting.session, []).append(sighting.measurement.images_per_sec / entry.images_per_sec - 1)
    gains = [statistics.median(found) for found in by_session.values()][-known.beaten :]
    if len(gains) < known.beaten or min(gains) <= margin:
        return ""
    return (
        f"the last {len(gains)} sessions were {change(min(gains))} to {change(max(gains))} faster, margin {percent(margin)}: "
        "as much could be lost unnoticed; accept the new rate: --update-baselines"
    )


def _describe_tight(known: AuditInputs, system: str, entry: Entry) -> str:
    margin = known.margin(system, entry)
    noise = entry.noise or ASSUMED
    noise = replace(noise, run=pool_spreads([entry.samples], noise)[0])
    false_alarm = share(FALSE_ALARMS, tests=len(known.entries[system]), red=0, check=0)
    needed = runs_needed(len(entry.samples), noise, margin, false_alarm)
    if needed is not None and needed <= USUAL.most:
        return ""
    takes = f"about {needed} runs" if needed else "more than any number of runs"
    return (
        f"margin {percent(margin)}, noise {percent(noise.run)}: to see a loss of twice the margin takes {takes}, "
        f"against a baseline of {len(entry.samples)}; widen the margin, or accept a baseline of more runs: "
        f"--update-baselines --repeats={USUAL.most}"
    )


CHECKS: Mapping[str, Callable[[AuditInputs, str, Entry], str]] = {
    UNOWNED: _describe_unowned_entry,
    BEATEN: _beaten,
    TIGHT: _describe_tight,
    OLD: _describe_old,
}


def function(test: str) -> str:
    """Return a test without its parameters: the number of device counts depends on the cluster."""
    return test.partition("[")[0]


def functions(tests: Iterable[str]) -> frozenset[str]:
    return frozenset(map(function, tests))


def label_of(key: str) -> str:
    """Return a key without default values: `inception3 b64 gpus=8 num_ps=2 parameter_server`."""
    fields = dict(word.split("=", 1) for word in key.split(" "))
    usual = dict(word.split("=", 1) for word in Spec(model="trivial", batch_size=1).key.split(" "))
    first = [
        fields.pop("model"),
        f"b{fields.pop('batch_size')}",
        *(f"{name}={fields.pop(name)}" for name in ("gpus", "num_ps")),
    ]
    rest = [f"{name}={value}" for name, value in fields.items() if name != "variable_update" and value != usual.get(name)]
    return " ".join([*first, fields["variable_update"], *rest])
