"""The figures of the measurements of a session, of several sessions, or of a history."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import fields

from pytest_dtfperf.datamodel.measurement import io_overhead
from pytest_dtfperf.formats import rate
from pytest_dtfperf.records.record import Record, configuration
from pytest_dtfperf.report.figures import charts
from pytest_dtfperf.report.figures.charts import draw_heat_map, draw_overhead, draw_rates, draw_steps
from pytest_dtfperf.report.figures.style import NamedFigure
from pytest_dtfperf.report.series import (
    FigureGroup,
    PublishedPoint,
    ScalingPoint,
    SessionRecord,
    describe_origin,
    find_latest_shown,
    group_by_figure,
    make_names,
    make_point,
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
    return measured.session["cluster"], measured.system


def _draw_group(group: FigureGroup, published: Collection[PublishedPoint]) -> Iterator[NamedFigure]:
    beneath = describe_origin(group.measured)
    if group.scales:
        yield NamedFigure(f"{group.name}_scaling", charts.draw_group_scaling(group, published))
    yield NamedFigure(f"{group.name}_rates", draw_rates(group.title, group.lines, beneath=beneath))
    overheads = _compute_overheads(group.records)
    if overheads:
        yield NamedFigure(f"{group.name}_overhead", draw_overhead(f"I/O overhead: {group.title}", overheads, beneath=beneath))
    maps = _make_maps(group.records)
    if maps:
        yield NamedFigure(f"{group.name}_servers", draw_heat_map(group.title, maps, beneath=beneath))


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
    return spec.but(**{field.name: field.default for field in fields(Spec) if field.name in OF_INPUT})


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
        beneath = describe_origin([SessionRecord(record, stored.session)])
        yield NamedFigure(f"steps_{record.id}", draw_steps(title, run.step_s, beneath=beneath))
