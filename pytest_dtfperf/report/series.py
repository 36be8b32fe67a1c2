"""The lines of a scaling figure, as values: which points belong together, and what they are called."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from pytest_dtfperf.baselines.references import Reference
from pytest_dtfperf.records.record import Record, configuration
from pytest_dtfperf.report.published import PublishedRate, take_in_turns
from pytest_dtfperf.spec import KEY_FIELDS, UNUSUAL_KEY_FIELDS, Spec

MOST_PUBLISHED = 4  # lines; more than that hide what was measured
TITLED = frozenset({"model", "batch_size", "gpus", "num_ps"})  # stand in the figure's title, or differ along a line


@dataclass(frozen=True)
class ScalingPoint:
    gpus: int
    images_per_sec: float
    efficiency: float | None
    lowest: float  # images/sec of the slowest and the fastest run
    highest: float
    is_tainted: bool = False
    record: str = ""  # id of the measurement; published points have none

    @property
    def ideal(self) -> float | None:
        """The rate at which efficiency would be 1."""
        return self.images_per_sec / self.efficiency if self.efficiency else None


@dataclass(frozen=True)
class ScalingSeries:
    """One line. At most one point per device count, in their order."""

    label: str
    points: Sequence[ScalingPoint]
    data: str = "synthetic"

    @property
    def scales(self) -> bool:
        """Whether it tells of an efficiency on several devices."""
        return any(point.efficiency is not None for point in self.points if point.gpus > 1)


def make_measured_series(records: Iterable[Record]) -> list[ScalingSeries]:
    """One line per configuration and policy for parameter servers; efficiencies are the records' own.

    Where every device count was measured with one number of parameter servers, that is one line; else there is a line for
    each number. A line without a 1-device measurement of its own begins with the one that its efficiencies are divided by.
    """
    shown = find_latest_shown(records)
    by_id = {record.id: record for record in shown}
    lines: list[list[Record]] = []
    for _, group in groupby(sorted(shown, key=_make_sort_key), key=lambda record: repr(configuration(record.spec))):
        lines += _split_configuration(list(group), by_id)
    names = make_names([line[-1].spec for line in lines])
    return [
        ScalingSeries(_make_label(line, name), [make_point(record) for record in line], line[0].spec.data)
        for line, name in zip(lines, names, strict=True)
    ]


def find_latest_shown(records: Iterable[Record]) -> list[Record]:
    """What may be shown of each spec: its latest valid measurement, or if it has none, the latest that was disturbed."""
    found: dict[tuple[object, ...], Record] = {}
    for record in records:
        key = (*configuration(record.spec), record.spec.gpus, record.spec.num_ps)
        if record.is_valid or (record.is_tainted and not (key in found and found[key].is_valid)):
            found[key] = record
    return list(found.values())


def _split_configuration(group: Sequence[Record], by_id: dict[str, Record]) -> list[list[Record]]:
    shared = [record for record in group if not _is_lone(record)]
    lines = []
    for members in _group_by_policy(shared):
        anchors = {record.efficiency.anchor for record in members if record.efficiency}
        begin = [by_id[anchor] for anchor in anchors if anchor in by_id] if len(anchors) == 1 else []
        has_own = any(record.spec.gpus == 1 for record in members)
        lines.append(sorted(members if has_own else [*begin, *members], key=lambda record: record.spec.gpus))
    begun = {record.id for line in lines for record in line}
    return lines + [[record] for record in group if _is_lone(record) and record.id not in begun]


def _make_sort_key(record: Record) -> tuple[object, ...]:
    return repr(configuration(record.spec)), record.spec.num_ps, record.spec.gpus


def _is_lone(record: Record) -> bool:
    """One process, which shares variables with nobody."""
    return record.spec.gpus == 1 and record.spec.num_ps == 0


def _group_by_policy(records: Sequence[Record]) -> list[list[Record]]:
    counts = [record.spec.gpus for record in records]
    if len(counts) == len(set(counts)):
        return [list(records)] if records else []
    return [list(group) for _, group in groupby(records, key=lambda record: record.spec.num_ps)]


def _find_distinguishing_fields(specs: Sequence[Spec]) -> list[str]:
    """What the lines of a figure differ in."""
    names = [name for name in (*KEY_FIELDS, *UNUSUAL_KEY_FIELDS, "learning_rate") if name not in TITLED]
    return [name for name in names if len({getattr(spec, name) for spec in specs}) > 1]


def make_names(specs: Sequence[Spec]) -> list[str]:
    """The way of each, what is unusual about it, and what else tells it from the others; nothing of its size."""
    told = _find_distinguishing_fields(specs)
    return [" ".join([*(words := _list_label_parts(spec)), *_list_missing_fields(spec, told, words)]) for spec in specs]


def _list_label_parts(spec: Spec) -> list[str]:
    words = spec.label.split()[1:]
    return [word for word in words if word != f"b{spec.batch_size}" and word.partition("=")[0] not in TITLED]


def _list_missing_fields(spec: Spec, told: Sequence[str], words: Sequence[str]) -> list[str]:
    return [f"{name}={getattr(spec, name)}".lower() for name in told if not any(_has_field(word, name) for word in words)]


def _has_field(word: str, name: str) -> bool:
    return name == "variable_update" or word.startswith(f"{name}=")


def _make_label(line: Sequence[Record], name: str) -> str:
    """With the number of parameter servers along the line."""
    num_ps = [record.spec.num_ps for record in line if len(line) == 1 or not _is_lone(record)]
    if num_ps == [0] * len(num_ps):
        return name
    if len(set(num_ps)) == 1:
        return f"{name}, {num_ps[0]} ps"
    if all(record.spec.num_ps == record.spec.gpus for record in line if not _is_lone(record)):
        return f"{name}, one ps per device"
    return f"{name}, {', '.join(map(str, num_ps))} ps"


def make_point(record: Record) -> ScalingPoint:
    rates = record.measurement.rates
    return ScalingPoint(
        gpus=record.spec.gpus,
        images_per_sec=record.images_per_sec,
        efficiency=record.own_efficiency,
        lowest=min(rates),
        highest=max(rates),
        is_tainted=record.is_tainted,
        record=record.id,
    )


def make_published_series(published: Iterable[PublishedRate], measured: Sequence[Spec], most_gpus: int) -> list[ScalingSeries]:
    """Lines of other systems with the same model, one per system; those trained most like this, and each GPU, come first.

    `measured` are specs of one model. What is published of another batch or precision says so in its name.
    """
    model, batches = measured[0].model, {spec.batch_size for spec in measured}
    precisions = {spec.precision for spec in measured}
    rows = sorted((row for row in published if row.model == model and 0 < row.gpus <= most_gpus), key=_make_table_key)
    best: dict[str, tuple[tuple[bool, bool, bool, int, int], list[PublishedRate]]] = {}
    for (system, _, data, precision, batch), group in groupby(rows, key=_make_table_key):
        fastest = {row.gpus: row for row in sorted(group, key=lambda r: (r.gpus, r.images_per_sec))}
        rank = (data != "synthetic", precision not in precisions, batch not in batches, -batch, -len(fastest))
        if len(fastest) > 1 and (system not in best or rank < best[system][0]):  # a point says nothing about scaling
            best[system] = rank, list(fastest.values())
    lines = [line for _, line in sorted(best.values(), key=lambda item: (item[0], item[1][0].system))]
    chosen = take_in_turns(lines, [line[0].gpu for line in lines])[:MOST_PUBLISHED]
    return [_make_published_line(line, measured) for line in chosen]


def make_published_point(row: PublishedRate | Reference) -> ScalingPoint:
    return ScalingPoint(row.gpus, row.images_per_sec, row.efficiency, lowest=row.images_per_sec, highest=row.images_per_sec)


def _make_published_line(rows: Sequence[PublishedRate], measured: Sequence[Spec]) -> ScalingSeries:
    points = [make_published_point(row) for row in rows]
    return ScalingSeries(f"{rows[0].name(measured)}: {rows[0].citation}", points, rows[0].data)


def _make_table_key(row: PublishedRate) -> tuple[str, str, str, str, int]:
    return row.system, row.citation, row.data, row.precision, row.batch_size
