"""All runs as one table, a row for each run: what its columns are, in which unit, and how they follow from a record."""

import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pytest_dtfperf.baselines.system import system_name
from pytest_dtfperf.measurement import Run
from pytest_dtfperf.records.record import Record
from pytest_dtfperf.report import limits
from pytest_dtfperf.report.sources import StoredSession

ColumnKind = Literal["text", "whole", "number", "truth", "time"]


@dataclass(frozen=True)
class RunContext:
    """A run with all it belongs to."""

    session: Mapping[str, Any]
    record: Record
    number: int
    run: Run
    is_comparable: bool

    @property
    def step_s(self) -> list[float]:
        """Of all its workers."""
        return [seconds for steps in self.run.step_s.values() for seconds in steps]


@dataclass(frozen=True)
class RunColumn:
    kind: ColumnKind
    unit: str  # "" where it has none
    meaning: str  # as docs/exports.md has it
    value: Callable[[RunContext], object]  # None: not known
    in_history: bool = True  # False: empty in what comes from a history


def _make_spec_column(name: str, kind: ColumnKind, unit: str, meaning: str) -> RunColumn:
    return RunColumn(kind, unit, meaning, lambda each: getattr(each.record.spec, name))


COLUMNS: Mapping[str, RunColumn] = {
    "session": RunColumn("text", "", "id of the session", lambda each: each.session["id"]),
    "started": RunColumn("time", "UTC", "when the session began", lambda each: each.session["started"]),
    "cluster": RunColumn("text", "", "where it trained", lambda each: each.session["cluster"]),
    "commit": RunColumn("text", "", "of the repository that holds the tests", lambda each: each.session.get("commit")),
    "measurement": RunColumn("text", "", "id of the measurement, within its session", lambda each: each.record.id),
    "run": RunColumn("whole", "", "which run of its measurement, from 1", lambda each: each.number),
    "test": RunColumn("text", "", "pytest's name of the test", lambda each: each.record.test),
    "label": RunColumn("text", "", "the spec in short", lambda each: each.record.spec.label),
    "model": _make_spec_column("model", "text", "", "what was trained"),
    "batch_size": _make_spec_column("batch_size", "whole", "images", "of one device and step; 0: an external command's own"),
    "gpus": _make_spec_column("gpus", "whole", "devices", "of all hosts"),
    "num_ps": _make_spec_column("num_ps", "whole", "tasks", "parameter servers"),
    "variable_update": _make_spec_column("variable_update", "text", "", "how replicas share variables"),
    "data": _make_spec_column("data", "text", "", "`synthetic`, or the data set"),
    "data_format": _make_spec_column("data_format", "text", "", "layout of images"),
    "precision": _make_spec_column("precision", "text", "", "of the arithmetic"),
    "optimizer": _make_spec_column("optimizer", "text", "", "how variables are updated"),
    "steps": _make_spec_column("steps", "whole", "steps", "measured ones of this run"),
    "system": RunColumn("text", "", "the hardware, as baselines name it",
                     lambda each: system_name(each.record.measurement.fingerprint.get("hardware") or {})),
    "hosts": RunColumn("whole", "hosts", "that it ran on", lambda each: len(each.record.measurement.hosts)),
    "tensorflow": RunColumn("text", "", "version of what trained",
                         lambda each: (each.record.measurement.fingerprint.get("software") or {}).get("tensorflow")),
    "images_per_sec": RunColumn("number", "images/s", "rate of this run", lambda each: each.run.images_per_sec),
    "elapsed_s": RunColumn("number", "s", "measured window, on the chief's clock", lambda each: each.run.elapsed_s),
    "wall_s": RunColumn("number", "s", "first order to last exit, on the controller's clock", lambda each: each.run.wall_s),
    "accuracy": RunColumn("number", "fraction", "top-1, on the test set", lambda each: each.run.accuracy),
    "disturbed": RunColumn("truth", "", "something else disturbed this run", lambda each: bool(each.run.disturbances)),
    "median_images_per_sec": RunColumn("number", "images/s", "rate of the measurement", lambda each: each.record.images_per_sec),
    "efficiency": RunColumn("number", "fraction", "of the measurement, against its anchor; none on one device",
                         lambda each: each.record.efficiency.value if each.record.efficiency else None),
    "baseline_images_per_sec": RunColumn("number", "images/s", "the accepted rate it was compared with",
                                      lambda each: each.record.baseline.images_per_sec if each.record.baseline else None),
    "change": RunColumn("number", "fraction", "of the measurement, against its baseline",
                     lambda each: each.record.baseline.change if each.record.baseline else None),
    "limit": RunColumn("number", "images/s", "what cores or GPUs, links and memory of its hosts allow",
                    lambda each: each.record.limit and each.record.limit["images_per_sec"], in_history=False),
    "share_of_limit": RunColumn("number", "fraction", "`median_images_per_sec` over `limit`",
                             lambda each: each.record.share_of_limit, in_history=False),
    "bound_by": RunColumn("text", "", "which of them allows no more: `cores`, `gpus`, `link` or `memory`",
                       lambda each: limits.find_binding_resource(each.record), in_history=False),
    "verdict": RunColumn("text", "", "of the measurement", lambda each: each.record.verdict and str(each.record.verdict)),
    "valid": RunColumn("truth", "", "the measurement is neither INVALID nor TAINTED, nor failed otherwise",
                    lambda each: each.record.is_valid),
    "slowed_down": RunColumn("truth", "", "a task was slowed down on purpose",
                          lambda each: bool(each.record.measurement.injected_slowdowns), in_history=False),
    "comparable": RunColumn("truth", "", "valid, on the hosts that were asked for, and not slowed down on purpose",
                         lambda each: each.is_comparable),
    "median_step_s": RunColumn("number", "s", "of all steps of all workers",
                            lambda each: statistics.median(each.step_s) if each.step_s else None, in_history=False),
    "slowest_step_s": RunColumn("number", "s", "likewise", lambda each: max(each.step_s, default=None), in_history=False),
    "last_loss": RunColumn("number", "", "of the chief's last step", lambda each: next(iter([*each.run.loss][-1:]), None),
                        in_history=False),
    "bytes_sent": RunColumn("whole", "bytes", "by all hosts of workers, all interfaces, in the measured window",
                         lambda each: each.run.bytes_sent, in_history=False),
    "bytes_received": RunColumn("whole", "bytes", "likewise", lambda each: each.run.bytes_received, in_history=False),
    "cpu_s": RunColumn("number", "s", "processors' time of all tasks in the measured window (of parameter servers: of their life)",
                    lambda each: sum(each.run.cpu_s.values()) if each.run.cpu_s else None, in_history=False),
    "peak_rss_bytes": RunColumn("whole", "bytes", "most memory of a task over its life",
                             lambda each: max(each.run.peak_rss_bytes.values(), default=None), in_history=False),
}  # fmt: skip


def make_run_rows(sessions: Iterable[StoredSession]) -> list[dict[str, object]]:
    """A row for each run, in the order of sessions, measurements and runs. None: not known."""
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
