"""Name the cause behind each candidate, with its evidence: one row for each kind, and those of transfers in detail.

Transfers take longer because of a link, the network of a host, or a parameter server.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from pytest_dtfperf.datamodel.explanation import CauseKind, Confidence
from pytest_dtfperf.datamodel.probes import ALL, split_link_name
from pytest_dtfperf.datamodel.step_times import StepBreakdown, WorkKind
from pytest_dtfperf.explain import merge_causes, thresholds
from pytest_dtfperf.explain.measurement_profile import (
    GROUPS,
    CandidateKind,
    MeasurementProfile,
    add_host,
    compute_update_ratio,
    gbit_per_s,
    list_ends,
    ms,
    select_worker_parts,
)
from pytest_dtfperf.explain.merge_causes import ExplainCase, Reason
from pytest_dtfperf.explain.probes import LINK, find_slower
from pytest_dtfperf.explain.step_events import is_server

_NAMED = 3  # workers whose names a message lists


def explain_link(case: ExplainCase) -> Reason:
    rate = _rate(case)
    seconds = _seconds(case)
    found = case.describe_host_pressures(CauseKind.LINK)
    words = f"{_describe_subject(case)} {rate or _describe_growth(case)}"
    reason = case.reason(CauseKind.LINK, words, [seconds], [*found, *_growth(case, rate)])
    return replace(reason, location=_find_host_of_link(case) or reason.location)


def _find_host_of_link(case: ExplainCase) -> str | None:
    """Return the host of a parameter server if it has all links slower when probed, and other tasks; None otherwise.

    A breakdown has the busiest links only. They may all be the server's, but the link is the host's.
    """
    host = case.hosts.get(case.location) if case.location and is_server(case.location) else None
    slow = _find_slower_links(case)
    others = {end for ends in slow for end in ends if end != host}
    is_of_host = all(host in ends for ends in slow) and (ALL in others or len(others) > 1)
    return host if host and is_of_host and _task_at(host, case.hosts) == host else None


def explain_server(case: ExplainCase) -> Reason:
    rate = _rate(case)
    server = case.location or ""
    ratio = compute_update_ratio(server, case.baseline, case.current)
    updates = (
        [f"its own operations take {ratio:.1f} times as long"] if ratio and ratio > thresholds.MIN_REPORTED_UPDATE_RATIO else []
    )
    some = f"each parameter server of {server}" if server else "every parameter server"
    subject = add_host(server, case.hosts) if is_server(server) else some
    if case.candidate.largest_of(GROUPS[CandidateKind.TRANSFER]) > thresholds.MIN_MAIN_SHARE * case.candidate.largest_s:
        message = f"{subject} answers late: {_describe_direction(case)} {rate or _describe_growth(case)}"
    elif (
        case.candidate.largest_of((WorkKind.APPLY,)) + abs(case.candidate.residual_s)
        >= thresholds.MIN_MAIN_SHARE * case.candidate.largest_s
    ):
        message = f"{subject} takes longer to update: {ms(case.candidate.largest_s)} ms more"
    else:
        message = f"{subject} answers late: workers wait {ms(case.candidate.largest_s)} ms more for it"
    evidence = [
        _seconds(case, what)
        for what in (CandidateKind.TRANSFER, CandidateKind.APPLY)
        if case.candidate.largest_of(GROUPS[what])
    ]
    if case.candidate.residual_s > 0:
        evidence.append(f"workers wait {ms(case.candidate.residual_s)} ms longer once they have done their own work")
    return case.reason(
        CauseKind.SERVER,
        message,
        evidence,
        [*updates, *case.describe_host_pressures(CauseKind.OTHERS, CauseKind.CLOCK, CauseKind.MEMORY, CauseKind.COMPUTE)],
    )


def find_probed_location(case: ExplainCase) -> str | None:
    """Return the link or host that the links slower when probed, and only these, have in common; None if there is none.

    An all-reduce goes around all workers, and each of its links waits for the others. So its times do not show which link is
    slow.
    """
    slow = _find_slower_links(case)
    if not slow or ALL in {end for way in slow for end in way}:
        return None
    if len(slow) == 1 or len({frozenset(way) for way in slow}) == 1:
        source, target = (_task_at(end, case.hosts) for end in min(slow))
        return f"{source}>{target}" if len(slow) == 1 else f"{source}<>{target}"
    common = set.intersection(*({*way} for way in slow))
    return _task_at(common.pop(), case.hosts) if len(common) == 1 else None


def _find_slower_links(case: ExplainCase) -> Collection[tuple[str, str]]:
    """Return the links that are slower when probed, as source and target. A baseline of many hosts lacks some of them."""
    baseline, current = case.baseline.probes, case.current.probes
    if not baseline or not current:
        return ()
    slower = {each.location for each in find_slower(baseline, current) if each.name == LINK}
    return {split_link_name(name) for name in slower & current.links.keys()}


def _task_at(host: str, hosts: Mapping[str, str]) -> str:
    """Return the one task on this host; the host if there are several."""
    there = [task for task, at in hosts.items() if at == host]
    return there[0] if len(there) == 1 else host


def _seconds(case: ExplainCase, what: CandidateKind = CandidateKind.TRANSFER) -> str:
    before, after = case.seconds(what)
    to = {CandidateKind.TRANSFER: "transfers", CandidateKind.APPLY: "updates"}[what]
    more = f" and {len(case.workers) - _NAMED} more" if len(case.workers) > _NAMED else ""
    subject = f"{', '.join(case.workers[:_NAMED])}{more}"
    return f"{subject}: {ms(after)} ms of a step go to {to}, {ms(before)} ms {case.before_text}"


def _describe_growth(case: ExplainCase) -> str:
    before, after = case.seconds(CandidateKind.TRANSFER)
    return f"for {ms(after)} ms of a step, {ms(before)} ms {case.before_text}"


def _growth(case: ExplainCase, rate: str) -> list[str]:
    return [f"the rate of its bytes: {rate}"] if rate else []


def _describe_subject(case: ExplainCase) -> str:
    """Return both ends of the link and its direction."""
    ends = [add_host(end, case.hosts) for end in list_ends(case.location)]
    if len(ends) == 2:
        return f"{ends[0]} and {ends[1]} exchange" if "<>" in (case.location or "") else f"{ends[0]} sends to {ends[1]}"
    if not ends:
        return "all tasks exchange"
    return f"{ends[0]} {_describe_direction(case)}"


def _describe_direction(case: ExplainCase) -> str:
    """Describe the direction of a task's or host's transfers with all others. Workers receive what parameter servers send."""
    sums = {
        kind: sum(s for (_, each), s in case.candidate.cells.items() if each == kind)
        for kind in (WorkKind.RECEIVE, WorkKind.SEND)
    }
    total = sum(sums.values())
    mainly = next((kind for kind, seconds in sums.items() if seconds > thresholds.MIN_SHARE_OF_MAIN_DIRECTION * total), None)
    jobs = {is_server(task) for task in _tasks_at(case.location, case.hosts)}
    if jobs == {True}:
        does = {WorkKind.RECEIVE: "sends to", WorkKind.SEND: "receives from", None: "exchanges with"}[mainly]
        return f"{does} the workers"
    if jobs == {False}:
        return {WorkKind.RECEIVE: "receives", WorkKind.SEND: "sends", None: "sends and receives"}[mainly]
    return "exchanges with other hosts"  # its sends are as long as its receives


def _tasks_at(location: str | None, hosts: Mapping[str, str]) -> Sequence[str]:
    """Return the one task, all tasks of a host, or without a location all parameter servers."""
    if location is None:
        return [task for task in hosts if is_server(task)] or ["ps:0"]
    return [task for task, host in hosts.items() if location == host] or [location]


def _rate(case: ExplainCase) -> str:
    """Return `at 2.1 instead of 9.8 Gbit/s`, for the candidate's slower links; empty text if one side does not know them."""
    before, after = _read_links(case.baseline.step_breakdown), _read_links(case.current.step_breakdown)
    both = [ends for ends in after if ends in before and _is_between(ends, case.location)]
    slower = [ends for ends in both if _compute_rate(after[ends]) < _compute_rate(before[ends])]
    if not slower or case.both.basis != "traces":
        return ""
    rates = [sum(side[ends][0] for ends in slower) / sum(side[ends][1] for ends in slower) for side in (after, before)]
    return f"at {gbit_per_s(rates[0])} instead of {gbit_per_s(rates[1])} Gbit/s"


_Links = Mapping[tuple[str, str], tuple[float, float]]  # ends -> bytes, seconds


def _read_links(breakdown: StepBreakdown | None) -> _Links:
    links = breakdown.links if breakdown else ()
    return {(link.source, link.destination): (link.size_bytes, link.busy_s) for link in links if link.busy_s}


def _compute_rate(found: tuple[float, float]) -> float:
    return found[0] / found[1]


def _is_between(ends: tuple[str, str], location: str | None) -> bool:
    named = list_ends(location)
    if len(named) < 2:
        return not named or named[0] in ends
    return set(ends) == set(named) if "<>" in (location or "") else ends == (named[0], named[1])


def find_reason(case: ExplainCase) -> Reason:
    return ROWS[case.candidate.kind](case)


def _explain_input(case: ExplainCase) -> Reason:
    before, after = case.seconds(CandidateKind.INPUT)
    message = f"{case.subject} waits {ms(after)} ms of a step for its next batch, {ms(before)} ms {case.before_text}"
    return case.reason(CauseKind.INPUT, message, [], case.describe_host_pressures(CauseKind.INPUT))


def _explain_python(case: ExplainCase) -> Reason:
    before, after = case.seconds(CandidateKind.PYTHON)
    usual = {} if case.both.basis == "peers" else case.baseline.sleeps
    slept = {worker: s for worker in case.workers if (s := case.current.sleeps.get(worker, 0.0)) > usual.get(worker, 0.0)}
    agreeing = [
        f"{worker} has an injected sleep of {seconds:g} s in every step (DTFPERF_SLOWDOWN)" for worker, seconds in slept.items()
    ]
    idle = _is_idle(case, after - before)
    doing = "sleeps for" if slept else {None: "takes", True: "does nothing for", False: "is busy in Python for"}[idle]
    agreeing += [f"its CPU does no more than {case.before_text}: it sleeps, or waits for something"] if idle else []
    message = f"{case.subject} {doing} {ms(after)} ms before it asks for a step, {ms(before)} ms {case.before_text}"
    return case.reason(CauseKind.STRAGGLER if case.location else CauseKind.HOST, message, [], agreeing)


def _is_idle(case: ExplainCase, increase_s: float) -> bool | None:
    """Return whether the workers were idle; None if it is not known, as without the CPU time of both sides."""
    if case.both.basis == "peers":
        return None
    cpu_s, usual_cpu_s = (
        [cpu for worker in case.workers if (cpu := merge_causes.get_cpu_s(side, worker)) is not None]
        for side in (case.current, case.baseline)
    )
    is_known = len(cpu_s) == len(usual_cpu_s) == len(case.workers)
    return sum(cpu_s) - sum(usual_cpu_s) < thresholds.MAX_CPU_SHARE_OF_SLEEP * increase_s * len(cpu_s) if is_known else None


def _explain_host(case: ExplainCase) -> Reason:
    before, after = case.seconds(CandidateKind.HOST)
    message = f"TensorFlow's own host code takes {ms(after)} ms of a step on {case.subject}, {ms(before)} ms {case.before_text}"
    if case.candidate.location is None and case.current.software_changes:
        return merge_causes.explain_software(case, message, [])
    kind = CauseKind.STRAGGLER if case.candidate.location else CauseKind.HOST
    return case.reason(kind, message, [], case.describe_host_pressures(CauseKind.OTHERS))


def _explain_waiting(case: ExplainCase) -> Reason:
    before, after = (_find_exchange_time(side) for side in (case.baseline, case.current))
    if before is not None and after is not None and after - before > thresholds.MIN_MAIN_SHARE * case.candidate.residual_s:
        message = f"workers exchange for {ms(after)} ms of a step from when the last of them has joined, "
        message += f"{ms(before)} ms {case.baseline.when}"
        return replace(
            case.reason(CauseKind.LINK, message, [], case.describe_host_pressures(CauseKind.LINK)),
            location=find_probed_location(case),
        )
    message = f"workers wait {ms(case.candidate.residual_s)} ms longer for each other in turn, or for the update"
    return replace(
        case.reason(CauseKind.WAITING, message, ["no worker's own work has become so much longer"]),
        location=None,
        confidence=Confidence.LOW,
    )


def _find_exchange_time(side: MeasurementProfile) -> float | None:
    """Return the seconds of all-reduces without waiting: those of the worker that spent the shortest time in them.

    None: no step has a breakdown.
    """
    workers = select_worker_parts(side.step_breakdown).values() if side.step_breakdown else ()
    return min((parts.get(WorkKind.REDUCE, 0.0) for parts in workers), default=None)


def _explain_program(case: ExplainCase) -> Reason:
    changed = "; ".join(case.current.program_changes)
    before, after = case.seconds(CandidateKind.COMPUTE)
    evidence = [f"a worker computes {ms(after)} ms of a step, {ms(before)} ms {case.before_text}"]
    return replace(case.reason(CauseKind.PROGRAM, f"another program is trained: {changed}", evidence, [changed]), location=None)


ROWS: Mapping[CandidateKind, Callable[[ExplainCase], Reason]] = {
    CandidateKind.COMPUTE: merge_causes.explain_compute,
    CandidateKind.INPUT: _explain_input,
    CandidateKind.TRANSFER: explain_link,
    CandidateKind.PYTHON: _explain_python,
    CandidateKind.APPLY: explain_server,
    CandidateKind.HOST: _explain_host,
    CandidateKind.FLOOR: _explain_waiting,
    CandidateKind.SERVER: explain_server,
    CandidateKind.CPU_STARVED: merge_causes.explain_starvation,
    CandidateKind.DECODING: merge_causes.explain_decoding,
    CandidateKind.PROGRAM: _explain_program,
}
