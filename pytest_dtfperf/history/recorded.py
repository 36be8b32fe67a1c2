"""Sessions of a history as the records they were made of, as far as a history keeps them: rates, but no steps and no logs."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, select

from pytest_dtfperf.baselines.verdict import Verdict
from pytest_dtfperf.history import store
from pytest_dtfperf.history.rows import Row
from pytest_dtfperf.history.tables import hosts, runs
from pytest_dtfperf.measurement import Measurement, Run
from pytest_dtfperf.records.record import Compared, Efficiency, Record, with_efficiencies
from pytest_dtfperf.spec import Spec

# What a run has of which a history knows nothing. Whoever shows these must ask first where a record is from.
_UNKNOWN: Mapping[str, Any] = {
    "step_s": {}, "loss": (), "startup_s": {}, "bytes_sent": 0, "bytes_received": 0, "peak_rss_bytes": {}, "cpu_s": {},
}  # fmt: skip


@dataclass(frozen=True)
class Recorded:
    """What a history keeps of the measurements of one session."""

    records: Sequence[Record] = ()  # in the order of measuring
    comparable: Collection[str] = ()  # ids of those whose rates may be compared with other nights'


def recorded(connection: Connection) -> dict[str, Recorded]:
    """Session -> its measurements."""
    of_runs, of_hosts = _by_measurement(connection, runs), _by_measurement(connection, hosts)
    fingerprints = store.all_fingerprints(connection)
    found: dict[str, list[Record]] = defaultdict(list)
    comparable: dict[str, set[str]] = defaultdict(set)
    for row in store.measured(connection, whole=True):
        session, key = row["session"], (row["session"], row["id"])
        names_of_hosts = [host["name"] for host in of_hosts[key]]
        found[session].append(_record(row, of_runs[key], names_of_hosts, fingerprints[row["fingerprint"]]))
        comparable[session] |= {row["id"]} if row["in_series"] else set()
    return {session: Recorded(_with_anchors(records), comparable[session]) for session, records in found.items()}


def _by_measurement(connection: Connection, table: Any) -> dict[tuple[str, str], list[Row]]:
    found: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in connection.execute(select(table).order_by(*table.primary_key.columns)).mappings():
        found[row["session"], row["measurement"]].append(dict(row))
    return found


def _record(row: Row, found: Sequence[Row], names_of_hosts: Sequence[str], fingerprint: Mapping[str, Any]) -> Record:
    told = ("images_per_sec", "elapsed_s", "wall_s", "accuracy", "disturbances")
    measurement = Measurement(
        spec=Spec.from_json(row["spec"]),
        runs=[Run(**_UNKNOWN, **{name: run[name] for name in told}) for run in found],
        hosts=names_of_hosts,
        fingerprint=fingerprint,
    )
    return Record(
        id=row["id"],
        test=row["test"],
        measurement=measurement,
        efficiency=None if row["efficiency"] is None else Efficiency(value=row["efficiency"], anchor=""),
        baseline=None if row["baseline"] is None else Compared(images_per_sec=row["baseline"], change=row["change"]),
        verdict=Verdict(row["verdict"]) if row["verdict"] else None,
        reason=row["reason"],
        accepted=row["accepted"],
    )


def _with_anchors(records: Sequence[Record]) -> list[Record]:
    """Which measurement an efficiency was divided by is not kept: the rule says it again, where its value is the same."""
    return [
        again if again.efficiency and record.efficiency and _same(again.efficiency.value, record.efficiency.value) else record
        for record, again in zip(records, with_efficiencies(records), strict=True)
    ]


def _same(one: float, other: float) -> bool:
    return abs(one - other) <= 1e-9 * abs(other)
