"""Which experiment is made for which cause, and what its outcome says of it: a specification by tables."""

from typing import Any

import pytest

from pytest_dtfperf.datamodel.explanation import CauseKind, ExperimentResult, Outcome
from pytest_dtfperf.datamodel.step_times import StepBreakdown, TaskTime
from pytest_dtfperf.explain import experiments
from pytest_dtfperf.explain.experiments import (
    FORWARD,
    INDEPENDENT,
    OTHER_HOST,
    OWN_WORK,
    SYNTHETIC,
    TRIALS,
    ExperimentSubject,
    PlannedExperiment,
    judge_experiment,
    plan_experiments,
    report_failed_experiment,
)
from pytest_dtfperf.spec import Spec

SPEC = Spec(model="mnist", batch_size=32, gpus=2, num_ps=1, data="mnist", data_dir="/data")
WORK = {"forward": 0.04, "backward": 0.05, "receive": 0.2, "wait": 0.1, "host": 0.01}
THEN = StepBreakdown(5, 0.4, [], {"worker:0": TaskTime(0.4, None, WORK), "ps:0": TaskTime(0.4, None, {"apply": 0.3})}, [], {})


def test_every_kind_of_cause_has_an_experiment() -> None:
    """Each experiment that a kind of cause names exists, all are used, and each changes a field that a spec has."""
    assert all(kind.row.trials for kind in CauseKind)
    assert {name for kind in CauseKind for name in kind.row.trials} == TRIALS.keys()
    for trial in TRIALS.values():
        SPEC.but(**trial.changes)


@pytest.mark.parametrize(
    "subjects, spare, spec, names",
    [
        ([ExperimentSubject(CauseKind.INPUT, 0.2)], 0, {}, ["synthetic input"]),
        ([ExperimentSubject(CauseKind.INPUT, 0.2)], 0, {"data": "synthetic", "data_dir": None}, []),
        ([ExperimentSubject(CauseKind.LINK, 0.2, "ps:0>worker:1")], 0, {}, ["no exchange"]),
        ([ExperimentSubject(CauseKind.LINK, 0.2, "ps:0>worker:1")], 1, {}, ["another host"]),
        ([ExperimentSubject(CauseKind.STRAGGLER, 0.2, "worker:1")], 0, {}, ["own work alone"]),
        ([ExperimentSubject(CauseKind.STRAGGLER, 0.2, "worker:1")], 1, {}, ["another host"]),
        (
            [ExperimentSubject(CauseKind.COMPUTE, 0.1), ExperimentSubject(CauseKind.INPUT, 0.2)],
            1,
            {},
            ["synthetic input", "own work alone"],
        ),
        (
            [ExperimentSubject(CauseKind.COMPUTE, 0.1, "worker:1"), ExperimentSubject(CauseKind.INPUT, 0.2)],
            1,
            {},
            ["synthetic input", "another host"],
        ),
        ([ExperimentSubject(CauseKind.OTHERS, 0.1, "node3")], 0, {}, []),
        ([], 1, {}, []),
    ],
)
def test_the_first_that_can_be_made_is_made(
    subjects: list[ExperimentSubject], spare: int, spec: dict[str, Any], names: list[str]
) -> None:
    """For each suspect, the largest first; what changes nothing, or needs a host that is not lent, is passed over."""
    found = plan_experiments(subjects, SPEC.but(**spec).to_json(), spare_hosts=spare, most=4)
    assert [plan.trial.name for plan in found] == names


def test_a_sleeper_goes_on_sleeping_alone() -> None:
    """A worker that sleeps half a second in every step of 0.1 s does so where it trains alone, too: that confirms it."""
    (plan,) = plan_experiments(
        [ExperimentSubject(CauseKind.STRAGGLER, 0.46, "worker:1")], SPEC.to_json(), spare_hosts=0, most=1
    )
    assert judge_experiment(plan, step_s=0.65, instead_of_s=0.59, noise_s=0.01, then=THEN).outcome == "confirmed"
    assert judge_experiment(plan, step_s=0.12, instead_of_s=0.59, noise_s=0.01, then=THEN).outcome == "refuted"


def test_no_more_than_asked_for() -> None:
    """Experiments cost time: the smallest causes have none."""
    subjects = [
        ExperimentSubject(CauseKind.INPUT, 0.1),
        ExperimentSubject(CauseKind.WAITING, 0.3),
        ExperimentSubject(CauseKind.COMPUTE, 0.2),
    ]
    found = plan_experiments(subjects, SPEC.to_json(), spare_hosts=0, most=2)
    assert [plan.subject.kind for plan in found] == ["waiting", "compute"]


@pytest.mark.parametrize(
    "trial, seconds, step_s, outcome",
    [
        (SYNTHETIC, 0.20, 0.12, "confirmed"),  # 0.19 of 0.20 s have gone
        (SYNTHETIC, 0.20, 0.30, "refuted"),  # 0.01
        (SYNTHETIC, 0.20, 0.35, "refuted"),  # it takes even longer
        (SYNTHETIC, 0.20, 0.215, "open"),  # about half, and runs differ by as much
        (INDEPENDENT, 0.10, 0.10, "confirmed"),
        (OTHER_HOST, 0.10, 0.31, "refuted"),
        (OWN_WORK, 0.10, 0.21, "confirmed"),  # a worker's own work took 0.10 s then
        (OWN_WORK, 0.10, 0.11, "refuted"),
        (FORWARD, 0.10, 0.16, "confirmed"),  # forward and host took 0.05 s then
        (FORWARD, 0.10, 0.06, "refuted"),
    ],
)
def test_outcome_by_what_has_gone_or_stayed(
    trial: experiments.ExperimentTrial, seconds: float, step_s: float, outcome: Outcome
) -> None:
    """Half of the cause's seconds decide, unless runs differ by more than what is missing to it."""
    plan = PlannedExperiment(ExperimentSubject(CauseKind.COMPUTE, seconds, "worker:1"), trial)
    assert judge_experiment(plan, step_s=step_s, instead_of_s=0.31, noise_s=0.01, then=THEN).outcome == outcome


def test_words() -> None:
    """One line says what was changed, what came of it, and what that says."""
    plan = PlannedExperiment(ExperimentSubject(CauseKind.INPUT, 0.2), SYNTHETIC)
    tried = judge_experiment(plan, step_s=0.12, instead_of_s=0.31, noise_s=0.01, then=None)
    assert tried.words == "input: with synthetic input the step takes 0.12 instead of 0.31 s: confirmed"
    assert ExperimentResult.from_json(tried.to_json()) == tried


def test_what_is_not_known_decides_nothing() -> None:
    """Without a good step's step breakdown nobody knows how long own work took; what could not be run has no step."""
    plan = PlannedExperiment(ExperimentSubject(CauseKind.COMPUTE, 0.1, "node3"), OWN_WORK)
    assert judge_experiment(plan, step_s=0.2, instead_of_s=0.3, noise_s=0.01, then=None).outcome == "open"
    tried = report_failed_experiment(plan, 0.3, "worker:0 died")
    assert (tried.outcome, tried.step_s) == ("open", None)
    assert tried.words == "compute at node3: where each worker trains alone there is no result: worker:0 died"
