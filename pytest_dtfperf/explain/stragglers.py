"""Whom the others wait for: what scores of workers come to, against the others and against those of a baseline. Pure."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_dtfperf.explain.scores import CLEARLY, Scores, WorkerScore, blocks
from pytest_dtfperf.plain import Plain

ALWAYS = 0.75  # of the steps: who is last in turn with others, or half of the time by chance, is no straggler
# By the number of blocks, the standard errors that chance exceeds twice in a thousand times: Student's t, one-sided.
_CERTAIN = {4: 8.05, 5: 5.95, 6: 5.03, 7: 4.52, 8: 4.21, 9: 3.99, 10: 3.83}


@dataclass(frozen=True, kw_only=True)
class Straggler(Plain):
    """A worker that the others wait for in most steps."""

    worker: str
    last: float  # fraction of the steps in which it was the last to have its gradients
    behind: float  # in which it had them clearly after the others' median
    late_s: float  # by which, on average
    parts: Mapping[str, float]  # python, receive, compute -> seconds more per step than the others' median, where known


@dataclass(frozen=True, kw_only=True)
class Slower(Plain):
    """How much longer a worker takes until its gradients are there than it is compared with. Seconds per step."""

    seconds: float
    ratio: float
    error_s: float | None  # standard error of the seconds; None: too few steps to tell


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


def against_others(scores: Scores) -> Mapping[str, Slower]:
    """Each worker's time until its gradients are there, against the median of the others'. Empty where no step is common."""
    common = {name: score for name, score in scores.workers.items() if score.late_s is not None and score.ready_s is not None}
    found = {}
    for name, score in common.items():
        theirs = [other.ready_s for at, other in common.items() if at != name and other.ready_s is not None]
        if theirs and score.ready_s is not None and (usual := statistics.median(theirs)) > 0:
            found[name] = Slower(seconds=score.ready_s - usual, ratio=score.ready_s / usual, error_s=score.late_error_s)
    return found


def against_baseline(now: Scores, then: Scores) -> Mapping[str, Slower]:
    """Each worker's time until its gradients are there, against its own of a baseline's; where that is not known of a worker,
    its time of computing alone.
    """
    found = {}
    for name in (name for name in now.workers if name in then.workers):
        (after_s, after_error_s), (before_s, before_error_s) = _comparable(now.workers[name], then.workers[name])
        if after_s is not None and before_s:
            error_s = None if after_error_s is None or before_error_s is None else math.hypot(after_error_s, before_error_s)
            found[name] = Slower(seconds=after_s - before_s, ratio=after_s / before_s, error_s=error_s)
    return found


def _comparable(*scores: WorkerScore) -> list[tuple[float | None, float | None]]:
    """Of each score the same time, with its error."""
    if any(score.ready_s is None for score in scores):
        return [(score.compute_s, None) for score in scores]
    return [(score.ready_s, score.ready_error_s) for score in scores]


def _whole(fraction: float) -> str:
    return f"{100 * fraction:.0f} %"


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.1f}"
