"""The lines of a scaling figure, as values: which points belong together, and what they are called."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from pytest_dtfperf.measurement import scaling_efficiency
from pytest_dtfperf.report.published import Published, in_turn
from pytest_dtfperf.report.record import Record

MOST_PUBLISHED = 4  # lines; more than that hide what was measured


@dataclass(frozen=True)
class Point:
    gpus: int
    images_per_sec: float
    efficiency: float | None
    lowest: float  # images/sec of the slowest and the fastest run
    highest: float


@dataclass(frozen=True)
class Series:
    """One line. At most one point per device count, in their order."""

    label: str
    points: Sequence[Point]
    data: str = "synthetic"


def measured_series(records: Iterable[Record]) -> list[Series]:
    """One line per kind of training and policy for parameter servers.

    Where every device count was measured with one number of parameter servers, that is one line; else there is a line for
    each number. A lone process shares variables with nobody, so that its rate begins every line with the same input.
    """
    records = list(records)
    anchors = one_device_rates(records)
    lines = []
    for _, group in groupby(sorted(records, key=lambda r: (r.kind, r.spec.num_ps, r.spec.gpus)), key=lambda r: r.kind):
        shared = [record for record in group if not _is_lone(record)]
        for members in _by_policy(shared):
            begin = [r for r in records if _is_lone(r) and r.spec.data == members[0].spec.data][:1]
            has_own = any(record.spec.gpus == 1 for record in members)
            points = [_point(record, anchors) for record in ([] if has_own else begin) + members]
            lines.append(Series(_label(members), sorted(points, key=lambda p: p.gpus), members[0].spec.data))
    begun = {series.data for series in lines}
    alone = [record for record in records if _is_lone(record) and record.spec.data not in begun]
    return lines + [Series(f"one device, {r.spec.data}", [_point(r, anchors)], r.spec.data) for r in alone]


def published_series(published: Iterable[Published], model: str, batch_size: int, most_gpus: int) -> list[Series]:
    """Lines of other systems with the same model, one per system; those trained most like this, and each GPU, come first."""
    rows = sorted((row for row in published if row.model == model and 0 < row.gpus <= most_gpus), key=_table)
    best: dict[str, tuple[tuple[bool, bool, int, int], list[Published]]] = {}
    for (system, _, data, batch), group in groupby(rows, key=_table):
        fastest = {row.gpus: row for row in sorted(group, key=lambda r: (r.gpus, r.images_per_sec))}
        rank = (data != "synthetic", batch != batch_size, -batch, -len(fastest))
        if len(fastest) > 1 and (system not in best or rank < best[system][0]):  # a point says nothing about scaling
            best[system] = rank, list(fastest.values())
    lines = [line for _, line in sorted(best.values(), key=lambda item: (item[0], item[1][0].system))]
    chosen = in_turn(lines, [line[0].gpu for line in lines])[:MOST_PUBLISHED]
    return [_published_line(line) for line in chosen]


def one_device_rates(records: Iterable[Record]) -> dict[str, float]:
    """data -> the fastest 1-device rate with that input, which efficiencies are anchored at."""
    rates: dict[str, float] = {}
    for record in records:
        if record.spec.gpus == 1:
            rates[record.spec.data] = max(record.images_per_sec, rates.get(record.spec.data, 0.0))
    return rates


def _is_lone(record: Record) -> bool:
    return record.spec.gpus == 1 and record.spec.num_ps == 0


def _by_policy(records: Sequence[Record]) -> list[list[Record]]:
    counts = [record.spec.gpus for record in records]
    if len(counts) == len(set(counts)):
        return [list(records)] if records else []
    return [list(group) for _, group in groupby(records, key=lambda r: r.spec.num_ps)]


def _label(members: Sequence[Record]) -> str:
    words = " ".join(members[0].kind.split()[2:])  # without model and batch, which the figure's title says
    num_ps = [record.spec.num_ps for record in sorted(members, key=lambda r: r.spec.gpus)]
    if num_ps == [0] * len(num_ps):
        return words
    if len(set(num_ps)) == 1:
        return f"{words}, {num_ps[0]} ps"
    if all(record.spec.num_ps == record.spec.gpus for record in members):
        return f"{words}, one ps per device"
    return f"{words}, {', '.join(map(str, num_ps))} ps"


def _point(record: Record, anchors: Mapping[str, float]) -> Point:
    spec, rates = record.spec, record.measurement.rates
    one = anchors.get(spec.data)
    efficiency = scaling_efficiency(record.images_per_sec, spec.gpus, one) if one else None
    return Point(spec.gpus, record.images_per_sec, efficiency, min(rates), max(rates))


def _published_line(rows: Sequence[Published]) -> Series:
    points = [Point(r.gpus, r.images_per_sec, r.efficiency, r.images_per_sec, r.images_per_sec) for r in rows]
    return Series(f"{rows[0].name}: {rows[0].citation}", points, rows[0].data)


def _table(row: Published) -> tuple[str, str, str, int]:
    return row.system, row.citation, row.data, row.batch_size
