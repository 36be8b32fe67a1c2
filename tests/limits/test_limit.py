"""Tests of the highest rate that resources allow."""

from dataclasses import replace

import pytest

from pytest_dtfperf.datamodel.explanation import Limit
from pytest_dtfperf.datamodel.probes import HostProbe, Probes
from pytest_dtfperf.limits.limit import describe_limit, find_limit
from pytest_dtfperf.limits.needs import Layout, compute_flop
from tests.explain.probed import G, make_link, make_probes, make_reading
from tests.limits.test_needs import compute_model_bytes, make_spec

TWO = Layout(
    {"ps:0": "a", "worker:0": "b", "worker:1": "c"},
    {"ps:0": 2, "worker:0": 2, "worker:1": 2},
)
CORES = {"core.matmul": make_reading(60 * G), "core.convolution": make_reading(50 * G), "cores.matmul": make_reading(100 * G)}
FAST = {"*>a": make_link(100 * G, streams={"b": G, "c": G}), "a>*": make_link(100 * G, streams={"b": G, "c": G})}


def make_host_probes(**links: float) -> Probes:
    """Make probes of three hosts with two cores, and of links with these rates, named "a_in" and "a_out"."""
    hosts = make_probes(a={**CORES, "memory": make_reading(10 * G)}, b=CORES, c=CORES)
    names = {f"*>{name[0]}" if name.endswith("in") else f"{name[0]}>*": rate for name, rate in links.items()}
    return replace(hosts, links={name: make_link(rate, streams={"b": 1.0, "c": 1.0}) for name, rate in names.items()})


def test_cores_bind_on_fast_links() -> None:
    """On fast links the cores of a worker's host set the limit, at their probed rate together."""
    spec = make_spec(batch_size=64)
    found = find_limit(spec, TWO, make_host_probes(a_in=100 * G, a_out=100 * G))
    assert found.binding
    assert (found.binding.resource, found.binding.host) == ("cores", "b")
    step_s = (compute_flop(spec) or 0) / (100 * G)
    assert found.binding.step_s == pytest.approx(step_s)
    assert found.images_per_sec == pytest.approx(2 * 64 / step_s)
    assert found.share(64 / step_s) == pytest.approx(0.5)
    assert describe_limit(found, 64 / step_s).startswith("50.0 % of ")


def test_worker_with_one_core_has_its_rate() -> None:
    """A worker with one core of two is limited by the rate that one core had."""
    one = Layout({"worker:0": "b"}, {"worker:0": 1})
    found = find_limit(make_spec(gpus=1, num_ps=0, variable_update="replicated"), one, make_host_probes())
    assert found.binding
    assert "on 1 core (" in found.binding.needs
    assert "60.0 GFLOP/s" in found.binding.needs


def test_probe_is_corrected_for_other_processes() -> None:
    """The rate of a probe that had half of its cores' time is doubled if other processes had the rest, and not under a
    quota."""
    layout = Layout({"worker:0": "b"}, {"worker:0": 2})
    spec = make_spec(gpus=1, num_ps=0, variable_update="replicated")
    half = {name: replace(each, cpu_share=0.5) for name, each in CORES.items()}
    found = [
        find_limit(spec, layout, Probes(hosts={"b": HostProbe(readings=half, others_cores=others)})) for others in (1.0, None)
    ]
    assert [each.images_per_sec for each in found] == [
        pytest.approx(4 / (compute_flop(spec) or 0) * rate) for rate in (200 * G, 100 * G)
    ]


def test_devices_of_unequal_workers_take_equal_time() -> None:
    """Four devices on four cores and two devices on two cores take the same step time."""
    layout = Layout(TWO.hosts, {"ps:0": 4, "worker:0": 4, "worker:1": 2}, {"worker:0": 4, "worker:1": 2})
    spec = make_spec(gpus=6)
    cores = {"core.matmul": make_reading(10 * G), "cores.matmul": make_reading(40 * G)}
    found = find_limit(spec, layout, make_probes(a=cores, b=cores, c=cores))
    assert found.binding
    assert found.binding.step_s == pytest.approx((compute_flop(spec) or 0) / (10 * G))


@pytest.mark.parametrize(
    "changes, times",
    [({}, 2 * 2), ({"cross_replica_sync": False}, 2), ({"variable_update": "distributed_replicated"}, 2)],
    ids=["in turn", "asynchronous", "replicated"],
)
def test_slow_link_of_a_server_binds(changes: dict[str, object], times: int) -> None:
    """A server's slow link limits the step by values and gradients of all workers, in turn or both at once."""
    spec = make_spec(**changes)
    found = find_limit(spec, TWO, make_host_probes(a_in=0.1 * G, a_out=0.1 * G))
    assert found.binding
    assert (found.binding.resource, found.binding.host) == ("link", "a")
    assert found.binding.step_s == pytest.approx(times * compute_model_bytes(spec) / (0.1 * G))


def test_memory_of_a_server_binds() -> None:
    """If the link is faster than the memory and little is computed, the server's memory sets the limit."""
    found = find_limit(
        make_spec(batch_size=1),
        TWO,
        replace(make_host_probes(), links=FAST, hosts={"a": HostProbe(readings={"memory": make_reading(G)})}),
    )
    assert found.binding
    assert found.binding.resource == "memory"
    assert "updates at 1.00 GB/s" in found.binding.needs


def test_link_without_a_probe_is_unknown() -> None:
    """A direction that was not probed does not count, and the limit names it as unknown."""
    spec = make_spec()
    found = find_limit(spec, TWO, make_host_probes(a_in=0.1 * G))
    assert found.binding
    assert found.binding.step_s == pytest.approx(2 * compute_model_bytes(spec) / (0.1 * G))
    assert found.unknown["link"] == "the link of a was not probed"


def test_single_stream_measures_both_ends() -> None:
    """A fan of one stream measures also its other end, and a fan of several streams does not."""
    spec, layout = make_spec(gpus=1, batch_size=1), Layout({"ps:0": "a", "worker:0": "b"}, {"worker:0": 2})
    one = replace(
        make_host_probes(),
        links={"a>*": make_link(0.1 * G, streams={"b": 0.1 * G}), "*>a": make_link(0.2 * G, streams={"b": 0.2 * G})},
    )
    assert find_limit(spec, layout, one).unknown == {}
    assert {each.resource: each.step_s for each in find_limit(spec, layout, one).bounds}["link"] == pytest.approx(
        compute_model_bytes(spec) / (0.1 * G) + compute_model_bytes(spec) / (0.2 * G)
    )
    assert "the link of b" in find_limit(spec, TWO, make_host_probes(a_in=G, a_out=G)).unknown["link"]


def test_host_without_a_probe_has_the_median() -> None:
    """Hosts that were not probed have the median of those that were."""
    others = Layout({task: host.upper() for task, host in TWO.hosts.items()}, TWO.threads)
    spec, probes = make_spec(), make_host_probes(a_in=0.1 * G, a_out=0.1 * G)
    assert find_limit(spec, others, probes).images_per_sec == find_limit(spec, TWO, probes).images_per_sec


@pytest.mark.parametrize(
    "changes, layout, expected",
    [
        ({"precision": "bf16"}, TWO, "cores were probed in fp32, and this computes in bf16"),
        ({}, Layout(TWO.hosts), "how many cores each worker had is not recorded"),
    ],
    ids=["another precision", "old records"],
)
def test_unknown_cores_leave_other_bounds(changes: dict[str, object], layout: Layout, expected: str) -> None:
    """If the cores' rate is unknown the limit has the reason, and the link bounds the rate."""
    found = find_limit(make_spec(**changes), layout, make_host_probes(a_in=G, a_out=G))
    assert found.unknown["cores"] == expected
    assert found.binding
    assert found.binding.resource == "link"


def test_limit_without_probes_is_unknown() -> None:
    """Without probes there is no limit and no text; the reasons are those of the probe, and the limit survives JSON."""
    found = find_limit(make_spec(), TWO, Probes(unknown={"*": "the allocation has ended"}))
    assert (found.images_per_sec, found.binding, describe_limit(found, 1.0), found.share(1.0)) == (None, None, "", None)
    assert found.unknown["memory"] == "a was not probed: the allocation has ended"
    assert Limit.from_json(found.to_json()) == found


def test_gpu_has_its_probe_or_its_data_sheet() -> None:
    """A GPU has the rate of its probe. Without one, in BF16, or in FP32 if the probe was in TF32, it has the peak of its data
    sheet. Unknown and mixed GPUs have none."""
    layout = Layout({"worker:0": "a"}, {"worker:0": 8})
    spec = make_spec(gpus=1, num_ps=0, variable_update="replicated")
    probed = make_probes(a={"gpu.0.matmul": make_reading(8e12), "gpu.0.convolution": make_reading(9e12)})
    own = find_limit(spec, layout, probed, ["Tesla P100-SXM2-16GB"])
    assert own.binding
    assert "9.00 TFLOP/s on each GPU (as probed)" in own.binding.needs
    sheet = find_limit(spec, layout, Probes(), ["Tesla P100-SXM2-16GB"])
    assert sheet.binding
    assert "10.6 TFLOP/s on each GPU (FP32 peak of its data sheet)" in sheet.binding.needs
    fp32, bf16 = replace(spec, environment=("NVIDIA_TF32_OVERRIDE=0",)), replace(spec, precision="bf16")
    for each, peak in (
        (spec, "9.00 TFLOP/s on each GPU (as probed)"),
        (fp32, "19.5 TFLOP/s on each GPU (FP32"),
        (bf16, "312 TFLOP/s on"),
    ):
        binding = find_limit(each, layout, probed, ["NVIDIA A100-SXM4-40GB"]).binding
        assert binding
        assert peak in binding.needs
    assert find_limit(spec, layout, Probes(), ["a GPU of 2031"]).unknown["gpus"] == "no peak in fp32 is known of a GPU of 2031"
    assert find_limit(spec, layout, Probes(), ["L4", "T4"]).images_per_sec is None
