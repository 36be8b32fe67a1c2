"""How many steps a target took, against how many it took another: tables of evaluations in, verdicts out."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from pytest_dtfperf.baselines.learning import judge_learning
from pytest_dtfperf.baselines.verdict import Verdict
from pytest_dtfperf.errors import SpecError, UsageError
from pytest_dtfperf.measurement import Evaluation, Measurement, Score
from tests.baselines.examples import measurement_of

LEARNING: dict[str, Any] = {
    "model": "mnist", "data": "mnist", "data_dir": "/d",
    "stop_at_top_1_accuracy": 0.9, "eval_during_training_every_n_steps": 10,
}  # fmt: skip


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


ANCHOR = learnt({10: 0.5, 20: 0.91}, gpus=1)


@pytest.mark.parametrize(
    "many, verdict, ratio",
    [
        (learnt({10: 0.9}), Verdict.PASSED, 0.5),
        (learnt({10: 0.89, 20: 0.95}), Verdict.PASSED, 1.0),
        (learnt({10: 0.1, 20: 0.5, 30: 0.9}), Verdict.PASSED, 1.5),
        (learnt({30: 0.8, 40: 0.9}), Verdict.REGRESSED, 2.0),
        (learnt({20: 0.9}, {30: 0.9}, {40: 0.9}), Verdict.PASSED, 1.5),
        (learnt({30: 0.92, 40: 0.85}), Verdict.PASSED, 1.5),
    ],
    ids=["sooner", "at once", "just in time", "too late", "the median of runs", "the first evaluation counts"],
)
def test_steps_are_compared(many: Measurement, verdict: Verdict, ratio: float) -> None:
    """The ratio of steps to the first evaluation that reaches the target decides, and the seconds' is told."""
    judgement = judge_learning(many, ANCHOR, at_most=1.5)
    assert judgement.verdict is verdict
    assert judgement.value == ratio
    assert f"{ratio:.2f} times the steps, allowed 1.5, and {ratio:.2f} times the seconds" in judgement.reason


def test_who_never_gets_there_has_regressed() -> None:
    """A target that one run never reached is missed, and the best that was seen is said."""
    judgement = judge_learning(learnt({10: 0.95}, {10: 0.2, 20: 0.61}), ANCHOR, at_most=1.5)
    assert judgement.verdict is Verdict.REGRESSED
    assert "never reached a top-1 accuracy of 90.0 %" in judgement.reason
    judgement = judge_learning(learnt({10: 0.2, 20: 0.61}), ANCHOR, at_most=1.5)
    assert "(best: 61.0 %)" in judgement.reason


def test_an_anchor_that_never_gets_there_compares_nothing() -> None:
    """If the training to compare with missed the target, the verdict is INVALID, not a blame for the other."""
    judgement = judge_learning(learnt({10: 0.95}), learnt({10: 0.3}), at_most=1.5)
    assert judgement.verdict is Verdict.INVALID


def test_nonsense_is_refused() -> None:
    """Another target, no target, or a threshold of zero is a mistake of the test, in words."""
    with pytest.raises(SpecError, match="different targets"):
        judge_learning(learnt({10: 0.9}, stop_at_top_1_accuracy=0.8), ANCHOR, at_most=1.5)
    with pytest.raises(SpecError, match="say stop_at_top_1_accuracy"):
        judge_learning(learnt({10: 0.9}, stop_at_top_1_accuracy=None), learnt({}, stop_at_top_1_accuracy=None), at_most=1)
    with pytest.raises(UsageError, match="at_most must be more than 0"):
        judge_learning(ANCHOR, ANCHOR, at_most=0)
