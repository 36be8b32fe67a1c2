"""Compute from step timestamps which workers were late in the measured steps, by how much, and which steps stand out. Pure.

    a worker's step    python           receive            compute              finish
                  begin ----> called ----------> variables ----------> gradients ------> end

Each of the four is a duration on one clock, that of the worker's host; times of two hosts are never subtracted. A synchronous
step ends for all workers at once, so that the worker with the shortest wait after its last gradient was last.

Of a program that reports its steps, only begin and end are known. If its workers' steps end at once, the worker with the
shortest step began it last. If they begin at once, the worker with the longest step ends it last. Its parts of a step, and the
worker that it waited for, are not known.

A step stands out if it is longer than usual by `MIN_PAUSE_PART` of the usual time, and by `MIN_PAUSE_SPREADS` times the scatter
of steps. The usual time is the median of the steps around it, and the scatter their median absolute deviation, so that neither
the pauses themselves nor a machine that slows down gradually count. Of normally distributed steps one in 10^9 stands out, of
ones with an exponential tail seven in a thousand.

A period is a distance that far more pairs of pauses have than by chance: of k pauses among n steps, if all steps are alike, (n
- p) k (k - 1) / (n (n - 1)) pairs are p steps apart, and the number has a Poisson distribution. Where pauses come in clusters,
as other work on the host causes them, distances near p are as frequent, and p is compared with those. A period is reported
where chance would give it in `MAX_FALSE_PERIODS` of all runs at most, with all tried distances taken together (Bonferroni).
"""

import math
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np

from pytest_dtfperf.codec import JsonData
from pytest_dtfperf.datamodel.step_times import MAX_PAUSES, Pause, Period, WorkerTiming, WorkerTimings
from pytest_dtfperf.explain import thresholds
from pytest_dtfperf.traces import Column, StepTimestamps

_AROUND = 101  # steps that a step is compared with
_OF_NORMAL = 1.4826  # a normal distribution's standard deviation, in median absolute deviations

Numbers = np.ndarray[Any, np.dtype[np.float64]]
Indices = np.ndarray[Any, np.dtype[np.intp]]


def compute_excess(durations: Numbers) -> Numbers:
    """Return by how much each duration is above the median of those around it; negative if it is below."""
    excess = durations.copy()
    for within in _split_stretches(len(durations)):
        known = durations[within][np.isfinite(durations[within])]
        excess[within] -= np.median(known) if len(known) else 0.0
    return excess


def find_long_steps(durations: Numbers) -> Indices:
    """Return the indices of steps that stand out."""
    if len(durations) < thresholds.MIN_STEPS:
        return np.zeros(0, np.intp)
    out = np.zeros(len(durations), bool)
    for within in _split_stretches(len(durations)):
        theirs = durations[within]
        usual = np.median(theirs)
        spread = _OF_NORMAL * np.median(np.abs(theirs - usual))
        out[within] = theirs > usual + max(thresholds.MIN_PAUSE_PART * usual, thresholds.MIN_PAUSE_SPREADS * spread)
    return np.flatnonzero(out)


def _split_stretches(steps: int) -> Iterator[slice]:
    """Yield stretches of `_AROUND` steps each; the last has up to twice as many."""
    count = max(1, steps // _AROUND)
    for number in range(count):
        yield slice(number * _AROUND, steps if number == count - 1 else (number + 1) * _AROUND)


def find_period(indices: Indices, durations: Numbers) -> tuple[float, float, Indices] | None:
    """Return the period of pauses at these indices, in steps and in the unit of durations, and the pauses that follow it."""
    first = indices[np.flatnonzero(np.diff(indices, prepend=-2) > 1)]  # of consecutive ones
    if len(first) < thresholds.MIN_PAUSES_OF_PERIOD or not (found := _distance(first, len(durations))):
        return None
    ones, nexts = _find_chains(first, *found)
    kept = np.union1d(ones, nexts)
    if len(kept) < max(
        thresholds.MIN_PAUSES_OF_PERIOD,
        thresholds.MIN_KEPT_OF_PERIOD * len(first),
        thresholds.MIN_KEPT_OF_PERIOD * (len(durations) // found[0]),
    ):
        return None
    begins = np.cumsum(durations)
    return float(np.mean(nexts - ones)), float(np.mean(begins[nexts] - begins[ones])), kept


def _distance(indices: Indices, steps: int) -> tuple[int, int] | None:
    """Return the distance that more pairs of indices have than by chance, and its tolerance.

    Of several the shortest counts, as twice a period is as frequent; of those near it the one that is least likely by chance.
    """
    at = np.zeros(2 * steps)  # padded, so that the end is not correlated with the start
    at[indices] = 1
    spectrum = np.fft.rfft(at)
    pairs = np.rint(np.fft.irfft(spectrum * np.conj(spectrum), len(at))[:steps])  # by their distance
    density = len(indices) * (len(indices) - 1) / (steps * (steps - 1))
    found: list[tuple[float, int, int]] = []
    most = steps // 3
    tried = 2 * (most - 1)
    for distance in range(2, most + 1):
        around = pairs[max(1, distance // 2) : distance + distance // 2 + 1]
        for slack in (0, max(1, distance // 20)):
            window = slice(max(1, distance - slack), distance + slack + 1)
            here, width = pairs[window].sum(), window.stop - window.start
            if here < thresholds.MIN_PAUSES_OF_PERIOD - 1:
                continue
            others = (around.sum() - here) / max(1, len(around) - width)
            expected = width * max(others, density * (steps - distance))
            if (chance := tried * _poisson_tail(int(here), expected)) < thresholds.MAX_FALSE_PERIODS:
                found.append((chance, distance, slack))
    near = [each for each in found if each[1] <= 1.5 * found[0][1]]
    return min(near)[1:] if near else None


def _poisson_tail(least: int, mean: float) -> float:
    """Return the probability of `least` or more. The terms beyond the first are summed while they matter."""
    if mean <= 0:
        return 0.0
    if least <= mean:
        return 1.0
    term = math.exp(least * math.log(mean) - mean - math.lgamma(least + 1))
    total = 0.0
    while term > 1e-6 * total:
        total += term
        least += 1
        term *= mean / least
    return min(1.0, total)


def _find_chains(indices: Indices, distance: int, slack: int) -> tuple[Indices, Indices]:
    """Return the indices with another one at this distance, within the tolerance, and those others."""
    at = np.searchsorted(indices, indices + distance - slack)
    has = at < np.searchsorted(indices, indices + distance + slack, side="right")
    return indices[has], indices[at[has]]


_MOST_BLOCKS, _OF_STEPS = 10, 5  # blocks, of which the means give the error: consecutive steps are alike
_DIGITS = 6  # of seconds: the timestamps' own microseconds


def compute_worker_timings(timestamps: Sequence[StepTimestamps], *, lockstep: bool) -> WorkerTimings | None:
    """Return the timings of all known workers; None without workers or steps.

    With `lockstep`, their steps are common steps, and each worker has equally many.
    """
    series = [_Series.from_timestamps(each) for each in timestamps if len(each)]
    if not series:
        return None
    combined = lockstep and len({len(each.step) for each in series}) == 1
    against = _compare_with_others(series) if combined and len(series) > 1 else {}
    pauses = list(_iterate_pauses(series, combined=combined))
    return WorkerTimings(
        steps=max(len(each.step) for each in series),
        step_s=_mean(np.concatenate([each.step for each in series])),
        workers={each.worker: _score(each, against.get(each.worker)) for each in series},
        paused=len(pauses),
        pauses=sorted(pauses, key=lambda pause: -pause.seconds)[:MAX_PAUSES],
        periods=list(_periods(series, combined=combined)),
    )


class _Series(NamedTuple):
    """The columns of one worker's steps, in seconds; not a number: not known."""

    worker: str
    python: Numbers
    receive: Numbers
    compute: Numbers
    finish: Numbers
    cpu: Numbers
    ready: Numbers
    step: Numbers
    gap: Numbers  # before each step of a program that reports only begin and end

    @classmethod
    def from_timestamps(cls, timestamps: StepTimestamps) -> Self:
        python, variables, gradients = map(_seconds, (timestamps.python_us, timestamps.variables_us, timestamps.gradients_us))
        end = _seconds(timestamps.end_us)
        is_reported = bool(timestamps.between_us)
        gap = _seconds(timestamps.between_us) if is_reported else np.full(len(end), np.nan)
        return cls(
            worker=timestamps.worker,
            python=gap if is_reported else python,
            receive=variables,
            compute=gradients - variables,
            finish=end - gradients,
            cpu=_seconds(timestamps.cpu_us),
            ready=python + gradients,
            step=end if is_reported else python + end,  # the time between reported steps is in no rate
            gap=gap,
        )


def _seconds(column: Column) -> Numbers:
    return np.array([np.nan if each is None else each / 1e6 for each in column])


def _score(series: _Series, comparison: Mapping[str, float | None] | None) -> WorkerTiming:
    return WorkerTiming(
        steps=next(
            (count for each in (series.ready, series.compute, series.step) if (count := int(np.isfinite(each).sum()))), 0
        ),
        python_s=_mean(series.python),
        receive_s=_mean(series.receive),
        compute_s=_mean(series.compute),
        finish_s=_mean(series.finish),
        cpu_s=_mean(series.cpu),
        ready_s=_mean(series.ready),
        ready_error_s=_compute_error(series.ready),
        **(comparison or {}),
    )


def _mean(values: Numbers) -> float | None:
    known = values[np.isfinite(values)]
    return round(float(known.mean()), _DIGITS) if len(known) else None


def count_blocks(steps: int) -> int:
    """Return the number of blocks of consecutive steps for the error of a mean over this many steps."""
    return min(_MOST_BLOCKS, steps // _OF_STEPS)


def _compute_error(values: Numbers) -> float | None:
    """Return the standard error of the mean, from the means of blocks; None if there are fewer than two."""
    known = values[np.isfinite(values)]
    count = count_blocks(len(known))
    if count < 2:
        return None
    means = [block.mean() for block in np.array_split(known, count)]
    return round(float(np.std(means, ddof=1) / np.sqrt(count)), _DIGITS)


def _compare_with_others(series: Sequence[_Series]) -> dict[str, dict[str, float | None]]:
    """Return `last`, `late_s`, `late_error_s` and `behind` of each worker, over the steps that are known of all workers."""
    waits = _reported_waits(series) if np.isfinite(series[0].gap).any() else np.stack([each.finish for each in series])
    known = np.isfinite(waits).all(axis=0)
    if not known.any():
        return {}
    waits = waits[:, known]
    late = _median_of_others(waits) - waits  # of an even number of others, the later half counts: two of three are typical
    is_last = waits == waits.min(axis=0)
    last = (is_last / is_last.sum(axis=0)).mean(axis=1)
    clearly = thresholds.MIN_LATENESS_OF_STEP * float(np.mean([each.step[known].mean() for each in series]))
    return {
        each.worker: {
            "last": round(float(last[at]), _DIGITS),
            "late_s": _mean(late[at]),
            "late_error_s": _compute_error(late[at]),
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
    steps, gap = np.stack([each.step for each in series]), np.stack([each.gap for each in series])
    ends, begins = steps[:, 1:] + gap[:, 1:], steps[:, :-1] + gap[:, 1:]
    if _mean_deviation(begins) >= thresholds.MIN_RATIO_OF_SPREADS * _mean_deviation(ends):
        return steps
    return (
        -steps
        if _mean_deviation(ends) >= thresholds.MIN_RATIO_OF_SPREADS * _mean_deviation(begins)
        else np.full_like(steps, np.nan)
    )


def _mean_deviation(intervals: Numbers) -> float:
    return float(np.abs(intervals - np.median(intervals, axis=0)).mean()) if intervals.size else 0.0


def _median_of_others(values: Numbers) -> Numbers:
    """Return for each row of each column the lower median of the column's other rows.

    It is found in the sorted column, without the row's own place.
    """
    others = len(values) - 1
    ordered = np.sort(values, axis=0)
    rank = np.argsort(np.argsort(values, axis=0, kind="stable"), axis=0, kind="stable")
    middle = (others - 1) // 2
    median: Numbers = np.take_along_axis(ordered, middle + (rank <= middle), axis=0)
    return median


def _iterate_pauses(series: Sequence[_Series], *, combined: bool) -> Iterator[Pause]:
    for durations, mine in _durations(series, combined=combined):
        indices, excess = find_long_steps(durations), compute_excess(durations)
        for at, worker in zip(indices, _find_workers(mine, indices, excess), strict=True):
            yield Pause(step=int(at) + 1, seconds=round(float(excess[at]), _DIGITS), worker=worker)


def _periods(series: Sequence[_Series], *, combined: bool) -> Iterator[Period]:
    for durations, mine in _durations(series, combined=combined):
        if found := find_period(find_long_steps(durations), durations):
            steps, seconds, kept = found
            ((most, count),) = Counter(_find_workers(mine, kept, compute_excess(durations))).most_common(1)
            worker = most if count > len(kept) / 2 else None
            yield Period(steps=round(steps, 2), seconds=round(seconds, _DIGITS), pauses=len(kept), worker=worker)


def _durations(series: Sequence[_Series], *, combined: bool) -> Iterator[tuple[Numbers, Sequence[_Series]]]:
    """Yield durations of steps with their workers: of all together, or of each alone."""
    if combined:
        yield np.median([each.step for each in series], axis=0), series
    else:
        yield from ((each.step, [each]) for each in series if np.isfinite(each.step).all())


def _find_workers(series: Sequence[_Series], indices: Indices, excess: Numbers) -> list[str | None]:
    """Return for each pause the one worker that needed so much longer than usual until its gradients were ready."""
    own = np.nan_to_num(np.stack([compute_excess(each.ready)[indices] for each in series]))  # (worker, pause)
    mine = own >= thresholds.MIN_OWN_PART_OF_PAUSE * excess[indices]
    if len(series) == 1:
        return [series[0].worker] * len(indices)
    return [series[int(theirs.argmax())].worker if theirs.sum() == 1 else None for theirs in mine.T]


# By the number of blocks, the standard errors that chance exceeds twice in a thousand times: Student's t, one-sided.
_CERTAIN = {4: 8.05, 5: 5.95, 6: 5.03, 7: 4.52, 8: 4.21, 9: 3.99, 10: 3.83}


@dataclass(frozen=True, kw_only=True)
class LateWorker(JsonData):
    """A worker that the others wait for in most steps."""

    worker: str
    last: float  # fraction of the steps in which it was the last to have its gradients
    behind: float  # in which it had them clearly after the others' median
    late_s: float  # by which, on average
    parts: Mapping[str, float]  # python, receive, compute -> seconds more per step than the others' median, where known


def find_late_workers(scores: WorkerTimings) -> Sequence[LateWorker]:
    """Return the workers that the others clearly and not just by chance wait for, the latest first."""
    found = [
        LateWorker(worker=name, last=score.last, behind=score.behind, late_s=score.late_s, parts=_parts(scores, name))
        for name, score in scores.workers.items()
        if score.last is not None and score.behind is not None and score.late_s is not None and _is_clear(scores, score)
    ]
    return sorted(found, key=lambda straggler: -straggler.late_s)


def _is_clear(scores: WorkerTimings, score: WorkerTiming) -> bool:
    errors = _CERTAIN.get(count_blocks(score.steps))
    if score.late_s is None or score.late_error_s is None or score.behind is None or scores.step_s is None or errors is None:
        return False
    return (
        score.behind >= thresholds.MIN_LATE_STEPS
        and score.late_s - errors * score.late_error_s > thresholds.MIN_LATENESS_OF_STEP * scores.step_s
    )


def _parts(scores: WorkerTimings, worker: str) -> dict[str, float]:
    score = scores.workers[worker]
    others = [other for name, other in scores.workers.items() if name != worker]
    of = {
        "python": (score.python_s, [other.python_s for other in others]),
        "receive": (score.receive_s, [other.receive_s for other in others]),
        "compute": (score.compute_s, [other.compute_s for other in others]),
    }
    known = {part: (own, [each for each in theirs if each is not None]) for part, (own, theirs) in of.items()}
    return {part: own - statistics.median(theirs) for part, (own, theirs) in known.items() if own is not None and theirs}


def describe_late_worker(straggler: LateWorker, host: str | None = None) -> str:
    """Format `worker:1 (node03) was last in 94 % of steps, by 12.0 ms: compute +11.0, receive +1.0 ms`."""
    where = f" ({host})" if host else ""
    often = (
        f"was last in {_format_percent(straggler.last)} of steps"
        if straggler.last >= thresholds.MIN_LATE_STEPS
        else f"was late in {_format_percent(straggler.behind)} of steps, and the last in {_format_percent(straggler.last)}"
    )
    parts = sorted(straggler.parts.items(), key=lambda part: -part[1])
    longer = [f"{part} +{_ms(seconds)}" for part, seconds in parts if seconds >= 0.1 * straggler.late_s]
    return f"{straggler.worker}{where} {often}, by {_ms(straggler.late_s)} ms" + (f": {', '.join(longer)} ms" if longer else "")


def compute_lateness_increases(baseline: WorkerTimings | None, current: WorkerTimings) -> Mapping[str, float]:
    """Return by how many seconds each clearly late worker is later than on the other side, the largest increase first.

    Where the other side's lateness is not known, it is assumed to be zero.
    """
    known = baseline.workers if baseline else {}
    late_s = {name: max(0.0, (score.late_s or 0.0) if (score := known.get(name)) else 0.0) for name in current.workers}
    return {each.worker: more for each in find_late_workers(current) if (more := each.late_s - late_s[each.worker]) > 0}


def _format_percent(fraction: float) -> str:
    return f"{100 * fraction:.0f} %"


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.1f}"
