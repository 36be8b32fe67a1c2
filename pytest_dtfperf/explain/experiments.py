"""Choose the experiment that confirms or refutes a cause: the same training with one thing changed. Judge its outcome.

There are two ways of judging. Both compare with half of the cause's seconds, so that noise decides little:

    GONE    the change removes the candidate cause. The step is shorter by at least that much: confirmed
    STAYS   the change leaves only the candidate cause. The step is still longer than in the baseline by as much: confirmed

Neither of them finds a wrong cause guilty for certain: without its input or its exchange any step is somewhat shorter. So the
gain must be large in comparison with the cause's seconds.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pytest_dtfperf.datamodel.explanation import CauseKind, ExperimentResult, Outcome, Trial
from pytest_dtfperf.datamodel.step_times import StepBreakdown, WorkKind
from pytest_dtfperf.explain.thresholds import MIN_SHARE_OF_CAUSE

Reading = Literal["gone", "stays"]

_OWN_WORK = frozenset(
    {
        WorkKind.FORWARD,
        WorkKind.BACKWARD,
        WorkKind.COMPILED,
        WorkKind.APPLY,
        WorkKind.INPUT,
        WorkKind.COPY,
        WorkKind.HOST,
        WorkKind.PYTHON,
    }
)  # without an exchange


@dataclass(frozen=True)
class ExperimentTrial:
    """One kind of experiment."""

    name: Trial
    words: str  # "with synthetic input the step takes ..."
    reading: Reading
    changes: Mapping[str, Any] = field(default_factory=dict)  # of the spec
    leaves_out: bool = False  # whether the host of the cause is replaced by another one

    def applies(self, spec: Mapping[str, Any], location: str | None) -> bool:
        """Return whether the experiment differs from the explained training, and whether all that it needs is known."""
        return location is not None if self.leaves_out else any(spec.get(name) != value for name, value in self.changes.items())


_ALONE = {"variable_update": "independent", "num_ps": 0, "cross_replica_sync": True}
SYNTHETIC = ExperimentTrial("synthetic input", "with synthetic input", "gone", {"data": "synthetic", "data_dir": None})
INDEPENDENT = ExperimentTrial("no exchange", "where each worker trains alone", "gone", _ALONE)
OWN_WORK = ExperimentTrial("own work alone", "where each worker trains alone", "stays", _ALONE)
FORWARD = ExperimentTrial("forward only", "forward only, without exchange", "stays", {**_ALONE, "forward_only": True})
OTHER_HOST = ExperimentTrial("another host", "with another host in its place", "gone", leaves_out=True)
SERVERS_ELSEWHERE = ExperimentTrial(
    "other placement", "with parameter servers placed otherwise", "gone", {"variable_placement": "round_robin"}
)

TRIALS: Mapping[Trial, ExperimentTrial] = {
    each.name: each for each in (SYNTHETIC, INDEPENDENT, OWN_WORK, FORWARD, OTHER_HOST, SERVERS_ELSEWHERE)
}


@dataclass(frozen=True)
class ExperimentSubject:
    """The facts of a cause that an experiment needs."""

    kind: CauseKind
    seconds: float  # by which it makes a step longer
    location: str | None = None  # a task, a host, or a link; None: the whole cluster


@dataclass(frozen=True)
class PlannedExperiment:
    """An experiment for one candidate cause."""

    subject: ExperimentSubject
    trial: ExperimentTrial


def plan_experiments(
    subjects: Sequence[ExperimentSubject], spec: Mapping[str, Any], *, spare_hosts: int, most: int
) -> list[PlannedExperiment]:
    """Return the experiments that are worth their time: for each candidate the first possible one, the largest candidate first.

    `spec` is the explained spec as JSON. `spare_hosts` is the number of allocated hosts that it does not use.
    """
    ordered = sorted(subjects, key=lambda subject: -subject.seconds)
    found = [first for subject in ordered for first in list(_iterate_possible(subject, spec, spare_hosts))[:1]]
    return found[:most]


def _iterate_possible(subject: ExperimentSubject, spec: Mapping[str, Any], spare_hosts: int) -> Iterator[PlannedExperiment]:
    for trial in (TRIALS[name] for name in subject.kind.row.trials):
        if trial.applies(spec, subject.location) and (spare_hosts > 0 or not trial.leaves_out):
            yield PlannedExperiment(subject, trial)


def judge_experiment(
    plan: PlannedExperiment, *, step_s: float, instead_of_s: float, noise_s: float, baseline: StepBreakdown | None
) -> ExperimentResult:
    """Return the result of an experiment for its cause, by the duration of a step.

    Args:
        step_s: Seconds of a step of the experiment.
        instead_of_s: Seconds of a step of the slow measurement.
        noise_s: Seconds by which steps differ by chance.
        baseline: The step breakdown of the baseline.
    """
    subject, trial = plan.subject, plan.trial
    seconds = _evidence_s(trial, step_s, instead_of_s, baseline)
    enough = MIN_SHARE_OF_CAUSE * subject.seconds
    message = f"{_describe_subject(subject)}: {trial.words} the step takes {step_s:.3g} instead of {instead_of_s:.3g} s"
    outcome: Outcome = "open"
    if seconds is None:
        verdict = "open, for what a worker's own work takes in what it was compared with is not known"
    elif abs(seconds - enough) < noise_s:
        verdict = f"open, runs differ by {noise_s:.2g} s anyway"
    else:
        verdict = outcome = "confirmed" if seconds >= enough else "refuted"
    return _describe_trial(plan, step_s, instead_of_s, outcome, f"{message}: {verdict}")


def report_failed_experiment(plan: PlannedExperiment, instead_of_s: float, why: str) -> ExperimentResult:
    """Return the result of an experiment without a measured step."""
    message = f"{_describe_subject(plan.subject)}: {plan.trial.words} there is no result: {why}"
    return _describe_trial(plan, None, instead_of_s, "open", message)


def _evidence_s(trial: ExperimentTrial, step_s: float, instead_of_s: float, baseline: StepBreakdown | None) -> float | None:
    """Return the seconds of the cause that disappeared with the change, or that stayed."""
    if trial.reading == "gone":
        return instead_of_s - step_s
    if baseline is None:
        return None
    return step_s - compute_own_work_s(baseline, forward_only=bool(trial.changes.get("forward_only")))


def compute_own_work_s(breakdown: StepBreakdown, *, forward_only: bool = False) -> float:
    """Return the own work of the slowest worker in a step: without receiving, sending, exchanging and waiting."""
    kinds = _OWN_WORK - {WorkKind.BACKWARD, WorkKind.APPLY} if forward_only else _OWN_WORK
    workers = [task for name, task in breakdown.tasks.items() if name.startswith("worker:")]
    return max((sum(s for kind, s in task.parts.items() if kind in kinds) for task in workers), default=0.0)


def _describe_subject(subject: ExperimentSubject) -> str:
    return f"{subject.kind} at {subject.location}" if subject.location else subject.kind


def _describe_trial(
    plan: PlannedExperiment, step_s: float | None, instead_of_s: float, outcome: Outcome, message: str
) -> ExperimentResult:
    subject = plan.subject
    return ExperimentResult(subject.kind, subject.location, plan.trial.name, step_s, instead_of_s, outcome, message)
