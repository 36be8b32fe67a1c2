"""One session for programs that track benchmarks: pytest-benchmark, github-action-benchmark, Bencher, Prometheus.

Names and units are the same every night, so that a tracker finds a benchmark again. A benchmark is the label of a spec; its
value is the latest valid measurement. OpenMetrics: https://prometheus.io/docs/specs/om/open_metrics_spec/. Prometheus' older
text format: https://prometheus.io/docs/instrumenting/exposition_formats/
"""

import ast
import hashlib
import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from pytest_dtfperf.baselines.comparability import system_name
from pytest_dtfperf.datamodel.measurement import SIMULATED
from pytest_dtfperf.formats import format_count, percent, printable_lines
from pytest_dtfperf.records.record import Record, select_latest
from pytest_dtfperf.report.explanations import format_largest_cause
from pytest_dtfperf.report.measurement_text import format_versions
from pytest_dtfperf.report.sources import StoredSession
from pytest_dtfperf.spec import labels

_UNKNOWN: Mapping[str, object] = {"time": None, "dirty": False, "project": "", "branch": ""}  # of a commit

# The version that introduced the format that `pytest-benchmark compare` reads, https://pypi.org/project/pytest-benchmark/5.1.0/
PYTEST_BENCHMARK_VERSION = "5.1.0"


def find_valid_records(stored: StoredSession) -> dict[str, Record]:
    """Return label -> record, without those that are INVALID, TAINTED, on other hosts, or slowed down on purpose.

    The labels of simulated measurements begin with their mark, so that no tracker takes them for a real benchmark's.
    """
    found = select_latest(record for record in stored.records if record.id in stored.comparable)
    named = labels(record.spec for record in found)
    return {
        f"{SIMULATED} {named[each.spec]}" if each.measurement.fingerprint.is_simulated else named[each.spec]: each
        for each in found
    }


def format_github_action(sessions: Sequence[StoredSession]) -> bytes:
    """Return `customBiggerIsBetter` of github-action-benchmark, as in its README and src/extract.ts."""
    (stored,) = sessions
    entries = [
        {
            "name": label,
            "unit": "images/sec",
            "value": record.images_per_sec,
            **_make_range(record),
            "extra": "\n".join(_list_details(stored, record)),
        }
        for label, record in find_valid_records(stored).items()
    ]
    return _encode_json(entries)


def _make_range(record: Record) -> dict[str, str]:
    """Return the range of the runs; none for a single run."""
    spread = record.measurement.spread
    return {} if spread is None else {"range": f"± {percent(spread)}"}


def _list_details(stored: StoredSession, record: Record) -> list[str]:
    hardware = system_name(record.measurement.fingerprint.hardware)
    judged = [f"verdict: {record.verdict}"] if record.verdict else []
    runs = format_count(len(record.measurement.rates), "run")
    return [f"{hardware} ({stored.session.cluster}), {runs}", *judged, format_versions(record, stored.session)]


def format_bencher(sessions: Sequence[StoredSession]) -> bytes:
    """Return Bencher Metric Format, https://bencher.dev/docs/reference/bencher-metric-format/: benchmark -> measure -> values.

    `throughput` is a measure that every project has; here images/sec, with the slowest and the fastest run.
    """
    (stored,) = sessions
    return _encode_json({label: _make_measures(record) for label, record in find_valid_records(stored).items()})


def _make_measures(record: Record) -> dict[str, dict[str, float]]:
    rates = record.measurement.rates
    throughput = {"value": record.images_per_sec, "lower_value": min(rates), "upper_value": max(rates)}
    own = {"efficiency": {"value": record.efficiency}} if record.efficiency else {}
    return {"throughput": throughput, **own}


def format_pytest_benchmark(sessions: Sequence[StoredSession]) -> bytes:
    """Return what `pytest --benchmark-json` writes. A round is a run, its time is seconds per image: `ops` is images/sec."""
    (stored,) = sessions
    commit: dict[str, object] = {"id": stored.session.commit or "unknown", **_UNKNOWN}
    return _encode_json(
        {
            "machine_info": _make_machine_info(stored),
            "commit_info": commit,
            "benchmarks": [_make_benchmark(label, record) for label, record in find_valid_records(stored).items()],
            "datetime": datetime.fromisoformat(stored.session.started).astimezone(UTC).isoformat(),
            "version": PYTEST_BENCHMARK_VERSION,
        }
    )  # fmt: skip


def _make_machine_info(stored: StoredSession) -> dict[str, Any]:
    hardware = {system_name(record.measurement.fingerprint.hardware): None for record in stored.records}
    return {"node": stored.session.cluster, "machine": " and ".join(hardware), "versions": dict(stored.session.versions)}


def _make_benchmark(label: str, record: Record) -> dict[str, Any]:
    spec = record.spec
    return {
        "group": spec.model,
        "name": label,
        "fullname": f"{record.test.partition('[')[0]}[{label}]",
        "params": {name: getattr(spec, name) for name in ("model", "batch_size", "gpus", "num_ps", "variable_update", "data")},
        "param": label,
        "extra_info": {"verdict": record.verdict and str(record.verdict), "images_per_sec": record.images_per_sec},
        "options": {"disable_gc": False, "min_rounds": 1, "warmup": spec.warmup_steps > 0},
        "stats": _compute_stats(
            [1 / rate for rate in record.measurement.rates], spec.gpus * max(1, spec.batch_size) * spec.steps
        ),
    }


def _compute_stats(seconds: Sequence[float], iterations: int) -> Mapping[str, object]:
    """Return statistics as pytest-benchmark defines them: Tukey's fences, sample standard deviation (0 for one run)."""
    q1, median, q3 = (float(value) for value in np.quantile(seconds, [0.25, 0.5, 0.75]))
    mean, spread = statistics.fmean(seconds), statistics.stdev(seconds) if len(seconds) > 1 else 0.0
    low, high = q1 - 1.5 * (q3 - q1), q3 + 1.5 * (q3 - q1)
    beyond_spread = sum(abs(each - mean) > spread for each in seconds)
    beyond_fences = sum(not low <= each <= high for each in seconds)
    return {
        "min": min(seconds),
        "max": max(seconds),
        "mean": mean,
        "stddev": spread,
        "rounds": len(seconds),
        "median": median,
        "iqr": q3 - q1,
        "q1": q1,
        "q3": q3,
        "iqr_outliers": beyond_fences,
        "stddev_outliers": beyond_spread,
        "outliers": f"{beyond_spread};{beyond_fences}",
        "ld15iqr": min(each for each in seconds if each >= low),
        "hd15iqr": max(each for each in seconds if each <= high),
        "ops": 1 / mean,
        "total": sum(seconds),
        "data": list(seconds),
        "iterations": iterations,
    }


def _encode_json(content: object) -> bytes:
    return json.dumps(content, indent=2, ensure_ascii=True, allow_nan=False).encode(errors="backslashreplace") + b"\n"


PREFIX = "dtfperf"


@dataclass(frozen=True)
class Gauge:
    """A metric of Prometheus with a sample for each measurement."""

    unit: str  # suffix of its name, as the standard requires; "" for a count
    help: str
    value: Callable[[Record], float | None]  # None: no sample


GAUGES: Mapping[str, Gauge] = {
    "rate_images_per_second": Gauge("images_per_second", "Median of the runs.", lambda each: each.images_per_sec),
    "spread_ratio": Gauge("ratio", "Half the range of the runs over their median.", lambda each: each.measurement.spread),
    "runs": Gauge("", "Runs that the rate rests on.", lambda each: len(each.measurement.rates)),
    "efficiency_ratio": Gauge("ratio", "rate(n) / (n x rate(1)).",
                              lambda each: each.efficiency),
    "baseline_images_per_second": Gauge("images_per_second", "The accepted rate that it was compared with.",
                                        lambda each: each.baseline),
    "change_ratio": Gauge("ratio", "Geometric means of the runs, rate / baseline, less 1.",
                          lambda each: each.change),
    "limit_images_per_second": Gauge("images_per_second", "What its hosts' cores or GPUs, links and memory allow.",
                                     lambda each: each.limit.images_per_sec if each.limit else None),
    "share_of_limit_ratio": Gauge("ratio", "rate / limit.", lambda each: each.share_of_limit),
}  # fmt: skip


def format_openmetrics(sessions: Sequence[StoredSession]) -> bytes:
    """Return the valid measurements of one session. Verdicts are counted over all of its tests."""
    (stored,) = sessions
    session, records = stored.session, find_valid_records(stored)
    where = {"cluster": session.cluster}
    began = datetime.fromisoformat(session.started).timestamp()
    info = {"session": session.id, "commit": session.commit}
    lines = [
        *_format_head("session", "info", "", "The session that all of this is of."),
        f"{PREFIX}_session_info{_format_labels(where | info)} 1",
    ]
    lines += [
        *_format_head("session_started_timestamp_seconds", "gauge", "seconds", "When it began."),
        f"{PREFIX}_session_started_timestamp_seconds{_format_labels(where)} {began!r}",
    ]
    if session.verdicts:
        lines += _format_head("tests", "gauge", "", "Tests by verdict.")
        lines += [
            f"{PREFIX}_tests{_format_labels(where | {'verdict': name})} {n}" for name, n in sorted(session.verdicts.items())
        ]
    for name, gauge in GAUGES.items():
        lines += _format_family(name, gauge, records, where)
    return "\n".join([*lines, "# EOF", ""]).encode(errors="backslashreplace")


def format_prometheus(sessions: Sequence[StoredSession]) -> bytes:
    """Return the same in the text format 0.0.4, which node_exporter and Pushgateway read: without infos, units and an end."""
    lines = format_openmetrics(sessions).decode().splitlines()
    kept = [line for line in lines if not line.startswith("# UNIT ") and line != "# EOF"]
    head = f"{PREFIX}_session"
    for number, line in enumerate(kept):
        if line == f"# TYPE {head} info":
            kept[number] = f"# TYPE {head}_info gauge"
        elif line.startswith(f"# HELP {head} "):
            kept[number] = line.replace(head, f"{head}_info", 1)
    return "\n".join([*kept, ""]).encode()


@dataclass(frozen=True)
class GaugeFamily:
    """A gauge with its samples, as Prometheus' text format 0.0.4 and OpenMetrics both have it."""

    name: str  # without the prefix
    help: str
    samples: Sequence[tuple[Mapping[str, str], float]]  # labels, value

    def list_lines(self) -> list[str]:
        """Return its lines; none without a sample."""
        samples = [f"{PREFIX}_{self.name}{_format_labels(labels)} {value!r}" for labels, value in self.samples]
        return [*_format_head(self.name, "gauge", "", self.help), *samples] if samples else []


def format_gauges(families: Iterable[GaugeFamily]) -> bytes:
    """Return gauges in the text format 0.0.4."""
    return "\n".join([*(line for family in families for line in family.list_lines()), ""]).encode()


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
    return {"spec": label, **own, "system": system_name(record.measurement.fingerprint.hardware)}


def _format_head(name: str, kind: str, unit: str, text: str) -> list[str]:
    units = [f"# UNIT {PREFIX}_{name} {unit}"] if unit else []
    return [f"# TYPE {PREFIX}_{name} {kind}", *units, f"# HELP {PREFIX}_{name} {text}"]


def _format_labels(values: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{_escape_value(value)}"' for name, value in values.items()) + "}"


def _escape_value(value: str) -> str:
    """Escape as the standard requires; control characters are replaced before."""
    return printable_lines(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


@dataclass(frozen=True)
class Finding:
    """A failed measurement at the line of its test, as CI systems show it beside the code."""

    path: str
    line: int
    title: str
    message: str
    key: str  # the same in each session


def list_findings(records: Iterable[Record], root: Path) -> list[Finding]:
    """Return the measurements with a verdict that fails a test. `root`: the folder of the paths in tests' names."""
    return [
        Finding(
            path := record.test.partition("::")[0],
            _find_line(root / path, record.test),
            f"{record.verdict}: {record.spec.label}",
            printable_lines("\n".join(filter(None, [record.reason or "no reason is recorded", format_largest_cause(record)]))),
            f"{record.test} {record.spec.label} {record.verdict}",
        )
        for record in records
        if record.verdict and record.verdict.fails(strict=False) and not record.accepted
    ]


def _find_line(path: Path, test: str) -> int:
    """Return the line where the test's function is defined, or 1 where the file does not show it."""
    name = test.partition("[")[0].rpartition("::")[2]
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return 1
    return next((node.lineno for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == name), 1)


def format_github_commands(findings: Iterable[Finding]) -> list[str]:
    """Return workflow commands of GitHub Actions, which become annotations where a step prints them.

    https://docs.github.com/en/actions/reference/workflow-commands-for-github-actions, escaped as by @actions/core.
    """
    lines = []
    for each in findings:
        properties = {"file": each.path, "line": str(each.line), "title": each.title}
        where = ",".join(f"{name}={_escape_property(value)}" for name, value in properties.items())
        lines.append(f"::error {where}::{_escape_data(each.message)}")
    return lines


def _escape_data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escape_property(text: str) -> str:
    return _escape_data(printable_lines(text)).replace(":", "%3A").replace(",", "%2C")


def format_github_annotations(sessions: Sequence[StoredSession]) -> bytes:
    """Return a workflow command for each failed measurement."""
    (stored,) = sessions
    return "".join(f"{line}\n" for line in format_github_commands(list_findings(stored.records, Path()))).encode()


def format_gitlab_code_quality(sessions: Sequence[StoredSession]) -> bytes:
    """Return a code quality report, https://docs.gitlab.com/ci/testing/code_quality/#code-quality-report-format."""
    (stored,) = sessions
    return _encode_json(
        [
            {
                "description": printable_lines(f"{each.title}: {each.message}"),
                "check_name": "dtfperf",
                "fingerprint": hashlib.sha256(each.key.encode(errors="backslashreplace")).hexdigest(),
                "severity": "major",
                "location": {"path": printable_lines(each.path), "lines": {"begin": each.line}},
            }
            for each in list_findings(stored.records, Path())
        ]
    )
