"""Who was late in the measured steps, and by how much: scores of workers from their stamps (`stamps.py`). Pure.

    a worker's step    python           receive            compute              finish
                  begin ----> called ----------> variables ----------> gradients ------> end

Each of the four is a duration on one clock, that of the worker's host; times of two hosts are never subtracted. A synchronous
step ends for all workers at once, so whoever waits least after its last gradient was last.

Of a program that reports its steps, begin and end alone are known. If its workers' steps end at once, the worker with the
shortest step began it last. If they begin at once, the worker with the longest step ends it last. What it has computed within,
and for which worker it has waited there, is not known.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np

from pytest_dtfperf.codec import JsonData
from pytest_dtfperf.explain.pauses import Indices, Numbers, Pause, Period, beyond_usual, periodic, standing_out
from pytest_dtfperf.stamps import Column, Stamps

SCHEMA = 1
CLEARLY = 0.02  # of a step: who is late by less than this part of it is not clearly late
_MOST_BLOCKS, _OF_STEPS = 10, 5  # whose means tell the error of the whole's: steps beside each other are alike
_MOST_PAUSES = 16
_MINE = 0.5  # of a pause: whose own time was longer by this part of it has made it, if nobody else's was
_TOGETHER = 1.2  # times: so much farther apart must reported steps begin than they end, or end than they begin
_DIGITS = 6  # of seconds: the stamps' own microseconds


@dataclass(frozen=True, kw_only=True)
class WorkerScore(JsonData):
    """Means over one worker's steps, in seconds per step. None: not known."""

    steps: int  # that were stamped
    # From the end of the step before until its session is asked: Python, and an injected slow-down. Of a program that reports
    # its steps: until it says that the next begins.
    python_s: float | None
    receive_s: float | None  # until the values of its variables are there
    compute_s: float | None  # until its last gradient is there
    finish_s: float | None  # until the step's end: sending, updating, and waiting for the others
    cpu_s: float | None  # user and system time of its process
    ready_s: float | None  # the first three together: from the step's begin until its last gradient is there
    ready_error_s: float | None  # standard error of that mean
    # Against the others, where all workers have a common step, else None:
    last: float | None = None  # fraction of the steps in which it was the last to have its gradients
    late_s: float | None = None  # by which its gradients came after the others' median; negative: before
    late_error_s: float | None = None  # standard error of that mean
    behind: float | None = None  # fraction of the steps in which they came clearly after the others' median


@dataclass(frozen=True, kw_only=True)
class Scores(JsonData):
    """Of the workers of one run."""

    steps: int  # the measured ones
    step_s: float | None  # mean of a measured step, over the workers, too
    workers: Mapping[str, WorkerScore]
    paused: int = 0  # how many steps stand out
    pauses: Sequence[Pause] = ()  # the longest of these, the longest first
    periods: Sequence[Period] = ()

    def to_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA, **super().to_json()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Of what was held against `baselines/schema/stragglers.json`."""
        return super().from_json({name: value for name, value in data.items() if name != "schema"})


def scores_of(stamps: Sequence[Stamps], *, lockstep: bool) -> Scores | None:
    """Score all workers that are known. `lockstep`: their steps are common ones, and each worker has as many.

    None where nothing is known: no worker, or no steps.
    """
    series = [_Series.of(each) for each in stamps if len(each)]
    if not series:
        return None
    together = lockstep and len({len(each.step) for each in series}) == 1
    against = _against_others(series) if together and len(series) > 1 else {}
    pauses = list(_pauses(series, together=together))
    return Scores(
        steps=max(len(each.step) for each in series),
        step_s=_mean(np.concatenate([each.step for each in series])),
        workers={each.worker: _score(each, against.get(each.worker)) for each in series},
        paused=len(pauses),
        pauses=sorted(pauses, key=lambda pause: -pause.seconds)[:_MOST_PAUSES],
        periods=list(_periods(series, together=together)),
    )


class _Series(NamedTuple):
    """One worker's steps, in seconds; not a number: not known."""

    worker: str
    python: Numbers
    receive: Numbers
    compute: Numbers
    finish: Numbers
    cpu: Numbers
    ready: Numbers
    step: Numbers
    between: Numbers  # of a program that tells begin and end alone: before each step

    @classmethod
    def of(cls, stamps: Stamps) -> Self:
        python, variables, gradients = map(_seconds, (stamps.python_us, stamps.variables_us, stamps.gradients_us))
        end = _seconds(stamps.end_us)
        is_reported = bool(stamps.between_us)
        between = _seconds(stamps.between_us) if is_reported else np.full(len(end), np.nan)
        return cls(
            worker=stamps.worker,
            python=between if is_reported else python,
            receive=variables,
            compute=gradients - variables,
            finish=end - gradients,
            cpu=_seconds(stamps.cpu_us),
            ready=python + gradients,
            step=end if is_reported else python + end,  # what is between reported ones is in no rate
            between=between,
        )


def _seconds(column: Column) -> Numbers:
    return np.array([np.nan if each is None else each / 1e6 for each in column])


def _score(series: _Series, against: Mapping[str, float | None] | None) -> WorkerScore:
    return WorkerScore(
        steps=next(
            (count for each in (series.ready, series.compute, series.step) if (count := int(np.isfinite(each).sum()))), 0
        ),
        python_s=_mean(series.python),
        receive_s=_mean(series.receive),
        compute_s=_mean(series.compute),
        finish_s=_mean(series.finish),
        cpu_s=_mean(series.cpu),
        ready_s=_mean(series.ready),
        ready_error_s=_error(series.ready),
        **(against or {}),
    )


def _mean(values: Numbers) -> float | None:
    known = values[np.isfinite(values)]
    return round(float(known.mean()), _DIGITS) if len(known) else None


def blocks(steps: int) -> int:
    """Into how many blocks of consecutive steps so many are divided to tell the error of their mean."""
    return min(_MOST_BLOCKS, steps // _OF_STEPS)


def _error(values: Numbers) -> float | None:
    """Standard error of the mean, from the means of blocks; None where there are no two."""
    known = values[np.isfinite(values)]
    count = blocks(len(known))
    if count < 2:
        return None
    means = [block.mean() for block in np.array_split(known, count)]
    return round(float(np.std(means, ddof=1) / np.sqrt(count)), _DIGITS)


def _against_others(series: Sequence[_Series]) -> dict[str, dict[str, float | None]]:
    """Of each worker `last`, `late_s`, `late_error_s`, `behind`, over the steps that are known of all of them."""
    waits = _reported_waits(series) if np.isfinite(series[0].between).any() else np.stack([each.finish for each in series])
    known = np.isfinite(waits).all(axis=0)
    if not known.any():
        return {}
    waits = waits[:, known]
    late = _median_of_others(waits) - waits  # of an even number of others, the later half counts: two of three are usual
    is_last = waits == waits.min(axis=0)
    last = (is_last / is_last.sum(axis=0)).mean(axis=1)
    clearly = CLEARLY * float(np.mean([each.step[known].mean() for each in series]))
    return {
        each.worker: {
            "last": round(float(last[at]), _DIGITS),
            "late_s": _mean(late[at]),
            "late_error_s": _error(late[at]),
            "behind": round(float((late[at] > clearly).mean()), _DIGITS),
        }
        for at, each in enumerate(series)
    }


def _reported_waits(series: Sequence[_Series]) -> Numbers:
    """Return (worker, step): a time that is shorter the later the worker is; not a number where it cannot be known.

    Times of two hosts cannot be subtracted, but those from end to end are the same for all if their steps end at once, and
    those from begin to begin differ by what each does in between: the last one's step is the shortest. Where steps begin at
    once, and each ends its own, it is the other way round: the last one's step is the longest.
    """
    steps, between = np.stack([each.step for each in series]), np.stack([each.between for each in series])
    ends, begins = steps[:, 1:] + between[:, 1:], steps[:, :-1] + between[:, 1:]
    if _apart(begins) >= _TOGETHER * _apart(ends):
        return steps
    return -steps if _apart(ends) >= _TOGETHER * _apart(begins) else np.full_like(steps, np.nan)


def _apart(intervals: Numbers) -> float:
    return float(np.abs(intervals - np.median(intervals, axis=0)).mean()) if intervals.size else 0.0


def _median_of_others(values: Numbers) -> Numbers:
    """Return for each row of each column the lower median of the column's other rows: from the sorted column, without its own
    place.
    """
    others = len(values) - 1
    ordered = np.sort(values, axis=0)
    rank = np.argsort(np.argsort(values, axis=0, kind="stable"), axis=0, kind="stable")
    middle = (others - 1) // 2
    median: Numbers = np.take_along_axis(ordered, middle + (rank <= middle), axis=0)
    return median


def _pauses(series: Sequence[_Series], *, together: bool) -> Iterator[Pause]:
    for durations, mine in _durations(series, together=together):
        indices, excess = standing_out(durations), beyond_usual(durations)
        for at, whose in zip(indices, _whose(mine, indices, excess), strict=True):
            yield Pause(step=int(at) + 1, seconds=round(float(excess[at]), _DIGITS), worker=whose)


def _periods(series: Sequence[_Series], *, together: bool) -> Iterator[Period]:
    for durations, mine in _durations(series, together=together):
        if found := periodic(standing_out(durations), durations):
            steps, seconds, kept = found
            ((most, count),) = Counter(_whose(mine, kept, beyond_usual(durations))).most_common(1)
            whose = most if count > len(kept) / 2 else None
            yield Period(steps=round(steps, 2), seconds=round(seconds, _DIGITS), pauses=len(kept), worker=whose)


def _durations(series: Sequence[_Series], *, together: bool) -> Iterator[tuple[Numbers, Sequence[_Series]]]:
    """Durations of steps with those whose they are: of all together, or of each alone."""
    if together:
        yield np.median([each.step for each in series], axis=0), series
    else:
        yield from ((each.step, [each]) for each in series if np.isfinite(each.step).all())


def _whose(series: Sequence[_Series], indices: Indices, excess: Numbers) -> list[str | None]:
    """Of each pause the one worker whose own time, until its gradients were there, was so much longer than usual."""
    own = np.nan_to_num(np.stack([beyond_usual(each.ready)[indices] for each in series]))  # (worker, pause)
    mine = own >= _MINE * excess[indices]
    if len(series) == 1:
        return [series[0].worker] * len(indices)
    return [series[int(theirs.argmax())].worker if theirs.sum() == 1 else None for theirs in mine.T]
