"""Tables of steps and seconds to a target accuracy."""

from dataclasses import replace
from typing import Any

from pytest_dtfperf.baselines.verdict import Verdict
from pytest_dtfperf.datamodel.task_report import Evaluation, Score
from pytest_dtfperf.records.record import Record
from pytest_dtfperf.report.measurement_text import make_learning_grids, make_score_grids
from pytest_dtfperf.report.terminal import format_summary
from pytest_dtfperf.spec import Spec
from tests.records.samples import measurement, run

TARGET: dict[str, Any] = {"stop_at_top_1_accuracy": 0.95, "eval_during_training_every_n_steps": 20}


def make_evaluation(step: int, seconds: float, top_1: float) -> Evaluation:
    score = Score(images=1000, loss=1 - top_1, total_loss=1.5 - top_1, top_1=top_1, top_5=0.999)
    return Evaluation(step=step, trained_s=seconds, score=score)


def make_training(*runs: list[Evaluation], verdict: Verdict | None = None, **what: Any) -> Record:
    """Return a record of the MNIST network with 64 images per step by default."""
    usual = {"model": "mnist", "batch_size": 64 // what.get("gpus", 1), "data": "mnist", "data_dir": "/digits"}
    measured = replace(
        measurement(Spec(**(usual | what)), []), runs=[run(100.0, evaluations=evaluations) for evaluations in runs]
    )
    return Record(id="a1", test="t", measurement=measured, verdict=verdict)


ONE = make_training(
    [make_evaluation(20, 1.0, 0.9), make_evaluation(40, 2.0, 0.96)],
    [make_evaluation(20, 1.0, 0.9), make_evaluation(60, 3.0, 0.95)],
    **TARGET,
)
TWO = make_training([make_evaluation(75, 2.0, 0.951)], gpus=2, num_ps=1, **TARGET)
NEVER = make_training(
    [make_evaluation(20, 1.0, 0.5), make_evaluation(400, 9.0, 0.934)], gpus=2, variable_update="replicated", **TARGET
)


def make_rows(*records: Record) -> list[list[str]]:
    return [list(row) for grid in make_learning_grids(records) for row in grid.rows]


def test_table_has_steps_and_seconds_to_the_target() -> None:
    """Steps and seconds are medians to the first evaluation at the target; ratios are to one device with the same batch."""
    (grid,) = make_learning_grids([TWO, NEVER, ONE])
    assert grid.headings == ("mnist, mnist to 95.0 %", "gpus", "ps", "batch", "steps", "ratio", "seconds", "ratio", "best")
    assert [list(row) for row in grid.rows] == [
        ["parameter_server", "1", "0", "64", "50", "1.00", "2.5", "1.00", "96.0 %"],
        ["parameter_server", "2", "1", "32", "75", "1.50", "2", "0.80", "95.1 %"],
        ["replicated", "2", "0", "32", "never", "-", "-", "-", "93.4 %"],
    ]


def test_no_ratio_to_another_training() -> None:
    """One device with another batch or learning rate, or without the target, gives no ratio."""
    smaller, slower = (
        make_training([make_evaluation(40, 2.0, 0.96)], batch_size=32, **TARGET),
        make_training([make_evaluation(40, 2.0, 0.96)], learning_rate=9e-3, **TARGET),
    )
    failed = make_training([make_evaluation(400, 9.0, 0.5)], **TARGET)
    for other in (smaller, slower, failed):
        assert make_rows(other, TWO)[-1][4:] == ["75", "-", "2", "-", "95.1 %"]


def test_each_target_has_its_own_table() -> None:
    """Each target has a table of its own, without INVALID measurements."""
    lower = make_training([make_evaluation(20, 1.0, 0.9)], **TARGET | {"stop_at_top_1_accuracy": 0.9})
    invalid = make_training([make_evaluation(20, 1.0, 0.99)], gpus=4, verdict=Verdict.INVALID, **TARGET)
    grids = make_learning_grids([ONE, lower, invalid])
    assert [(grid.headings[0], len(grid.rows)) for grid in grids] == [
        ("mnist, mnist to 90.0 %", 1),
        ("mnist, mnist to 95.0 %", 1),
    ]


def test_rows_of_one_mode_have_their_difference() -> None:
    """Two trainings of one mode are distinguished by the setting of only one of them."""
    unlike = make_training([make_evaluation(20, 1.0, 0.96)], gpus=2, num_ps=1, cross_replica_sync=False, **TARGET)
    assert [row[0] for row in make_rows(TWO, unlike)] == ["parameter_server", "parameter_server cross_replica_sync=false"]


def test_score_table_has_the_last_evaluation() -> None:
    """Loss, total loss, top-1 and top-5 are medians of the last evaluations; a training with a target needs evaluate=true."""
    evaluations = [[make_evaluation(100, 4.0, 0.5), make_evaluation(200, 8.0, top_1)] for top_1 in (0.90, 0.92, 0.97)]
    evaluated = make_training(*evaluations, evaluate=True)
    (grid,) = make_score_grids(
        [
            ONE,
            evaluated,
            make_training([]),
            make_training([make_evaluation(9, 1.0, 0.1)], gpus=2, num_ps=1, eval_during_training_every_n_steps=9),
        ]
    )
    assert grid.headings == ("mnist, mnist's test set", "gpus", "ps", "batch", "steps", "loss", "total", "top-1", "top-5")
    assert [list(row) for row in grid.rows] == [
        ["parameter_server", "1", "0", "64", "200", "0.080", "0.580", "92.0 %", "99.9 %"],
        ["parameter_server", "2", "1", "32", "9", "0.900", "1.400", "10.0 %", "99.9 %"],
    ]
    assert (
        len(make_score_grids([replace(ONE, measurement=replace(ONE.measurement, spec=ONE.spec.replace(evaluate=True)))])) == 1
    )


def test_learning_tables_fit_80_columns() -> None:
    """At 80 columns the longest mode fits beside its numbers, and the note is printed once."""
    longest = make_training(
        [make_evaluation(120, 33.3, 0.955)], gpus=16, variable_update="distributed_all_reduce", batch_size=4, **TARGET
    )
    text = format_summary(
        [ONE, longest, make_training([make_evaluation(200, 8.0, 0.92)], evaluate=True)], width=80, verbose=True
    )
    assert "distributed_all_reduce    16   0      4    120   2.40     33.3  13.32  95.5 %\n" in text
    assert "parameter_server            1   0     64    200  0.080  0.580  92.0 %  99.9 %" in text
    assert text.count("steps include the warm-up, ") == 1
    assert max(map(len, text.splitlines())) <= 80
    assert "steps include the warm-up" not in format_summary([make_training([])], width=80, verbose=True)
