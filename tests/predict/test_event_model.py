"""Tests of the model of a step's events, against hand-computed cases and the limits of every step."""

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


def spread_over_hosts(workers: int, servers: int, names: str = "host") -> Layout:
    """Place a worker on each host, and the servers beside them in turn."""
    tasks = {f"ps:{number}": f"{names}{number % workers}" for number in range(servers)}
    return Layout({**tasks, **{f"worker:{number}": f"{names}{number}" for number in range(workers)}})


def make_spec(mode: str, gpus: int, servers: int = 0, model: str = "inception3", **fields: object) -> Spec:
    is_synchronous = VARIABLE_UPDATES[mode].synchronous
    values: Mapping[str, object] = {"model": model, "batch_size": 32, "cross_replica_sync": is_synchronous, **fields}
    return Spec(gpus=gpus, num_ps=servers, variable_update=mode, **values)  # type: ignore[arg-type]


def make_model(spec: Spec, layout: Layout | None = None) -> StepModel:
    return StepModel(spec, layout or spread_over_hosts(spec.gpus, spec.num_ps))


def compute_step_s(
    model: StepModel | Spec, link_bytes_per_s: float = LINK, layout: Layout | None = None, compute_s: float = COMPUTE_S
) -> float:
    model = make_model(model, layout) if isinstance(model, Spec) else model
    return model.step_s(compute_s, NetworkRates(link_bytes_per_s=link_bytes_per_s))


def list_specs() -> list[Spec]:
    """Return specs of all modes on several hosts, with few and many servers, and with options that change their messages."""
    served = [make_spec(mode, gpus, servers) for mode in SERVED for gpus, servers in ((2, 1), (4, 4), (16, 3), (32, 48))]
    asynchronous = [make_spec("parameter_server", 8, 2, cross_replica_sync=False)]
    staged = [make_spec("parameter_server", 8, 2, staged_vars=True)]
    others = [
        make_spec("parameter_server", 8, 8, model="vgg16", variable_placement=placement)
        for placement in ("greedy", "split", "round_robin", "largest_first")
    ]
    halves = [
        make_spec("parameter_server", 8, 3, wire_precision="bf16"),
        make_spec("parameter_server", 8, 3, forward_only=True),
    ]
    reduced = [make_spec(mode, gpus) for mode in REDUCED for gpus in (2, 16)]
    algorithms = [
        make_spec("distributed_all_reduce", 8, all_reduce_spec=words)
        for words in ("xring", "nccl/rechd", "pscpu", "pscpu:32k:xring")
    ]
    return [*served, *asynchronous, *staged, *others, *halves, *reduced, *algorithms]


def name_spec(spec: Spec) -> str:
    return f"{spec.label} {spec.variable_placement} {spec.all_reduce_spec or ''}"


@pytest.mark.parametrize("spec", list_specs(), ids=name_spec)
def test_step_is_never_shorter_than_its_limit(spec: Spec) -> None:
    """No predicted step is shorter than its computing, and no rate is above the limit of links, on slow and fast links."""
    layout, model = spread_over_hosts(spec.gpus, spec.num_ps), make_model(spec)
    names = set(layout.hosts.values())
    for per_s in (1e7, 1e8, 1e9, 1e10):
        links = {way: probed_link(per_s) for name in names for way in (f"*>{name}", f"{name}>*")}
        bound = find_limit(spec, layout, Probes(hosts={name: HostProbe() for name in names}, links=links))
        found = compute_step_s(model, per_s)
        assert found >= COMPUTE_S
        assert spec.gpus * spec.batch_size / found <= (bound.images_per_sec or np.inf) * (1 + 1e-9)


@pytest.mark.parametrize("spec", list_specs(), ids=name_spec)
def test_faster_link_makes_no_step_longer(spec: Spec) -> None:
    """A faster link makes no step longer, and the fastest one makes steps with servers shorter."""
    model = make_model(spec)
    steps = [compute_step_s(model, per_s) for per_s in np.geomspace(1e7, 1e11, 9)]
    assert all(after <= before * (1 + 1e-6) for before, after in pairwise(steps))
    assert steps[0] > steps[-1] or spec.mode.parameter_servers is False


@pytest.mark.parametrize("spec", list_specs(), ids=name_spec)
def test_names_of_hosts_do_not_change_the_step(spec: Spec) -> None:
    """Tasks on hosts with other names, or listed in another order, take the same time."""
    layout = spread_over_hosts(spec.gpus, spec.num_ps)
    renamed = spread_over_hosts(spec.gpus, spec.num_ps, names="zz")
    turned = Layout(dict(reversed(list(layout.hosts.items()))))
    expected = pytest.approx(compute_step_s(spec), rel=1e-9)
    assert compute_step_s(spec, layout=renamed) == expected
    assert compute_step_s(spec, layout=turned) == expected


@pytest.mark.parametrize("mode", [*SERVED, *REDUCED, "replicated", "independent", "mirrored"])
def test_tasks_on_one_host_only_compute(mode: str) -> None:
    """The step of tasks on one host takes the time of its computing."""
    servers = int(VARIABLE_UPDATES[mode].parameter_servers)
    spec = make_spec(mode, 1, servers)
    layout = Layout({"worker:0": "one", **({"ps:0": "one"} if servers else {})})
    assert compute_step_s(spec, layout=layout) == COMPUTE_S


def test_fast_links_leave_computing_and_messages() -> None:
    """With links of 100 TB/s a step takes the time of its computing, and longer if messages cost time."""
    spec = make_spec("parameter_server", 8, 8)
    model = StepModel(spec, spread_over_hosts(8, 8))
    assert model.step_s(COMPUTE_S, NetworkRates(link_bytes_per_s=1e14, message_s=0.0)) == pytest.approx(COMPUTE_S, rel=1e-3)
    assert model.step_s(COMPUTE_S, NetworkRates(link_bytes_per_s=1e14, message_s=0.01)) > 1.1 * COMPUTE_S


def test_large_variable_makes_more_servers_useless() -> None:
    """With VGG16's largest variable more servers do not shorten the step, unless variables are split."""
    whole = [compute_step_s(make_spec("parameter_server", 8, count, "vgg16", variable_placement="greedy")) for count in (2, 8)]
    cut = [compute_step_s(make_spec("parameter_server", 8, count, "vgg16", variable_placement="split")) for count in (2, 8)]
    assert whole[1] > 0.9 * whole[0]
    assert cut[1] < 0.4 * cut[0]
    assert cut[1] < 0.4 * whole[1]


def test_half_the_bytes_take_half_the_time() -> None:
    """With wire_precision=bf16 a step that links limit takes half as long."""
    specs = (make_spec("parameter_server", 8, 8, wire_precision=each) for each in ("fp32", "bf16"))
    slow, halved = (compute_step_s(spec, 1e8, compute_s=0.01) for spec in specs)
    assert halved == pytest.approx(slow / 2, rel=0.05)


def test_asynchronous_workers_are_faster() -> None:
    """Asynchronous workers use a link in both directions at once, and have a shorter step."""
    waiting, free = (
        compute_step_s(make_spec("parameter_server", 8, 1, cross_replica_sync=each), 1e9) for each in (True, False)
    )
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
def test_all_reduce_takes_the_time_of_its_schedule(algorithm: str, hosts: int, on_host: int, expected_s: float) -> None:
    """An all-reduce takes the time of the messages and bytes in the schedule of its algorithm."""
    network = NetworkRates(link_bytes_per_s=1e6, message_s=1e-3)
    assert Ranks(hosts, on_host).seconds(algorithm, 1e6, network) == pytest.approx(expected_s)


def test_link_is_shared_max_min_fair() -> None:
    """Streams get max-min fair shares of a link, and the rest of it when another one ends."""
    link = SharedLinks([Flows(4, np.array([1.0])), Flows(1, np.array([2.0, 1.0]))], per_s=1.0, on_each=1)
    first, second = link.finish([np.zeros(1), np.zeros(2)])
    assert first == pytest.approx([4.0])
    assert second == pytest.approx([2 / 0.75, 4.0])


def test_messages_wait_until_they_are_ready() -> None:
    """A stream waits until its next message is ready, and the order of streams does not matter."""
    flows = [Flows(1, np.array([1.0, 1.0])), Flows(1, np.array([1.0]))]
    ready = [np.array([0.0, 5.0]), np.array([5.5])]
    one, other = SharedLinks(flows, 1.0, 1).finish(ready)
    assert one == pytest.approx([1.0, 6.5])  # half of the link from 5.5 on
    assert other == pytest.approx([7.0])
    turned = SharedLinks(flows[::-1], 1.0, 1).finish(ready[::-1])
    assert [list(each) for each in turned[::-1]] == [pytest.approx(list(one)), pytest.approx(list(other))]


@pytest.mark.parametrize("receivers", [(4,), (2, 2), (3, 8, 2)], ids=["one stream", "a full link", "a link with room"])
def test_streams_that_do_not_share_a_full_link_have_the_simulated_times(receivers: tuple[int, ...]) -> None:
    """Streams that do not slow each other have the times that the simulation of all their events gives."""
    random = np.random.default_rng(5)
    flows = [Flows(each, random.uniform(1e5, 1e7, 20)) for each in receivers]
    ready = [np.sort(random.uniform(0, 0.4, 20)) for _ in flows]
    link = SharedLinks(flows, LINK, 1)
    for found, expected in zip(link.finish(ready), link.share_between(ready), strict=True):
        assert found == pytest.approx(expected, rel=1e-9)


def test_values_of_the_last_layer_are_hidden() -> None:
    """A step is longer if all values belong to the first layer than if they belong to the last, since computing
    hides them there."""
    spec = make_spec("parameter_server", 2, 1, "vgg16")
    model = StepModel(spec, spread_over_hosts(2, 1))
    (stream,) = model._streams
    early, late = (replace(stream, starts=np.full_like(stream.starts, at)) for at in (0.0, 1.0))
    found = []
    for each in (early, late):
        model.__dict__["_streams"] = [each]
        found.append(model.step_s(1.5, NetworkRates(link_bytes_per_s=LINK)))
    assert found[0] > 1.5 + 0.4  # 553 MB at 1.25 GB/s before the first layer, and nothing to hide the gradients behind
    assert 1.5 <= found[1] < found[0]


@pytest.mark.parametrize("placement", ["greedy", "split", "round_robin"])
@pytest.mark.parametrize("mode", SERVED)
def test_messages_add_up_to_the_bytes_of_each_server(mode: str, placement: str) -> None:
    """The messages of a step add up to the bytes that the placement puts on each server."""
    spec = make_spec(mode, 8, 5, "vgg16", variable_placement=placement)
    found = [0] * 5
    for each in list_exchanges(spec):
        found[each.server] += each.size_bytes
    assert found == bytes_on_servers(spec)
