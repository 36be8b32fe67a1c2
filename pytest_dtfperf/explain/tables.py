"""From what is stored of both sides to the times that the model compares, worker by worker and kind by kind.

Traced steps tell of every kind of work, but they are five. Stamps are in every measured step, but tell only until when the
variables were there, and the gradients. Where both are known, the traced kinds are brought to what the stamps say.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pytest_dtfperf.explain.anatomy import Anatomy
from pytest_dtfperf.explain.evidence import Evidence
from pytest_dtfperf.explain.kinds import is_server
from pytest_dtfperf.explain.model import Times, step_of
from pytest_dtfperf.explain.scores import Scores, WorkerScore

Basis = Literal["traces", "stamps", "peers"]

WAITING = ("wait", "reduce", "late")  # for others: no worker's own work
# Of a mean of a few traced steps, where a single one or an older version does not tell of its scatter: means of five equal
# steps of MNIST on two busy cores were so far apart, as a part of their time.
ASSUMED_ERROR = 0.1
LEAST_ERROR = 0.02  # however alike five steps are: they follow each other, and the next five differ by more
_STAMPED = ("receive", "input", "forward", "backward", "compiled")  # what goes on until the last gradient is there, mostly
_BELIEVED = 4.0  # times: traced steps that are so much longer or shorter than the measured ones do not tell how these were
_STILL = 0.5  # of the traced kinds' error that is left once their sum is known: how they share it is traced still


@dataclass(frozen=True)
class Both:
    """Of the same workers, then and now, and what that rests on: the other side, or the other workers of this one."""

    then: Times
    now: Times
    basis: Basis


def of_both(then: Evidence, now: Evidence) -> Both | None:
    """None where nothing is known of what workers do now, or nobody is there to hold it against."""
    coordinated = now.coordinated
    if then.anatomy and now.anatomy:
        traced = _traced(then.anatomy, coordinated), _traced(now.anatomy, coordinated)
        return _of_traces(traced, (then.anatomy, now.anatomy), (then.scores, now.scores))
    if then.scores and now.scores and _is_told(then.scores) and _is_told(now.scores):
        return _like(_stamped(then.scores, coordinated), _stamped(now.scores, coordinated), "stamps")
    stamped = _stamped(now.scores, coordinated) if now.scores and _is_told(now.scores) else None
    alone = _traced(now.anatomy, coordinated) if now.anatomy else stamped
    return Both(like_peers(alone), alone, "peers") if alone and len(alone.own) > 1 else None


def _of_traces(
    traced: tuple[Times, Times], anatomies: tuple[Anatomy, Anatomy], stamps: tuple[Scores | None, Scores | None]
) -> Both | None:
    """Brought to what the stamps say where they can be on both sides: what is left of a difference is then of the training."""
    before, after = (
        _as_measured(times, anatomy, scores) if scores else None
        for times, anatomy, scores in zip(traced, anatomies, stamps, strict=True)
    )
    return _like(before, after, "traces") if before and after else _like(*traced, "traces")


def _like(then: Times, now: Times, basis: Basis) -> Both | None:
    """One who was not there before is expected to be like the others."""
    if not then.own or not now.own:
        return None
    typical = _typical(then.own.values())
    return Both(replace(then, own={worker: then.own.get(worker, typical) for worker in now.own}), now, basis)


def like_peers(now: Times) -> Times:
    """What each worker would do, were it no slower than the others' median: where nothing is known of how they were."""
    best = {
        worker: {
            kind: min(seconds, now.own[worker].get(kind, 0.0))
            for kind, seconds in _typical(parts for other, parts in now.own.items() if other != worker).items()
        }
        for worker in now.own
    }
    step_s = step_of([sum(parts.values()) for parts in best.values()], now.coordinated)
    return Times(best, step_s + now.floor_s, now.error_s, now.coordinated)


def stepping(anatomy: Anatomy) -> Mapping[str, Mapping[str, float]]:
    """Task -> kind -> seconds, of all that train: those, too, that only lend their devices to another one's session."""
    return {task: of_task.parts for task, of_task in anatomy.tasks.items() if not is_server(task)}


def is_lent(anatomy: Anatomy | None) -> bool:
    """Whether one session computes on several workers' devices."""
    own = [task.cpu_s is not None for name, task in (anatomy.tasks.items() if anatomy else ()) if not is_server(name)]
    return any(own) and not all(own)


def _traced(anatomy: Anatomy, coordinated: bool) -> Times:
    own = {task: _own(parts, coordinated) for task, parts in stepping(anatomy).items()}
    kinds = sorted({kind for parts in own.values() for kind in parts})
    # An anatomy's step is its slowest worker's, for which nobody waits where a coordinator gives steps out.
    step_s = step_of([sum(parts.values()) for parts in own.values()], coordinated) if coordinated else anatomy.wall_s
    return Times(own, step_s, {kind: _error(kind, own, anatomy) for kind in kinds}, coordinated)


def _own(parts: Mapping[str, float], coordinated: bool) -> Mapping[str, float]:
    """Without waiting for others. A coordinator gives a worker its next step once its gradients are where they belong, and has
    it ready by then: from the end of a batch to the next one they are on their way, which no profile of a worker tells.
    """
    found = {kind: seconds for kind, seconds in parts.items() if kind not in WAITING}
    return found | {"send": found.get("send", 0.0) + parts.get("wait", 0.0)} if coordinated else found


def _error(kind: str, own: Mapping[str, Mapping[str, float]], anatomy: Anatomy) -> float:
    most = max(parts.get(kind, 0.0) for parts in own.values())
    error = max(anatomy.error_s.get(kind, ASSUMED_ERROR * most), LEAST_ERROR * most)
    if kind in ("receive", "send"):  # from one clock to another; the bounds are so far apart, and the truth is between them
        error = math.hypot(error, max(anatomy.clock_error_s.values(), default=0.0) / 2)
    return error


def _as_measured(traced: Times, anatomy: Anatomy, scores: Scores) -> Times | None:
    """Where one session computes on all workers, what it hears of the others' stamps has come over the same links as all else,
    and says when that was there: so nothing is brought to stamps, but everything to the length of the measured steps.
    """
    if traced.coordinated or not is_lent(anatomy):
        return _as_stamped(traced, scores)
    if scores.step_s is None or not traced.step_s or not 1 / _BELIEVED < (factor := scores.step_s / traced.step_s) < _BELIEVED:
        return None
    own = {worker: {kind: factor * seconds for kind, seconds in parts.items()} for worker, parts in traced.own.items()}
    return Times(own, scores.step_s, {kind: factor * error for kind, error in traced.error_s.items()})


def _as_stamped(traced: Times, scores: Scores) -> Times | None:
    """The traced times, as long as the measured steps' stamps say that they were. None: of some worker they do not say it."""
    if scores.step_s is None:
        return None
    known = {worker: scores.workers[worker] for worker in traced.own if worker in scores.workers}
    factors = {worker: _factor(traced.own[worker], score) for worker, score in known.items()}
    if len(factors) < len(traced.own) or not all(1 / _BELIEVED < factor < _BELIEVED for factor in factors.values()):
        return None
    own = {worker: _scaled(parts, factors[worker], known[worker]) for worker, parts in traced.own.items()}
    errors = {kind: error * (_STILL if kind in (*_STAMPED, "host", "python") else 1) for kind, error in traced.error_s.items()}
    return _as_given_out(Times(own, scores.step_s, errors, traced.coordinated), scores)


def _as_given_out(times: Times, scores: Scores) -> Times:
    """Where a coordinator gives steps out, each worker's own are as long as their number says, and what no stamp tells of them
    went to sending gradients.
    """
    steps = {worker: scores.workers[worker].steps for worker in times.own}
    if not times.coordinated or not all(steps.values()):
        return times
    window_s = times.step_s * sum(steps.values()) / len(steps)
    own = {
        worker: {**parts, "send": max(0.0, window_s / steps[worker] - sum(parts.values()) + parts.get("send", 0.0))}
        for worker, parts in times.own.items()
    }
    error = max(window_s / count**2 for count in steps.values()) / 2  # one of them is not over when the window is
    return replace(times, own=own, error_s={**times.error_s, "send": max(error, times.error_s.get("send", 0.0))})


def _factor(parts: Mapping[str, float], score: WorkerScore) -> float:
    stamped = (score.receive_s or 0.0) + (score.compute_s or 0.0)
    traced = sum(parts.get(kind, 0.0) for kind in (*_STAMPED, "host"))
    return stamped / traced if traced and stamped else math.inf


def _scaled(parts: Mapping[str, float], factor: float, score: WorkerScore) -> Mapping[str, float]:
    found = {kind: seconds * (factor if kind in (*_STAMPED, "host") else 1) for kind, seconds in parts.items()}
    return found | ({"python": score.python_s} if score.python_s is not None else {})


def _is_told(scores: Scores) -> bool:
    return scores.step_s is not None and any(score.compute_s is not None for score in scores.workers.values())


def _stamped(scores: Scores, coordinated: bool) -> Times:
    assert scores.step_s is not None  # see `_is_told`
    own = {
        worker: {
            kind: seconds
            for kind, seconds in (("python", score.python_s), ("receive", score.receive_s), ("compute", score.compute_s))
            if seconds is not None
        }
        for worker, score in scores.workers.items()
    }
    errors = [score.ready_error_s or 0.0 for score in scores.workers.values()]
    kinds = {kind: max(parts.get(kind, 0.0) for parts in own.values()) for kind in ("python", "receive", "compute")}
    error_s = {kind: max(LEAST_ERROR * most, *errors) for kind, most in kinds.items()}
    return _as_given_out(Times(own, scores.step_s, error_s, coordinated), scores)


def _typical(of_workers: Iterable[Mapping[str, float]]) -> Mapping[str, float]:
    """By kind, the median worker's."""
    found: Sequence[Mapping[str, float]] = list(of_workers)
    kinds = sorted({kind for parts in found for kind in parts})
    return {kind: statistics.median(parts.get(kind, 0.0) for parts in found) for kind in kinds}
