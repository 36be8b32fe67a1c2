"""How many steps a target took, against how many it took another: tables of evaluations in, verdicts out."""

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


def learnt(*runs: Mapping[int, float], **spec: Any) -> Measurement:
    """Runs as step -> accuracy; a step took a tenth of a second."""
    measured = measurement_of([100.0] * len(runs), **{**LEARNING, **spec})
    return replace(
        measured, runs=[replace(run, evaluations=evaluations_of(seen)) for run, seen in zip(measured.runs, runs, strict=True)]
    )


def evaluations_of(seen: Mapping[int, float]) -> list[Evaluation]:
    return [
        Evaluation(step=step, trained_s=step / 10, score=Score(images=100, loss=1.0, total_loss=1.0, top_1=top_1, top_5=1.0))
        for step, top_1 in seen.items()
    ]


ANCHOR = learnt(*[{100: 0.5, 200: 0.91}] * 3, gpus=1)


@pytest.mark.parametrize(
    "many, verdict, ratio",
    [
        (learnt(*[{100: 0.9}] * 3), Verdict.PASSED, 0.5),
        (learnt(*[{100: 0.89, 200: 0.95}] * 3), Verdict.PASSED, 1.0),
        (learnt(*[{200: 0.5, 300: 0.9}] * 3), Verdict.INCONCLUSIVE, 1.5),
        (learnt(*[{300: 0.8, 600: 0.9}] * 3), Verdict.REGRESSED, 3.0),
        (learnt({200: 0.9}, {100: 0.9}, {390: 0.9}), Verdict.INCONCLUSIVE, 1.0),
        (learnt(*[{200: 0.92, 390: 0.85}] * 3), Verdict.PASSED, 1.0),
        (learnt({200: 0.9}), Verdict.INCONCLUSIVE, 1.0),
        (learnt({600: 0.9}), Verdict.INCONCLUSIVE, 3.0),
    ],
    ids=[
        "sooner", "at once", "on the line", "too late, and confirmed", "runs differ",
        "the first evaluation counts", "a single run", "a single run, too late",
    ],
)  # fmt: skip
def test_steps_are_compared(many: Measurement, verdict: Verdict, ratio: float) -> None:
    """The ratio of steps to the first evaluation that reaches the target decides where its interval leaves the limit behind,
    and the seconds' is told."""
    judgement = judge_learning(many, ANCHOR, ASKED)
    assert judgement.verdict is verdict, judgement.reason
    assert judgement.value == ratio
    assert f": {ratio:.2f} times the steps (" in judgement.reason
    assert f"allowed at most 1.5) and {ratio:.2f} times the seconds" in judgement.reason


def test_too_many_steps_are_a_regression_once_confirmed() -> None:
    """Five runs of either side that take three times the steps leave no doubt."""
    anchor = learnt(*[{200: 0.91}] * 5, gpus=1)
    judgement = judge_learning(learnt(*[{600: 0.9}] * 5), anchor, ASKED)
    assert judgement.verdict is Verdict.REGRESSED, judgement.reason
    assert "; 5 runs against 5" in judgement.reason


def test_coarse_evaluations_are_noise() -> None:
    """Where the test set is looked at every 100 steps, 200 steps may have been 101."""
    fine, coarse = (
        judge_learning(replace_interval(learnt(*[{200: 0.9}] * 3), every), replace_interval(ANCHOR, every), ASKED)
        for every in (10, 100)
    )
    assert fine.low is not None
    assert fine.high is not None
    assert coarse.low is not None
    assert coarse.high is not None
    assert coarse.low < fine.low < fine.high < coarse.high


def replace_interval(measured: Measurement, every: int) -> Measurement:
    return replace(measured, spec=measured.spec.but(eval_during_training_every_n_steps=every))


def test_who_never_gets_there_has_regressed() -> None:
    """A target that one run never reached is missed, and the best accuracy is shown."""
    judgement = judge_learning(learnt({10: 0.95}, {10: 0.2, 20: 0.61}), ANCHOR, ASKED)
    assert judgement.verdict is Verdict.REGRESSED
    assert "never reached a top-1 accuracy of 90.0 %" in judgement.reason
    judgement = judge_learning(learnt({10: 0.2, 20: 0.61}), ANCHOR, ASKED)
    assert "(best: 61.0 %)" in judgement.reason


def test_an_anchor_that_never_gets_there_compares_nothing() -> None:
    """If the training to compare with missed the target, the verdict is INVALID, not a blame for the other."""
    judgement = judge_learning(learnt({10: 0.95}), learnt({10: 0.3}), ASKED)
    assert judgement.verdict is Verdict.INVALID


def test_nonsense_is_refused() -> None:
    """Another target, no target, or a threshold of zero is an error of the test with a message."""
    with pytest.raises(SpecError, match="different targets"):
        judge_learning(learnt({10: 0.9}, stop_at_top_1_accuracy=0.8), ANCHOR, ASKED)
    with pytest.raises(SpecError, match="set stop_at_top_1_accuracy"):
        judge_learning(learnt({10: 0.9}, stop_at_top_1_accuracy=None), learnt({}, stop_at_top_1_accuracy=None), ASKED)
    with pytest.raises(UsageError, match="at_most must be more than 0"):
        judge_learning(ANCHOR, ANCHOR, ComparisonPolicy(threshold=0.0))
