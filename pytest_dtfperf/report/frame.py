"""`pytest_dtfperf.load`: all runs as a pandas.DataFrame."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_dtfperf.errors import UsageError
from pytest_dtfperf.report.exports import INSTALL
from pytest_dtfperf.report.runs import COLUMNS, Kind, rows_of
from pytest_dtfperf.report.sources import read

if TYPE_CHECKING:
    import pandas as pd

# Kinds that have a value for "not known", but for numbers, of which NaN says so.
DTYPES: Mapping[Kind, str] = {"text": "string", "whole": "Int64", "number": "float64", "truth": "boolean", "time": "object"}


def load(source: str | Path) -> "pd.DataFrame":
    """All runs of a session folder, a folder of session folders, a history's file or its URL: a row for each run.

    docs/exports.md has the columns with their units. What is not known is `<NA>` or NaN; a history knows less than a folder.
    Raises `UsageError` where there is no such source or pandas is not installed, `SessionFileError` or `HistoryError` where
    it cannot be read.
    """
    try:
        import pandas as pd
    except ImportError as exc:
        raise UsageError(f"pytest_dtfperf.load makes a pandas.DataFrame: {exc}. {INSTALL}") from exc
    rows = rows_of(read(source))
    frame = pd.DataFrame(
        {name: pd.Series([row[name] for row in rows], dtype=DTYPES[column.kind]) for name, column in COLUMNS.items()}
    )
    times = [name for name, column in COLUMNS.items() if column.kind == "time"]
    return frame.assign(**{name: pd.to_datetime(frame[name], utc=True, format="ISO8601") for name in times})
