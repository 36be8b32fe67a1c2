"""`pytest_dtfperf.load` and `pytest_dtfperf.published`: all runs, and all published rates, as a pandas.DataFrame."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_dtfperf.baselines.references import Reference, references
from pytest_dtfperf.errors import UsageError
from pytest_dtfperf.limits.published import published_limit
from pytest_dtfperf.report.exports import INSTALL
from pytest_dtfperf.report.runs import COLUMNS, ColumnKind, make_run_rows
from pytest_dtfperf.report.sources import load_sessions

if TYPE_CHECKING:
    import pandas as pd

# Kinds that have a value for "not known", but for numbers, of which NaN says so.
DTYPES: Mapping[ColumnKind, str] = {
    "text": "string",
    "whole": "Int64",
    "number": "float64",
    "truth": "boolean",
    "time": "object",
}


def load(source: str | Path) -> "pd.DataFrame":
    """All runs of a session folder, a folder of session folders, a history's file or its URL: a row for each run.

    docs/exports.md has the columns with their units. What is not known is `<NA>` or NaN; a history knows less than a folder.
    A session that lies there twice, in a copy of its folder, counts once, with a warning.

    Raises `UsageError` where there is no such source or pandas is not installed, `SessionFileError` or `HistoryError` where
    it cannot be read.
    """
    copies: list[str] = []
    rows = make_run_rows(load_sessions(source, copies.append))
    for words in copies:
        warnings.warn(words, stacklevel=2)
    frame = _make_frame(rows, {name: column.kind for name, column in COLUMNS.items()})
    times = [name for name, column in COLUMNS.items() if column.kind == "time"]
    return frame.assign(**{name: _convert_to_utc(frame[name]) for name in times})


@dataclass(frozen=True)
class PublishedColumn:
    kind: ColumnKind
    unit: str  # "" where it has none
    meaning: str  # as docs/exports.md has it
    value: Callable[[Reference], object]  # None: the publication does not say


PUBLISHED_COLUMNS: Mapping[str, PublishedColumn] = {
    "system": PublishedColumn("text", "", "name of its file in baselines/", lambda row: row.system),
    "title": PublishedColumn("text", "", "the system, for people", lambda row: row.title),
    "model": PublishedColumn("text", "", "what was trained", lambda row: row.model),
    "mode": PublishedColumn("text", "", "`training`, or what was measured instead", lambda row: row.mode),
    "data": PublishedColumn("text", "", "`synthetic`, or the data set", lambda row: row.data),
    "batch_size": PublishedColumn("whole", "images", "of one device and step", lambda row: row.batch_size),
    "gpus": PublishedColumn("whole", "devices", "of all nodes; 0: the CPU of the whole host", lambda row: row.gpus),
    "nodes": PublishedColumn("whole", "nodes", "that it ran on", lambda row: row.nodes),
    "num_ps": PublishedColumn("whole", "tasks", "parameter servers", lambda row: row.num_ps),
    "variable_update": PublishedColumn("text", "", "how replicas shared variables", lambda row: row.variable_update),
    "precision": PublishedColumn("text", "", "of the arithmetic", lambda row: row.precision),
    "implementation": PublishedColumn("text", "", "what trained", lambda row: row.implementation),
    "images_per_sec": PublishedColumn("number", "images/s", "as it was published", lambda row: row.images_per_sec),
    "efficiency": PublishedColumn("number", "fraction", "against the 1-device row of its own table; none where that has none",
                                  lambda row: row.efficiency),
    "limit": PublishedColumn("number", "images/s", "what its GPUs and links allow by their data sheets, where these are known",
                             lambda row: published_limit(row).images_per_sec),
    "share_of_limit": PublishedColumn("number", "fraction", "`images_per_sec` over `limit`",
                                      lambda row: published_limit(row).share(row.images_per_sec)),
    "bound_by": PublishedColumn("text", "", "which of them allows no more: `gpus` or `link`", lambda row: _find_binding_resource(row)),
    "gpu": PublishedColumn("text", "", "what the devices are", lambda row: row.machine.gpu),
    "gpus_per_node": PublishedColumn("whole", "devices", "of one node", lambda row: row.machine.gpus_per_node),
    "interconnect": PublishedColumn("text", "", "between nodes", lambda row: row.machine.interconnect),
    "software": PublishedColumn("text", "", "what it was measured with", lambda row: row.source.software),
    "measured": PublishedColumn("text", "", "when: a year, or a year and a month", lambda row: row.source.measured),
    "citation": PublishedColumn("text", "", "who, when, which table", lambda row: row.citation),
}  # fmt: skip


def _find_binding_resource(row: Reference) -> str | None:
    found = published_limit(row).binding
    return found.resource if found else None


def published() -> "pd.DataFrame":
    """All published rates that come with the package, a row for each, in the order of their systems' files.

    docs/exports.md has the columns with their units. What a publication does not say is `<NA>` or NaN. Raises `UsageError`
    where pandas is not installed.
    """
    rows = [{name: column.value(row) for name, column in PUBLISHED_COLUMNS.items()} for row in references()]
    return _make_frame(rows, {name: column.kind for name, column in PUBLISHED_COLUMNS.items()})


def _make_frame(rows: Sequence[Mapping[str, object]], kinds: Mapping[str, ColumnKind]) -> "pd.DataFrame":
    try:
        import pandas as pd
    except ImportError as exc:
        raise UsageError(f"a pandas.DataFrame was asked for: {exc}. {INSTALL}") from exc
    return pd.DataFrame({name: pd.Series([row[name] for row in rows], dtype=DTYPES[kind]) for name, kind in kinds.items()})


def _convert_to_utc(times: "pd.Series[str]") -> "pd.Series[pd.Timestamp]":
    import pandas as pd

    return pd.to_datetime(times, utc=True, format="ISO8601")
