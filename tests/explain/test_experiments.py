"""Tests of the experiment that is planned for each cause, and of its outcome."""

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
BASELINE = StepBreakdown(
    5, 0.4, [], {"worker:0": TaskTime(0.4, None, WORK), "ps:0": TaskTime(0.4, None, {"apply": 0.3})}, [], {}
)


def test_every_kind_of_cause_has_an_experiment() -> None:
    """Each kind of cause names experiments that exist, all of them are used, and each changes fields of a spec."""
    assert all(kind.row.trials for kind in CauseKind)
    assert {name for kind in CauseKind for name in kind.row.trials} == TRIALS.keys()
    for trial in TRIALS.values():
        SPEC.replace(**trial.changes)


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
def test_plan_takes_the_first_possible_experiment(
    subjects: list[ExperimentSubject], spare: int, spec: dict[str, Any], names: list[str]
) -> None:
    """The plan has the first experiment of each cause that changes something and needs no missing host, for the largest cause
    first."""
    found = plan_experiments(subjects, SPEC.replace(**spec).to_json(), spare_hosts=spare, most=4)
    assert [plan.trial.name for plan in found] == names


def test_worker_that_sleeps_alone_confirms_the_straggler() -> None:
    """A straggler is confirmed if the worker takes as long when it trains alone, and refuted if it does not."""
    (plan,) = plan_experiments(
        [ExperimentSubject(CauseKind.STRAGGLER, 0.46, "worker:1")], SPEC.to_json(), spare_hosts=0, most=1
    )
    assert judge_experiment(plan, step_s=0.65, instead_of_s=0.59, noise_s=0.01, baseline=BASELINE).outcome == "confirmed"
    assert judge_experiment(plan, step_s=0.12, instead_of_s=0.59, noise_s=0.01, baseline=BASELINE).outcome == "refuted"


def test_plan_leaves_out_the_smallest_causes() -> None:
    """A plan of at most two experiments has those of the two largest causes."""
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
        (OWN_WORK, 0.10, 0.21, "confirmed"),  # a worker's own work took 0.10 s in the baseline
        (OWN_WORK, 0.10, 0.11, "refuted"),
        (FORWARD, 0.10, 0.16, "confirmed"),  # forward and host took 0.05 s in the baseline
        (FORWARD, 0.10, 0.06, "refuted"),
    ],
)
def test_outcome_depends_on_half_of_the_seconds(
    trial: experiments.ExperimentTrial, seconds: float, step_s: float, outcome: Outcome
) -> None:
    """An experiment confirms a cause if more than half of its seconds are gone, refutes it if fewer are, and is open within the
    noise."""
    plan = PlannedExperiment(ExperimentSubject(CauseKind.COMPUTE, seconds, "worker:1"), trial)
    assert judge_experiment(plan, step_s=step_s, instead_of_s=0.31, noise_s=0.01, baseline=BASELINE).outcome == outcome


def test_message_has_change_result_and_outcome() -> None:
    """The message has the change of the experiment, both step times and the outcome, and survives JSON."""
    plan = PlannedExperiment(ExperimentSubject(CauseKind.INPUT, 0.2), SYNTHETIC)
    tried = judge_experiment(plan, step_s=0.12, instead_of_s=0.31, noise_s=0.01, baseline=None)
    assert tried.words == "input: with synthetic input the step takes 0.12 instead of 0.31 s: confirmed"
    assert ExperimentResult.from_json(tried.to_json()) == tried


def test_unknown_result_is_open() -> None:
    """An experiment without the baseline's step breakdown, or with a failed run, is open; a failed run has no step time, and
    its reason."""
    plan = PlannedExperiment(ExperimentSubject(CauseKind.COMPUTE, 0.1, "node3"), OWN_WORK)
    assert judge_experiment(plan, step_s=0.2, instead_of_s=0.3, noise_s=0.01, baseline=None).outcome == "open"
    tried = report_failed_experiment(plan, 0.3, "worker:0 died")
    assert (tried.outcome, tried.step_s) == ("open", None)
    assert tried.words == "compute at node3: where each worker trains alone there is no result: worker:0 died"
