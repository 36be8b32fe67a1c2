"""Steps to a target accuracy, compared between two trainings: tables of evaluations, and verdicts."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from pytest_dtfperf.baselines.terms import ComparisonPolicy
from pytest_dtfperf.baselines.thresholds import judge_learning
from pytest_dtfperf.baselines.verdict import Verdict
from pytest_dtfperf.datamodel.measurement import Measurement
from pytest_dtfperf.datamodel.task_report import Evaluation, Score
from pytest_dtfperf.errors import SpecError, UsageError
from tests.baselines.examples import measurement_of

LEARNING: dict[str, Any] = {
    "model": "mnist", "data": "mnist", "data_dir": "/d",
    "stop_at_top_1_accuracy": 0.9, "eval_during_training_every_n_steps": 10,
}  # fmt: skip


ASKED = ComparisonPolicy(threshold=1.5)


def make_training(*runs: Mapping[int, float], **spec: Any) -> Measurement:
    """Return a measurement with the accuracy at each step of each run; a step takes 0.1 s."""
    measured = measurement_of([100.0] * len(runs), **{**LEARNING, **spec})
    return replace(
        measured, runs=[replace(run, evaluations=evaluations_of(seen)) for run, seen in zip(measured.runs, runs, strict=True)]
    )


def evaluations_of(seen: Mapping[int, float]) -> list[Evaluation]:
    return [
        Evaluation(step=step, trained_s=step / 10, score=Score(images=100, loss=1.0, total_loss=1.0, top_1=top_1, top_5=1.0))
        for step, top_1 in seen.items()
    ]


ANCHOR = make_training(*[{100: 0.5, 200: 0.91}] * 3, gpus=1)


@pytest.mark.parametrize(
    "many, verdict, ratio",
    [
        (make_training(*[{100: 0.9}] * 3), Verdict.PASSED, 0.5),
        (make_training(*[{100: 0.89, 200: 0.95}] * 3), Verdict.PASSED, 1.0),
        (make_training(*[{200: 0.5, 300: 0.9}] * 3), Verdict.INCONCLUSIVE, 1.5),
        (make_training(*[{300: 0.8, 600: 0.9}] * 3), Verdict.REGRESSED, 3.0),
        (make_training({200: 0.9}, {100: 0.9}, {390: 0.9}), Verdict.INCONCLUSIVE, 1.0),
        (make_training(*[{200: 0.92, 390: 0.85}] * 3), Verdict.PASSED, 1.0),
        (make_training({200: 0.9}), Verdict.INCONCLUSIVE, 1.0),
        (make_training({600: 0.9}), Verdict.INCONCLUSIVE, 3.0),
    ],
    ids=[
        "sooner", "at once", "on the line", "too late, and confirmed", "runs differ",
        "the first evaluation counts", "a single run", "a single run, too late",
    ],
)  # fmt: skip
def test_verdict_follows_from_the_ratio_of_steps(many: Measurement, verdict: Verdict, ratio: float) -> None:
    """The interval of the ratio of steps to the target decides the verdict, and the ratio of seconds is shown."""
    judgement = judge_learning(many, ANCHOR, ASKED)
    assert judgement.verdict is verdict, judgement.reason
    assert judgement.value == ratio
    assert f": {ratio:.2f} times the steps (" in judgement.reason
    assert f"allowed at most 1.5) and {ratio:.2f} times the seconds" in judgement.reason


def test_confirmed_ratio_of_steps_is_a_regression() -> None:
    """Three times the steps in five runs of each side are a regression."""
    anchor = make_training(*[{200: 0.91}] * 5, gpus=1)
    judgement = judge_learning(make_training(*[{600: 0.9}] * 5), anchor, ASKED)
    assert judgement.verdict is Verdict.REGRESSED, judgement.reason
    assert "; 5 runs against 5" in judgement.reason


def test_rare_evaluations_widen_the_interval() -> None:
    """Evaluations every 100 steps give a wider interval than every 10 steps."""
    fine, coarse = (
        judge_learning(replace_interval(make_training(*[{200: 0.9}] * 3), every), replace_interval(ANCHOR, every), ASKED)
        for every in (10, 100)
    )
    assert fine.low is not None
    assert fine.high is not None
    assert coarse.low is not None
    assert coarse.high is not None
    assert coarse.low < fine.low < fine.high < coarse.high


def replace_interval(measured: Measurement, every: int) -> Measurement:
    return replace(measured, spec=measured.spec.replace(eval_during_training_every_n_steps=every))


def test_missed_target_is_a_regression() -> None:
    """A run that misses the target is a regression, with the best accuracy."""
    judgement = judge_learning(make_training({10: 0.95}, {10: 0.2, 20: 0.61}), ANCHOR, ASKED)
    assert judgement.verdict is Verdict.REGRESSED
    assert "never reached a top-1 accuracy of 90.0 %" in judgement.reason
    judgement = judge_learning(make_training({10: 0.2, 20: 0.61}), ANCHOR, ASKED)
    assert "(best: 61.0 %)" in judgement.reason


def test_anchor_that_misses_the_target_is_invalid() -> None:
    """If the anchor missed the target, the verdict is INVALID."""
    judgement = judge_learning(make_training({10: 0.95}), make_training({10: 0.3}), ASKED)
    assert judgement.verdict is Verdict.INVALID


def test_invalid_targets_and_thresholds_are_refused() -> None:
    """Different targets, no target and a threshold of zero are errors with a message."""
    with pytest.raises(SpecError, match="different targets"):
        judge_learning(make_training({10: 0.9}, stop_at_top_1_accuracy=0.8), ANCHOR, ASKED)
    with pytest.raises(SpecError, match="set stop_at_top_1_accuracy"):
        judge_learning(
            make_training({10: 0.9}, stop_at_top_1_accuracy=None), make_training({}, stop_at_top_1_accuracy=None), ASKED
        )
    with pytest.raises(UsageError, match="at_most must be more than 0"):
        judge_learning(ANCHOR, ANCHOR, ComparisonPolicy(threshold=0.0))
