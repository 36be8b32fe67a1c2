"""Which of the workers' times have changed, and which of these have changed together: equal workers are one suspect.

Every change is of exactly one suspect. What is no larger than chance makes, for one worker and one group of kinds, goes to
"rest": which of several equal workers has a little more of a kind is chance, and differs from step to step.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence

from pytest_dtfperf.explain import transfers
from pytest_dtfperf.explain.evidence import Evidence
from pytest_dtfperf.explain.kinds import is_server
from pytest_dtfperf.explain.model import MOST_SUSPECTS, Cell, Suspect
from pytest_dtfperf.explain.probes import LINK, differences
from pytest_dtfperf.explain.tables import Basis, Both
from pytest_dtfperf.explain.words import ends_of

# Kinds of work that lengthen together. "apply" is the parameter servers' where there are any.
GROUPS: Mapping[str, tuple[str, ...]] = {
    "compute": ("forward", "backward", "compiled", "compute"),
    "input": ("input",),
    "transfer": ("receive", "send"),
    "python": ("python",),
    "apply": ("apply",),
    "host": ("host",),
}
REST, FLOOR = "rest", "floor"

_SURE = 2.0  # standard errors: 19 of 20 means of steps that are alike differ by less
_LEAST_OF_STEP = 0.01
# Of the same work then: hosts of one kind differ by that much; workers of one step by more, for the chief has more to do.
_LEAST_PART: Mapping[Basis, float] = {"traces": 0.05, "stamps": 0.05, "peers": 0.2}
_ALIKE = 0.35  # of the change that all have: what one has beyond that is its own
_MOST_ALONE = 3  # of more hosts that are slow, each for itself, it is the cluster

Changes = Mapping[str, Mapping[str, float]]  # worker -> kind -> seconds


def suspects(both: Both, then: Evidence, now: Evidence) -> list[Suspect]:
    """All changes, by what changed together; the rest last."""
    changes = changes_of(both)
    hosts = {**then.hosts, **now.hosts}
    found: list[Suspect] = []
    for what, cells in _groups(both, changes, _has_servers(now)).items():
        slow = _slow(cells, {worker: least(both, worker, GROUPS[what]) for worker in both.now.own})
        if what == "transfer":
            found += transfers.suspects(cells, slow, then.anatomy, now.anatomy, hosts, _slow_when_probed(then, now))
        elif slow:
            found += _together(what, cells, slow, list(both.now.own), hosts)
    floor_s = both.now.floor_s - both.then.floor_s
    if floor_s > least_of_floor(both):
        found.append(Suspect(FLOOR, {}, floor_s))
    return with_rest(found, changes, floor_s)


def _slow_when_probed(then: Evidence, now: Evidence) -> Sequence[transfers.Ends]:
    """Links between hosts, as source and destination."""
    found = differences(then.probes, now.probes) if then.probes and now.probes else ()
    return [(source, to) for source, to in (ends_of(each.location) for each in found if each.name == LINK)]


def with_rest(found: Sequence[Suspect], changes: Changes, floor_s: float) -> list[Suspect]:
    """The largest of them, and all that is left as one."""
    kept = sorted(found, key=lambda suspect: -suspect.largest_s)[: MOST_SUSPECTS - 1]
    left: dict[Cell, float] = {(worker, kind): seconds for worker, kinds in changes.items() for kind, seconds in kinds.items()}
    for suspect in kept:
        for cell, seconds in suspect.cells.items():
            left[cell] = left.get(cell, 0.0) - seconds
    return [*kept, Suspect(REST, left, floor_s - sum(suspect.floor_s for suspect in kept))]


def changes_of(both: Both) -> Changes:
    return {
        worker: {
            kind: parts.get(kind, 0.0) - both.then.own[worker].get(kind, 0.0) for kind in {**both.then.own[worker], **parts}
        }
        for worker, parts in both.now.own.items()
    }


def least(both: Both, worker: str, kinds: Sequence[str]) -> float:
    """Of these kinds of a worker, what chance could have changed."""
    error = _SURE * error_of(both, kinds)
    return max(error, _LEAST_PART[both.basis] * both.then.seconds(worker, kinds), _LEAST_OF_STEP * both.then.step_s)


def error_of(both: Both, kinds: Sequence[str]) -> float:
    """Standard error of the change of one worker's mean."""
    return math.hypot(both.then.error(kinds), both.now.error(kinds))


def least_of_floor(both: Both) -> float:
    """Of waiting, what chance could have changed: it is the rest of the step, and errs with all kinds."""
    return max(_SURE * error_of(both, [*both.then.error_s, *both.now.error_s]), _LEAST_OF_STEP * both.then.step_s)


def _has_servers(side: Evidence) -> bool:
    return side.anatomy is not None and any(is_server(task) for task in side.anatomy.tasks)


def _groups(both: Both, changes: Changes, has_servers: bool) -> Mapping[str, Mapping[Cell, float]]:
    """Group -> its changes. TensorFlow's own host code on a worker takes longer with whatever else of it does."""
    found: dict[str, dict[Cell, float]] = defaultdict(dict)
    for worker, kinds in changes.items():
        host = _taken_along(both, worker, kinds)
        elsewhere = {"host": host, **({} if has_servers else {"apply": "compute"})}
        for what, members in GROUPS.items():
            for kind in members:
                if kind in kinds:
                    found[elsewhere.get(what, what)][worker, kind] = kinds[kind]
    return found


def _taken_along(both: Both, worker: str, kinds: Mapping[str, float]) -> str:
    """To which group a worker's host code belongs: to one that is longer for sure, if that is so."""
    changes = {what: sum(kinds.get(kind, 0.0) for kind in GROUPS[what]) for what in ("compute", "transfer")}
    longer = {what: seconds for what, seconds in changes.items() if seconds > least(both, worker, GROUPS[what])}
    return max(longer, key=lambda what: longer[what]) if longer and kinds.get("host", 0.0) > 0 else "host"


def _slow(cells: Mapping[Cell, float], least_s: Mapping[str, float]) -> Mapping[str, float]:
    """Worker -> by how much it is longer, of those that are for sure."""
    of_worker: dict[str, float] = defaultdict(float)
    for (worker, _), seconds in cells.items():
        of_worker[worker] += seconds
    return {worker: seconds for worker, seconds in of_worker.items() if seconds > least_s[worker]}


def _together(
    what: str, cells: Mapping[Cell, float], slow: Mapping[str, float], everyone: Collection[str], hosts: Mapping[str, str]
) -> Iterator[Suspect]:
    """One suspect for what all workers have alike, one for each that has more."""
    is_all = len(slow) == len(everyone) or len({hosts.get(worker, worker) for worker in slow}) > _MOST_ALONE
    common = _common(list(slow.values())) if is_all else 0.0
    parts: dict[Cell, float] = {}
    alone: dict[str, dict[Cell, float]] = defaultdict(dict)
    for (worker, kind), seconds in cells.items():
        if worker not in slow:
            continue
        excess = slow[worker] - common
        own = 0.0 if common and excess <= _ALIKE * common else excess / slow[worker]
        parts[worker, kind] = seconds * (1 - own)
        if own:
            alone[_whose(worker, slow, everyone, hosts)][worker, kind] = seconds * own
    if common:
        yield Suspect(what, parts)
    for at, of_those in sorted(alone.items()):
        yield Suspect(what, of_those, location=at)


def _common(seconds: Sequence[float]) -> float:
    """What all of them have: of two the smaller, of more one in the middle."""
    return min(seconds) if len(seconds) < 3 else statistics.median_low(seconds)


def _whose(worker: str, slow: Mapping[str, float], everyone: Collection[str], hosts: Mapping[str, str]) -> str:
    """Its host, if all of several workers there are slow and others are elsewhere; else the worker itself."""
    host = hosts.get(worker)
    there = [other for other in everyone if hosts.get(other) == host]
    return host if host and 1 < len(there) < len(everyone) and all(other in slow for other in there) else worker
