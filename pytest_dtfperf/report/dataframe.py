"""All runs as one table: its columns, `pytest_dtfperf.load` and `published` as pandas.DataFrame, CSV, Parquet."""

import csv
import io
import statistics
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pytest_dtfperf.baselines.comparability import system_name
from pytest_dtfperf.baselines.references import Reference, references
from pytest_dtfperf.datamodel.measurement import Run
from pytest_dtfperf.errors import UsageError
from pytest_dtfperf.limits.limit import compute_published_limit
from pytest_dtfperf.records.record import Record
from pytest_dtfperf.records.stored import SessionInfo
from pytest_dtfperf.report import measurement_text
from pytest_dtfperf.report.session_exports import INSTALL, escape_formula
from pytest_dtfperf.report.sources import StoredSession, load_sessions

if TYPE_CHECKING:
    import pandas as pd


ColumnKind = Literal["text", "whole", "number", "truth", "time"]


@dataclass(frozen=True)
class RunContext:
    """A run with its measurement and session."""

    session: SessionInfo
    record: Record
    number: int
    run: Run
    is_comparable: bool

    @property
    def step_s(self) -> list[float]:
        """Return the seconds of all steps of all workers."""
        return [seconds for steps in self.run.step_s.values() for seconds in steps]


@dataclass(frozen=True)
class RunColumn:
    """A column of the table of runs."""

    kind: ColumnKind
    unit: str  # "" for a column without a unit
    meaning: str  # as in docs/exports.md
    value: Callable[[RunContext], object]  # None: unknown
    in_history: bool = True  # False: empty for sessions from a history


def _make_spec_column(name: str, kind: ColumnKind, unit: str, meaning: str) -> RunColumn:
    return RunColumn(kind, unit, meaning, lambda each: getattr(each.record.spec, name))


COLUMNS: Mapping[str, RunColumn] = {
    "session": RunColumn("text", "", "id of the session", lambda each: each.session.id),
    "started": RunColumn("time", "UTC", "start of the session", lambda each: each.session.started),
    "cluster": RunColumn("text", "", "name of the cluster", lambda each: each.session.cluster),
    "commit": RunColumn("text", "", "commit of the repository with the tests", lambda each: each.session.commit or None),
    "measurement": RunColumn("text", "", "id of the measurement, within its session", lambda each: each.record.id),
    "run": RunColumn("whole", "", "number of the run in its measurement, from 1", lambda each: each.number),
    "test": RunColumn("text", "", "pytest's name of the test", lambda each: each.record.test),
    "label": RunColumn("text", "", "short form of the spec", lambda each: each.record.spec.label),
    "model": _make_spec_column("model", "text", "", "name of the model, or of the external command"),
    "batch_size": _make_spec_column("batch_size", "whole", "images", "images of one device and step; 0: set by the command"),
    "gpus": _make_spec_column("gpus", "whole", "devices", "number of devices on all hosts"),
    "num_ps": _make_spec_column("num_ps", "whole", "tasks", "number of parameter servers"),
    "variable_update": _make_spec_column("variable_update", "text", "", "way in which replicas share variables"),
    "data": _make_spec_column("data", "text", "", "`synthetic`, or the data set"),
    "data_format": _make_spec_column("data_format", "text", "", "layout of images"),
    "precision": _make_spec_column("precision", "text", "", "precision of the arithmetic"),
    "optimizer": _make_spec_column("optimizer", "text", "", "rule that updates variables"),
    "steps": _make_spec_column("steps", "whole", "steps", "number of measured steps of this run"),
    "system": RunColumn("text", "", "the hardware, as baselines name it",
                     lambda each: system_name(each.record.measurement.fingerprint.hardware)),
    "hosts": RunColumn("whole", "hosts", "number of hosts of the measurement", lambda each: len(each.record.measurement.hosts)),
    "tensorflow": RunColumn("text", "", "version of TensorFlow",
                         lambda each: each.record.measurement.fingerprint.software.get("tensorflow")),
    "images_per_sec": RunColumn("number", "images/s", "rate of this run", lambda each: each.run.images_per_sec),
    "elapsed_s": RunColumn("number", "s", "measured window, on the chief's clock", lambda each: each.run.elapsed_s),
    "wall_s": RunColumn("number", "s", "first order to last exit, on the controller's clock", lambda each: each.run.wall_s),
    "accuracy": RunColumn("number", "fraction", "top-1 accuracy on the test set", lambda each: each.run.accuracy),
    "disturbed": RunColumn("truth", "", "other load disturbed this run", lambda each: bool(each.run.disturbances)),
    "median_images_per_sec": RunColumn("number", "images/s", "rate of the measurement",
                                       lambda each: each.record.images_per_sec),
    "efficiency": RunColumn("number", "fraction", "efficiency of the measurement, against its anchor; none on one device",
                         lambda each: each.record.efficiency),
    "baseline_images_per_sec": RunColumn("number", "images/s", "accepted rate of the comparison",
                                      lambda each: each.record.baseline),
    "change": RunColumn("number", "fraction", "change of the measurement against its baseline",
                     lambda each: each.record.change),
    "limit": RunColumn("number", "images/s", "limit of the rate by cores or GPUs, links and memory of the hosts",
                    lambda each: each.record.limit and each.record.limit.images_per_sec, in_history=False),
    "share_of_limit": RunColumn("number", "fraction", "`median_images_per_sec` over `limit`",
                             lambda each: each.record.share_of_limit, in_history=False),
    "bound_by": RunColumn("text", "", "resource that sets the limit: `cores`, `gpus`, `link` or `memory`",
                       lambda each: measurement_text.find_binding_resource(each.record), in_history=False),
    "verdict": RunColumn("text", "", "measurement's verdict", lambda each: each.record.verdict and str(each.record.verdict)),
    "valid": RunColumn("truth", "", "the measurement is neither INVALID nor TAINTED, nor failed otherwise",
                    lambda each: each.record.is_valid),
    "slowed_down": RunColumn("truth", "", "a task had an injected slow-down",
                          lambda each: bool(each.record.measurement.injected_slowdowns), in_history=False),
    "comparable": RunColumn("truth", "", "valid, on the requested hosts, and without an injected slow-down",
                         lambda each: each.is_comparable),
    "median_step_s": RunColumn("number", "s", "median of all steps of all workers",
                            lambda each: statistics.median(each.step_s) if each.step_s else None, in_history=False),
    "slowest_step_s": RunColumn("number", "s", "their maximum", lambda each: max(each.step_s, default=None), in_history=False),
    "last_loss": RunColumn("number", "", "loss of the chief's last step", lambda each: next(iter([*each.run.loss][-1:]), None),
                        in_history=False),
    "bytes_sent": RunColumn("whole", "bytes", "bytes sent by all hosts of workers, all interfaces, in the measured window",
                         lambda each: each.run.bytes_sent, in_history=False),
    "bytes_received": RunColumn("whole", "bytes", "as `bytes_sent`", lambda each: each.run.bytes_received, in_history=False),
    "cpu_s": RunColumn("number", "s", "CPU time of all tasks in the measured window (parameter servers: over their life)",
                    lambda each: sum(each.run.cpu_s.values()) if each.run.cpu_s else None, in_history=False),
    "peak_rss_bytes": RunColumn("whole", "bytes", "maximum memory of a task over its life",
                             lambda each: max(each.run.peak_rss_bytes.values(), default=None), in_history=False),
}  # fmt: skip


def make_run_rows(sessions: Iterable[StoredSession]) -> list[dict[str, object]]:
    """Return a row for each run, in the order of sessions, measurements and runs. An unknown value is None."""
    return [
        {name: column.value(each) if stored.has_steps or column.in_history else None for name, column in COLUMNS.items()}
        for stored in sessions
        for each in _list_runs(stored)
    ]


def _list_runs(stored: StoredSession) -> list[RunContext]:
    return [
        RunContext(stored.session, record, number, run, record.id in stored.comparable)
        for record in stored.records
        for number, run in enumerate(record.measurement.runs, start=1)
    ]


# Kinds with a value for "unknown"; for numbers it is NaN.
DTYPES: Mapping[ColumnKind, str] = {
    "text": "string",
    "whole": "Int64",
    "number": "float64",
    "truth": "boolean",
    "time": "object",
}


def load(source: str | Path) -> "pd.DataFrame":
    """Return all runs of a session folder, a folder of session folders, or the file or URL of a history: a row for each run.

    docs/exports.md has the columns with their units. An unknown value is `<NA>` or NaN; a history lacks some columns.
    A session that occurs twice, in a copy of its folder, counts once, with a warning.

    Raises `UsageError` if there is no such source or pandas is not installed, `SessionFileError` or `HistoryError` if
    it cannot be read.
    """
    copies: list[str] = []
    rows = make_run_rows(load_sessions(source, copies.append))
    for warning in copies:
        warnings.warn(warning, stacklevel=2)
    frame = _make_frame(rows, {name: column.kind for name, column in COLUMNS.items()})
    times = [name for name, column in COLUMNS.items() if column.kind == "time"]
    return frame.assign(**{name: _convert_to_utc(frame[name]) for name in times})


@dataclass(frozen=True)
class PublishedColumn:
    """A column of the table of published rates."""

    kind: ColumnKind
    unit: str  # "" for a column without a unit
    meaning: str  # as in docs/exports.md
    value: Callable[[Reference], object]  # None: not in the publication


def _find_binding_resource(row: Reference) -> str | None:
    found = compute_published_limit(row).binding
    return found.resource if found else None


PUBLISHED_COLUMNS: Mapping[str, PublishedColumn] = {
    "system": PublishedColumn("text", "", "name of its file in baselines/", lambda row: row.system),
    "title": PublishedColumn("text", "", "title of the system", lambda row: row.title),
    "model": PublishedColumn("text", "", "name of the model", lambda row: row.model),
    "mode": PublishedColumn("text", "", "`training`, or another kind of measurement", lambda row: row.mode),
    "data": PublishedColumn("text", "", "`synthetic`, or the data set", lambda row: row.data),
    "batch_size": PublishedColumn("whole", "images", "batch size of one device and step", lambda row: row.batch_size),
    "gpus": PublishedColumn("whole", "devices", "devices on all nodes; 0: the CPU of the whole host", lambda row: row.gpus),
    "nodes": PublishedColumn("whole", "nodes", "number of nodes", lambda row: row.nodes),
    "num_ps": PublishedColumn("whole", "tasks", "number of parameter servers", lambda row: row.num_ps),
    "variable_update": PublishedColumn("text", "", "way in which replicas shared variables", lambda row: row.variable_update),
    "precision": PublishedColumn("text", "", "precision of the arithmetic", lambda row: row.precision),
    "implementation": PublishedColumn("text", "", "program that was measured", lambda row: row.implementation),
    "images_per_sec": PublishedColumn("number", "images/s", "rate as published", lambda row: row.images_per_sec),
    "efficiency": PublishedColumn("number", "fraction", "against the 1-device row of its own table; none without one",
                                  lambda row: row.efficiency),
    "limit": PublishedColumn("number", "images/s", "limit by its GPUs and links, from data sheets, if known",
                             lambda row: compute_published_limit(row).images_per_sec),
    "share_of_limit": PublishedColumn("number", "fraction", "`images_per_sec` over `limit`",
                                      lambda row: compute_published_limit(row).share(row.images_per_sec)),
    "bound_by": PublishedColumn("text", "", "resource that sets the limit: `gpus` or `link`", _find_binding_resource),
    "gpu": PublishedColumn("text", "", "name of the devices", lambda row: row.machine.gpu),
    "gpus_per_node": PublishedColumn("whole", "devices", "devices of one node", lambda row: row.machine.gpus_per_node),
    "interconnect": PublishedColumn("text", "", "network between nodes", lambda row: row.machine.interconnect),
    "software": PublishedColumn("text", "", "versions of the software", lambda row: row.source.software),
    "measured": PublishedColumn("text", "", "date: a year, or a year and a month", lambda row: row.source.measured),
    "citation": PublishedColumn("text", "", "author, date and table of the publication", lambda row: row.citation),
}  # fmt: skip


def published() -> "pd.DataFrame":
    """Return all published rates of the package, a row for each, in the order of the files of their systems.

    docs/exports.md has the columns with their units. A value that the publication lacks is `<NA>` or NaN. Raises `UsageError`
    if pandas is not installed.
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


def format_csv(sessions: Sequence[StoredSession]) -> bytes:
    """Return CSV with a heading and a line for each run. Unknown values are empty cells; numbers have all their digits."""
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
    """Return the runs as Parquet, with units and meanings of columns as metadata. Raises `UsageError` without pyarrow."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as exc:
        raise UsageError(f"Parquet is written by pyarrow: {exc}. Install it: pip install 'pytest-dtfperf[parquet]'") from exc
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
