"""The figures of the measurements of a session, of several sessions, or of a history; and those of the report of 2017.

The report's Figures 5 to 11 are drawn from the published rates that come with the package. E. Bugliarello: Distributed
TensorFlow: A performance evaluation. CSCS, September 2017. Its text says which systems and sizes each figure has; its Tables 1
to 3, and Google's of May 2017, have the rates.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields

from pytest_dtfperf.baselines.references import Reference, references
from pytest_dtfperf.datamodel.measurement import io_overhead
from pytest_dtfperf.formats import rate
from pytest_dtfperf.records.record import Record, configuration
from pytest_dtfperf.report.charts import NamedFigure, draw_group_scaling, draw_heat_map, draw_overhead, draw_rates, draw_steps
from pytest_dtfperf.report.series import (
    FigureGroup,
    PublishedPoint,
    ScalingPoint,
    ScalingSeries,
    SessionRecord,
    describe_origin,
    find_latest_shown,
    group_by_figure,
    make_names,
    make_point,
    make_published_point,
)
from pytest_dtfperf.report.sources import StoredSession
from pytest_dtfperf.spec import Spec

# Fields that describe only the input: specs with no other difference show the cost of real input.
OF_INPUT = frozenset(
    {"data", "data_dir", "distortions", "resize_method", "datasets_num_private_threads", "datasets_prefetch_buffer_size"}
)


def draw_session_figures(
    sessions: Sequence[StoredSession], published: Collection[PublishedPoint] = ()
) -> Iterator[NamedFigure]:
    """Yield the figures of each machine, model and batch size that docs/figures.md lists.

    Of each spec the latest measurement counts, a valid one before a disturbed one. Steps are drawn for the last session only.
    """
    measured = [SessionRecord(record, stored.session) for stored in sessions for record in stored.records]
    machines = sorted({_make_machine_key(each) for each in measured})
    for machine in machines:
        ending = f"_{'_'.join(machine)}" if len(machines) > 1 else ""
        for group in group_by_figure(each for each in measured if _make_machine_key(each) == machine):
            for drawing in _draw_group(group, published):
                yield NamedFigure(f"{drawing.name}{ending}", drawing.figure)
    if sessions:
        yield from _draw_steps(sessions[-1])


def _make_machine_key(measured: SessionRecord) -> tuple[str, str]:
    return measured.session.cluster, measured.system


def _draw_group(group: FigureGroup, published: Collection[PublishedPoint]) -> Iterator[NamedFigure]:
    notes = describe_origin(group.measured)
    if group.scales:
        yield NamedFigure(f"{group.name}_scaling", draw_group_scaling(group, published))
    yield NamedFigure(f"{group.name}_rates", draw_rates(group.title, group.lines, notes=notes))
    overheads = _compute_overheads(group.records)
    if overheads:
        yield NamedFigure(f"{group.name}_overhead", draw_overhead(f"I/O overhead: {group.title}", overheads, notes=notes))
    maps = _make_maps(group.records)
    if maps:
        yield NamedFigure(f"{group.name}_servers", draw_heat_map(group.title, maps, notes=notes))


def _compute_overheads(records: Iterable[Record]) -> dict[str, dict[int, float]]:
    """Return the cost of real input, by way of training, then by number of devices; the fastest number of servers counts.

    Disturbed measurements are left out.
    """
    shown = [record for record in find_latest_shown(records) if not record.is_tainted]
    synthetic = {_make_training_key(record.spec): record for record in shown if record.spec.data == "synthetic"}
    pairs = [
        (other, record)
        for record in sorted(shown, key=lambda record: (record.spec.gpus, record.images_per_sec))
        if record.spec.data != "synthetic" and (other := synthetic.get(_make_training_key(_replace_input(record.spec))))
    ]
    found: dict[str, dict[int, float]] = defaultdict(dict)
    for name, (other, record) in zip(make_names([record.spec for _, record in pairs]), pairs, strict=True):
        found[name][record.spec.gpus] = io_overhead(other.images_per_sec, record.images_per_sec)
    return dict(found)


def _make_training_key(spec: Spec) -> tuple[object, ...]:
    return *configuration(spec), spec.gpus, spec.num_ps


def _replace_input(spec: Spec) -> Spec:
    return spec.replace(**{field.name: field.default for field in fields(Spec) if field.name in OF_INPUT})


def _make_maps(records: Iterable[Record]) -> dict[str, dict[tuple[int, int], ScalingPoint]]:
    """Return the points of each way of training that has several numbers of servers and of devices."""
    groups: dict[tuple[object, ...], dict[tuple[int, int], Record]] = defaultdict(dict)
    for record in find_latest_shown(records):
        if record.spec.num_ps:
            groups[configuration(record.spec)][record.spec.num_ps, record.spec.gpus] = record
    several = [cells for cells in groups.values() if all(len(set(sizes)) > 1 for sizes in zip(*cells, strict=True))]
    names = make_names([next(iter(cells.values())).spec for cells in several])
    return {name: {at: make_point(each) for at, each in cells.items()} for name, cells in zip(names, several, strict=True)}


def _draw_steps(stored: StoredSession) -> Iterator[NamedFigure]:
    """Yield the steps of each measurement: of the run with the rate nearest to that of the measurement."""
    for record in stored.records:
        measurement = record.measurement
        run = min(measurement.samples, key=lambda run: abs(run.images_per_sec - measurement.images_per_sec))
        if not any(len(steps) > 1 for steps in run.step_s.values()):
            continue
        number = list(measurement.runs).index(run) + 1
        of_all = f"run {number} of {len(measurement.runs)}, {rate(run.images_per_sec)} images/sec"
        title = f"Steps: {record.spec.label}, {of_all}"
        notes = describe_origin([SessionRecord(record, stored.session)])
        yield NamedFigure(f"steps_{record.id}", draw_steps(title, run.step_s, notes=notes))


MODEL, BATCH_SIZE, DATA = "inception3", 64, "imagenet"
DAINT, P2_XLARGE, P2_8XLARGE = "piz-daint", "cscs-ec2-p2.xlarge", "cscs-ec2-p2.8xlarge"


@dataclass(frozen=True)
class ReportFigure:
    """A figure of rates in the report."""

    number: int
    title: str
    lines: Sequence[tuple[str, str]]  # systems and their input
    most_gpus: int
    remark: str = ""


BOTH = ("synthetic", DATA)
FIGURES = (
    ReportFigure(5, "NVIDIA P100, synthetic data", [("dgx1", "synthetic"), (DAINT, "synthetic")], 8),
    ReportFigure(
        6,
        "NVIDIA K80, synthetic data",
        [("google-ec2-p2.8xlarge", "synthetic"), (P2_8XLARGE, "synthetic"), (P2_XLARGE, "synthetic")],
        8,
        "The report drew 30, 58, 116 and 227 for Google, its rates on Google's own cloud, cut; here are those on EC2.",
    ),
    ReportFigure(
        7,
        "NVIDIA K80, synthetic data",
        [("google-ec2-p2.8xlarge-distributed", "synthetic"), (P2_8XLARGE, "synthetic"), (P2_XLARGE, "synthetic")],
        64,
        "The report drew 30 for Google's one GPU; its table has 29.7.",
    ),
    ReportFigure(8, "Piz Daint", [(DAINT, data) for data in BOTH], 128),
    ReportFigure(9, "EC2 p2.xlarge", [(P2_XLARGE, data) for data in BOTH], 128),
    ReportFigure(10, "EC2 p2.8xlarge", [(P2_8XLARGE, data) for data in BOTH], 128),
)
TRAINED = f"{MODEL}, {BATCH_SIZE} images per GPU and step, fp32"


def draw_report_figures() -> Iterator[NamedFigure]:
    """Yield all seven figures, in their order."""
    for each in FIGURES:
        found = [_find_rows(system, data, each.most_gpus) for system, data in each.lines]
        notes = [*_describe_origin(found), *([each.remark] if each.remark else [])]
        title = f"Figure {each.number}: {each.title}, up to {each.most_gpus} GPUs. {TRAINED}"
        yield NamedFigure(
            f"figure-{each.number}",
            draw_rates(title, [_make_series(rows) for rows in found], notes=notes, format_value=_format_rate),
        )
    pairs = [(_find_rows(system, "synthetic"), _find_rows(system, DATA)) for system in (DAINT, P2_XLARGE, P2_8XLARGE)]
    overheads = {synthetic[0].title: _compute_published_overheads(synthetic, real) for synthetic, real in pairs}
    notes = [
        *_describe_origin([rows for pair in pairs for rows in pair]),
        "Below zero: real input was the faster; the report drew zero.",
    ]
    yield NamedFigure("figure-11", draw_overhead(f"Figure 11: I/O overhead. {TRAINED}", overheads, notes=notes))


def _find_rows(system: str, data: str, most_gpus: int = 128) -> list[Reference]:
    found = [
        row
        for row in references()
        if (row.system, row.model, row.batch_size, row.data) == (system, MODEL, BATCH_SIZE, data) and row.gpus <= most_gpus
    ]
    return sorted(found, key=lambda row: row.gpus)


def _make_series(rows: Sequence[Reference]) -> ScalingSeries:
    data = rows[0].data
    return ScalingSeries(f"{rows[0].title}, {data}: {rows[0].citation}", [make_published_point(row) for row in rows], data)


def _compute_published_overheads(synthetic: Sequence[Reference], real: Sequence[Reference]) -> dict[int, float]:
    return {a.gpus: io_overhead(a.images_per_sec, b.images_per_sec) for a, b in zip(synthetic, real, strict=True)}


def _describe_origin(lines: Sequence[Sequence[Reference]]) -> list[str]:
    """Return the machines, and a line with the software of each publication."""
    machines = dict.fromkeys(f"{rows[0].title}: {_describe_machine(rows[0])}" for rows in lines)
    software = dict.fromkeys(
        f"{rows[0].source.authors}, {rows[0].source.measured}: {_find_software_name(rows[0])}" for rows in lines
    )
    return [*machines, *software]


def _describe_machine(row: Reference) -> str:
    machine = row.machine
    known = [f"{machine.gpus_per_node} x {machine.gpu} per node", machine.interconnect]
    return ", ".join(part for part in known if part)


def _find_software_name(row: Reference) -> str:
    """Return the name of the software, without the details that the file of published rates has."""
    return row.source.software.split(" (")[0].split(",")[0]


def _format_rate(images_per_sec: float) -> str:
    """Return the rate with the digits of the tables."""
    return f"{images_per_sec:g}" if images_per_sec < 1000 else f"{images_per_sec:.2f}".rstrip("0").rstrip(".")
