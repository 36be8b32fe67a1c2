"""The events of one step, against hand-computed cases and the limits that no step can go below."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from pytest_dtfperf.datamodel.probes import HostProbe, Probes
from pytest_dtfperf.limits.limit import find_limit
from pytest_dtfperf.limits.needs import Layout
from pytest_dtfperf.predict.event_model import Flows, NetworkRates, Ranks, SharedLinks, StepModel
from pytest_dtfperf.spec import VARIABLE_UPDATES, Spec
from pytest_dtfperf.training.exchange_plan import bytes_on_servers, list_exchanges
from tests.explain.probed import make_link as probed_link

COMPUTE_S = 0.4
LINK = 1.25e9  # 10 Gbit/s
SERVED = [name for name, mode in VARIABLE_UPDATES.items() if mode.parameter_servers]
REDUCED = ["distributed_all_reduce", "collective_all_reduce", "horovod", "multi_worker_mirrored"]


def on_hosts(workers: int, servers: int, names: str = "host") -> Layout:
    """A worker on each host, and the servers beside them in turn."""
    tasks = {f"ps:{number}": f"{names}{number % workers}" for number in range(servers)}
    return Layout({**tasks, **{f"worker:{number}": f"{names}{number}" for number in range(workers)}})


def spec_of(mode: str, gpus: int, servers: int = 0, model: str = "inception3", **fields: object) -> Spec:
    is_synchronous = VARIABLE_UPDATES[mode].synchronous
    values: Mapping[str, object] = {"model": model, "batch_size": 32, "cross_replica_sync": is_synchronous, **fields}
    return Spec(gpus=gpus, num_ps=servers, variable_update=mode, **values)  # type: ignore[arg-type]


def step_s(spec: Spec, link_bytes_per_s: float = LINK, layout: Layout | None = None, compute_s: float = COMPUTE_S) -> float:
    layout = layout or on_hosts(spec.gpus, spec.num_ps)
    return StepModel(spec, layout).step_s(compute_s, NetworkRates(link_bytes_per_s=link_bytes_per_s))


def cases() -> list[Spec]:
    """All modes of several hosts, with few and many servers, and what changes their messages."""
    served = [spec_of(mode, gpus, servers) for mode in SERVED for gpus, servers in ((2, 1), (4, 4), (16, 3), (32, 48))]
    asynchronous = [spec_of("parameter_server", 8, 2, cross_replica_sync=False)]
    staged = [spec_of("parameter_server", 8, 2, staged_vars=True)]
    others = [
        spec_of("parameter_server", 8, 8, model="vgg16", variable_placement=placement)
        for placement in ("greedy", "split", "round_robin", "largest_first")
    ]
    halves = [spec_of("parameter_server", 8, 3, wire_precision="bf16"), spec_of("parameter_server", 8, 3, forward_only=True)]
    reduced = [spec_of(mode, gpus) for mode in REDUCED for gpus in (2, 16)]
    algorithms = [
        spec_of("distributed_all_reduce", 8, all_reduce_spec=words)
        for words in ("xring", "nccl/rechd", "pscpu", "pscpu:32k:xring")
    ]
    return [*served, *asynchronous, *staged, *others, *halves, *reduced, *algorithms]


def name_of(spec: Spec) -> str:
    return f"{spec.label} {spec.variable_placement} {spec.all_reduce_spec or ''}"


@pytest.mark.parametrize("spec", cases(), ids=name_of)
def test_step_is_never_shorter_than_its_limit(spec: Spec) -> None:
    """No predicted rate is above the limit of links, nor above that of computing, on slow and on fast links."""
    layout = on_hosts(spec.gpus, spec.num_ps)
    names = set(layout.hosts.values())
    for per_s in (1e7, 1e8, 1e9, 1e10):
        links = {way: probed_link(per_s) for name in names for way in (f"*>{name}", f"{name}>*")}
        bound = find_limit(spec, layout, Probes(hosts={name: HostProbe() for name in names}, links=links))
        found = step_s(spec, per_s)
        assert found >= COMPUTE_S
        assert spec.gpus * spec.batch_size / found <= (bound.images_per_sec or np.inf) * (1 + 1e-9)


@pytest.mark.parametrize("spec", cases(), ids=name_of)
def test_more_bandwidth_is_never_slower(spec: Spec) -> None:
    """A faster link makes no step longer, and without a limit of links only computing and messages are left."""
    steps = [step_s(spec, per_s) for per_s in np.geomspace(1e7, 1e11, 9)]
    assert all(after <= before * (1 + 1e-6) for before, after in pairwise(steps))
    assert steps[0] > steps[-1] or spec.mode.parameter_servers is False


@pytest.mark.parametrize("spec", cases(), ids=name_of)
def test_names_of_hosts_change_nothing(spec: Spec) -> None:
    """The same tasks on hosts with other names, and listed in another order, take the same time."""
    layout = on_hosts(spec.gpus, spec.num_ps)
    renamed = on_hosts(spec.gpus, spec.num_ps, names="zz")
    turned = Layout(dict(reversed(list(layout.hosts.items()))))
    assert step_s(spec, layout=renamed) == pytest.approx(step_s(spec), rel=1e-9)
    assert step_s(spec, layout=turned) == pytest.approx(step_s(spec), rel=1e-9)


@pytest.mark.parametrize("mode", [*SERVED, *REDUCED, "replicated", "independent", "mirrored"])
def test_tasks_on_one_host_only_compute(mode: str) -> None:
    """Without a second host no link counts: the step takes what its computing takes."""
    servers = int(VARIABLE_UPDATES[mode].parameter_servers)
    spec = spec_of(mode, 1, servers)
    layout = Layout({"worker:0": "one", **({"ps:0": "one"} if servers else {})})
    assert step_s(spec, layout=layout) == COMPUTE_S


def test_links_without_end_leave_the_computing() -> None:
    """With 100 TB/s the synchronous step is its computing and at most the cost of its messages."""
    spec = spec_of("parameter_server", 8, 8)
    model = StepModel(spec, on_hosts(8, 8))
    assert model.step_s(COMPUTE_S, NetworkRates(link_bytes_per_s=1e14, message_s=0.0)) == pytest.approx(COMPUTE_S, rel=1e-3)
    assert model.step_s(COMPUTE_S, NetworkRates(link_bytes_per_s=1e14, message_s=0.01)) > 1.1 * COMPUTE_S


def test_memory_makes_updates_longer() -> None:
    """A server that adds gradients at 1 GB/s takes longer than one for which updates cost nothing."""
    model = StepModel(spec_of("parameter_server", 8, 1), on_hosts(8, 1))
    free = model.step_s(COMPUTE_S, NetworkRates(link_bytes_per_s=LINK))
    slow = model.step_s(COMPUTE_S, NetworkRates(link_bytes_per_s=LINK, memory_bytes_per_s=1e8))
    assert slow > free + 5  # 95 MB of eight workers, and twice more, at 100 MB/s


def test_hot_server_decides() -> None:
    """VGG16's 411 MB in one variable make more servers useless, unless it is split."""
    whole = [step_s(spec_of("parameter_server", 8, count, "vgg16", variable_placement="greedy")) for count in (2, 8)]
    cut = [step_s(spec_of("parameter_server", 8, count, "vgg16", variable_placement="split")) for count in (2, 8)]
    assert whole[1] > 0.9 * whole[0]
    assert cut[1] < 0.4 * cut[0]
    assert cut[1] < 0.4 * whole[1]


def test_half_the_bytes_take_half_the_time_where_links_decide() -> None:
    """With wire_precision=bf16 a step that waits for its links takes half as long."""
    specs = (spec_of("parameter_server", 8, 8, wire_precision=each) for each in ("fp32", "bf16"))
    slow, halved = (step_s(spec, 1e8, compute_s=0.01) for spec in specs)
    assert halved == pytest.approx(slow / 2, rel=0.05)


def test_asynchronous_workers_overlap() -> None:
    """Workers that do not wait for each other use a link in both directions at once, and so are no slower."""
    waiting, free = (step_s(spec_of("parameter_server", 8, 1, cross_replica_sync=each), 1e9) for each in (True, False))
    assert free < waiting


@pytest.mark.parametrize(
    ("algorithm", "hosts", "on_host", "expected_s"),
    [
        ("xring", 4, 1, 6 * 1e-3 + 1.5),  # 2 (n - 1) messages, 2 (n - 1) / n of the bytes
        ("xring", 2, 4, 14 * 1e-3 + 1.75),
        ("nccl/xring", 2, 4, 2 * 1e-3 + 1.0),
        ("nccl/rechd", 4, 1, 4 * 1e-3 + 1.5),  # 2 log2 n messages, the same bytes
        ("pscpu", 4, 1, 6 * 1e-3 + 6.0),  # all of the bytes from each of the others, and back
        ("nccl/pscpu", 2, 4, 2 * 1e-3 + 2.0),
        ("collective", 8, 1, 14 * 1e-3 + 1.75),
    ],
)
def test_all_reduce_by_its_schedule(algorithm: str, hosts: int, on_host: int, expected_s: float) -> None:
    """A tensor that takes a second on the link, with 1 ms per message, takes what the schedule of its algorithm gives."""
    network = NetworkRates(link_bytes_per_s=1e6, message_s=1e-3)
    assert Ranks(hosts, on_host).seconds(algorithm, 1e6, network) == pytest.approx(expected_s)


def test_link_is_shared_max_min_fair() -> None:
    """One stream is slowed by its three receivers; the other has what is left of the worker's link, and all of it later."""
    link = SharedLinks([Flows(4, np.array([1.0])), Flows(1, np.array([2.0, 1.0]))], per_s=1.0, on_each=1)
    first, second = link.finish([np.zeros(1), np.zeros(2)])
    assert first == pytest.approx([4.0])
    assert second == pytest.approx([2 / 0.75, 4.0])


def test_messages_wait_until_they_are_ready() -> None:
    """A stream pauses until its next message is ready, and the order of streams does not matter."""
    flows = [Flows(1, np.array([1.0, 1.0])), Flows(1, np.array([1.0]))]
    ready = [np.array([0.0, 5.0]), np.array([5.5])]
    one, other = SharedLinks(flows, 1.0, 1).finish(ready)
    assert one == pytest.approx([1.0, 6.5])  # half of the link from 5.5 on
    assert other == pytest.approx([7.0])
    turned = SharedLinks(flows[::-1], 1.0, 1).finish(ready[::-1])
    assert [list(each) for each in turned[::-1]] == [pytest.approx(list(one)), pytest.approx(list(other))]


def test_layers_wait_for_their_values() -> None:
    """A model with all its bytes in the last layer hides them behind the forward pass; with all in the first it cannot."""
    spec = spec_of("parameter_server", 2, 1, "vgg16")
    model = StepModel(spec, on_hosts(2, 1))
    (stream,) = model._streams
    early, late = (replace(stream, starts=np.full_like(stream.starts, at)) for at in (0.0, 1.0))
    found = []
    for each in (early, late):
        model.__dict__["_streams"] = [each]
        found.append(model.step_s(1.5, NetworkRates(link_bytes_per_s=LINK)))
    assert found[0] > 1.5 + 0.4  # 553 MB at 1.25 GB/s before the first layer, and nothing to hide the gradients behind
    assert found[0] != found[1]


@pytest.mark.parametrize("placement", ["greedy", "split", "round_robin"])
@pytest.mark.parametrize("mode", SERVED)
def test_exchanges_are_what_servers_hold(mode: str, placement: str) -> None:
    """The messages of a step add up to the bytes that the placement puts on each server."""
    spec = spec_of(mode, 8, 5, "vgg16", variable_placement=placement)
    found = [0] * 5
    for each in list_exchanges(spec):
        found[each.server] += each.size_bytes
    assert found == bytes_on_servers(spec)
