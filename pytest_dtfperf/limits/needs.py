"""Compute what a step needs of hosts: arithmetic, bytes over their links, bytes of their memory. Pure.

docs/numbers.md has the formulas. They count only what cannot be avoided: further work makes a step slower.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from pytest_dtfperf.records.arithmetic import flop_per_image
from pytest_dtfperf.spec import Spec
from pytest_dtfperf.training.exchange_plan import bytes_on_servers
from pytest_dtfperf.training.models.outline import get_outline
from pytest_dtfperf.training.placement import FLOAT_BYTES

SLOTS: Mapping[str, int] = {
    "sgd": 0,
    "momentum": 1,
    "rmsprop": 2,
    "adam": 2,
}  # optimizer -> tensors of state per variable, each in its shape


@dataclass(frozen=True)
class Layout:
    """The hosts, cores and devices of a training's tasks."""

    hosts: Mapping[str, str]  # task -> host, parameter servers among them
    threads: Mapping[str, int] = field(default_factory=dict)  # task -> cores that it may use; absent: not known
    devices: Mapping[str, int] = field(default_factory=dict)  # worker -> the number of its devices; absent: not known

    @cached_property
    def workers(self) -> list[str]:
        return self._list_tasks("worker")

    @cached_property
    def servers(self) -> list[str]:
        return self._list_tasks("ps")

    def _list_tasks(self, job: str) -> list[str]:
        return sorted((task for task in self.hosts if task.startswith(f"{job}:")), key=lambda task: int(task.partition(":")[2]))


@dataclass(frozen=True)
class Flow:
    """The bytes through the link of one host."""

    sent: float = 0.0
    received: float = 0.0


Phase = Mapping[str, Flow]  # by host; all flows of a phase may be at the same time


def count_devices(spec: Spec, layout: Layout) -> dict[str, int]:
    """Return each worker's devices; where not known, all have equally many, but for the last, which may have fewer."""
    if layout.devices:
        return {worker: layout.devices.get(worker, 0) for worker in layout.workers}
    each = -(-spec.gpus // len(layout.workers))
    return {worker: min(each, spec.gpus - number * each) for number, worker in enumerate(layout.workers)}


def compute_flop(spec: Spec) -> float | None:
    """Return the FLOP of one device in a step; None for an external command, of which they are not known."""
    found = None if spec.command else flop_per_image(spec)
    return None if found is None else float(found * spec.batch_size)


def compute_traffic(spec: Spec, layout: Layout) -> list[Phase]:
    """Return the bytes that each host sends to others and receives from them in a step, phase after phase.

    A synchronous step of `parameter_server` has two phases: no gradient is there before all values are, and no new value before
    all gradients are. Otherwise both directions are busy at the same time.
    """
    if spec.command or len(set(layout.hosts.values())) == 1:
        return []
    if layout.servers:
        down, up = compute_server_traffic(spec, layout)
        return [down, up] if needs_values_before_gradients(spec) else [_add_phases(down, up)]
    if spec.mode.workers_communicate and spec.mode.lockstep and not spec.forward_only:
        return [_count_all_reduce(spec, layout)]
    return []


def compute_update_bytes(spec: Spec, layout: Layout) -> dict[str, float]:
    """Return the bytes of memory that each host with parameter servers reads and writes to apply the gradients of a step.

    A synchronous update reads all workers' gradients, and reads and writes the variable and the optimizer's state; an
    asynchronous one does so for each worker.
    """
    if spec.command or spec.forward_only:
        return {}
    workers, state = len(layout.workers), 2 + 2 * SLOTS[spec.optimizer]
    times = workers * get_wire_part(spec) + (state if spec.cross_replica_sync else workers * state)
    found: dict[str, float] = defaultdict(float)
    for server, held in zip(layout.servers, bytes_on_servers(spec) if layout.servers else (), strict=True):
        found[layout.hosts[server]] += times * held
    return dict(found)


def needs_values_before_gradients(spec: Spec) -> bool:
    """Return whether workers have no gradients to push before they have all values."""
    return spec.variable_update == "parameter_server" and spec.cross_replica_sync and not spec.staged_vars


def compute_server_traffic(spec: Spec, layout: Layout) -> tuple[Phase, Phase]:
    """Return the values that workers fetch, and the gradients that they push."""
    if spec.forward_only and spec.variable_update == "distributed_replicated":
        return {}, {}  # each worker has a copy of all variables, and nothing changes it
    held: dict[str, float] = defaultdict(float)  # bytes of a host's servers, as sent
    for server, size in zip(layout.servers, bytes_on_servers(spec), strict=True):
        held[layout.hosts[server]] += size * get_wire_part(spec)
    workers, all_held = Counter(layout.hosts[worker] for worker in layout.workers), sum(held.values())
    down = {
        host: Flow(sent=held[host] * (workers.total() - workers[host]), received=workers[host] * (all_held - held[host]))
        for host in dict.fromkeys(layout.hosts.values())
    }
    return down, {} if spec.forward_only else {host: Flow(flow.received, flow.sent) for host, flow in down.items()}


def _add_phases(one: Phase, other: Phase) -> Phase:
    none = Flow()
    return {
        host: Flow(a.sent + b.sent, a.received + b.received)
        for host in {**one, **other}
        for a, b in [(one.get(host, none), other.get(host, none))]
    }


def _count_all_reduce(spec: Spec, layout: Layout) -> Phase:
    """Return 2 (n - 1) / n of the gradients through the link of each of n hosts, the least of any algorithm.

    Patarasuk and Yuan, J. Parallel Distrib. Comput. 69, 2009, section 3. Within a host nothing is counted.
    """
    hosts = dict.fromkeys(layout.hosts[worker] for worker in layout.workers)
    size = FLOAT_BYTES * get_outline(spec).trained_parameters * get_wire_part(spec)
    each = 2 * (len(hosts) - 1) / len(hosts) * size
    return {host: Flow(each, each) for host in hosts}


def get_wire_part(spec: Spec) -> float:
    """Return the size of a value as it is sent, as a fraction of its size in memory."""
    return 0.5 if spec.wire_precision == "bf16" else 1.0
