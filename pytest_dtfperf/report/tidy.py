"""All runs as CSV and as Parquet, with the columns of runs.py."""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from pytest_dtfperf.errors import UsageError
from pytest_dtfperf.report.exports import escape_formula
from pytest_dtfperf.report.runs import COLUMNS, ColumnKind, make_run_rows
from pytest_dtfperf.report.sources import StoredSession


def format_csv(sessions: Sequence[StoredSession]) -> bytes:
    """A heading and a line for each run. An empty cell: not known. Numbers have all their digits."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows([_format_cell(value) for value in row.values()] for row in make_run_rows(sessions))
    return file.getvalue().encode(errors="backslashreplace")


def _format_cell(value: object) -> object:
    if isinstance(value, bool):
        return str(value).lower()
    return escape_formula(value)


def format_parquet(sessions: Sequence[StoredSession]) -> bytes:
    """The same; each column's unit and meaning stand in its field's metadata. Raises `UsageError` without pyarrow."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as exc:
        raise UsageError(
            f"Parquet is written by pyarrow: {exc}. pip install 'pytest-dtfperf[parquet]' brings what is missing."
        ) from exc
    types: Mapping[ColumnKind, Any] = {
        "text": pa.string(),
        "whole": pa.int64(),
        "number": pa.float64(),
        "truth": pa.bool_(),
        "time": pa.timestamp("us", tz="UTC"),
    }
    fields = [
        pa.field(name, types[column.kind], metadata={"unit": column.unit, "meaning": column.meaning})
        for name, column in COLUMNS.items()
    ]
    rows = make_run_rows(sessions)
    values = [
        pa.array([_CONVERTERS.get(c.kind, _keep_value)(row[name]) for row in rows], types[c.kind])
        for name, c in COLUMNS.items()
    ]
    file = io.BytesIO()
    pq.write_table(pa.Table.from_arrays(values, schema=pa.schema(fields)), file)
    return file.getvalue()


def _keep_value(value: object) -> object:
    return value


def _parse_time(value: object) -> object:
    return datetime.fromisoformat(str(value))


def _convert_number(value: object) -> object:
    return None if value is None else float(value)  # type: ignore[arg-type]  # a column of numbers has no other


_CONVERTERS: Mapping[ColumnKind, Callable[[object], object]] = {"time": _parse_time, "number": _convert_number}
