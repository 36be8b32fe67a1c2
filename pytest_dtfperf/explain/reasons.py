"""What a suspect is: its kind of cause, in words, with what speaks for it and where to look next. A row for each suspect."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pytest_dtfperf.explain import strain
from pytest_dtfperf.explain.evidence import Evidence
from pytest_dtfperf.explain.joined import PROGRAM, SERVER, applies
from pytest_dtfperf.explain.kinds import is_server
from pytest_dtfperf.explain.model import Gain, Suspect
from pytest_dtfperf.explain.strain import Strain
from pytest_dtfperf.explain.suspects import FLOOR, GROUPS
from pytest_dtfperf.explain.tables import Both
from pytest_dtfperf.explain.words import gbit_per_s, ms, percent_longer, place, places, times

Confidence = Literal["high", "medium", "low"]

_STARVED = 1.25  # times as long on the wall for the same CPU: an operation that waits for a core computes nothing
_SAME_WORK = 0.5  # of what became longer, that the CPU had to do, too: then it is the work and not the core


@dataclass(frozen=True)
class Reason:
    """What a cause says of itself."""

    kind: str
    location: str | None
    words: str
    evidence: Sequence[str]
    confidence: Confidence
    hosts: Sequence[str] = ()  # to look at next


@dataclass(frozen=True)
class Case:
    """Both sides, and one suspect."""

    then: Evidence
    now: Evidence
    both: Both
    suspect: Suspect
    gain: Gain

    @property
    def hosts(self) -> Mapping[str, str]:
        return {**self.then.hosts, **self.now.hosts}

    @property
    def location(self) -> str | None:
        """Of a single worker its name: there is no other."""
        return self.suspect.location or (next(iter(self.both.now.own)) if len(self.both.now.own) == 1 else None)

    @property
    def who(self) -> str:
        """`worker:5 (node03)`, `all workers`."""
        return place(self.location, self.hosts) if self.location else "every worker"

    @property
    def at(self) -> Sequence[str]:
        """The hosts of it; empty: not known, or all."""
        return sorted(
            {self.hosts.get(end, end) for end in places(self.location) if self.hosts.get(end, end) in self.hosts.values()}
        )

    @property
    def workers(self) -> Sequence[str]:
        return self.suspect.workers or sorted(self.both.now.own)

    @property
    def all_wait(self) -> str:
        return "; all wait for it" if self.suspect.location and len(self.both.now.own) > 1 else ""

    @property
    def strains(self) -> Sequence[Strain]:
        """What is known of its hosts."""
        return [each for each in strain.of(self.now) if each.host in self.at or not self.at]

    def seconds(self, kinds: Sequence[str]) -> tuple[float, float]:
        """Of these workers together, then and now."""
        before, after = (sum(side.seconds(w, kinds) for w in self.workers) for side in (self.both.then, self.both.now))
        return before / len(self.workers), after / len(self.workers)

    @property
    def than(self) -> str:
        return (
            "than the others" if self.both.basis == "peers" else "than its baseline" if self.location else "than the baseline"
        )

    def confidence(self, agreeing: int) -> Confidence:
        """How many independent things say so, beyond the seconds themselves."""
        if self.both.basis == "peers":
            return "medium" if agreeing else "low"
        return "high" if agreeing else "medium"


def reason_for(case: Case) -> Reason:
    return ROWS[case.suspect.what](case)


def _compute(case: Case) -> Reason:
    before, after = case.seconds(GROUPS["compute"])
    seconds = f"computes {ms(after)} instead of {ms(before)} ms in a step"
    starved = _starved(case)
    if starved:
        evidence = [seconds, starved, *(each.words for each in case.strains if each.kind == "others")]
        words = f"{case.who} waits for cores that others have: {seconds}{case.all_wait}"
        return Reason("others", case.location, words, evidence, case.confidence(len(evidence) - 2), case.at)
    slower = f"{case.who} computes {percent_longer(before, after)} slower {case.than}"
    evidence = [seconds, *_same_graph(case)]
    for kind in ("clock", "memory"):
        if found := [each.words for each in case.strains if each.kind == kind]:
            return Reason(
                kind, case.location, f"{slower}; {found[0]}{case.all_wait}", [*evidence, *found], case.confidence(1), case.at
            )
    if case.suspect.location is None and case.now.software_changes:
        return _software(case, slower, evidence)
    found = [each.words for each in case.strains if each.kind == "compute"]
    also = f"; {found[0]}" if found else ""
    return Reason(
        "compute", case.location, f"{slower}{also}{case.all_wait}", [*evidence, *found], case.confidence(len(found)), case.at
    )


def _starved(case: Case) -> str:
    """That the same arithmetic has waited for a core; empty: it has not, or nobody knows."""
    stretch, cpu = [], []
    for times_of, side in ((case.both.then, case.then), (case.both.now, case.now)):
        of_workers = [_cpu(side, worker) for worker in case.workers]
        if case.both.basis == "peers" and side is case.then:
            of_workers = [_cpu(case.now, worker) for worker in case.both.now.own if worker not in case.workers]
            wall = sum(case.both.now.seconds(w, GROUPS["compute"]) for w in case.both.now.own if w not in case.workers)
        else:
            wall = sum(times_of.seconds(worker, GROUPS["compute"]) for worker in case.workers)
        known = [each for each in of_workers if each]
        if not known or len(known) < len(of_workers):
            return ""
        stretch.append(wall / sum(known))
        cpu.append(sum(known) / len(known))
    before, after = case.seconds(GROUPS["compute"])
    more_work = cpu[1] / cpu[0] - 1 > _SAME_WORK * (after / before - 1) if before else True
    if more_work or stretch[1] < _STARVED * stretch[0]:
        return ""
    return f"each second of its CPU took {stretch[1]:.1f} s of computing, {stretch[0]:.1f} s before: it was waiting for a core"


def _cpu(side: Evidence, worker: str) -> float | None:
    """Of a worker's process in a step."""
    score = side.scores.workers.get(worker) if side.scores else None
    if score and score.cpu_s is not None:
        return score.cpu_s
    task = side.anatomy.tasks.get(worker) if side.anatomy else None
    return task.cpu_s if task else None


def _same_graph(case: Case) -> Iterator[str]:
    if case.then.graph is not None and case.then.graph == case.now.graph and not case.now.program_changes:
        yield "the same graph with the same settings: it is the arithmetic that takes longer"


def _software(case: Case, words: str, evidence: Sequence[str]) -> Reason:
    changed = ", ".join(case.now.software_changes)
    return Reason("software", None, f"{words}; since then: {changed}", [*evidence, changed], "low")


def _input(case: Case) -> Reason:
    before, after = case.seconds(GROUPS["input"])
    found = [each.words for each in case.strains if each.kind == "input"]
    words = f"{case.who} waits {ms(after)} instead of {ms(before)} ms for the next batch{case.all_wait}"
    return Reason("input", case.location, words, [words, *found], case.confidence(len(found)), case.at)


def _transfer(case: Case) -> Reason:
    before, after = case.seconds(GROUPS["transfer"])
    rates = list(_rates(case))
    ratio = times(before, after)
    probed = [each.words for each in case.strains if each.kind == "link"]
    if case.location is None:
        words = f"all transfers take {ratio} as long"
    elif ">" in case.location:
        words = f"{_link_words(case.location, case.hosts)} takes {ratio} as long"
    else:
        words = f"{case.who} sends and receives more slowly, with everybody: {ratio} as long"
    words += f", {rates[0]}" if rates else ""
    seconds = f"transfers take {ms(after)} instead of {ms(before)} ms of a step of {', '.join(case.workers[:4])}"
    return Reason(
        "link",
        case.location,
        f"{words}{case.all_wait}",
        [seconds, *rates, *probed],
        case.confidence(len(probed) + len(rates)),
        case.at,
    )


def _link_words(location: str, hosts: Mapping[str, str]) -> str:
    one, other = (place(end, hosts) for end in places(location))
    return f"between {one} and {other}, either way: it" if "<>" in location else f"from {one} to {other}: it"


def _rates(case: Case) -> Iterator[str]:
    """Where both sides know a link's rate: of those that the suspect has, the busiest first."""
    ends = places(case.location)
    if not case.now.anatomy or not case.then.anatomy:
        return
    before = {(link.source, link.destination): link.bytes_per_s for link in case.then.anatomy.links}
    for link in case.now.anatomy.links:
        then = before.get((link.source, link.destination))
        concerned = (
            all(end in (link.source, link.destination) for end in ends)
            if len(ends) == 2
            else set(ends) & {link.source, link.destination}
        )
        if then and link.bytes_per_s and concerned and link.bytes_per_s < then:
            yield f"{link.source} to {link.destination} at {gbit_per_s(link.bytes_per_s)} instead of {gbit_per_s(then)} Gbit/s"


def _server(case: Case) -> Reason:
    transfers = case.seconds(GROUPS["transfer"])
    ratio = applies(case.location, case.then, case.now) if case.location else None
    rates = list(_rates(case))
    evidence = [f"transfers with it take {ms(transfers[1])} instead of {ms(transfers[0])} ms of a step", *rates]
    agreeing = [each.words for each in case.strains if each.kind in ("others", "clock", "memory", "compute")]
    if ratio:
        agreeing += [f"its own operations take {ratio:.1f} times as long"] if ratio > 1.2 else []
    who = place(case.location, case.hosts) if case.location and is_server(case.location) else "every parameter server"
    words = f"{who} answers and updates {'' if not transfers[0] else times(sum(transfers[:1]), transfers[1]) + ' as '}slowly"
    if rates:
        words = f"{who} answers more slowly, {rates[0]}"
    return Reason(SERVER, case.location, words, [*evidence, *agreeing], case.confidence(len(agreeing)), case.at)


def _python(case: Case) -> Reason:
    before, after = case.seconds(GROUPS["python"])
    cpu = [_cpu(side, worker) for side in (case.then, case.now) for worker in case.workers]
    slept = {w: case.now.sleeps[w] for w in case.workers if w in case.now.sleeps}
    evidence = [f"{ms(after)} instead of {ms(before)} ms pass in Python before the session is asked"]
    evidence += [
        f"{worker} was told to sleep {seconds:g} s in every step (DTFPERF_SLOWDOWN)" for worker, seconds in slept.items()
    ]
    idle = len(cpu) == 2 and cpu[0] and cpu[1] and cpu[1] - cpu[0] < 0.3 * (after - before)
    evidence += ["its CPU does no more than before: it sleeps or waits"] if idle else []
    doing = "sleeps" if slept or idle else "is in Python"
    usual = f"the others {ms(before)} ms" if case.both.basis == "peers" else f"{ms(before)} ms then"
    words = f"{case.who} {doing} for {ms(after)} ms of a step before it asks for it, {usual}{case.all_wait}"
    kind = "straggler" if case.location else "host"
    return Reason(kind, case.location, words, evidence, case.confidence(len(evidence) - 1), case.at)


def _host(case: Case) -> Reason:
    before, after = case.seconds(GROUPS["host"])
    words = f"TensorFlow's own host code takes {ms(after)} instead of {ms(before)} ms on {case.who}{case.all_wait}"
    if case.suspect.location is None and case.now.software_changes:
        return _software(case, words, [])
    return Reason("straggler" if case.suspect.location else "host", case.location, words, [words], case.confidence(0), case.at)


def _waiting(case: Case) -> Reason:
    words = f"workers wait {ms(case.suspect.floor_s)} ms longer for each other in turn, or for the update"
    return Reason("waiting", None, words, ["no worker's own work tells of it"], "low")


def _program(case: Case) -> Reason:
    before, after = case.seconds(GROUPS["compute"])
    changed = "; ".join(case.now.program_changes)
    return Reason(
        PROGRAM,
        None,
        f"another program: {changed}",
        [f"computing takes {ms(after)} instead of {ms(before)} ms", changed],
        case.confidence(1),
    )


ROWS: Mapping[str, Callable[[Case], Reason]] = {
    "compute": _compute,
    "input": _input,
    "transfer": _transfer,
    "python": _python,
    "apply": _server,
    "host": _host,
    FLOOR: _waiting,
    SERVER: _server,
    PROGRAM: _program,
}
