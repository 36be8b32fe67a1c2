"""The tables of what was learnt."""

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


def evaluation(step: int, seconds: float, top_1: float) -> Evaluation:
    score = Score(images=1000, loss=1 - top_1, total_loss=1.5 - top_1, top_1=top_1, top_5=0.999)
    return Evaluation(step=step, trained_s=seconds, score=score)


def learnt(*runs: list[Evaluation], verdict: Verdict | None = None, **what: Any) -> Record:
    """A training of the MNIST network; 64 images per step, unless told otherwise."""
    usual = {"model": "mnist", "batch_size": 64 // what.get("gpus", 1), "data": "mnist", "data_dir": "/digits"}
    measured = replace(
        measurement(Spec(**(usual | what)), []), runs=[run(100.0, evaluations=evaluations) for evaluations in runs]
    )
    return Record(id="a1", test="t", measurement=measured, verdict=verdict)


ONE = learnt(
    [evaluation(20, 1.0, 0.9), evaluation(40, 2.0, 0.96)], [evaluation(20, 1.0, 0.9), evaluation(60, 3.0, 0.95)], **TARGET
)
TWO = learnt([evaluation(75, 2.0, 0.951)], gpus=2, num_ps=1, **TARGET)
NEVER = learnt([evaluation(20, 1.0, 0.5), evaluation(400, 9.0, 0.934)], gpus=2, variable_update="replicated", **TARGET)


def rows(*records: Record) -> list[list[str]]:
    return [list(row) for grid in make_learning_grids(records) for row in grid.rows]


def test_steps_and_seconds_to_the_target() -> None:
    """The first evaluation at the target counts, the median over runs; the ratio is to one device with as large a step."""
    (grid,) = make_learning_grids([TWO, NEVER, ONE])
    assert grid.headings == ("mnist, mnist to 95.0 %", "gpus", "ps", "batch", "steps", "ratio", "seconds", "ratio", "best")
    assert [list(row) for row in grid.rows] == [
        ["parameter_server", "1", "0", "64", "50", "1.00", "2.5", "1.00", "96.0 %"],
        ["parameter_server", "2", "1", "32", "75", "1.50", "2", "0.80", "95.1 %"],
        ["replicated", "2", "0", "32", "never", "-", "-", "-", "93.4 %"],
    ]


def test_no_ratio_to_what_learns_otherwise() -> None:
    """One device with smaller steps, another learning rate or none that arrived is nothing to be compared with."""
    smaller, slower = (
        learnt([evaluation(40, 2.0, 0.96)], batch_size=32, **TARGET),
        learnt([evaluation(40, 2.0, 0.96)], learning_rate=9e-3, **TARGET),
    )
    failed = learnt([evaluation(400, 9.0, 0.5)], **TARGET)
    for other in (smaller, slower, failed):
        assert rows(other, TWO)[-1][4:] == ["75", "-", "2", "-", "95.1 %"]


def test_targets_are_not_mixed() -> None:
    """Each model, input and target has a table of its own, and what is invalid is in none."""
    lower = learnt([evaluation(20, 1.0, 0.9)], **TARGET | {"stop_at_top_1_accuracy": 0.9})
    invalid = learnt([evaluation(20, 1.0, 0.99)], gpus=4, verdict=Verdict.INVALID, **TARGET)
    grids = make_learning_grids([ONE, lower, invalid])
    assert [(grid.headings[0], len(grid.rows)) for grid in grids] == [
        ("mnist, mnist to 90.0 %", 1),
        ("mnist, mnist to 95.0 %", 1),
    ]


def test_what_is_unusual_about_a_way_is_told() -> None:
    """Two trainings of one mode are told apart by what only one of them was told."""
    unlike = learnt([evaluation(20, 1.0, 0.96)], gpus=2, num_ps=1, cross_replica_sync=False, **TARGET)
    assert [row[0] for row in rows(TWO, unlike)] == ["parameter_server", "parameter_server cross_replica_sync=false"]


def test_scores_at_the_end() -> None:
    """Loss, total loss, top-1 and top-5 of the last evaluation, the median over runs; of what had a target only if asked."""
    evaluations = [[evaluation(100, 4.0, 0.5), evaluation(200, 8.0, top_1)] for top_1 in (0.90, 0.92, 0.97)]
    evaluated = learnt(*evaluations, evaluate=True)
    (grid,) = make_score_grids(
        [ONE, evaluated, learnt([]), learnt([evaluation(9, 1.0, 0.1)], gpus=2, num_ps=1, eval_during_training_every_n_steps=9)]
    )
    assert grid.headings == ("mnist, mnist's test set", "gpus", "ps", "batch", "steps", "loss", "total", "top-1", "top-5")
    assert [list(row) for row in grid.rows] == [
        ["parameter_server", "1", "0", "64", "200", "0.080", "0.580", "92.0 %", "99.9 %"],
        ["parameter_server", "2", "1", "32", "9", "0.900", "1.400", "10.0 %", "99.9 %"],
    ]
    assert len(make_score_grids([replace(ONE, measurement=replace(ONE.measurement, spec=ONE.spec.but(evaluate=True)))])) == 1


def test_the_tables_stand_beneath_the_rates() -> None:
    """At 80 columns the longest mode fits beside all its numbers, and what they are is said once."""
    longest = learnt([evaluation(120, 33.3, 0.955)], gpus=16, variable_update="distributed_all_reduce", batch_size=4, **TARGET)
    text = format_summary([ONE, longest, learnt([evaluation(200, 8.0, 0.92)], evaluate=True)], width=80, verbose=True)
    assert "distributed_all_reduce    16   0      4    120   2.40     33.3  13.32  95.5 %\n" in text
    assert "parameter_server            1   0     64    200  0.080  0.580  92.0 %  99.9 %" in text
    assert text.count("steps include the warm-up, ") == 1
    assert max(map(len, text.splitlines())) <= 80
    assert "steps include the warm-up" not in format_summary([learnt([])], width=80, verbose=True)
