"""Tests of properties of all predictions. tests/benchmarks/test_predicted.py has the errors on published rates."""

from dataclasses import replace

import pytest

from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.errors import SpecError, UsageError
from pytest_dtfperf.predict.inputs import find_hosts, load_published
from pytest_dtfperf.predict.prediction import Hosts, LinkRange, MeasuredRate, Predictor, list_changes
from pytest_dtfperf.spec import Spec

ONE_DEVICE = 138.23  # images/sec of InceptionV3 on one device of Piz Daint


def make_spec(gpus: int = 1, num_ps: int = 1, mode: str = "parameter_server", **fields: object) -> Spec:
    values = {"model": "inception3", "batch_size": 64, **fields}
    return Spec(gpus=gpus, num_ps=num_ps, variable_update=mode, **values)  # type: ignore[arg-type]


def make_predictor(link: LinkRange, *points: tuple[Spec, float], devices_per_host: int = 1) -> Predictor:
    hosts = Hosts(devices_per_host=devices_per_host, link=link)
    given = points or ((make_spec(), ONE_DEVICE),)
    return Predictor([MeasuredRate(spec=spec, layout=hosts.place(spec), images_per_sec=rate) for spec, rate in given], hosts)


@pytest.mark.parametrize("mode", ["parameter_server", "distributed_replicated", "collective_all_reduce", "replicated"])
def test_prediction_of_the_measured_size_is_the_measurement(mode: str) -> None:
    """The prediction for the measured size is the measured rate, with efficiency 1 and an empty interval."""
    spec = make_spec(num_ps=int(mode in ("parameter_server", "distributed_replicated")), mode=mode)
    found = make_predictor(LinkRange.make_unknown(), (spec, ONE_DEVICE)).predict(spec)
    assert (found.images_per_sec, found.efficiency) == (ONE_DEVICE, 1.0)
    assert found.low == pytest.approx(ONE_DEVICE)
    assert found.high == pytest.approx(ONE_DEVICE)
    assert found.binding == "computing"


def test_measurement_over_links_has_its_rate() -> None:
    """The prediction for the only measurement, on several hosts, is its rate, with time for links and without an efficiency."""
    spec = make_spec(4, 2)
    predictor = make_predictor(LinkRange.from_probe(1.25e9), (spec, 400.0))
    found = predictor.predict(spec)
    assert found.images_per_sec == 400.0
    assert found.link_s > 0
    assert found.step_s == pytest.approx(4 * 64 / 400)
    assert found.efficiency is None


def test_predicted_step_belongs_to_the_rate() -> None:
    """The predicted step is that of the predicted rate, and the rate is within its interval."""
    found = make_predictor(LinkRange.from_probe(1e9)).predict(make_spec(32, 12))
    assert found.step_s == pytest.approx(32 * 64 / found.images_per_sec)
    assert found.low < found.images_per_sec < found.high


def test_unknown_links_widen_the_interval() -> None:
    """A probed link gives a narrower interval than a data sheet, this a narrower one than an unknown link; both are open."""
    ranges = (LinkRange.from_probe(0.7e9), LinkRange.from_data_sheet(1.25e9), LinkRange.make_unknown())
    found = [make_predictor(link).predict(make_spec(64, 40)) for link in ranges]
    widths = [each.high / each.low for each in found]
    assert widths == sorted(widths)
    assert [each.is_open for each in found] == [False, True, True]


def test_second_measurement_narrows_the_interval() -> None:
    """A rate of 16 devices narrows the interval, and excludes slow links."""
    alone = make_predictor(LinkRange.make_unknown())
    both = make_predictor(LinkRange.make_unknown(), (make_spec(), ONE_DEVICE), (make_spec(16, 4), 2001.0))
    before, after = (each.predict(make_spec(32, 12)) for each in (alone, both))
    assert after.high / after.low < before.high / before.low
    assert both.link_bytes_per_s > alone.link_bytes_per_s
    assert both.largest == 16


def test_busiest_server_is_named() -> None:
    """At 128 nodes the link of the largest variable's server decides, and splitting variables or bf16 would help."""
    predictor = make_predictor(LinkRange.from_probe(2.5e9))
    spec = predictor.choose_num_ps(make_spec(128, 1, variable_placement="greedy"))
    found = predictor.predict(spec)
    assert found.binding.startswith("link of ps:")
    assert found.binding.endswith("MB x 127")
    gains = {each.change: each for each in predictor.list_gains(spec)}
    assert gains["variable_placement=split"].ratio > 1.2
    assert gains["wire_precision=bf16"].ratio > 1.2
    assert all(each.low <= each.ratio <= each.high for each in gains.values())
    assert "variable_update=parameter_server" not in gains


def test_chosen_number_of_servers_grows_with_slow_links() -> None:
    """One server is chosen on fast links, and more on slow links, but no more than devices; a mode without servers has none."""
    fast, slow = (make_predictor(LinkRange.from_probe(per_s)) for per_s in (1e12, 0.5e9))
    assert fast.choose_num_ps(make_spec(8)).num_ps == 1
    assert 1 < slow.choose_num_ps(make_spec(8)).num_ps <= 8
    without = make_spec(8, 0, mode="collective_all_reduce")
    assert slow.choose_num_ps(without) == without


def test_workers_fill_hosts_in_order() -> None:
    """Workers fill hosts in order, servers are beside them or on their own hosts, and the last worker may have fewer
    devices."""
    hosts = Hosts(devices_per_host=4)
    layout = hosts.place(make_spec(10, 2))
    assert layout.hosts == {
        "ps:0": "host 1",
        "ps:1": "host 2",
        "worker:0": "host 1",
        "worker:1": "host 2",
        "worker:2": "host 3",
    }
    assert list(layout.devices.values()) == [4, 4, 2]
    config = ClusterConfig(name="lab", device="gpu", devices_per_worker=4, ps_on_worker_hosts=False)
    apart = replace(hosts, config=config).place(make_spec(4, 2))
    assert apart.hosts == {"ps:0": "server host 1", "ps:1": "server host 2", "worker:0": "host 1"}
    each = hosts.place(make_spec(8, 0, mode="horovod"))
    assert list(each.hosts.values()) == ["host 1"] * 4 + ["host 2"] * 4


def test_tasks_are_where_the_cluster_file_places_them() -> None:
    """A cluster's devices of each worker, and its hosts and numbers of parameter servers, are those of the prediction."""
    config = ClusterConfig(name="lab", device="gpu", devices_per_worker=2, ps_on_worker_hosts=False, ps_per_host=2)
    layout = Hosts(devices_per_host=4, config=config).place(make_spec(8, 2))
    servers = {"ps:0": "server host 1", "ps:1": "server host 1"}
    workers = {"worker:0": "host 1", "worker:1": "host 1", "worker:2": "host 2", "worker:3": "host 2"}
    assert (layout.hosts, set(layout.devices.values())) == (servers | workers, {2})


def test_mode_of_one_process_stays_on_one_host() -> None:
    """A mode of one process is refused for more devices than a host has."""
    with pytest.raises(SpecError, match="trains in one process, and a host has 4 devices"):
        Hosts(devices_per_host=4).place(make_spec(8, 0, mode="replicated"))


def test_listed_changes_are_possible_and_new() -> None:
    """The list of changes has none that the training has already, or that its mode refuses."""
    assert "variable_placement=split" not in dict(list_changes(make_spec(8, 2, variable_placement="split")))
    assert "variable_placement=split" not in dict(list_changes(make_spec(8, 0, mode="collective_all_reduce")))
    assert "wire_precision=bf16" in dict(list_changes(make_spec(8, 0, mode="collective_all_reduce")))
    assert "wire_precision=bf16" not in dict(list_changes(make_spec(8, 0, mode="replicated")))


def test_published_rates_are_loaded_by_system() -> None:
    """A system's published rates have their specs and numbers of servers; unknown systems and trainings are refused."""
    found = load_published("piz-daint", make_spec())
    assert [(each.spec.gpus, each.spec.num_ps) for each in found][-1] == (128, 116)
    with pytest.raises(UsageError, match="unknown published system 'piz-daimt'"):
        find_hosts("piz-daimt")
    with pytest.raises(UsageError, match="has no published rates of inception3 with 7 images"):
        load_published("piz-daint", make_spec(batch_size=7))
