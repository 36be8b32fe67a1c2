"""Convert a session folder into rows of the tables. Pure, without SQLAlchemy."""

import hashlib
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from pytest_dtfperf.baselines.comparability import system_name
from pytest_dtfperf.datamodel.fingerprint import Fingerprint
from pytest_dtfperf.datamodel.measurement import Measurement
from pytest_dtfperf.records.host_readings import HostReading
from pytest_dtfperf.records.record import Record
from pytest_dtfperf.records.stored import SessionInfo
from pytest_dtfperf.spec import Spec
from pytest_dtfperf.stats.noise import Noise

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class SessionRows:
    """The rows of one session in each table."""

    session: Row
    fingerprints: Mapping[str, Fingerprint]  # by its digest
    measurements: Sequence[Row]
    runs: Sequence[Row]
    hosts: Sequence[Row]
    host_readings: Sequence[Row] = ()


def make_session_rows(
    session: SessionInfo, records: Sequence[Record], folder: str, readings: Sequence[HostReading] = ()
) -> SessionRows:
    """Return the rows of a session.

    Args:
        session: The content of session.json.
        records: Its measurements.
        folder: Its path.
        readings: Those of its hosts.
    """
    name = session.id
    measurements = [_make_measurement_row(name, position, record) for position, record in enumerate(records)]
    return SessionRows(
        session=_make_session_row(session, records, folder, readings),
        fingerprints={
            compute_fingerprint_digest(record.measurement): record.measurement.fingerprint.select_compared()
            for record in records
        },
        measurements=measurements,
        runs=[row for record in records for row in _make_run_rows(name, record)],
        hosts=[
            {"session": name, "measurement": record.id, "position": position, "name": host}
            for record in records
            for position, host in enumerate(record.measurement.hosts)
        ],
        host_readings=[
            {"session": name, "position": position, "verdict": None, **each.to_json()} for position, each in enumerate(readings)
        ],
    )


KEPT = ("id", "started", "cluster", "wall_s", "exit_code", "command", "versions", "verdicts")


def _make_session_row(session: SessionInfo, records: Sequence[Record], folder: str, readings: Sequence[HostReading]) -> Row:
    data = session.to_json()
    return {name: data[name] for name in KEPT} | {
        "commit": session.commit or None,
        "usd": sum(cost.usd for cost in session.costs) if session.costs else None,
        "folder": folder,
        "content": compute_content_digest(records, readings),
        "watched": False,
    }


def compute_content_digest(records: Sequence[Record], readings: Sequence[HostReading] = ()) -> str:
    """Return a digest that shows whether a session has changed since it was entered: that of a JSON list, item by item."""
    digest = hashlib.sha256(b"[")
    for number, each in enumerate((*records, *readings)):
        digest.update((b", " if number else b"") + _encode(each.to_json()))
    digest.update(b"]")
    return digest.hexdigest()


def _make_measurement_row(session: str, position: int, record: Record) -> Row:
    measurement, spec = record.measurement, record.spec
    logs = [math.log(rate) for rate in measurement.rates]
    noise = _read_noise(record)
    traced = [run.step_breakdown for run in measurement.runs if run.step_breakdown]
    return {
        "session": session,
        "id": record.id,
        "position": position,
        "test": record.test,
        "spec_key": spec.key,
        "label": spec.label,
        "spec": _select_changed_fields(spec),
        **{name: getattr(spec, name) for name in ("model", "batch_size", "gpus", "num_ps", "variable_update")},
        "system": system_name(measurement.fingerprint.hardware),
        "hosts": len(measurement.hosts),
        "fingerprint": compute_fingerprint_digest(measurement),
        "program": measurement.fingerprint.program.graph or None,
        "verdict": str(record.verdict) if record.verdict else None,
        "reason": record.reason,
        "runs": len(logs),
        "images_per_sec": record.images_per_sec,
        "mean_log": statistics.fmean(logs),
        "spread": statistics.stdev(logs) if len(logs) > 1 else None,
        "noise_run": noise.run if noise else None,
        "noise_session": noise.session if noise else None,
        "efficiency": record.efficiency,
        "baseline": record.baseline,
        "change": record.change,
        "accepted": record.accepted,
        "in_series": is_in_series(record),
        "step_breakdown": traced[-1].to_json() if traced else None,
    }


def is_in_series(record: Record) -> bool:
    """Return whether the rate may be compared with that of other nights.

    False for measurements that are INVALID, were disturbed, ran on other hosts than requested, or have an injected slow-down.
    """
    measurement = record.measurement
    in_history = record.verdict is None or record.verdict.row.history
    return in_history and record.is_valid and not measurement.misplaced and not measurement.injected_slowdowns


def would_enter_series(record: Record) -> bool:
    """Return whether only disturbances of all its runs keep a measurement out of its series."""
    measurement = record.measurement
    return record.is_tainted and not (measurement.misplaced or measurement.injected_slowdowns)


def _read_noise(record: Record) -> Noise | None:
    """Return the noise that its last check against a baseline used."""
    entries = [check.entry for check in record.checks if check.kind == "baseline" and check.entry]
    return entries[-1].noise if entries else None


def _make_run_rows(session: str, record: Record) -> list[Row]:
    return [
        {
            "session": session,
            "measurement": record.id,
            "number": number,
            "images_per_sec": run.images_per_sec,
            "elapsed_s": run.elapsed_s,
            "wall_s": run.wall_s,
            "accuracy": run.accuracy,
            "disturbances": [str(each) for each in run.disturbances],
        }
        for number, run in enumerate(record.measurement.runs, start=1)
    ]


def compute_fingerprint_digest(measurement: Measurement) -> str:
    return hashlib.sha256(_encode(measurement.fingerprint.select_compared().to_json())).hexdigest()[:32]


def _select_changed_fields(spec: Spec) -> dict[str, Any]:
    return {field.name: value for field in fields(spec) if (value := getattr(spec, field.name)) != field.default}


def _encode(data: Any) -> bytes:
    return json.dumps(data, sort_keys=True, ensure_ascii=False).encode()
