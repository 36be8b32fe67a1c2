"""What a suspect is: its kind of cause, in words, with what speaks for it. A row for each suspect."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from pytest_dtfperf.explain import computing, networking
from pytest_dtfperf.explain.case import Case, Reason
from pytest_dtfperf.explain.evidence import Evidence
from pytest_dtfperf.explain.joined import DECODING, PROGRAM, SERVER, STARVED
from pytest_dtfperf.explain.suspects import FLOOR
from pytest_dtfperf.explain.tables import stepping
from pytest_dtfperf.explain.words import ms

_MOST_OF_IT = 0.5
_IDLE = 0.3  # of the time spent in Python: with less CPU than that it has slept, or waited for something


def reason_for(case: Case) -> Reason:
    return ROWS[case.suspect.what](case)


def _input(case: Case) -> Reason:
    before, after = case.seconds("input")
    words = f"{case.who} waits {ms(after)} ms of a step for its next batch, {ms(before)} ms {case.before}"
    return case.reason("input", words, [], case.strains("input"))


def _python(case: Case) -> Reason:
    before, after = case.seconds("python")
    usual = {} if case.both.basis == "peers" else case.then.sleeps
    slept = {worker: s for worker in case.workers if (s := case.now.sleeps.get(worker, 0.0)) > usual.get(worker, 0.0)}
    agreeing = [
        f"{worker} was told to sleep {seconds:g} s in every step (DTFPERF_SLOWDOWN)" for worker, seconds in slept.items()
    ]
    idle = _is_idle(case, after - before)
    doing = "sleeps for" if slept else {None: "takes", True: "does nothing for", False: "is busy in Python for"}[idle]
    agreeing += [f"its CPU does no more than {case.before}: it sleeps, or waits for something"] if idle else []
    words = f"{case.who} {doing} {ms(after)} ms before it asks for a step, {ms(before)} ms {case.before}"
    return case.reason("straggler" if case.location else "host", words, [], agreeing)


def _is_idle(case: Case, longer_s: float) -> bool | None:
    """None: not known, without the CPU's time of both sides."""
    if case.both.basis == "peers":
        return None
    now, then = (
        [cpu for worker in case.workers if (cpu := computing.cpu_of(side, worker)) is not None]
        for side in (case.now, case.then)
    )
    is_known = len(now) == len(then) == len(case.workers)
    return sum(now) - sum(then) < _IDLE * longer_s * len(now) if is_known else None


def _host(case: Case) -> Reason:
    before, after = case.seconds("host")
    words = f"TensorFlow's own host code takes {ms(after)} ms of a step on {case.who}, {ms(before)} ms {case.before}"
    if case.suspect.location is None and case.now.software_changes:
        return computing.of_software(case, words, [])
    return case.reason("straggler" if case.suspect.location else "host", words, [], case.strains("others"))


def _waiting(case: Case) -> Reason:
    before, after = (_exchanging(side) for side in (case.then, case.now))
    if before is not None and after is not None and after - before > _MOST_OF_IT * case.suspect.floor_s:
        words = f"workers exchange for {ms(after)} ms of a step from when the last of them has joined, "
        words += f"{ms(before)} ms {case.then.when}"
        return replace(case.reason("link", words, [], case.strains("link")), location=networking.probed_location(case))
    words = f"workers wait {ms(case.suspect.floor_s)} ms longer for each other in turn, or for the update"
    return replace(
        case.reason("waiting", words, ["no worker's own work has become so much longer"]), location=None, confidence="low"
    )


def _exchanging(side: Evidence) -> float | None:
    """Of all-reduces, without waiting for the others: that of the worker that was in them for the shortest time.

    None: no step was taken apart.
    """
    workers = stepping(side.anatomy).values() if side.anatomy else ()
    return min((parts.get("reduce", 0.0) for parts in workers), default=None)


def _program(case: Case) -> Reason:
    changed = "; ".join(case.now.program_changes)
    before, after = case.seconds("compute")
    evidence = [f"a worker computes {ms(after)} ms of a step, {ms(before)} ms {case.before}"]
    return replace(case.reason(PROGRAM, f"another program is trained: {changed}", evidence, [changed]), location=None)


ROWS: Mapping[str, Callable[[Case], Reason]] = {
    "compute": computing.reason,
    "input": _input,
    "transfer": networking.of_a_link,
    "python": _python,
    "apply": networking.of_a_server,
    "host": _host,
    FLOOR: _waiting,
    SERVER: networking.of_a_server,
    STARVED: computing.of_starved,
    DECODING: computing.of_decoding,
    PROGRAM: _program,
}
