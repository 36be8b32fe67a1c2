"""The numbers of a measurement, the same in all reports: as text, and as tables of learning, scores and sweeps."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any

from pytest_dtfperf.baselines.thresholds import Effort, find_effort
from pytest_dtfperf.datamodel.explanation import SweepState
from pytest_dtfperf.datamodel.measurement import SIMULATED, Measurement
from pytest_dtfperf.datamodel.task_report import Evaluation
from pytest_dtfperf.formats import NONE, percent, rate
from pytest_dtfperf.limits.limit import describe_limit
from pytest_dtfperf.records.record import Record, select_latest
from pytest_dtfperf.records.stored import SessionInfo
from pytest_dtfperf.spec import Spec, labels

DISTURBED_MARK = " !"  # behind a rate


def format_simulated_note(clusters: Sequence[str]) -> str:
    return f"{SIMULATED}: the hosts of {', '.join(clusters)} are simulated, and nothing was trained"


def list_measurement_notes(measurements: Iterable[Measurement]) -> list[str]:
    """Return notes about simulated hosts, and about the mark behind the rate of a disturbed measurement."""
    measurements = list(measurements)
    clusters = sorted({name for measurement in measurements if (name := measurement.fingerprint.hardware.simulated)})
    notes = [format_simulated_note(clusters)] if clusters else []
    if any(measurement.disturbances for measurement in measurements):
        meaning = "something else disturbed every run, so that the rate does not describe the training"
        notes.append(f"{DISTURBED_MARK.strip()} behind a rate: {meaning}")
    return notes


def format_rate_with_spread(measurement: Measurement) -> str:
    """Return the median rate, and half the range of the runs over it: `9.81 ±2.1 %`. A single run has no spread.

    A mark shows that each run was disturbed.
    """
    mark = DISTURBED_MARK if measurement.disturbances else ""
    spread = "" if measurement.spread is None else f" ±{percent(measurement.spread)}"
    return f"{rate(measurement.images_per_sec)}{spread}{mark}"


def format_footnote(measurements: Iterable[Measurement]) -> str:
    """Return the meaning of the rate and of ±, and the number of runs."""
    counts = {len(measurement.rates) for measurement in measurements}
    least, most = min(counts), max(counts)
    if most == 1:
        return "images/sec is of a single run, which has no spread"
    runs = f"{most} runs" if least == most else f"{least} to {most} runs"
    return f"images/sec is the median of {runs}; ± is half their range, (largest - smallest) / 2, over the median"


ABOUT_LIMITS = "limit: the highest rate that cores or GPUs, links or memory alone allow; steps that use them in turn are slower"


def format_limit_share(record: Record) -> str:
    """Return `91 % link`, for a table."""
    return f"{format_share_of_limit(record)} {find_binding_resource(record)}" if record.share_of_limit else NONE


def format_share_of_limit(record: Record) -> str:
    """Return `91 %`, for a narrow table."""
    share = record.share_of_limit
    return NONE if share is None else f"{100 * share:.0f} %"


def find_binding_resource(record: Record) -> str | None:
    """Return the resource that limits the rate: cores, gpus, link or memory."""
    found = record.limit.binding if record.limit else None
    return found.resource if found else None


def format_limit(record: Record) -> str:
    """Return `describe_limit`; empty if the limit is unknown."""
    return describe_limit(record.limit, record.images_per_sec) if record.limit else ""


def format_limit_or_reason(record: Record) -> str:
    """Return the limit, or why it is unknown; empty if it was not computed."""
    if not record.limit or record.share_of_limit:
        return format_limit(record)
    return f"not known: {next(iter(record.limit.unknown.values()), 'no bound of the rate was found')}"


def list_limits(records: Iterable[Record]) -> list[str]:
    """Return the limit of the fastest measurement of each model, and what a limit is; empty if none is known."""
    limited = [record for record in records if record.is_valid and record.share_of_limit]
    fastest = {record.spec.model: record for record in sorted(limited, key=lambda record: record.images_per_sec)}
    label = labels(record.spec for record in fastest.values())
    found = [f"{label[record.spec]}: {format_limit(record)}" for _, record in sorted(fastest.items())]
    return [*found, ABOUT_LIMITS] if found else []


def format_versions(record: Record, session: SessionInfo) -> str:
    """Return the versions used for training and measurement: `tensorflow=2.21.0 python=3.11.9 pytest-dtfperf=0.1.0`."""
    found = {**session.versions, **record.measurement.fingerprint.software}
    return " ".join(f"{name}={str(version).replace(' ', '_')}" for name, version in sorted(found.items()) if version)


SIZE_HEADINGS = ("gpus", "ps", "batch")  # columns that identify a row, beside the way of training
OMITTED_IN_LABELS = (
    "gpus=",
    "num_ps=",
    "data=",
    "evaluate=",
    "stop_at_top_1_accuracy=",
)  # are in a column, or in the heading
# Trainings that differ in one of these take different steps, however their variables are shared.
SAME_LEARNING = ("model", "data", "stop_at_top_1_accuracy", "optimizer", "learning_rate", "weight_decay", "precision")

# Notes below the tables.
ABOUT_LEARNING = (
    "steps include the warm-up, seconds are of the measured steps; ratio: to one device with as many images per step and "
    "the same learning settings; best: the highest top-1 accuracy of all evaluations"
)
ABOUT_SCORES = "loss is the mean cross-entropy; total includes the loss of weight decay"


@dataclass(frozen=True)
class Grid:
    """A table: text in its first column, numbers in all others."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]


def make_learning_grids(records: Iterable[Record]) -> list[Grid]:
    """Return the effort to reach the target: a table for each model, input and target."""
    targeted = [record for record in select_latest(records) if record.spec.stop_at_top_1_accuracy is not None]
    return [
        Grid(
            (f"{model}, {data} to {percent(target)}", *SIZE_HEADINGS, "steps", "ratio", "seconds", "ratio", "best"),
            [_make_effort_row(record, _find_anchor(record.spec, group)) for record in group],
        )
        for (model, data, target), group in _group_records(targeted, "model", "data", "stop_at_top_1_accuracy")
    ]


def make_score_grids(records: Iterable[Record]) -> list[Grid]:
    """Return final loss and accuracy on the test set: a table for each model and input."""
    asked = [r for r in select_latest(records) if r.spec.evaluate or r.spec.stop_at_top_1_accuracy is None]
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
    effort, usual = find_effort(record.measurement), find_effort(anchor.measurement) if anchor else None
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
    "num_ps is the fastest number of servers tried; short: images/sec of the preceding short runs, by number of servers"
)


def make_sweep_grids(records: Iterable[Record]) -> list[Grid]:
    """Return one table with a row for each sweep, smallest first; none without sweeps."""
    found = [record for record in select_latest(records) if record.sweep]
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
        percent(record.efficiency) if record.efficiency else NONE,
        _format_short_runs(record.sweep) or NONE,
    ]


def _format_short_runs(sweep: SweepState) -> str:
    """Return `1: 95.2, 2: 98.1`: the longest short run of each count."""
    longest: dict[int, tuple[int, float]] = {}
    for name, found in sweep.tried.items():
        count, steps = (int(part.split()[0]) for part in name.split(", "))
        longest[count] = max(longest.get(count, (0, 0.0)), (steps, found))
    return ", ".join(f"{count}: {rate(found)}" for count, (_, found) in sorted(longest.items()))
