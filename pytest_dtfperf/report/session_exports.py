"""The exports that a session writes into its folder at its end: the table of them, CSV files, and scaling figures.

Each export is called on its own: a failure of one does not prevent another. measurements.csv has one row for each line of
measurements.jsonl, in its order; docs/numbers.md describes its columns.
"""

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Protocol

from pytest_dtfperf.baselines.comparability import system_name
from pytest_dtfperf.compare.record import ComparisonRecord
from pytest_dtfperf.errors import ExportFailed
from pytest_dtfperf.extensions import Table, load
from pytest_dtfperf.formats import printable_lines
from pytest_dtfperf.history.past import Past
from pytest_dtfperf.records.arithmetic import flops_per_sec, share_of_peak
from pytest_dtfperf.records.record import Record, select_latest
from pytest_dtfperf.records.session import SessionFolder, file_stem
from pytest_dtfperf.records.stored import SessionInfo
from pytest_dtfperf.report import measurement_text
from pytest_dtfperf.report.comparisons import COMPARISONS_CSV, CSV_COLUMNS
from pytest_dtfperf.report.measurement_text import format_versions
from pytest_dtfperf.report.series import PublishedPoint, SessionRecord, group_by_figure

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class SessionResults:
    """A session's measurements, and data shown beside them."""

    records: Sequence[Record]
    published: Sequence[PublishedPoint] = ()  # of the measured models
    pasts: Mapping[str, Past] = field(default_factory=dict)  # id of a measurement -> its series up to this session
    sections: Sequence[tuple[str, Sequence[str]]] = ()  # of other plugins: title, lines
    comparisons: Sequence[ComparisonRecord] = ()


class Writer(Protocol):
    """Writes files of one form, with `SessionFolder.write`."""

    def __call__(self, folder: SessionFolder, results: SessionResults) -> list[str]:
        """Write the files, and return remarks; empty if there was nothing to write."""


@dataclass(frozen=True)
class Export:
    """One format in which a session is written."""

    files: tuple[str, ...]  # below the session's folder
    writer: str  # "module:function", a `Writer`

    def write(self, folder: SessionFolder, results: SessionResults) -> list[str]:
        writer: Writer = load(self.writer)
        return writer(folder, results)


_OURS: Mapping[str, Export] = {
    "csv": Export(
        ("measurements.csv", "<model>_b<batch>.csv", "comparisons.csv"), "pytest_dtfperf.report.session_exports:write_csv_files"
    ),
    "svg": Export(("figures/<model>_b<batch>.svg",), "pytest_dtfperf.report.session_exports:write_figures"),
    "html": Export(("report.html",), "pytest_dtfperf.report.page.build:write_page"),
}

# Includes the exports of other installed packages: docs/extending.md.
EXPORTS: Table[Export] = Table("pytest_dtfperf.exports", Export, _OURS)


def write_export(name: str, folder: SessionFolder, results: SessionResults) -> list[str]:
    """Write one of `EXPORTS`. An error of another package's export becomes an `ExportFailed` that names the package."""
    package = EXPORTS.package_of(name)
    try:
        return EXPORTS[name].write(folder, results)
    except Exception as error:
        if package is None:
            raise
        raise ExportFailed(f"export {name} of {package} failed: {type(error).__name__}: {error}") from error


MEASUREMENTS = "measurements.csv"

# Columns: fields of a measurement, and of its session. None is an empty cell.
COLUMNS: Mapping[str, Callable[[Record, SessionInfo], object]] = {
    "id": lambda record, session: record.id,
    "date": lambda record, session: session.started,
    "cluster": lambda record, session: session.cluster,
    "hosts": lambda record, session: " ".join(record.measurement.hosts),
    "simulated": lambda record, session: str(record.measurement.fingerprint.is_simulated).lower(),
    "system": lambda record, session: system_name(record.measurement.fingerprint.hardware),
    "test": lambda record, session: record.test,
    "spec": lambda record, session: record.spec.label,
    "model": lambda record, session: record.spec.model,
    "batch_size": lambda record, session: record.spec.batch_size,
    "gpus": lambda record, session: record.spec.gpus,
    "num_ps": lambda record, session: record.spec.num_ps,
    "variable_update": lambda record, session: record.spec.variable_update,
    "data": lambda record, session: record.spec.data,
    "data_format": lambda record, session: record.spec.data_format,
    "precision": lambda record, session: record.spec.precision,
    "optimizer": lambda record, session: record.spec.optimizer,
    "runs": lambda record, session: len(record.measurement.rates),
    "images_per_sec": lambda record, session: record.images_per_sec,
    "spread": lambda record, session: record.measurement.spread,
    "efficiency": lambda record, session: record.efficiency,
    "anchor": lambda record, session: record.anchor,
    "baseline": lambda record, session: record.baseline,
    "change": lambda record, session: record.change,
    "verdict": lambda record, session: record.verdict,
    "tainted": lambda record, session: str(record.is_disturbed).lower(),
    "accepted": lambda record, session: str(record.accepted).lower(),
    "attempt": lambda record, session: record.attempt,
    "reason": lambda record, session: record.reason,
    "flops_per_sec": lambda record, session: flops_per_sec(record.measurement),
    "share_of_peak": lambda record, session: share_of_peak(record.measurement),
    "limit": lambda record, session: record.limit and record.limit.images_per_sec,
    "share_of_limit": lambda record, session: record.share_of_limit,
    "bound_by": lambda record, session: measurement_text.find_binding_resource(record),
    "versions": lambda record, session: format_versions(record, session),
}

SCALING_COLUMNS = [
    "gpus", "images_per_sec", "ideal", "efficiency", "num_ps", "variable_update", "data", "runs", "spread", "flops_per_sec",
    "share_of_peak", "spec",
]  # fmt: skip


_FORMULA = ("=", "+", "-", "@", "\t", "\r")

INSTALL = "Install it: pip install 'pytest-dtfperf[report]'"


def write_csv_files(folder: SessionFolder, results: SessionResults) -> list[str]:
    """Write the CSV files, and return why some are missing, for example without pandas."""
    records = results.records
    if results.comparisons:
        folder.write(COMPARISONS_CSV, format_csv(CSV_COLUMNS, [(each,) for each in results.comparisons]).encode())
    if not records:
        return []
    folder.write(MEASUREMENTS, format_measurements_csv(records, folder.session).encode())
    try:
        for (model, batch_size), group in group_by_model(records).items():
            name = f"{file_stem(model, batch_size)}.csv"
            table = make_scaling_table(group).map(escape_formula).to_csv(index=False, float_format="%.6g", lineterminator="\n")
            folder.write(name, table.encode())
    except ImportError as exc:
        return [f"No scaling tables: {exc}. {INSTALL}"]
    return []


def format_measurements_csv(records: Iterable[Record], session: SessionInfo) -> str:
    """Return one row for each record."""
    return format_csv(COLUMNS, ((record, session) for record in records))


def format_csv(columns: Mapping[str, Callable[..., object]], rows: Iterable[Sequence[object]]) -> str:
    """Return CSV with a column for each function, which gets the parts of a row."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_format_cell(value(*parts)) for value in columns.values()] for parts in rows)
    return file.getvalue()


def _format_cell(value: object) -> object:
    if isinstance(value, float):
        return f"{value:.6g}"
    return escape_formula(value)


def escape_formula(value: object) -> object:
    """Return a text that spreadsheets do not interpret as a formula, without control characters.

    Names of hosts and tests are arbitrary.
    """
    if not isinstance(value, str):
        return value
    return f"'{printable_lines(value)}" if value.startswith(_FORMULA) else printable_lines(value)


def group_by_model(records: Iterable[Record]) -> dict[tuple[str, int], list[Record]]:
    """Return the latest valid record of each spec, by model and batch size."""
    ordered = sorted(select_latest(records), key=lambda r: (r.spec.model, r.spec.batch_size))
    return {key: list(group) for key, group in groupby(ordered, key=lambda r: (r.spec.model, r.spec.batch_size))}


def find_best_of_each_count(records: Iterable[Record]) -> dict[tuple[str, int], Record]:
    """Return (data, devices) -> the fastest configuration."""
    slowest_first = sorted(records, key=lambda r: (r.spec.data, r.spec.gpus, r.images_per_sec))
    return {(record.spec.data, record.spec.gpus): record for record in slowest_first}


def make_scaling_table(records: Iterable[Record]) -> "pd.DataFrame":
    """Return the fastest configuration of each device count, per kind of input; `spec` is its label.

    efficiency is the record's own, 1 on one device; ideal is the rate at which it would be 1. Both are empty if the
    configuration was not measured on one device. spread is the number behind the terminal's ±, and a single run has none.
    flops_per_sec and share_of_peak are empty if unknown: arithmetic.py.
    """
    import pandas as pd  # takes half a second and is optional: imported only for a table

    return pd.DataFrame(
        [_make_scaling_row(record) for record in find_best_of_each_count(records).values()], columns=SCALING_COLUMNS
    )


def _make_scaling_row(record: Record) -> dict[str, object]:
    spec, efficiency = record.spec, record.own_efficiency
    return {
        "gpus": spec.gpus,
        "images_per_sec": record.images_per_sec,
        "ideal": record.images_per_sec / efficiency if efficiency else None,
        "efficiency": efficiency,
        "num_ps": spec.num_ps,
        "variable_update": spec.variable_update,
        "data": spec.data,
        "runs": len(record.measurement.rates),
        "spread": record.measurement.spread,
        "flops_per_sec": flops_per_sec(record.measurement),
        "share_of_peak": share_of_peak(record.measurement),
        "spec": spec.label,
    }


def write_figures(folder: SessionFolder, results: SessionResults) -> list[str]:
    """Draw the figures, and return why some are missing, for example without matplotlib."""
    measured = [SessionRecord(record, folder.session) for record in results.records]
    groups = [group for group in group_by_figure(measured) if group.scales]
    if not groups:
        return []
    try:
        from pytest_dtfperf.report.charts import convert_to_svg, draw_group_scaling
    except ImportError as exc:
        return [f"No figures: {exc}. {INSTALL}"]
    files = {f"figures/{group.name}.svg": convert_to_svg(draw_group_scaling(group, results.published)) for group in groups}
    for name, content in files.items():
        folder.write(name, content)
    return []
