"""The formats of `dtfperf history export --format`."""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:  # who shows the choices alone needs no more than this table
    from pytest_dtfperf.report.sources import StoredSession


class FormatWriter(Protocol):
    def __call__(self, sessions: "Sequence[StoredSession]") -> bytes:
        """Return the file. `sessions` has one if the format is of one. Raises `UsageError` if a library is missing."""


@dataclass(frozen=True)
class ExportFormat:
    """One form in which measurements can be had."""

    of: Literal["all runs", "one session"]
    read_by: str  # as docs/exports.md has it
    writer: str  # "module:function", a `Writer`

    def write(self, sessions: "Sequence[StoredSession]") -> bytes:
        module, _, name = self.writer.partition(":")
        writer: FormatWriter = getattr(importlib.import_module(module), name)
        return writer(sessions)


_EXPORTS = "pytest_dtfperf.report.export_formats"
EXPORT_FORMATS: Mapping[str, ExportFormat] = {
    "csv": ExportFormat("all runs", "spreadsheets, pandas, R", "pytest_dtfperf.report.dataframe:format_csv"),
    "parquet": ExportFormat("all runs", "pandas, Arrow, DuckDB, Spark", "pytest_dtfperf.report.dataframe:format_parquet"),
    "pytest-benchmark": ExportFormat("one session", "`pytest-benchmark compare`", f"{_EXPORTS}:format_pytest_benchmark"),
    "github-action": ExportFormat(
        "one session", "github-action-benchmark, `tool: customBiggerIsBetter`", f"{_EXPORTS}:format_github_action"
    ),
    "bencher": ExportFormat("one session", "`bencher run --adapter json`", f"{_EXPORTS}:format_bencher"),
    "openmetrics": ExportFormat("one session", "Prometheus and its kin", f"{_EXPORTS}:format_openmetrics"),
}
