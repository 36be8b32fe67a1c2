"""Give a hint for a measurement that is far below the limit of its hosts: the usual share of the limit, and a likely cause.

A hint is no verdict, and needs no baseline. It compares the share of the limit with shares that were measured before, and looks
for a cause in what the runs recorded.
"""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_dtfperf.datamodel.explanation import CORES, GPUS, LINK, MEMORY, Bound, Limit
from pytest_dtfperf.datamodel.host_state import choose_distinct
from pytest_dtfperf.datamodel.measurement import Run
from pytest_dtfperf.datamodel.probes import Probes
from pytest_dtfperf.formats import format_count, percent
from pytest_dtfperf.limits.limit import find_limit, list_gpus
from pytest_dtfperf.limits.needs import Layout
from pytest_dtfperf.records.record import Record
from pytest_dtfperf.spec import Spec

FAR_BELOW = 0.6  # of the lowest typical share: the costs of a step beside its arithmetic differ by less between machines
BELOW = 0.9  # likewise, where the runs show a cause: one thread on two cores cost ResNet-50 with a server a quarter of its rate
BUSY_SHARE = 0.7  # of the cores that workers may use. Healthy trainings on two cores kept 0.86 to 1.0 of them busy
USUAL_SHARE = 0.4  # of the limit of cores, of a model without typical shares
TIGHT = 1.5  # times the rate of a link or the memory that the devices must allow, for a hint


@dataclass(frozen=True)
class TypicalShare:
    """The share of its limit that a kind of training reaches on healthy hosts."""

    model: str
    batch_size: int  # the smallest for which it holds: larger ones compute more for each update
    modes: tuple[str, ...]
    resource: str  # which sets the limit
    low: float
    high: float
    source: str


_CORES = "the project's own perf tests on two cores of an Intel Xeon with AVX-512, 1 and 2 workers, November 2026"
_PUBLISHED = "10th to 90th percentile of published rates on K80, P100 and V100 GPUs over the peaks of their data sheets"
_STUDY = "25th to 90th percentile of the project's network study with 1 to 8 parameter servers: benchmarks/capacity.jsonl"
_PS, _ALONE = ("parameter_server", "distributed_replicated"), ("replicated", "independent")

TYPICAL: Sequence[TypicalShare] = (
    TypicalShare("mnist", 64, _PS, CORES, 0.41, 0.47, _CORES),
    TypicalShare("mnist", 64, _ALONE, CORES, 0.61, 0.71, _CORES),
    TypicalShare("alexnet", 8, _PS, CORES, 0.23, 0.23, _CORES),
    TypicalShare("alexnet", 8, ("collective_all_reduce",), CORES, 0.21, 0.61, _CORES),
    TypicalShare("inception3", 2, _PS, CORES, 0.46, 0.47, _CORES),
    TypicalShare("inception3", 2, _ALONE, CORES, 0.54, 0.62, _CORES),
    TypicalShare("resnet50", 2, _PS, CORES, 0.38, 0.40, _CORES),
    TypicalShare("alexnet", 32, _PS, GPUS, 0.61, 0.77, _PUBLISHED),
    TypicalShare("inception3", 32, _PS, GPUS, 0.21, 0.46, _PUBLISHED),
    TypicalShare("resnet50", 32, _PS, GPUS, 0.23, 0.47, _PUBLISHED),
    TypicalShare("resnet50", 32, _ALONE, GPUS, 0.24, 0.53, _PUBLISHED),
    TypicalShare("resnet152", 32, _PS, GPUS, 0.28, 0.57, _PUBLISHED),
    TypicalShare("resnet152", 32, _ALONE, GPUS, 0.29, 0.31, _PUBLISHED),
    TypicalShare("vgg16", 32, _PS, GPUS, 0.62, 0.76, _PUBLISHED),
    TypicalShare("inception3", 1, _PS, LINK, 0.92, 0.99, _STUDY),
    TypicalShare("resnet50", 1, _PS, LINK, 0.88, 0.99, _STUDY),
    TypicalShare("vgg16", 1, _PS, LINK, 0.56, 1.0, _STUDY),
)


def find_typical_share(record: Record, resource: str) -> TypicalShare | None:
    """Return the share that trainings of this model and mode reach with the same limiting resource, if it is known."""
    spec = record.spec
    return next(
        (
            each
            for each in TYPICAL
            if (each.model, each.resource) == (spec.model, resource)
            and spec.variable_update in each.modes
            and spec.batch_size >= each.batch_size
        ),
        None,
    )


def predict_step_s(spec: Spec, layout: Layout, probes: Probes) -> float | None:
    """Return about how many seconds a step of a training on cores takes, by its limit and the usual share of it.

    None where no limit of cores is known. It does not apply to a training on GPUs.
    """
    found = find_limit(spec, layout, probes)
    cores = next((bound for bound in found.bounds if bound.resource == CORES), None)
    if cores is None or found.binding is None:
        return None
    shares = [each.low for each in TYPICAL if (each.model, each.resource) == (spec.model, CORES)]
    return max(found.binding.step_s, cores.step_s / min(shares, default=USUAL_SHARE))


def find_hint(record: Record) -> str | None:
    """Return one sentence about a measurement that its hosts and links keep far from what its devices allow, or None.

    None for a training that is as near its limit as others of its kind, where no limit is known, and where an explanation has
    found causes against the baseline.
    """
    if not record.limit or record.share_of_limit is None or record.is_void:
        return None
    if record.explanation or record.measurement.injected_slowdowns:
        return None
    found = record.limit
    if found.binding is None:
        return None
    if tight := _find_tight(found):
        return f"{record.spec.label}: {tight}"
    typical = find_typical_share(record, found.binding.resource)
    own = list(_find_own_causes(record))
    causes = [*map(str, choose_distinct(each for run in record.measurement.runs for each in run.disturbances)), *own]
    if typical is None and not own:
        return None
    if typical is not None and record.share_of_limit >= (BELOW if causes else FAR_BELOW) * typical.low:
        return None
    reached = f"{record.spec.label} reached {percent(record.share_of_limit)} of the limit of its {found.binding.resource}"
    elsewhere = f", such a training elsewhere {_format_range(typical)}" if typical else ""
    likely = f"; likely: {'; '.join(causes)}" if causes else "; --explain=always shows where the time of a step goes"
    return f"{reached}{elsewhere}{likely}"


def _format_range(typical: TypicalShare) -> str:
    return f"{100 * typical.low:.0f} to {percent(typical.high)}" if typical.high > typical.low else percent(typical.low)


def _find_tight(found: Limit) -> str | None:
    """Return the rate that a link or the memory allows, where the devices allow much more."""
    binding = found.binding
    devices = next((bound for bound in found.bounds if bound.resource in (CORES, GPUS)), None)
    if binding is None or devices is None or binding.resource not in (LINK, MEMORY):
        return None
    times = binding.step_s / devices.step_s
    if times < TIGHT:
        return None
    sets = f"the {binding.resource} of {binding.host} sets the limit ({binding.needs})"
    return f"{sets}; its {_allow(devices)} {times:.1f} times as much"


def _allow(devices: Bound) -> str:
    return "cores allow" if devices.resource == CORES else "GPUs allow"


def _find_own_causes(record: Record) -> Iterator[str]:
    """Yield causes in the training itself for which it computed less than its devices could."""
    on_cores = not list_gpus(record.measurement.fingerprint)
    if on_cores and not record.measurement.disturbances and (idle := _find_idle_cores(record, record.measurement.samples)):
        yield idle
    if on_cores and record.spec.data_format == "NCHW":
        yield "data_format=NCHW, where cores compute NHWC faster"
    if not on_cores and record.spec.data_format == "NHWC" and record.spec.precision == "fp32":
        yield "data_format=NHWC, where GPUs of these precisions compute NCHW faster"


def _find_idle_cores(record: Record, runs: Sequence[Run]) -> str | None:
    """Return how many of the cores that workers may use the tasks kept busy, where that is far from all."""
    used = [each for run in runs if (each := _count_busy_cores(run)) is not None]
    threads = {task: count for task, count in runs[-1].task_threads.items() if task.startswith("worker:")} if runs else {}
    allowed = sum(threads.values())
    if not used or not allowed or statistics.median(used) >= BUSY_SHARE * allowed:
        return None
    named = [(name, getattr(record.spec, name)) for name in ("num_intra_threads", "num_inter_threads")]
    keys = [f"{name}={value}" for name, value in named if value is not None and value < max(threads.values())]
    why = ", ".join(keys) if keys else "num_intra_threads and num_inter_threads set how many they use"
    return f"the tasks kept {statistics.median(used):.1f} of {format_count(allowed, 'core')} busy ({why})"


def _count_busy_cores(run: Run) -> float | None:
    """Return how many cores all tasks on the workers' hosts used in the measured steps; None where a host's state lacks it."""
    hosts = {host for task, host in run.task_hosts.items() if task.startswith("worker:")}
    if not hosts or not hosts <= run.state.keys():
        return None
    states = [run.state[host] for host in hosts]
    return sum(state.cpu.own_s / state.window_s for state in states) if all(state.window_s for state in states) else None
