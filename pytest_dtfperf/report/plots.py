"""`figures/<model>_b<batch>.svg`: one scaling figure per model and batch size, where something was measured that scales."""

from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any

from pytest_dtfperf.baselines.system import system_name
from pytest_dtfperf.records.record import Record
from pytest_dtfperf.records.session import SessionFolder
from pytest_dtfperf.report.exports import INSTALL, versions
from pytest_dtfperf.report.results import Results
from pytest_dtfperf.report.series import measured_series, published_series

LEAST_AXIS = 8  # devices: published systems are drawn so far at least, for most of them are of that size
VERSIONS = ("tensorflow", "cuda", "pytest-dtfperf", "python")  # those that a figure has room for


def write(folder: SessionFolder, results: Results) -> list[str]:
    """Draw into a session folder; returns what there is to say about it, which is all if matplotlib is absent."""
    of_figures = groupby(sorted(filter(_may_be_shown, results.records), key=_figure), key=_figure)
    groups = [(key, found) for key, group in of_figures if _shows_scaling(found := list(group))]
    if not groups:
        return []
    try:
        from pytest_dtfperf.report.figure import scaling_figure, svg
    except ImportError as exc:
        return [f"No figures: {exc}. {INSTALL}"]
    names = []
    for (model, batch_size), group in groups:
        lines = measured_series(group)
        specs = [record.spec for record in group]
        beside = published_series(results.published, specs, max(LEAST_AXIS, *(spec.gpus for spec in specs)))
        title = f"{model}, {batch_size} images per device and step" if batch_size else model
        name = f"figures/{model}_b{batch_size}.svg"
        if folder.write(name, svg(scaling_figure(title, lines, beside, about=about(group, folder.session)))):
            names.append(name)
    return [f"Drawn: {', '.join(names)}"] if names else []


def about(records: Iterable[Record], session: Mapping[str, Any]) -> list[str]:
    """Machine and date on a line, versions on another."""
    found = list(records)
    systems = dict.fromkeys(system_name(record.measurement.fingerprint.get("hardware", {})) for record in found)
    words = dict.fromkeys(word for record in found for word in versions(record, session).split())
    shown = [word.replace("=", " ") for name in VERSIONS for word in words if word.startswith(f"{name}=")]
    date = session["started"][:16].replace("T", " ")
    return [f"on {session['cluster']}, {' and '.join(systems)}, {date} UTC", ", ".join(shown)]


def _shows_scaling(records: Iterable[Record]) -> bool:
    """Whether anything was measured on several sizes."""
    return any(len(line.points) > 1 for line in measured_series(records))


def _may_be_shown(record: Record) -> bool:
    """Whether it is a point. One that learns until it knows enough has no rate to be looked for."""
    spec = record.spec
    return (record.is_valid or record.is_tainted) and not spec.evaluates and spec.stop_at_top_1_accuracy is None


def _figure(record: Record) -> tuple[str, int]:
    return record.spec.model, record.spec.batch_size
