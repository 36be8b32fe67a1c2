"""Points and lines of scaling: the measured ones, the published ones beside them, and the groups that share a figure."""

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Self, TypeVar

from pytest_dtfperf.baselines.comparability import system_name
from pytest_dtfperf.baselines.references import Reference, references_for
from pytest_dtfperf.formats import minute
from pytest_dtfperf.records.record import Record, configuration
from pytest_dtfperf.records.session import file_stem
from pytest_dtfperf.records.stored import SessionInfo
from pytest_dtfperf.report.measurement_text import format_versions
from pytest_dtfperf.spec import KEY_FIELDS, UNUSUAL_KEY_FIELDS, Spec

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class PublishedPoint:
    """One published rate, as a report shows it."""

    system: str  # for display: "Piz Daint (CSCS)"
    model: str
    batch_size: int  # per device; 0 if it was not published
    gpus: int  # 0: the CPU of the whole host
    images_per_sec: float
    citation: str  # short: author, date and table
    efficiency: float | None = None
    num_ps: int = 0
    variable_update: str = ""
    data: str = "synthetic"
    precision: str = "fp32"
    gpu: str | None = None  # type of the devices

    @classmethod
    def from_reference(cls, reference: Reference) -> Self:
        return cls(
            system=reference.title,
            model=reference.model,
            batch_size=reference.batch_size or 0,
            gpus=reference.gpus,
            images_per_sec=reference.images_per_sec,
            citation=reference.citation,
            efficiency=reference.efficiency,
            num_ps=reference.num_ps or 0,
            variable_update=reference.variable_update or "",
            data=reference.data,
            precision=reference.precision,
            gpu=reference.machine.gpu,
        )

    def name(self, measured: Iterable[Spec]) -> str:
        """Return the system, its input if not synthetic, and options that nothing measured here has."""
        return self.system + self.marks(measured)

    def marks(self, measured: Iterable[Spec]) -> str:
        """Return the options after the system's name: ", imagenet, b64"."""
        specs = list(measured)
        marks = [self.data] if self.data != "synthetic" else []
        if self.batch_size not in {spec.batch_size for spec in specs}:
            marks.append(f"b{self.batch_size}" if self.batch_size else "batch unknown")
        if self.precision not in {spec.precision for spec in specs}:
            marks.append(self.precision)
        return "".join(f", {mark}" for mark in marks)

    @property
    def devices(self) -> str:
        return str(self.gpus) if self.gpus else "CPU"


def find_nearest(published: Iterable[PublishedPoint], measured: Collection[Spec], most: int) -> list[PublishedPoint]:
    """Return the `most` rows that are nearest to `measured`, ordered by system and devices.

    Rows with a number of devices that was measured here come first, larger numbers before smaller ones, then rows with
    similar trainings. Each system has one row before any has a second.
    """
    rows, counts = list(published), {spec.gpus for spec in measured}
    same = sorted((row for row in rows if row.gpus in counts), key=lambda row: (-row.gpus, *_rank_likeness(row, measured)))
    other = sorted((row for row in rows if row.gpus not in counts), key=lambda row: _rank_likeness(row, measured))
    chosen = [*take_in_turns(same, [row.system for row in same]), *take_in_turns(other, [row.system for row in other])][:most]
    return sorted(chosen, key=lambda row: (row.system, row.gpus, row.images_per_sec))


def take_in_turns(items: Sequence[T], kinds: Sequence[Hashable]) -> list[T]:
    """Return the first item of each kind, then each second, and so on, in their order."""
    seen: Counter[Hashable] = Counter()
    turns = []
    for kind in kinds:
        turns.append(seen[kind])
        seen[kind] += 1
    return [items[i] for _, i in sorted(zip(turns, range(len(items)), strict=True))]


def _rank_likeness(row: PublishedPoint, measured: Collection[Spec]) -> tuple[object, ...]:
    """Return the fields in which a row differs from everything measured, the weightiest first."""
    unlike = (
        getattr(row, name) not in {getattr(spec, name) for spec in measured}
        for name in ("data", "variable_update", "batch_size", "num_ps")
    )
    return (*unlike, row.system, row.gpus, -row.images_per_sec)


def find_published_rates(records: Iterable[Record]) -> list[PublishedPoint]:
    """Return published rates of the models that were measured."""
    one_of_each_model = {record.spec.model: record.spec for record in records}.values()
    return [PublishedPoint.from_reference(reference) for spec in one_of_each_model for reference in references_for(spec)]


MOST_PUBLISHED = 4  # lines; more would hide the measured ones
TITLED = frozenset({"model", "batch_size", "gpus", "num_ps"})  # in the figure's title, or different along a line


@dataclass(frozen=True)
class ScalingPoint:
    """The rate of a training on a number of devices."""

    gpus: int
    images_per_sec: float
    efficiency: float | None
    lowest: float  # images/sec of the slowest and the fastest run
    highest: float
    is_tainted: bool = False
    record: str = ""  # id of the measurement; empty for published points

    @property
    def ideal(self) -> float | None:
        """Return the rate at which efficiency would be 1."""
        return self.images_per_sec / self.efficiency if self.efficiency else None


@dataclass(frozen=True)
class ScalingSeries:
    """One line. At most one point per device count, in their order."""

    label: str
    points: Sequence[ScalingPoint]
    data: str = "synthetic"

    @property
    def scales(self) -> bool:
        """Whether it has an efficiency on several devices."""
        return any(point.efficiency is not None for point in self.points if point.gpus > 1)


def make_measured_series(records: Iterable[Record]) -> list[ScalingSeries]:
    """Return a line per configuration and policy for parameter servers; efficiencies are those of the records.

    If every device count was measured with one number of parameter servers, that is one line; otherwise there is a line for
    each number. A line without a 1-device measurement of its own starts with the one that its efficiencies refer to.
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
    """Return the latest valid record of each spec, or the latest disturbed one if none is valid."""
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
        anchors = {record.anchor for record in members if record.anchor}
        begin = [by_id[anchor] for anchor in anchors if anchor in by_id] if len(anchors) == 1 else []
        has_own = any(record.spec.gpus == 1 for record in members)
        lines.append(sorted(members if has_own else [*begin, *members], key=lambda record: record.spec.gpus))
    begun = {record.id for line in lines for record in line}
    return lines + [[record] for record in group if _is_lone(record) and record.id not in begun]


def _make_sort_key(record: Record) -> tuple[object, ...]:
    return repr(configuration(record.spec)), record.spec.num_ps, record.spec.gpus


def _is_lone(record: Record) -> bool:
    """Return whether a record has a single process, which shares no variables."""
    return record.spec.gpus == 1 and record.spec.num_ps == 0


def _group_by_policy(records: Sequence[Record]) -> list[list[Record]]:
    counts = [record.spec.gpus for record in records]
    if len(counts) == len(set(counts)):
        return [list(records)] if records else []
    return [list(group) for _, group in groupby(records, key=lambda record: record.spec.num_ps)]


def _find_distinguishing_fields(specs: Sequence[Spec]) -> list[str]:
    """Return the fields that distinguish the lines of a figure."""
    names = [name for name in (*KEY_FIELDS, *UNUSUAL_KEY_FIELDS, "learning_rate") if name not in TITLED]
    return [name for name in names if len({getattr(spec, name) for spec in specs}) > 1]


def make_names(specs: Sequence[Spec]) -> list[str]:
    """Return the way of training of each spec, with its unusual options and distinguishing fields, without its size."""
    fields = _find_distinguishing_fields(specs)
    return [" ".join([*(message := _list_label_parts(spec)), *_list_missing_fields(spec, fields, message)]) for spec in specs]


def _list_label_parts(spec: Spec) -> list[str]:
    parts = spec.label.split()[1:]
    return [word for word in parts if word != f"b{spec.batch_size}" and word.partition("=")[0] not in TITLED]


def _list_missing_fields(spec: Spec, fields: Sequence[str], label_fields: Sequence[str]) -> list[str]:
    return [
        f"{name}={getattr(spec, name)}".lower() for name in fields if not any(_has_field(word, name) for word in label_fields)
    ]


def _has_field(word: str, name: str) -> bool:
    return name == "variable_update" or word.startswith(f"{name}=")


def _make_label(line: Sequence[Record], name: str) -> str:
    """Return the name with the number of parameter servers along the line."""
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


def make_published_series(published: Iterable[PublishedPoint], measured: Sequence[Spec], most_gpus: int) -> list[ScalingSeries]:
    """Return lines of other systems with the same model, the most similar first and one of each GPU.

    `measured` are specs of one model. Another batch size or precision is part of a published line's name.
    """
    model, batches = measured[0].model, {spec.batch_size for spec in measured}
    precisions = {spec.precision for spec in measured}
    rows = sorted((row for row in published if row.model == model and 0 < row.gpus <= most_gpus), key=_make_table_key)
    best: dict[str, tuple[tuple[bool, bool, bool, int, int], list[PublishedPoint]]] = {}
    for (system, _, data, precision, batch), group in groupby(rows, key=_make_table_key):
        fastest = {row.gpus: row for row in sorted(group, key=lambda r: (r.gpus, r.images_per_sec))}
        rank = (data != "synthetic", precision not in precisions, batch not in batches, -batch, -len(fastest))
        if len(fastest) > 1 and (system not in best or rank < best[system][0]):  # a single point has no scaling
            best[system] = rank, list(fastest.values())
    lines = [line for _, line in sorted(best.values(), key=lambda item: (item[0], item[1][0].system))]
    chosen = take_in_turns(lines, [line[0].gpu for line in lines])[:MOST_PUBLISHED]
    return [_make_published_line(line, measured) for line in chosen]


def make_published_point(row: PublishedPoint | Reference) -> ScalingPoint:
    return ScalingPoint(row.gpus, row.images_per_sec, row.efficiency, lowest=row.images_per_sec, highest=row.images_per_sec)


def _make_published_line(rows: Sequence[PublishedPoint], measured: Sequence[Spec]) -> ScalingSeries:
    points = [make_published_point(row) for row in rows]
    return ScalingSeries(f"{rows[0].name(measured)}: {rows[0].citation}", points, rows[0].data)


def _make_table_key(row: PublishedPoint) -> tuple[str, str, str, str, int]:
    return row.system, row.citation, row.data, row.precision, row.batch_size


VERSIONS = ("tensorflow", "cuda", "pytest-dtfperf", "python")  # shown in a figure


@dataclass(frozen=True)
class SessionRecord:
    """A measurement with its session."""

    record: Record
    session: SessionInfo

    @property
    def system(self) -> str:
        return system_name(self.record.measurement.fingerprint.hardware)


@dataclass(frozen=True)
class FigureGroup:
    """All measurements of one model and batch size, at least one."""

    model: str
    batch_size: int  # per device and step; 0: defined by an external command
    measured: Sequence[SessionRecord]

    @property
    def records(self) -> list[Record]:
        return [each.record for each in self.measured]

    @cached_property
    def lines(self) -> list[ScalingSeries]:
        return make_measured_series(self.records)

    @property
    def scales(self) -> bool:
        """Whether several sizes were measured."""
        return any(len(line.points) > 1 for line in self.lines)

    @property
    def name(self) -> str:
        """Return the name of its files."""
        return file_stem(self.model, self.batch_size)

    @property
    def title(self) -> str:
        """Return the title. A precision that differs among them is in the names of the lines."""
        precisions = sorted({record.spec.precision for record in self.records})
        batch = [f"{self.batch_size} images per device and step"] if self.batch_size else []
        return ", ".join([self.model, *batch, *(precisions if len(precisions) == 1 else [])])


def group_by_figure(measured: Iterable[SessionRecord]) -> list[FigureGroup]:
    """Return the groups by model and batch size, of all records that can be a point in a figure."""
    shown = sorted((each for each in measured if _may_be_shown(each.record)), key=_make_group_key)
    return [FigureGroup(*key, list(found)) for key, found in groupby(shown, key=_make_group_key)]


def describe_origin(measured: Iterable[SessionRecord]) -> list[str]:
    """Return machine and date on a line, versions on another."""
    found = list(measured)
    clusters = dict.fromkeys(each.session.cluster for each in found)
    systems = dict.fromkeys(each.system for each in found)
    dates = sorted({minute(each.session.started) for each in found})
    parts = dict.fromkeys(word for each in found for word in format_versions(each.record, each.session).split())
    shown = [word.replace("=", " ") for name in VERSIONS for word in parts if word.startswith(f"{name}=")]
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    return [f"on {' and '.join(clusters)}, {' and '.join(systems)}, {when} UTC", ", ".join(shown)]


def _may_be_shown(record: Record) -> bool:
    """Return whether it is a point. A training until a target has no rate of interest."""
    spec = record.spec
    return (record.is_valid or record.is_tainted) and not spec.evaluates and spec.stop_at_top_1_accuracy is None


def _make_group_key(measured: SessionRecord) -> tuple[str, int]:
    return measured.record.spec.model, measured.record.spec.batch_size
