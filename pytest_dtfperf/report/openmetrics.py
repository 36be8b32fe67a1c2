"""One session as OpenMetrics text: https://prometheus.io/docs/specs/om/open_metrics_spec/."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from pytest_dtfperf.baselines.system import system_name
from pytest_dtfperf.printable import printable_lines
from pytest_dtfperf.records.record import Record
from pytest_dtfperf.report.sources import StoredSession
from pytest_dtfperf.report.tracked import find_valid_records

PREFIX = "dtfperf"


@dataclass(frozen=True)
class Gauge:
    unit: str  # ends its name, as the standard wants it; "" where it counts something
    help: str
    value: Callable[[Record], float | None]  # None: has none


GAUGES: Mapping[str, Gauge] = {
    "rate_images_per_second": Gauge("images_per_second", "Median of the runs.", lambda each: each.images_per_sec),
    "spread_ratio": Gauge("ratio", "Half the range of the runs over their median.", lambda each: each.measurement.spread),
    "runs": Gauge("", "Runs that the rate rests on.", lambda each: len(each.measurement.rates)),
    "efficiency_ratio": Gauge("ratio", "rate(n) / (n x rate(1)).",
                              lambda each: each.efficiency.value if each.efficiency else None),
    "baseline_images_per_second": Gauge("images_per_second", "The accepted rate that it was compared with.",
                                        lambda each: each.baseline.images_per_sec if each.baseline else None),
    "change_ratio": Gauge("ratio", "Geometric means of the runs, rate / baseline, less 1.",
                          lambda each: each.baseline.change if each.baseline else None),
    "limit_images_per_second": Gauge("images_per_second", "What its hosts' cores or GPUs, links and memory allow.",
                                     lambda each: each.limit["images_per_sec"] if each.limit else None),
    "share_of_limit_ratio": Gauge("ratio", "rate / limit.", lambda each: each.share_of_limit),
}  # fmt: skip


def format_openmetrics(sessions: Sequence[StoredSession]) -> bytes:
    """What may be believed of one session. Verdicts are counted over all of its tests."""
    (stored,) = sessions
    session, records = stored.session, find_valid_records(stored)
    where = {"cluster": session["cluster"]}
    began = datetime.fromisoformat(session["started"]).timestamp()
    told = {"session": session["id"], "commit": session.get("commit") or ""}
    lines = [
        *_format_head("session", "info", "", "The session that all of this is of."),
        f"{PREFIX}_session_info{_format_labels(where | told)} 1",
    ]
    lines += [
        *_format_head("session_started_timestamp_seconds", "gauge", "seconds", "When it began."),
        f"{PREFIX}_session_started_timestamp_seconds{_format_labels(where)} {began!r}",
    ]
    if session["verdicts"]:
        lines += _format_head("tests", "gauge", "", "Tests by verdict.")
        lines += [
            f"{PREFIX}_tests{_format_labels(where | {'verdict': name})} {n}" for name, n in sorted(session["verdicts"].items())
        ]
    for name, gauge in GAUGES.items():
        lines += _format_family(name, gauge, records, where)
    return "\n".join([*lines, "# EOF", ""]).encode(errors="backslashreplace")


def _format_family(name: str, gauge: Gauge, records: Mapping[str, Record], where: Mapping[str, str]) -> Iterable[str]:
    found = [(label, record, gauge.value(record)) for label, record in records.items()]
    points = [(label, record, value) for label, record, value in found if value is not None]
    samples = [
        f"{PREFIX}_{name}{_format_labels({**where, **_make_spec_labels(label, record)})} {value!r}"
        for label, record, value in points
    ]
    return [*_format_head(name, "gauge", gauge.unit, gauge.help), *samples] if samples else []


def _make_spec_labels(label: str, record: Record) -> dict[str, str]:
    names = ("model", "batch_size", "gpus", "num_ps", "variable_update", "data", "precision")
    own = {name: str(getattr(record.spec, name)) for name in names}
    return {"spec": label, **own, "system": system_name(record.measurement.fingerprint.get("hardware") or {})}


def _format_head(name: str, kind: str, unit: str, text: str) -> list[str]:
    units = [f"# UNIT {PREFIX}_{name} {unit}"] if unit else []
    return [f"# TYPE {PREFIX}_{name} {kind}", *units, f"# HELP {PREFIX}_{name} {text}"]


def _format_labels(values: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{_escape_value(value)}"' for name, value in values.items()) + "}"


def _escape_value(value: str) -> str:
    """Escape as the standard wants it; what a terminal would obey is written out before."""
    return printable_lines(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
