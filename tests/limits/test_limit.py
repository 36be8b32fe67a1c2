"""The highest rate that resources allow."""

from dataclasses import replace

import pytest

from pytest_dtfperf.datamodel.explanation import Limit
from pytest_dtfperf.datamodel.probes import HostProbe, Probes
from pytest_dtfperf.limits.limit import describe_limit, find_limit
from pytest_dtfperf.limits.needs import Layout, compute_flop
from tests.explain.probed import G, make_link, make_probes, make_reading
from tests.limits.test_needs import model_bytes, spec_of

TWO = Layout(
    {"ps:0": "a", "worker:0": "b", "worker:1": "c"},
    {"ps:0": 2, "worker:0": 2, "worker:1": 2},
)
CORES = {"core.matmul": make_reading(60 * G), "core.convolution": make_reading(50 * G), "cores.matmul": make_reading(100 * G)}
FAST = {"*>a": make_link(100 * G, streams={"b": G, "c": G}), "a>*": make_link(100 * G, streams={"b": G, "c": G})}


def probes_of(**links: float) -> Probes:
    """Three hosts of two cores, with links of these rates, named "a_in" and "a_out"."""
    hosts = make_probes(a={**CORES, "memory": make_reading(10 * G)}, b=CORES, c=CORES)
    names = {f"*>{name[0]}" if name.endswith("in") else f"{name[0]}>*": rate for name, rate in links.items()}
    return replace(hosts, links={name: make_link(rate, streams={"b": 1.0, "c": 1.0}) for name, rate in names.items()})


def test_arithmetic_binds() -> None:
    """On fast links two devices compute no faster than all cores of their hosts together were probed to."""
    spec = spec_of(batch_size=64)
    found = find_limit(spec, TWO, probes_of(a_in=100 * G, a_out=100 * G))
    assert found.binding
    assert (found.binding.resource, found.binding.host) == ("cores", "b")
    step_s = (compute_flop(spec) or 0) / (100 * G)
    assert found.binding.step_s == pytest.approx(step_s)
    assert found.images_per_sec == pytest.approx(2 * 64 / step_s)
    assert found.share(64 / step_s) == pytest.approx(0.5)
    assert describe_limit(found, 64 / step_s).startswith("50.0 % of ")


def test_fewer_cores_than_the_host_has() -> None:
    """One core computes what one core was probed to."""
    one = Layout({"worker:0": "b"}, {"worker:0": 1})
    found = find_limit(spec_of(gpus=1, num_ps=0, variable_update="replicated"), one, probes_of())
    assert found.binding
    assert "on 1 core (" in found.binding.needs
    assert "60.0 GFLOP/s" in found.binding.needs


def test_cores_that_others_used_during_the_probe() -> None:
    """A probe that had half of its cores' time because of other processes found half of their rate; with a quota, all of it."""
    layout = Layout({"worker:0": "b"}, {"worker:0": 2})
    spec = spec_of(gpus=1, num_ps=0, variable_update="replicated")
    half = {name: replace(each, cpu_share=0.5) for name, each in CORES.items()}
    found = [
        find_limit(spec, layout, Probes(hosts={"b": HostProbe(readings=half, others_cores=others)})) for others in (1.0, None)
    ]
    assert [each.images_per_sec for each in found] == [
        pytest.approx(4 / (compute_flop(spec) or 0) * rate) for rate in (200 * G, 100 * G)
    ]


def test_shares_of_unequal_workers() -> None:
    """Four devices on four cores, and two on two, take as long: with three on two cores a rate would be above its limit."""
    layout = Layout(TWO.hosts, {"ps:0": 4, "worker:0": 4, "worker:1": 2}, {"worker:0": 4, "worker:1": 2})
    spec = spec_of(gpus=6)
    cores = {"core.matmul": make_reading(10 * G), "cores.matmul": make_reading(40 * G)}
    found = find_limit(spec, layout, make_probes(a=cores, b=cores, c=cores))
    assert found.binding
    assert found.binding.step_s == pytest.approx((compute_flop(spec) or 0) / (10 * G))


@pytest.mark.parametrize(
    "changes, times",
    [({}, 2 * 2), ({"cross_replica_sync": False}, 2), ({"variable_update": "distributed_replicated"}, 2)],
    ids=["in turn", "asynchronous", "replicated"],
)
def test_a_link_binds(changes: dict[str, object], times: int) -> None:
    """A server's slow link: all workers' values, and then all their gradients, or both at once."""
    spec = spec_of(**changes)
    found = find_limit(spec, TWO, probes_of(a_in=0.1 * G, a_out=0.1 * G))
    assert found.binding
    assert (found.binding.resource, found.binding.host) == ("link", "a")
    assert found.binding.step_s == pytest.approx(times * model_bytes(spec) / (0.1 * G))


def test_memory_binds() -> None:
    """Where the link is faster than memory, and little is computed."""
    found = find_limit(
        spec_of(batch_size=1),
        TWO,
        replace(probes_of(), links=FAST, hosts={"a": HostProbe(readings={"memory": make_reading(G)})}),
    )
    assert found.binding
    assert found.binding.resource == "memory"
    assert "updates at 1.00 GB/s" in found.binding.needs


def test_one_direction_known() -> None:
    """What was not probed counts for nothing and is named: the limit is higher than it might be, and still one."""
    spec = spec_of()
    found = find_limit(spec, TWO, probes_of(a_in=0.1 * G))
    assert found.binding
    assert found.binding.step_s == pytest.approx(2 * model_bytes(spec) / (0.1 * G))
    assert found.unknown["link"] == "the link of a was not probed"


def test_a_stream_alone_is_both_ends() -> None:
    """A fan of one stream measures what its other end can send or receive; of several, no stream does."""
    spec, layout = spec_of(gpus=1, batch_size=1), Layout({"ps:0": "a", "worker:0": "b"}, {"worker:0": 2})
    one = replace(
        probes_of(),
        links={"a>*": make_link(0.1 * G, streams={"b": 0.1 * G}), "*>a": make_link(0.2 * G, streams={"b": 0.2 * G})},
    )
    assert find_limit(spec, layout, one).unknown == {}
    assert {each.resource: each.step_s for each in find_limit(spec, layout, one).bounds}["link"] == pytest.approx(
        model_bytes(spec) / (0.1 * G) + model_bytes(spec) / (0.2 * G)
    )
    assert "the link of b" in find_limit(spec, TWO, probes_of(a_in=G, a_out=G)).unknown["link"]


def test_hosts_that_were_not_probed() -> None:
    """A cluster may allocate other hosts of the kind every time: the median of those that were probed is used for them."""
    others = Layout({task: host.upper() for task, host in TWO.hosts.items()}, TWO.threads)
    spec, probes = spec_of(), probes_of(a_in=0.1 * G, a_out=0.1 * G)
    assert find_limit(spec, others, probes).images_per_sec == find_limit(spec, TWO, probes).images_per_sec


@pytest.mark.parametrize(
    "changes, layout, expected",
    [
        ({"precision": "bf16"}, TWO, "cores were probed in fp32, and this computes in bf16"),
        ({}, Layout(TWO.hosts), "how many cores each worker had is not recorded"),
    ],
    ids=["another precision", "old records"],
)
def test_unknown_arithmetic(changes: dict[str, object], layout: Layout, expected: str) -> None:
    """The reason is reported, and the other resources bound the rate."""
    found = find_limit(spec_of(**changes), layout, probes_of(a_in=G, a_out=G))
    assert found.unknown["cores"] == expected
    assert found.binding
    assert found.binding.resource == "link"


def test_nothing_known() -> None:
    """Without probes there is no limit, and no text; the reasons are those of the probe."""
    found = find_limit(spec_of(), TWO, Probes(unknown={"*": "no hosts are lent any more"}))
    assert (found.images_per_sec, found.binding, describe_limit(found, 1.0), found.share(1.0)) == (None, None, "", None)
    assert found.unknown["memory"] == "a was not probed: no hosts are lent any more"
    assert Limit.from_json(found.to_json()) == found


def test_gpus_as_probed_and_as_their_maker_says() -> None:
    """In fp32 a GPU's own probe counts, in other formats its data sheet; one that is not known has no peak."""
    layout = Layout({"worker:0": "a"}, {"worker:0": 8})
    spec = spec_of(gpus=1, num_ps=0, variable_update="replicated")
    probed = make_probes(a={"gpu.0.matmul": make_reading(8e12), "gpu.0.convolution": make_reading(9e12)})
    own = find_limit(spec, layout, probed, ["Tesla P100-SXM2-16GB"])
    assert own.binding
    assert "9.00 TFLOP/s on each GPU (as probed)" in own.binding.needs
    sheet = find_limit(spec, layout, Probes(), ["Tesla P100-SXM2-16GB"])
    assert sheet.binding
    assert "10.6 TFLOP/s on each GPU (FP32 peak of its data sheet)" in sheet.binding.needs
    no_tf32 = replace(spec, environment=("NVIDIA_TF32_OVERRIDE=0",))
    assert find_limit(no_tf32, layout, probed, ["NVIDIA A100-SXM4-40GB"]).binding != own.binding
    assert find_limit(spec, layout, Probes(), ["a GPU of 2031"]).unknown["gpus"] == "no peak in fp32 is known of a GPU of 2031"
    assert find_limit(spec, layout, Probes(), ["L4", "T4"]).images_per_sec is None
