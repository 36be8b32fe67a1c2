"""Which workers the others wait for, by the scores of all. Pure."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_dtfperf.codec import JsonData
from pytest_dtfperf.explain.scores import CLEARLY, Scores, WorkerScore, blocks

ALWAYS = 0.75  # of the steps: who is last in turn with others, or half of the time by chance, is no straggler
# By the number of blocks, the standard errors that chance exceeds twice in a thousand times: Student's t, one-sided.
_CERTAIN = {4: 8.05, 5: 5.95, 6: 5.03, 7: 4.52, 8: 4.21, 9: 3.99, 10: 3.83}


@dataclass(frozen=True, kw_only=True)
class Straggler(JsonData):
    """A worker that the others wait for in most steps."""

    worker: str
    last: float  # fraction of the steps in which it was the last to have its gradients
    behind: float  # in which it had them clearly after the others' median
    late_s: float  # by which, on average
    parts: Mapping[str, float]  # python, receive, compute -> seconds more per step than the others' median, where known


def stragglers(scores: Scores) -> Sequence[Straggler]:
    """The clear ones, the latest first: late by more than `CLEARLY` of a step, in `ALWAYS` of the steps, and not by chance."""
    found = [
        Straggler(worker=name, last=score.last, behind=score.behind, late_s=score.late_s, parts=_parts(scores, name))
        for name, score in scores.workers.items()
        if score.last is not None and score.behind is not None and score.late_s is not None and _is_clear(scores, score)
    ]
    return sorted(found, key=lambda straggler: -straggler.late_s)


def _is_clear(scores: Scores, score: WorkerScore) -> bool:
    errors = _CERTAIN.get(blocks(score.steps))
    if score.late_s is None or score.late_error_s is None or score.behind is None or scores.step_s is None or errors is None:
        return False
    return score.behind >= ALWAYS and score.late_s - errors * score.late_error_s > CLEARLY * scores.step_s


def _parts(scores: Scores, worker: str) -> dict[str, float]:
    score = scores.workers[worker]
    others = [other for name, other in scores.workers.items() if name != worker]
    of = {
        "python": (score.python_s, [other.python_s for other in others]),
        "receive": (score.receive_s, [other.receive_s for other in others]),
        "compute": (score.compute_s, [other.compute_s for other in others]),
    }
    known = {part: (own, [each for each in theirs if each is not None]) for part, (own, theirs) in of.items()}
    return {part: own - statistics.median(theirs) for part, (own, theirs) in known.items() if own is not None and theirs}


def described(straggler: Straggler, host: str | None = None) -> str:
    """One line: `worker:1 (node03) was last in 94 % of steps, by 12.0 ms: compute +11.0, receive +1.0 ms`."""
    where = f" ({host})" if host else ""
    often = (
        f"was last in {_whole(straggler.last)} of steps"
        if straggler.last >= ALWAYS
        else f"was late in {_whole(straggler.behind)} of steps, and the last in {_whole(straggler.last)}"
    )
    parts = sorted(straggler.parts.items(), key=lambda part: -part[1])
    longer = [f"{part} +{_ms(seconds)}" for part, seconds in parts if seconds >= 0.1 * straggler.late_s]
    return f"{straggler.worker}{where} {often}, by {_ms(straggler.late_s)} ms" + (f": {', '.join(longer)} ms" if longer else "")


def increases(then: Scores | None, now: Scores) -> Mapping[str, float]:
    """Return how many seconds later each clear straggler is than it was on the other side, the most first.

    On a side that is not known, or where its lateness is not, it is expected to be on time.
    """
    known = then.workers if then else {}
    late_s = {name: max(0.0, (score.late_s or 0.0) if (score := known.get(name)) else 0.0) for name in now.workers}
    return {each.worker: more for each in stragglers(now) if (more := each.late_s - late_s[each.worker]) > 0}


def _whole(fraction: float) -> str:
    return f"{100 * fraction:.0f} %"


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.1f}"
