"""Explain why a step takes longer than it did: both sides' facts in, causes in seconds out, which add up to the change.

    explain(baseline, current)      the one entry point

The seconds of a cause are those by which the step would be shorter without it. They are computed by the model of a step
(`measurement_profile.py`): the candidate's times are added to the good step and removed from the bad one, in all orders. The
rest of the step's measured change is reported as not explained. Causes smaller than the noise are not reported.

The change of a step is measured over all steps of all runs, and its parts only in the few traced ones. Where the two do not
agree, each part is adjusted by as much of the difference as its own error allows (least squares), and no more. Traced steps are
consecutive, and may all be of a bad moment that was not in the measured steps: where the parts add up to too much, more is
removed from them, until they add up to the step's change.

Where no step of either side was traced, only known differences can be causes. A single one may have caused the whole change,
which is reported with low confidence. Of several the cause cannot be determined: they are noted, and the change stays
unexplained.
"""

import math
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_dtfperf.codec import JsonData
from pytest_dtfperf.datamodel.explanation import Cause, CauseKind, Confidence, Explanation
from pytest_dtfperf.datamodel.step_times import StepBreakdown, WorkKind
from pytest_dtfperf.explain import thresholds
from pytest_dtfperf.explain.candidate_causes import compute_error, compute_least_residual, find_candidate_causes
from pytest_dtfperf.explain.host_pressure import find_host_pressures
from pytest_dtfperf.explain.measurement_profile import (
    CandidateCause,
    CandidateKind,
    ComparedTimes,
    Gain,
    MeasurementProfile,
    Times,
    add_host,
    compare_times,
    compute_gains,
    list_ends,
    ms,
)
from pytest_dtfperf.explain.merge_causes import ExplainCase, Reason, merge_causes
from pytest_dtfperf.explain.reasons import find_reason
from pytest_dtfperf.explain.worker_timings import compute_lateness_increases, describe_late_worker, find_late_workers


@dataclass(frozen=True)
class LowConfidenceCause:
    """A known difference between the two sides that may be the cause."""

    kind: CauseKind
    location: str | None
    words: str
    most_s: float | None = None  # the largest possible effect on a step; None: not known


def find_low_confidence_causes(baseline: MeasurementProfile, current: MeasurementProfile) -> Iterator[LowConfidenceCause]:
    """Yield the known differences that may be the cause."""
    for task, seconds in current.sleeps.items():
        if seconds > baseline.sleeps.get(task, 0.0):
            message = f"{add_host(task, current.hosts)} has an injected sleep of {seconds:g} s in every step (DTFPERF_SLOWDOWN)"
            yield LowConfidenceCause(CauseKind.STRAGGLER, task, message, seconds - baseline.sleeps.get(task, 0.0))
    if current.program_changes:
        yield LowConfidenceCause(CauseKind.PROGRAM, None, f"another program is trained: {'; '.join(current.program_changes)}")
    if current.hardware_changes:
        yield LowConfidenceCause(CauseKind.HARDWARE, None, f"other hardware: {'; '.join(current.hardware_changes)}")
    if current.software_changes:
        yield LowConfidenceCause(CauseKind.SOFTWARE, None, f"versions differ: {', '.join(current.software_changes)}")
    for each in find_host_pressures(baseline, current):
        yield LowConfidenceCause(
            each.kind, each.hosts[0] if len(each.hosts) == 1 else None, f"{' and '.join(each.hosts)}: {each.words}"
        )


def settle_seconds(
    seconds: Sequence[float], errors: Sequence[float], change_s: float, change_error_s: float, shorter_s: float = 0.0
) -> list[float]:
    """Return the seconds, adjusted within their errors so that they add up to the change and to no more than it.

    `shorter_s` are the seconds by which other work became significantly shorter: they hide as much that became longer.
    """
    return _scale_down(_distribute_difference(seconds, errors, change_s, change_error_s), change_s + change_error_s + shorter_s)


def _distribute_difference(
    seconds: Sequence[float], errors: Sequence[float], change_s: float, change_error_s: float
) -> list[float]:
    """Distribute the difference to the change over the parts, by the variance of each."""
    found = list(seconds)
    variance = sum(error**2 for error in errors)
    missing = change_s - sum(found)
    if variance == 0 or missing == 0:
        return found
    missing *= variance / (variance + change_error_s**2)
    if missing < 0:
        return _subtract_excess(found, errors, -missing)
    added = min(missing, thresholds.STANDARD_ERRORS * math.sqrt(variance))
    return [each + added * error**2 / variance for each, error in zip(found, errors, strict=True)]


def _scale_down(seconds: Sequence[float], most_s: float) -> list[float]:
    """Scale the positive seconds down until they add up to at most `most_s`, as causes cannot exceed the change."""
    longer = sum(max(0.0, each) for each in seconds)
    part = min(1.0, max(0.0, most_s) / longer) if longer else 1.0
    return [each * part if each > 0 else each for each in seconds]


def _subtract_excess(seconds: list[float], errors: Sequence[float], too_much: float) -> list[float]:
    """Subtract `too_much` from the positive parts, and let none of them become negative."""
    found = list(seconds)
    most = [
        min(each, thresholds.MAX_REMOVED_STANDARD_ERRORS * error) if each > 0 else 0.0
        for each, error in zip(found, errors, strict=True)
    ]
    left = [i for i, each in enumerate(most) if each > 0]
    while left and too_much > 0:
        variance = sum(errors[i] ** 2 for i in left)
        share = {i: too_much * errors[i] ** 2 / variance for i in left}
        spent = [i for i in left if share[i] >= most[i]]
        for i in spent or left:
            taken = min(share[i], most[i])
            found[i] -= taken
            too_much -= taken
        left = [i for i in left if i not in spent] if spent else []
    return found


# With other workers: links, servers, and TensorFlow's code around them
_SHARED = frozenset({WorkKind.RECEIVE, WorkKind.SEND, WorkKind.HOST})


def explain(baseline: MeasurementProfile, current: MeasurementProfile) -> Explanation | None:
    """Return the causes of a longer step; None if the step of one side is not known."""
    before, after = _step_s(baseline), _step_s(current)
    if before is None or after is None:
        return None
    change_s, noise = after - before, compute_noise_s(baseline, current, before)
    if change_s < noise:
        return Explanation([], after, before, change_s, noise, ["the step has not become longer by more than chance explains"])
    found = sorted(_causes(baseline, current, change_s, noise), key=lambda cause: -cause.seconds)
    left = change_s - sum(cause.seconds for cause in found)
    return Explanation(found, after, before, left, noise, list(_notes(baseline, current)))


def _causes(baseline: MeasurementProfile, current: MeasurementProfile, change_s: float, noise: float) -> Iterator[Cause]:
    both = compare_times(baseline, current)
    if not both:
        late = list(_find_late_workers(baseline, current, change_s, noise))
        yield from late or _list_single_difference(baseline, current, change_s, noise)
        return
    candidates = merge_causes(find_candidate_causes(both, baseline, current), both, baseline, current)
    found = compute_gains(both.baseline, candidates)
    errors = [_compute_error(candidate, both) for candidate in candidates]
    shorter_s = _compute_decrease_s(candidates[-1], both)
    seconds = settle_seconds([gain.seconds for gain in found], errors, change_s, noise / thresholds.STANDARD_ERRORS, shorter_s)
    for candidate, gain, each in zip(candidates, found, seconds, strict=True):
        if candidate.kind != CandidateKind.REST and each >= noise:
            case = ExplainCase(baseline, current, both, candidate)
            reason = find_reason(case)
            yield Cause(
                kind=reason.kind,
                seconds=each,
                share=each / change_s,
                location=reason.location,
                words=reason.words,
                evidence=[*reason.evidence, _bounds(gain)],
                confidence=reason.confidence,
                next=_get_next_command(case, reason),
            )


def _find_late_workers(
    baseline: MeasurementProfile, current: MeasurementProfile, change_s: float, noise: float
) -> Iterator[Cause]:
    """Yield the workers that the others wait for, where only their lateness is known and not the parts of their steps.

    That is so of programs that report when their steps begin and end.
    """
    timings = current.worker_timings
    if timings is None or not (more_s := compute_lateness_increases(baseline.worker_timings, timings)):
        return
    base: dict[str, dict[str, float]] = {worker: {WorkKind.LATE: 0.0} for worker in timings.workers}
    late = [
        CandidateCause(CandidateKind.LATE, {(worker, WorkKind.LATE): seconds}, location=worker)
        for worker, seconds in more_s.items()
    ]
    gained = [gain.seconds for gain in compute_gains(Times(base, 0.0), late[: thresholds.MAX_CANDIDATES])]
    errors = [timings.workers[worker].late_error_s or 0.0 for worker in more_s][: len(gained)]
    described_of = {
        each.worker: describe_late_worker(each, current.hosts.get(each.worker)) for each in find_late_workers(timings)
    }
    seconds_of = settle_seconds(gained, errors, change_s, noise / thresholds.STANDARD_ERRORS)
    for (worker, more), seconds in zip(more_s.items(), seconds_of, strict=False):
        if seconds >= noise:
            late_s = timings.workers[worker].late_s or 0.0
            baseline_text = f", {ms(max(0.0, late_s - more))} ms {baseline.when}" if baseline.worker_timings else ""
            message = f"{add_host(worker, current.hosts)} is {ms(late_s)} ms later in its steps than the others{baseline_text}"
            yield Cause(
                kind=CauseKind.STRAGGLER,
                seconds=seconds,
                share=seconds / change_s,
                location=worker,
                words=f"{message}; all wait for it",
                evidence=[described_of[worker]],
                confidence=Confidence.MEDIUM if baseline.worker_timings else Confidence.LOW,
                next=None,
            )


def _list_single_difference(
    baseline: MeasurementProfile, current: MeasurementProfile, change_s: float, noise: float
) -> Iterator[Cause]:
    """Yield the single known difference as a cause, for sides with steps that cannot be compared."""
    found = list(find_low_confidence_causes(baseline, current))
    if len(found) == 1 and (found[0].most_s is None or found[0].most_s >= noise):
        (one,) = found
        seconds = change_s if one.most_s is None else min(one.most_s, change_s)
        evidence = ["nothing else is known to differ, and steps of both sides cannot be held against each other"]
        yield Cause(one.kind, seconds, seconds / change_s, one.location, one.words, evidence, Confidence.LOW, None)


def _compute_error(candidate: CandidateCause, both: ComparedTimes) -> float:
    """Return the standard error of the seconds that a candidate adds to a step."""
    kinds = {kind for _, kind in candidate.cells}
    return compute_error(both, sorted(kinds)) + (
        compute_least_residual(both) / thresholds.STANDARD_ERRORS if candidate.residual_s else 0.0
    )


def _compute_decrease_s(rest: CandidateCause, both: ComparedTimes) -> float:
    """Return by how much the own work of the last worker became significantly shorter, without that of candidates.

    Transfers do not count: links are shared, and a worker that is late for any reason finds them free.
    """
    last = max(both.current.own, key=lambda worker: sum(both.current.own[worker].values()))
    cells = {kind: seconds for (worker, kind), seconds in rest.cells.items() if worker == last and kind not in _SHARED}
    return max(0.0, -sum(cells.values()) - thresholds.STANDARD_ERRORS * compute_error(both, sorted(cells)))


def _bounds(gain: Gain) -> str:
    added, removed = ms(gain.added_s), ms(gain.removed_s)
    return f"added to the faster step, it costs {added} ms; removed from the slower one, it saves {removed} ms"


def _get_next_command(case: ExplainCase, reason: Reason) -> str | None:
    """Return the doctor's command for a cause of hosts or links, with one host for comparison beside a single one."""
    if not case.current.cluster or not reason.kind.row.doctor:
        return None
    every = dict.fromkeys(case.hosts[task] for task in sorted(case.hosts))
    named = [host for host in dict.fromkeys(case.hosts.get(end, end) for end in list_ends(reason.location)) if host in every]
    beside = next((host for host in every if host not in named), None)
    chosen = [*named, *([beside] if len(named) == 1 and beside else [])]
    which = f" --hosts={','.join(chosen)}" if named and len(chosen) < len(every) else ""
    return f"dtfperf doctor {case.current.cluster}{which}"


def _notes(baseline: MeasurementProfile, current: MeasurementProfile) -> Iterator[str]:
    """Yield the data that are missing for a better explanation."""
    is_own, timings = current.is_own_program, current.worker_timings
    how = "a program can report its steps with pytest_dtfperf.steps" if is_own else "--explain=always has it done"
    for side, name in ((baseline, baseline.name), (current, "this training")):
        if side.step_breakdown is None and side.worker_timings is None:
            yield f"no step of {name} was taken apart: {how}"
    if compare_times(baseline, current):
        return
    late = compute_lateness_increases(baseline.worker_timings, timings) if timings else {}
    if timings and len(timings.workers) > 1 and is_own and current.in_lockstep and not late:
        yield "no worker has become late; which is slower within its steps is not known, for the others wait within theirs"
    if len(found := list(find_low_confidence_causes(baseline, current))) > (0 if late else 1):
        yield f"known to differ, and not distinguished: {'; '.join(difference_found.words for difference_found in found)}"


def compute_noise_s(baseline: MeasurementProfile, current: MeasurementProfile, step_s: float) -> float:
    """Return by how much two such sides differ by chance: twice the standard error of the difference of their runs' steps.

    Runs of both sides scatter alike, as a fraction of their step. Two or three runs of one side alone estimate it badly.
    """
    logs = [[math.log(each) for each in side.step_s] for side in (baseline, current)]
    free = sum(max(0, len(each) - 1) for each in logs)
    squares = sum((len(each) - 1) * statistics.variance(each) for each in logs if len(each) > 1)
    scatter = math.sqrt(squares / free) if free else thresholds.ASSUMED_RUN_SCATTER
    error = scatter * math.sqrt(sum(1 / max(1, len(each)) for each in logs)) * step_s
    return max(thresholds.STANDARD_ERRORS * error, thresholds.MIN_SHARE_OF_STEP * step_s)


def _step_s(side: MeasurementProfile) -> float | None:
    if side.step_s:
        return statistics.median(side.step_s)
    return side.step_breakdown.wall_s if side.step_breakdown else None


@dataclass(frozen=True)
class Change(JsonData):
    """The change of one kind of work, in seconds per step: on the critical path, or of the slowest worker."""

    kind: str
    before_s: float
    after_s: float
    locations: Mapping[str, float]  # task or link -> change; those on small parts of a path are in none

    @property
    def seconds(self) -> float:
        return self.after_s - self.before_s

    @property
    def location(self) -> str | None:
        """Return the location that changed most in the direction of the whole; None if no known location did."""
        same = {location: seconds for location, seconds in self.locations.items() if seconds * self.seconds > 0}
        return max(same, key=lambda location: abs(same[location]), default=None)


def compute_changes(before: StepBreakdown, after: StepBreakdown) -> Sequence[Change]:
    """Return the changes by kind of work, the largest first. They add up to `after.wall_s - before.wall_s`.

    They are not by location: which of several equal workers is on the path is random, and differs from step to step.
    """
    old, new = _group_by_location(before), _group_by_location(after)
    changes = [_change(kind, old.get(kind, {}), new.get(kind, {})) for kind in {**old, **new}]
    return sorted(changes, key=lambda change: (-abs(change.seconds), change.kind))


def _group_by_location(breakdown: StepBreakdown) -> Mapping[str, Mapping[str | None, float]]:
    found: dict[str, Counter[str | None]] = {}
    for part in breakdown.parts:
        found.setdefault(part.kind, Counter())[part.location] += part.seconds  # type: ignore[assignment]  # typeshed: whole numbers
    return found


def _change(kind: str, before: Mapping[str | None, float], after: Mapping[str | None, float]) -> Change:
    locations = {at: after.get(at, 0.0) - before.get(at, 0.0) for at in {**before, **after} if at is not None}
    return Change(kind, sum(before.values()), sum(after.values()), locations)
