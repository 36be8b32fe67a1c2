"""What predictions start from: measured and published rates; and advice. Pure."""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import lru_cache

from pytest_dtfperf.baselines.references import Reference, references
from pytest_dtfperf.baselines.verdict import Verdict
from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.datamodel.explanation import LINK
from pytest_dtfperf.errors import SpecError, UsageError, describe_unknown_name
from pytest_dtfperf.limits.limit import HARDWARE, Links, describe_published, has_known_bytes
from pytest_dtfperf.limits.needs import Layout
from pytest_dtfperf.predict.event_model import StepModel
from pytest_dtfperf.predict.prediction import Gain, Hosts, LinkRange, MeasuredRate, Predictor
from pytest_dtfperf.records.record import Record
from pytest_dtfperf.spec import MODELS, VARIABLE_UPDATES, Spec

LOW_EFFICIENCY = 0.8  # below, or where it is slower than its baseline, a measurement has advice
LEAST_GAIN = 1.05  # of the lower end of a predicted gain, to be worth a line


def group_by_series(rows: Iterable[Reference]) -> list[list[Reference]]:
    """Return synthetic trainings with all that a step follows from, by system, table, model, batch and program, by devices."""
    series: dict[tuple[object, ...], list[Reference]] = defaultdict(list)
    for row in rows:
        is_known = row.data == "synthetic" and row.mode == "training" and row.gpus > 0 and row.batch_size is not None
        if (
            is_known
            and row.model in MODELS
            and (row.gpus == 1 or has_known_bytes(row))
            and row.variable_update in VARIABLE_UPDATES
        ):
            key = row.system, row.table, row.model, row.batch_size, row.precision, row.xla, row.implementation
            series[key if row.nodes and _has_sweep(row) else (*key, row.variable_update)].append(row)
    return [sorted(each, key=lambda row: row.gpus) for each in series.values()]


def _has_sweep(row: Reference) -> bool:
    """Return whether a table has the best of several modes for each number of devices."""
    return bool(row.num_ps)


def make_measured(row: Reference) -> MeasuredRate:
    """Return a published rate with its spec. tf_cnn_benchmarks packed no variables in 2017."""
    spec, layout = describe_published(row)
    if "agg_small_grads_max_bytes" in spec.mode.knows:
        spec = spec.replace(agg_small_grads_max_bytes=0)
    return MeasuredRate(spec=spec, layout=layout, images_per_sec=row.images_per_sec)


def find_hosts(system: str) -> Hosts:
    """Return the hosts of a published system. Raises `UsageError` if there is no such system."""
    known = {row.system: row for row in references()}
    if system not in known:
        raise UsageError(describe_unknown_name("published system", system, known))
    hardware, row = HARDWARE.get(system), known[system]
    link = LinkRange.make_unknown()
    if hardware and hardware.link_bytes_per_s:
        link = LinkRange.from_data_sheet(hardware.link_bytes_per_s, hardware.source)
    return Hosts(devices_per_host=max(1, row.machine.gpus_per_node), link=link)


def load_published(system: str, spec: Spec) -> Sequence[MeasuredRate]:
    """Return the published rates of a system for this model and batch size. Raises `UsageError` if there are none."""
    for rows in group_by_series(row for row in references() if row.system == system):
        try:
            measured = [make_measured(row) for row in rows]
        except SpecError:
            continue
        if (measured[0].spec.model, measured[0].spec.batch_size) == (spec.model, spec.batch_size):
            return measured
    raise UsageError(f"{system} has no published rates of {spec.model} with {spec.batch_size} images per device")


def select_measured(records: Iterable[Record], spec: Spec) -> list[MeasuredRate]:
    """Return the valid measurements of the same training, with any number of devices and servers; of each size the latest.

    The data format, which is that of the devices, may differ, and on one host the placement of variables, which sends nothing.
    Measurements with injected slow-downs are left out.
    """
    found: dict[tuple[int, int], MeasuredRate] = {}
    for record in records:
        size, hosts = (record.spec.gpus, record.spec.num_ps), record.measurement.samples[-1].task_hosts
        layout = Layout(hosts) if hosts else Hosts(devices_per_host=size[0]).place(record.spec)
        same = spec.replace(gpus=size[0], num_ps=size[1], data_format=record.spec.data_format)
        if len(set(layout.hosts.values())) == 1:
            same = same.replace(variable_placement=record.spec.variable_placement)
        if record.is_valid and not record.measurement.injected_slowdowns and same.key == record.spec.key:
            rates = record.measurement.rates
            noise = statistics.stdev(rates) / record.images_per_sec / len(rates) ** 0.5 if len(rates) > 1 else 0.0
            found[size] = MeasuredRate(spec=record.spec, layout=layout, images_per_sec=record.images_per_sec, noise=noise)
    return list(found.values())


def find_probed_link(records: Iterable[Record]) -> LinkRange | None:
    """Return what the links of the latest probed measurement carry; None where none was probed."""
    for record in reversed(list(records)):
        probes = record.measurement.probes
        if probes is None or not probes.links:
            continue
        links = Links(probes)
        rates = [rate for host in probes.hosts for rate in (links.get_out_of(host), links.get_into(host)) if rate]
        if rates:
            return LinkRange.from_probe(statistics.median(rates), "probed in the session")
    return None


def find_advice(record: Record) -> str | None:
    """Return one sentence on the change that would help a slow measurement most, by its prediction.

    None for measurements that are neither slower than their baseline nor of low efficiency, where no link's rate is known, and
    where no interval is above 1.05.
    """
    efficiency, spec = record.own_efficiency, record.spec
    is_slow = record.verdict is Verdict.REGRESSED or (efficiency is not None and efficiency < LOW_EFFICIENCY)
    if not is_slow or spec.command or record.is_void or record.measurement.injected_slowdowns or not record.limit:
        return None
    task_hosts = record.measurement.samples[-1].task_hosts if record.measurement.samples else {}
    link = next((bound for bound in record.limit.bounds if bound.resource == LINK), None)
    if link is None or not task_hosts:
        return None
    try:
        gains = _predict_gains(spec, tuple(task_hosts.items()), record.images_per_sec, link.step_s, efficiency)
    except SpecError:  # of an own model that was not trained here, its variables are not known
        return None
    best = max(gains, key=lambda gain: gain.low, default=None)
    if best is None or best.low < LEAST_GAIN:
        return None
    has_other = bool(best.num_ps) and best.num_ps != spec.num_ps and "num_ps" not in best.change
    change = f"{best.change} num_ps={best.num_ps}" if has_other else best.change
    interval = f"{best.low:.2f} to {best.high:.2f}"
    return f"{spec.label}: {change} is predicted to be {best.ratio:.2f} times as fast ({interval})"


@lru_cache(maxsize=1024)  # it can take seconds, and the terminal, the page and the Markdown summary show the same hint
def _predict_gains(
    spec: Spec, task_hosts: tuple[tuple[str, str], ...], images_per_sec: float, link_s: float, efficiency: float | None
) -> Sequence[Gain]:
    """Return what changes of a training would bring.

    Args:
        task_hosts: each task with its host.
        link_s: seconds of a step that the busiest link takes.
        efficiency: shows the rate of one device, which links may hide otherwise.
    """
    layout = Layout(dict(task_hosts))
    bytes_per_step = StepModel(spec, layout).busiest_link_bytes
    if not bytes_per_step or not link_s:
        return ()
    workers = {layout.hosts[worker] for worker in layout.workers}
    hosts = Hosts(
        devices_per_host=-(-spec.gpus // len(workers)),
        link=LinkRange.from_probe(bytes_per_step / link_s),
        config=ClusterConfig(
            name="measured",
            device="gpu",
            devices_per_worker=-(-spec.gpus // len(layout.workers)),
            ps_on_worker_hosts=all(layout.hosts[server] in workers for server in layout.servers),
        ),
    )
    measured = MeasuredRate(spec=spec, layout=layout, images_per_sec=images_per_sec)
    if efficiency and spec.gpus > 1:
        alone = spec.replace(gpus=1, num_ps=min(spec.num_ps, 1))
        on_one = Layout(dict.fromkeys(("worker:0", *(["ps:0"] if alone.num_ps else [])), "host"))
        of_one = MeasuredRate(spec=alone, layout=on_one, images_per_sec=images_per_sec / spec.gpus / efficiency)
        predictor, expected = Predictor([of_one, measured], hosts), Predictor([of_one], hosts).predict(spec, layout)
        if expected.low <= images_per_sec <= expected.high:
            return predictor.list_gains(spec)
    return Predictor([measured], hosts).list_gains(spec)
