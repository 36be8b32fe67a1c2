"""The figures of measurements, wherever they are from: a session, several of them, or a history."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import fields

from pytest_dtfperf.formats import rate
from pytest_dtfperf.measurement import io_overhead
from pytest_dtfperf.records.record import Record, configuration
from pytest_dtfperf.report.figures import scaling
from pytest_dtfperf.report.figures.drawing import Drawing
from pytest_dtfperf.report.figures.groups import Group, Measured, about, groups_of
from pytest_dtfperf.report.figures.heat import heat_figure
from pytest_dtfperf.report.figures.overhead import overhead_figure
from pytest_dtfperf.report.figures.rates import rates_figure
from pytest_dtfperf.report.figures.steps import steps_figure
from pytest_dtfperf.report.published import Published
from pytest_dtfperf.report.series import Point, latest_shown, names_of, point_of
from pytest_dtfperf.report.sources import Stored
from pytest_dtfperf.spec import Spec

# What a spec says of its input alone: specs that differ in nothing else show what real input costs.
OF_INPUT = frozenset(
    {"data", "data_dir", "distortions", "resize_method", "datasets_num_private_threads", "datasets_prefetch_buffer_size"}
)


def drawings(sessions: Sequence[Stored], published: Collection[Published] = ()) -> Iterator[Drawing]:
    """Of each machine, model and batch size what there is to show: docs/figures.md has the list.

    Of each spec the latest measurement counts, a valid one before a disturbed one. Steps are drawn of the last session alone.
    """
    measured = [Measured(record, stored.session) for stored in sessions for record in stored.records]
    machines = sorted({_machine(each) for each in measured})
    for machine in machines:
        ending = f"_{'_'.join(machine)}" if len(machines) > 1 else ""
        for group in groups_of(each for each in measured if _machine(each) == machine):
            for drawing in _of_group(group, published):
                yield Drawing(f"{drawing.name}{ending}", drawing.figure)
    if sessions:
        yield from _of_steps(sessions[-1])


def _machine(measured: Measured) -> tuple[str, str]:
    return measured.session["cluster"], measured.system


def _of_group(group: Group, published: Collection[Published]) -> Iterator[Drawing]:
    beneath = about(group.measured)
    if group.scales:
        yield Drawing(f"{group.name}_scaling", scaling.figure_of(group, published))
    yield Drawing(f"{group.name}_rates", rates_figure(group.title, group.lines, beneath=beneath))
    overheads = _overheads(group.records)
    if overheads:
        yield Drawing(f"{group.name}_overhead", overhead_figure(f"I/O overhead: {group.title}", overheads, beneath=beneath))
    maps = _maps(group.records)
    if maps:
        yield Drawing(f"{group.name}_servers", heat_figure(group.title, maps, beneath=beneath))


def _overheads(records: Iterable[Record]) -> dict[str, dict[int, float]]:
    """What real input cost, by the way to train with it, then by number of devices; of several numbers of servers, the fastest.

    What was disturbed is left out.
    """
    shown = [record for record in latest_shown(records) if not record.is_tainted]
    synthetic = {_training(record.spec): record for record in shown if record.spec.data == "synthetic"}
    pairs = [
        (other, record)
        for record in sorted(shown, key=lambda record: (record.spec.gpus, record.images_per_sec))
        if record.spec.data != "synthetic" and (other := synthetic.get(_training(_with_synthetic(record.spec))))
    ]
    found: dict[str, dict[int, float]] = defaultdict(dict)
    for name, (other, record) in zip(names_of([record.spec for _, record in pairs]), pairs, strict=True):
        found[name][record.spec.gpus] = io_overhead(other.images_per_sec, record.images_per_sec)
    return dict(found)


def _training(spec: Spec) -> tuple[object, ...]:
    return *configuration(spec), spec.gpus, spec.num_ps


def _with_synthetic(spec: Spec) -> Spec:
    return spec.but(**{field.name: field.default for field in fields(Spec) if field.name in OF_INPUT})


def _maps(records: Iterable[Record]) -> dict[str, dict[tuple[int, int], Point]]:
    """The points of each way to train that was measured with several numbers of servers and on several numbers of devices."""
    groups: dict[tuple[object, ...], dict[tuple[int, int], Record]] = defaultdict(dict)
    for record in latest_shown(records):
        if record.spec.num_ps:
            groups[configuration(record.spec)][record.spec.num_ps, record.spec.gpus] = record
    several = [cells for cells in groups.values() if all(len(set(sizes)) > 1 for sizes in zip(*cells, strict=True))]
    names = names_of([next(iter(cells.values())).spec for cells in several])
    return {name: {at: point_of(each) for at, each in cells.items()} for name, cells in zip(names, several, strict=True)}


def _of_steps(stored: Stored) -> Iterator[Drawing]:
    """Of each measurement the run whose rate is the nearest to the measurement's own, of those that this rests on."""
    for record in stored.records:
        measurement = record.measurement
        run = min(measurement.samples, key=lambda run: abs(run.images_per_sec - measurement.images_per_sec))
        if not any(len(steps) > 1 for steps in run.step_s.values()):
            continue
        number = list(measurement.runs).index(run) + 1
        of_all = f"run {number} of {len(measurement.runs)}, {rate(run.images_per_sec)} images/sec"
        title = f"Steps: {record.spec.label}, {of_all}"
        beneath = about([Measured(record, stored.session)])
        yield Drawing(f"steps_{record.id}", steps_figure(title, run.step_s, beneath=beneath))
