"""Tables of what trainings learned, of scores on test sets, and of sweeps over parameter servers."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any

from pytest_dtfperf.baselines.thresholds import Effort, effort_of
from pytest_dtfperf.datamodel.explanation import SweepState
from pytest_dtfperf.datamodel.measurement import Measurement
from pytest_dtfperf.datamodel.task_report import Evaluation
from pytest_dtfperf.formats import NONE, percent, rate
from pytest_dtfperf.records.record import Record, latest_of_each_spec
from pytest_dtfperf.spec import Spec

SIZE_HEADINGS = ("gpus", "ps", "batch")  # columns that identify a row, beside the way of training
OMITTED_IN_LABELS = (
    "gpus=",
    "num_ps=",
    "data=",
    "evaluate=",
    "stop_at_top_1_accuracy=",
)  # stand in a column, or in the heading
# Trainings that differ in one of these take different steps, however their variables are shared.
SAME_LEARNING = ("model", "data", "stop_at_top_1_accuracy", "optimizer", "learning_rate", "weight_decay", "precision")

# Notes below the tables.
ABOUT_LEARNING = (
    "steps with warm-up, seconds of measured steps, each with its ratio to one device that learns alike from as many "
    "images per step; best: the highest top-1 accuracy seen"
)
ABOUT_SCORES = "loss is the mean cross-entropy; total, with what weight decay adds"


@dataclass(frozen=True)
class Grid:
    """A table: text in its first column, numbers in all others."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]


def make_learning_grids(records: Iterable[Record]) -> list[Grid]:
    """Return the effort to reach the target: a table for each model, input and target."""
    targeted = [record for record in latest_of_each_spec(records) if record.spec.stop_at_top_1_accuracy is not None]
    return [
        Grid(
            (f"{model}, {data} to {percent(target)}", *SIZE_HEADINGS, "steps", "ratio", "seconds", "ratio", "best"),
            [_make_effort_row(record, _find_anchor(record.spec, group)) for record in group],
        )
        for (model, data, target), group in _group_records(targeted, "model", "data", "stop_at_top_1_accuracy")
    ]


def make_score_grids(records: Iterable[Record]) -> list[Grid]:
    """Return final loss and accuracy on the test set: a table for each model and input."""
    asked = [r for r in latest_of_each_spec(records) if r.spec.evaluate or r.spec.stop_at_top_1_accuracy is None]
    evaluated = [record for record in asked if _list_last_evaluations(record.measurement)]
    return [
        Grid(
            (f"{model}, {data}'s test set", *SIZE_HEADINGS, "steps", "loss", "total", "top-1", "top-5"),
            [_make_score_row(record) for record in group],
        )
        for (model, data), group in _group_records(evaluated, "model", "data")
    ]


def _group_records(records: Iterable[Record], *names: str) -> list[tuple[tuple[Any, ...], list[Record]]]:
    """Return the records by these fields of their specs; within a group by size, then in the order of measuring."""
    kind = attrgetter(*(f"spec.{name}" for name in names))
    ordered = sorted(records, key=lambda record: (kind(record), record.spec.gpus))
    return [(found, list(group)) for found, group in groupby(ordered, key=kind)]


def _find_anchor(spec: Spec, records: Iterable[Record]) -> Record | None:
    """Return the latest 1-device record that learns from as many images per step by the same rule, first without servers."""
    found = [
        record
        for record in records
        if record.spec.gpus == 1
        and record.spec.batch_size == spec.gpus * spec.batch_size
        and all(getattr(record.spec, name) == getattr(spec, name) for name in SAME_LEARNING)
    ]
    return max(reversed(found), key=lambda record: record.spec.num_ps == 0, default=None)


def _make_effort_row(record: Record, anchor: Record | None) -> list[str]:
    effort, usual = effort_of(record.measurement), effort_of(anchor.measurement) if anchor else None
    cells = [NONE] * 4 if effort is None else _make_effort_cells(effort, usual)
    if effort is None:
        cells[0] = "never"
    best = max((evaluation.score.top_1 for run in record.measurement.runs for evaluation in run.evaluations), default=None)
    return [*_make_label_cells(record.spec), *cells, NONE if best is None else percent(best)]


def _make_effort_cells(effort: Effort, usual: Effort | None) -> list[str]:
    steps, seconds = f"{effort.steps:g}", f"{effort.trained_s:.3g}"
    if usual is None:
        return [steps, NONE, seconds, NONE]
    return [steps, f"{effort.steps / usual.steps:.2f}", seconds, _format_ratio(effort.trained_s, usual.trained_s)]


def _format_ratio(value: float, usual: float) -> str:
    return f"{value / usual:.2f}" if usual else NONE  # the target may be reached before the measured steps


def _make_score_row(record: Record) -> list[str]:
    evaluations = _list_last_evaluations(record.measurement)
    scored = [evaluation.score for evaluation in evaluations]
    return [
        *_make_label_cells(record.spec),
        f"{statistics.median(evaluation.step for evaluation in evaluations):g}",
        f"{statistics.median(score.loss for score in scored):.3f}",
        f"{statistics.median(score.total_loss for score in scored):.3f}",
        percent(statistics.median(score.top_1 for score in scored)),
        percent(statistics.median(score.top_5 for score in scored)),
    ]


def _list_last_evaluations(measurement: Measurement) -> list[Evaluation]:
    return [run.evaluations[-1] for run in measurement.runs if run.evaluations]


def _make_label_cells(spec: Spec) -> list[str]:
    """Return the way of training with its unusual options, and its size."""
    unlike = [
        word for word in spec.label.split()[1:] if not word.startswith(OMITTED_IN_LABELS) and word != f"b{spec.batch_size}"
    ]
    return [" ".join(unlike), str(spec.gpus), str(spec.num_ps), str(spec.batch_size)]


ABOUT_SWEEPS = (
    "num_ps is the fastest of those tried; short: images/sec of the short runs that came before, by number of servers"
)


def make_sweep_grids(records: Iterable[Record]) -> list[Grid]:
    """Return one table with a row for each sweep, smallest first; none without sweeps."""
    found = [record for record in latest_of_each_spec(records) if record.sweep]
    ordered = sorted(found, key=lambda r: (r.spec.model, r.spec.batch_size, r.spec.variable_update, r.spec.gpus))
    headings = ("parameter servers", "gpus", "num_ps", "of", "images/sec", "efficiency", "short")
    return [Grid(headings, [_make_sweep_row(record) for record in ordered])] if ordered else []


def _make_sweep_row(record: Record) -> list[str]:
    assert record.sweep
    spec = record.spec
    return [
        f"{spec.model} b{spec.batch_size} {spec.variable_update}",
        str(spec.gpus),
        str(spec.num_ps),
        str(record.sweep.most),
        rate(record.images_per_sec),
        percent(record.efficiency.value) if record.efficiency else NONE,
        _format_short_runs(record.sweep) or NONE,
    ]


def _format_short_runs(sweep: SweepState) -> str:
    """Return `1: 95.2, 2: 98.1`: the longest short run of each count."""
    longest: dict[int, tuple[int, float]] = {}
    for name, found in sweep.tried.items():
        count, steps = (int(part.split()[0]) for part in name.split(", "))
        longest[count] = max(longest.get(count, (0, 0.0)), (steps, found))
    return ", ".join(f"{count}: {rate(found)}" for count, (_, found) in sorted(longest.items()))
