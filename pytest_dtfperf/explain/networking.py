"""Why transfers take longer: a link, a host's network, a parameter server."""

from collections.abc import Iterator, Mapping, Sequence

from pytest_dtfperf.explain.anatomy import Anatomy
from pytest_dtfperf.explain.case import Case, Reason
from pytest_dtfperf.explain.joined import SERVER, applies
from pytest_dtfperf.explain.kinds import is_server
from pytest_dtfperf.explain.probes import ALL, LINK, differences
from pytest_dtfperf.explain.suspects import GROUPS
from pytest_dtfperf.explain.words import ends_of, gbit_per_s, ms, with_host

_MAINLY = 0.8  # of the seconds: in one direction
_UPDATES_LONGER = 1.2  # times
_MOST_OF_IT = 0.5
_NAMED = 3  # workers


def of_a_link(case: Case) -> Reason:
    rate = _rate(case)
    seconds = _seconds(case)
    found = case.strains("link")
    return case.reason("link", f"{_subject(case)} {rate or _longer(case)}", [seconds], [*found, *_growth(case, rate)])


def of_a_server(case: Case) -> Reason:
    rate = _rate(case)
    server = case.location or ""
    ratio = applies(server, case.then, case.now)
    updates = [f"its own operations take {ratio:.1f} times as long"] if ratio and ratio > _UPDATES_LONGER else []
    some = f"each parameter server of {server}" if server else "every parameter server"
    who = with_host(server, case.hosts) if is_server(server) else some
    if case.suspect.largest_of(GROUPS["transfer"]) > _MOST_OF_IT * case.suspect.largest_s:
        words = f"{who} answers late: {_directed(case)} {rate or _longer(case)}"
    elif case.suspect.largest_of(("apply",)) + abs(case.suspect.floor_s) >= _MOST_OF_IT * case.suspect.largest_s:
        words = f"{who} takes longer to update: {ms(case.suspect.largest_s)} ms more"
    else:
        words = f"{who} answers late: workers wait {ms(case.suspect.largest_s)} ms more for it"
    evidence = [_seconds(case, what) for what in ("transfer", "apply") if case.suspect.largest_of(GROUPS[what])]
    if case.suspect.floor_s > 0:
        evidence.append(f"workers wait {ms(case.suspect.floor_s)} ms longer once they have done their own work")
    return case.reason(SERVER, words, evidence, [*updates, *case.strains("others", "clock", "memory", "compute")])


def probed_location(case: Case) -> str | None:
    """The link or host that all links have in common which are slower when probed, and no other does; None: nobody knows.

    An all-reduce goes round all workers, and each of its links waits for the others: what it took tells no link from another.
    """
    then, now = case.then.probes, case.now.probes
    if not then or not now:
        return None
    ways = {name: tuple(name.split(">")) for name in now.links if name in then.links}
    slow = {ways[each.location] for each in differences(then, now) if each.name == LINK and each.location in ways}
    if not slow or ALL in {end for way in slow for end in way}:
        return None
    if len(slow) == 1 or len({frozenset(way) for way in slow}) == 1:
        source, target = (_task_at(end, case.hosts) for end in min(slow))
        return f"{source}>{target}" if len(slow) == 1 else f"{source}<>{target}"
    common = set.intersection(*({*way} for way in slow))
    return _task_at(common.pop(), case.hosts) if len(common) == 1 else None


def _task_at(host: str, hosts: Mapping[str, str]) -> str:
    """The one that is there; of several, the host."""
    there = [task for task, at in hosts.items() if at == host]
    return there[0] if len(there) == 1 else host


def _seconds(case: Case, what: str = "transfer") -> str:
    before, after = case.seconds(what)
    to = {"transfer": "transfers", "apply": "updates"}[what]
    more = f" and {len(case.workers) - _NAMED} more" if len(case.workers) > _NAMED else ""
    who = f"{', '.join(case.workers[:_NAMED])}{more}"
    return f"{who}: {ms(after)} ms of a step go to {to}, {ms(before)} ms {case.before}"


def _longer(case: Case) -> str:
    before, after = case.seconds("transfer")
    return f"for {ms(after)} ms of a step, {ms(before)} ms {case.before}"


def _growth(case: Case, rate: str) -> list[str]:
    return [f"the rate of its bytes: {rate}"] if rate else []


def _subject(case: Case) -> str:
    """Both ends and the direction."""
    ends = [with_host(end, case.hosts) for end in ends_of(case.location)]
    if len(ends) == 2:
        return f"{ends[0]} and {ends[1]} exchange" if "<>" in (case.location or "") else f"{ends[0]} sends to {ends[1]}"
    if not ends:
        return "all tasks exchange"
    return f"{ends[0]} {_directed(case)}"


def _directed(case: Case) -> str:
    """Of a task or host with all others. Workers receive what parameter servers send."""
    sums = {kind: sum(s for (_, each), s in case.suspect.cells.items() if each == kind) for kind in ("receive", "send")}
    total = sum(sums.values())
    mainly = next((kind for kind, seconds in sums.items() if seconds > _MAINLY * total), None)
    jobs = {is_server(task) for task in _tasks_at(case.location, case.hosts)}
    if jobs == {True}:
        return {"receive": "sends to the workers", "send": "receives from the workers", None: "exchanges with the workers"}[
            mainly
        ]
    if jobs == {False}:
        return {"receive": "receives", "send": "sends", None: "sends and receives"}[mainly]
    return "exchanges with other hosts"  # what is received there is sent from there, too


def _tasks_at(location: str | None, hosts: Mapping[str, str]) -> Sequence[str]:
    """A task alone, all of a host, or where none is named all parameter servers: of all tasks nobody asks what they do."""
    if location is None:
        return [task for task in hosts if is_server(task)] or ["ps:0"]
    return [task for task, host in hosts.items() if location == host] or [location]


def _rate(case: Case) -> str:
    """`at 2.1 instead of 9.8 Gbit/s`: of the links of the suspect that are slower, where both sides know it; else nothing."""
    before, after = _known(case.then.anatomy), _known(case.now.anatomy)
    both = [ends for ends in after if ends in before and _concerns(ends, case.location)]
    slower = [ends for ends in both if _per_s(after[ends]) < _per_s(before[ends])]
    if not slower or case.both.basis != "traces":
        return ""
    rates = [sum(side[ends][0] for ends in slower) / sum(side[ends][1] for ends in slower) for side in (after, before)]
    return f"at {gbit_per_s(rates[0])} instead of {gbit_per_s(rates[1])} Gbit/s"


_Links = Mapping[tuple[str, str], tuple[float, float]]  # ends -> bytes, seconds


def _known(anatomy: Anatomy | None) -> _Links:
    return dict(_each(anatomy)) if anatomy else {}


def _each(anatomy: Anatomy) -> Iterator[tuple[tuple[str, str], tuple[float, float]]]:
    for link in anatomy.links:
        if link.busy_s:
            yield (link.source, link.destination), (link.size_bytes, link.busy_s)


def _per_s(found: tuple[float, float]) -> float:
    return found[0] / found[1]


def _concerns(ends: tuple[str, str], location: str | None) -> bool:
    named = ends_of(location)
    if len(named) < 2:
        return not named or named[0] in ends
    return set(ends) == set(named) if "<>" in (location or "") else ends == (named[0], named[1])
