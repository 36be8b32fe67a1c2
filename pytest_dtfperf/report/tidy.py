"""All runs as CSV and as Parquet, with the columns of runs.py."""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from pytest_dtfperf.errors import UsageError
from pytest_dtfperf.report.exports import no_formula
from pytest_dtfperf.report.runs import COLUMNS, Kind, rows_of
from pytest_dtfperf.report.sources import Stored


def csv_of(sessions: Sequence[Stored]) -> bytes:
    """A heading and a line for each run. An empty cell: not known. Numbers have all their digits."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows([_cell(value) for value in row.values()] for row in rows_of(sessions))
    return file.getvalue().encode(errors="backslashreplace")


def _cell(value: object) -> object:
    if isinstance(value, bool):
        return str(value).lower()
    return no_formula(value)


def parquet_of(sessions: Sequence[Stored]) -> bytes:
    """The same; each column's unit and meaning stand in its field's metadata. Raises `UsageError` without pyarrow."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as exc:
        raise UsageError(
            f"Parquet is written by pyarrow: {exc}. pip install 'pytest-dtfperf[parquet]' brings what is missing."
        ) from exc
    types: Mapping[Kind, Any] = {
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
    rows = rows_of(sessions)
    values = [pa.array([_VALUE.get(c.kind, _same)(row[name]) for row in rows], types[c.kind]) for name, c in COLUMNS.items()]
    file = io.BytesIO()
    pq.write_table(pa.Table.from_arrays(values, schema=pa.schema(fields)), file)
    return file.getvalue()


def _same(value: object) -> object:
    return value


def _time(value: object) -> object:
    return datetime.fromisoformat(str(value))


def _number(value: object) -> object:
    return None if value is None else float(value)  # type: ignore[arg-type]  # a column of numbers has no other


_VALUE: Mapping[Kind, Callable[[object], object]] = {"time": _time, "number": _number}
