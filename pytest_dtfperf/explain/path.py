"""The critical path of a step: what, had it been shorter, would have made the whole step shorter.

Walked backwards from the end of the last worker's step: what did this wait for, and that? Each stretch ends where the one after
it begins, so that they add up to the cluster's step, from the first worker's begin to the last one's end: overlap counts once.
"""

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_dtfperf.explain.events import ClusterStep, Event
from pytest_dtfperf.explain.kinds import LATE

_THREAD_US = 20  # ready for longer than this and not begun: it waited for a thread
_UNEXPLAINED_US = 100  # ready so long after the last known input: there is one that the trace does not name
_BESIDE_US = 5  # two stamps of one moment
_MOST_BACK = 8  # operations that end within that moment

_OFF_THREADS = ("wait", "reduce")  # they keep no thread busy


@dataclass(frozen=True)
class Stretch:
    """A part of the path."""

    kind: str
    location: str  # a task, or a link: "ps:0>worker:1"
    name: str  # the operation or tensor; empty of what is none
    variable: str | None  # that a transfer brings; None: not known, or no transfer
    us: int


def critical_path(step: ClusterStep) -> list[Stretch]:
    """From the step's end to its begin."""
    last = step.last
    walk = _Walk(step.begin, last.end)
    ended = _Ended(step.events)
    own = (event for event in step.events if event.session == last.task and event.end <= last.end)
    event = max(own, key=lambda event: event.end, default=None)
    session, location = last.task, last.task
    seen: set[int] = set()
    while event and id(event) not in seen:
        seen.add(id(event))
        walk.back("host", location, event.end)
        until, before = _before(event, ended)
        walk.back(event.kind, event.location, until, event)
        session, location, event = event.session, event.task, before
    (worker,) = (worker for worker in step.workers if worker.task == session)
    walk.back("host", worker.task, worker.called)
    walk.back("python", worker.task, worker.begin)
    walk.back(LATE, worker.task, step.begin)
    return walk.stretches


class _Walk:
    """Goes from the end to the begin, never forward and never too far, whatever clocks say."""

    def __init__(self, begin: int, end: int) -> None:
        self.stretches: list[Stretch] = []
        self._begin, self._at = begin, end

    def back(self, kind: str, location: str, until: int, event: Event | None = None) -> None:
        until = max(until, self._begin)
        if until < self._at:
            name, variable = (event.name, event.variable) if event else ("", None)
            self.stretches.append(Stretch(kind, location, name, variable, self._at - until))
            self._at = until


class _Ended:
    """Operations in the order of their ends: of all that have the same threads, and of one session there."""

    def __init__(self, events: Sequence[Event]) -> None:
        self._events: dict[tuple[str, ...], list[Event]] = {}
        for event in events:
            if not event.source and event.kind not in _OFF_THREADS:
                for key in (_threads(event), (event.session, *_threads(event))):
                    self._events.setdefault(key, []).append(event)
        for of_key in self._events.values():
            of_key.sort(key=lambda event: event.end)
        self._ends = {key: [event.end for event in of_key] for key, of_key in self._events.items()}

    def before(self, event: Event, moment: int, *key: str) -> Event | None:
        """What had begun before it, and ended last until then."""
        at = bisect.bisect_right(self._ends.get(key, []), moment)
        near = self._events[key][max(0, at - _MOST_BACK) : at] if at else []
        return next((found for found in reversed(near) if found.start < event.start), None)


def _threads(event: Event) -> tuple[str, ...]:
    """All CPU devices of a task have the same."""
    return (event.task if "/CPU:" in event.device else event.device,)


def _before(event: Event, ended: _Ended) -> tuple[int, Event | None]:
    """How far back an event itself is on the path, and what is there before it."""
    cause = max(event.causes, key=lambda cause: cause.end, default=None)
    if event.source:
        return event.start, cause
    partner = event.partner
    if event.kind == "wait" and partner and partner.start <= event.end:
        return min(partner.end, event.end), partner
    if event.kind == "reduce" and partner and partner.start > event.start:  # go on with why the other came so late
        return partner.start, max(partner.causes, key=lambda cause: cause.end, default=partner)
    other = None
    if event.start - event.ready > _THREAD_US:
        other = ended.before(event, event.start, *_threads(event))
    elif cause is None or cause.end < event.ready - _UNEXPLAINED_US:
        other = ended.before(event, event.ready + _BESIDE_US, event.session, *_threads(event))
    return event.start, other if other and (cause is None or other.end > cause.end) else cause
