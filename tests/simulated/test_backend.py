"""Tests of simulated clusters: their hosts, their keys, and the events of their agents."""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from pytest_dtfperf.cli import main
from pytest_dtfperf.clusters import named
from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.clusters.protocol import Cluster, Resources
from pytest_dtfperf.datamodel.measurement import Run
from pytest_dtfperf.errors import AllocationOver, ClusterFileError, HostLost, RunFailed
from pytest_dtfperf.explain.causes import explain
from pytest_dtfperf.explain.measurement_profile import MeasurementProfile
from pytest_dtfperf.launch.launcher import Launcher
from pytest_dtfperf.simulated.hardware import share_links
from pytest_dtfperf.spec import Spec
from pytest_dtfperf.testing.backends import BackendContract
from pytest_dtfperf.training.exchange_plan import bytes_on_servers

KEYS: dict[str, Any] = {"hosts": 4, "gpus_per_host": 2, "rates": {"inception3": 142.0}, "link": "10gbit", "seed": 7}


class TestSimulated(BackendContract):
    """Run the contract of all backends on the simulated one. Programs other than agents run on this machine."""

    keeps_secrets = False

    @pytest.fixture
    def cluster(self) -> Cluster:
        return named.open_cluster(
            ClusterConfig(name="twins", backend="simulated", backend_keys={"hosts": 2, "gpus_per_host": 1})
        )


def make_config(**keys: Any) -> ClusterConfig:
    return ClusterConfig(name="sim", backend="simulated", backend_keys={**KEYS, **keys})


def make_spec(**changes: Any) -> Spec:
    fields = {"model": "inception3", "gpus": 8, "num_ps": 1, "batch_size": 64, "steps": 20, "warmup_steps": 5}
    return Spec(**{**fields, **changes})


def train_on_cluster(cluster: ClusterConfig, training: Spec, folder: Path, *, session: str = "s", **options: Any) -> Run:
    resources = Resources(devices=training.gpus, session=session)
    with (
        named.open_cluster(cluster).allocate(resources) as allocation,
        Launcher(allocation, cluster, resources) as launcher,
    ):
        return launcher.run(training, log_dir=folder, **options)


def test_rate_of_one_device_is_that_of_the_file(tmp_path: Path) -> None:
    """Without noise one device trains exactly at the rate in the cluster file."""
    run = train_on_cluster(make_config(noise=0, run_noise=0), make_spec(gpus=1), tmp_path)
    assert run.images_per_sec == pytest.approx(142.0)
    assert len(run.step_s["worker:0"]) == 20


def test_rate_without_an_entry_follows_from_arithmetic(tmp_path: Path) -> None:
    """Models without an entry have rates in the order of their operations."""
    rates = {
        name: train_on_cluster(make_config(noise=0, run_noise=0), make_spec(gpus=1, model=name), tmp_path)
        for name in ("resnet50", "vgg16")
    }
    assert rates["resnet50"].images_per_sec > 2 * rates["vgg16"].images_per_sec


@pytest.mark.parametrize("mode", ["parameter_server", "distributed_replicated", "collective_all_reduce", "independent"])
def test_mode_trains_on_several_hosts(tmp_path: Path, mode: str) -> None:
    """Each mode trains on several hosts, no faster than its devices, with timings of all workers and no disturbance."""
    run = train_on_cluster(
        make_config(), make_spec(variable_update=mode, num_ps=int("server" in mode or "distributed" in mode)), tmp_path
    )
    assert 0.3 * 8 * 142 < run.images_per_sec < 1.03 * 8 * 142
    assert run.worker_timings
    assert len(run.worker_timings.workers) == 8
    assert not run.disturbances


def test_hour_of_virtual_time_takes_less_real_time(tmp_path: Path) -> None:
    """A run of more than an hour of virtual time takes less than a tenth of it."""
    began_s = time.monotonic()
    run = train_on_cluster(make_config(rates={"inception3": 1.0}), make_spec(gpus=2, steps=60), tmp_path)
    assert run.elapsed_s > 3600
    assert run.wall_s > run.elapsed_s
    assert time.monotonic() - began_s < run.elapsed_s / 10


def test_seed_repeats_a_session(tmp_path: Path) -> None:
    """The same seed gives the same steps, and another one gives others."""
    first, again, other = (
        train_on_cluster(make_config(seed=seed), make_spec(), tmp_path, session=f"s{n}") for n, seed in enumerate((1, 1, 2))
    )
    assert first.step_s == again.step_s
    assert first.step_s != other.step_s


def test_workers_of_a_slow_host_are_late(tmp_path: Path) -> None:
    """A slow host slows the cluster, and exactly its workers are late."""
    slow = make_config(slow_hosts=[{"host": 2, "slowdown": 1.5}])
    usual, run = train_on_cluster(make_config(), make_spec(), tmp_path), train_on_cluster(slow, make_spec(), tmp_path)
    assert run.images_per_sec < 0.9 * usual.images_per_sec
    assert run.worker_timings
    timings = run.worker_timings.workers
    late = {worker for worker, timing in timings.items() if (timing.late_s or 0) > 0.1}
    assert late == {"worker:4", "worker:5"}


@pytest.mark.parametrize("mode", ["parameter_server", "distributed_replicated", "collective_all_reduce", "independent"])
def test_traces_agree_with_timestamps(tmp_path: Path, mode: str) -> None:
    """Traced steps take as long as measured ones, kind by kind, and no link carries more than its rate."""
    servers = int("server" in mode or "distributed" in mode)
    run = train_on_cluster(
        make_config(noise=0, run_noise=0), make_spec(variable_update=mode, num_ps=servers), tmp_path, explain=True
    )
    breakdown, timings = run.step_breakdown, run.worker_timings
    assert breakdown, run.unexplained
    assert timings
    assert breakdown.wall_s == pytest.approx(run.step_s["worker:0"][0], abs=1e-5)
    for worker, timing in timings.workers.items():
        parts = breakdown.tasks[worker].parts
        assert parts["forward"] + parts["backward"] == pytest.approx(timing.compute_s, abs=1e-5)
        assert parts["python"] == pytest.approx(timing.python_s, abs=1e-5)
        assert parts.get("receive", 0.0) <= (timing.receive_s or 0.0) + 1e-5
        assert sum(parts.values()) == pytest.approx(breakdown.wall_s, abs=1e-5)
    assert bool(breakdown.links) == bool(servers)
    assert all(link.busy_s and link.size_bytes / link.busy_s <= 1.25e9 for link in breakdown.links)


def test_servers_without_variables_have_no_operations(tmp_path: Path) -> None:
    """Of more parameter servers than variables, those that hold one are in the traces, and no others."""
    training = make_spec(model="alexnet", num_ps=24)
    run = train_on_cluster(make_config(), training, tmp_path, explain=True)
    assert run.step_breakdown, run.unexplained
    traced = {task for task in run.step_breakdown.tasks if task.startswith("ps:")}
    assert traced == {f"ps:{number}" for number, size in enumerate(bytes_on_servers(training)) if size}
    assert 1 < len(traced) < 24


@pytest.mark.parametrize(
    ("hosts", "devices", "num_ps"),
    [(4, 2, 1), (4, 2, 2), (4, 16, 3), (18, 2, 16)],
    ids=["one server", "two servers", "more links than a breakdown has", "a breakdown with links of one worker only"],
)
def test_slow_link_of_workers_is_the_cause(tmp_path: Path, hosts: int, devices: int, num_ps: int) -> None:
    """A slow link of a host with workers only is the only cause, at this host."""
    training, keys = make_spec(gpus=hosts * devices, num_ps=num_ps, steps=30), {"hosts": hosts, "gpus_per_host": devices}
    slow_links = [{"host": hosts - 1, "link": "1gbit"}]
    usual = train_on_cluster(make_config(**keys), training, tmp_path, explain=True)
    slow = train_on_cluster(make_config(**keys, slow_links=slow_links), training, tmp_path, explain=True)
    baseline, current = (
        MeasurementProfile(
            step_s=[run.elapsed_s / training.steps],
            step_breakdown=run.step_breakdown,
            worker_timings=run.worker_timings,
            hosts=run.task_hosts,
        )
        for run in (usual, slow)
    )
    found = explain(baseline, current)
    assert found
    assert [(cause.kind, cause.location) for cause in found.causes] == [("link", f"sim-{hosts - 1:04}")]
    assert found.causes[0].seconds == pytest.approx(current.step_s[0] - baseline.step_s[0], rel=0.05)


def test_session_on_all_workers_is_not_traced(tmp_path: Path) -> None:
    """A mode with one session on all workers has no step breakdown, and gives the reason."""
    run = train_on_cluster(make_config(), make_spec(variable_update="distributed_all_reduce", num_ps=0), tmp_path, explain=True)
    assert run.step_breakdown is None
    assert "SIMULATED hosts trace no steps of one session on all workers" in run.unexplained


def test_software_stacks_share_hosts(tmp_path: Path) -> None:
    """Two launchers that train at the same time, each on its own hosts of one allocation, have the steps of trainings in
    turn."""
    cluster, resources = make_config(), Resources(devices=8, session="shared")
    backend = named.BACKENDS["simulated"]
    training = make_spec(gpus=4)

    def train_on(launcher: Launcher, without: list[str]) -> Run:
        return launcher.run(training, log_dir=tmp_path, without=without)

    with named.open_cluster(cluster).allocate(resources) as allocation, ExitStack() as stack:
        launchers = [
            stack.enter_context(Launcher(backend.share_hosts(allocation, cluster), cluster, resources)) for _ in range(2)
        ]
        halves = [["sim-0000", "sim-0001"], ["sim-0002", "sim-0003"]]
        with ThreadPoolExecutor(2) as pool:
            together = list(pool.map(train_on, launchers, halves))
    with (
        named.open_cluster(cluster).allocate(Resources(devices=8, session="alone")) as allocation,
        Launcher(allocation, cluster, resources) as launcher,
    ):
        in_turn = [train_on(launcher, without) for without in halves]
    assert [run.step_s for run in together] == [run.step_s for run in in_turn]
    assert together[0].step_s != together[1].step_s
    assert [set(run.task_hosts.values()) for run in together] == [set(halves[1]), set(halves[0])]


def test_left_out_host_keeps_the_numbers_of_others(tmp_path: Path) -> None:
    """Without a host that has died the others train on, and the slow one is still the same."""
    cluster = make_config(deaths=[{"host": 0, "step": 10}], slow_hosts=[{"host": 2, "slowdown": 1.5}])
    resources, backend = Resources(devices=8, session="left out"), named.BACKENDS["simulated"]
    with named.open_cluster(cluster).allocate(resources) as allocation:
        with Launcher(allocation, cluster, resources) as launcher, pytest.raises(HostLost, match="sim-0000"):
            launcher.run(make_spec(), log_dir=tmp_path)
        left = backend.share_hosts(allocation, cluster, ["sim-0000"])
        with Launcher(left, cluster, resources) as launcher:
            run = launcher.run(make_spec(gpus=6), log_dir=tmp_path)
    assert run.worker_timings
    late = {worker for worker, timing in run.worker_timings.workers.items() if (timing.late_s or 0) > 0.1}
    assert {run.task_hosts[worker] for worker in late} == {"sim-0002"}


def test_death_of_a_host_holds_for_all_stacks(tmp_path: Path) -> None:
    """A host that has died under one software stack starts no agents of another one."""
    cluster, resources = make_config(deaths=[{"host": 3, "step": 10}]), Resources(devices=8, session="dying together")
    backend = named.BACKENDS["simulated"]
    with named.open_cluster(cluster).allocate(resources) as allocation:
        shared = backend.share_hosts(allocation, cluster)
        with Launcher(shared, cluster, resources) as launcher, pytest.raises(HostLost, match="sim-0003"):
            launcher.run(make_spec(), log_dir=tmp_path)
        with pytest.raises(AllocationOver, match="sim-0003"), Launcher(allocation, cluster, resources) as launcher:
            launcher.run(make_spec(), log_dir=tmp_path)


@pytest.mark.parametrize(
    ("streams", "links", "rates"),
    [
        ({(1, 0): 1, (2, 0): 1}, {}, [5.0, 5.0]),
        ({(1, 0): 3, (2, 0): 1}, {}, [7.5, 2.5]),
        ({(1, 0): 1, (2, 0): 1}, {2: 1.0}, [9.0, 1.0]),
        ({(0, 1): 1, (2, 1): 1, (2, 3): 1}, {}, [5.0, 5.0, 5.0]),
        ({(0, 1): 1, (2, 1): 1, (2, 3): 1}, {0: 2.0}, [2.0, 5.0, 5.0]),
        ({}, {}, []),
    ],
    ids=["even parts", "more connections", "others take what a slow link leaves", "both ends", "a slow sender", "none"],
)
def test_streams_share_links_fairly(streams: dict[tuple[int, int], int], links: dict[int, float], rates: list[float]) -> None:
    """Connections have max-min fair shares of the links at both ends."""
    found = share_links(streams, lambda host: links.get(host, 10.0))
    assert [found[stream] for stream in streams] == pytest.approx(rates)


def test_slow_link_begins_at_its_time(tmp_path: Path) -> None:
    """A link that becomes slow after a while slows the later steps."""
    run = train_on_cluster(
        make_config(slow_links=[{"host": 0, "link": "1gbit", "after": "15s"}]), make_spec(steps=100), tmp_path
    )
    steps = run.step_s["worker:0"]
    assert steps[-1] > 3 * steps[0]


def test_host_outside_of_the_allocation_does_not_die(tmp_path: Path) -> None:
    """The death of a host outside of a smaller allocation changes nothing."""
    run = train_on_cluster(make_config(deaths=[{"host": 3, "step": 10}]), make_spec(gpus=2), tmp_path)
    assert run.hosts == ["sim-0000"]


def test_host_dies_once(tmp_path: Path) -> None:
    """A host dies in its step and ends its allocation, and the next allocation of the session trains."""
    cluster = make_config(deaths=[{"host": 3, "step": 10}])
    resources = Resources(devices=8, session="dying")
    with named.open_cluster(cluster).allocate(resources) as allocation, Launcher(allocation, cluster, resources) as launcher:
        with pytest.raises(HostLost, match=r"sim-0003.*SIMULATED: the host has died in measured step 10"):
            launcher.run(make_spec(), log_dir=tmp_path)
        with pytest.raises(AllocationOver, match="sim-0003"):
            launcher.run(make_spec(), log_dir=tmp_path)
    assert train_on_cluster(cluster, make_spec(), tmp_path, session="dying").images_per_sec > 0


def test_queue_is_reported_as_virtual_time() -> None:
    """The time in a queue is reported as virtual time, and hosts are allocated."""
    heard: list[str] = []
    with named.open_cluster(make_config(queue="20min")).allocate(Resources(devices=1, on_status=heard.append)) as allocation:
        assert allocation.hosts
    assert heard == ["SIMULATED: waited 20 min of virtual time in the queue"]


def test_injected_slowdown_delays_the_chief(tmp_path: Path) -> None:
    """A worker that sleeps half a second in each step delays the chief in each step."""
    run = train_on_cluster(make_config(), make_spec(), tmp_path, injected_slowdowns={"worker:3": 0.5})
    assert min(run.step_s["worker:0"]) > 0.9


def test_probes_show_slow_hosts_and_links(tmp_path: Path) -> None:
    """Probes of simulated hosts have the slower device and the slower link of the cluster file."""
    cluster = make_config(slow_hosts=[{"host": 1, "slowdown": 2.0}], slow_links=[{"host": 2, "link": "1gbit"}])
    resources = Resources(devices=8)
    with named.open_cluster(cluster).allocate(resources) as allocation, Launcher(allocation, cluster, resources) as launcher:
        probes = launcher.probe(make_spec(num_ps=0, variable_update="collective_all_reduce"))
    gpus = {host: probe.readings["gpu.0.matmul"].per_s for host, probe in probes.hosts.items()}
    assert gpus["sim-0001"] == pytest.approx(gpus["sim-0000"] / 2, rel=0.05)
    links = {name: link.per_s for name, link in probes.links.items()}
    assert min(links, key=lambda name: links[name]).count("sim-0002")


def test_external_command_is_refused(tmp_path: Path) -> None:
    """An external command fails with the reason."""
    with pytest.raises(RunFailed, match="SIMULATED hosts run no external commands"):
        train_on_cluster(make_config(), Spec(model="mine", command=("true",), batch_size=1), tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hosts = 2", "lacks gpus_per_host"),
        ("gpus_per_host = 1\nrates = { inception9 = 1 }", "rates: unknown model 'inception9'"),
        ("gpus_per_host = 1\nrates = { inception3 = 0 }", "rates must be a table of models and their images/sec"),
        ("gpus_per_host = 1\nlink = '10'", "link must be a rate with its unit"),
        ("gpus_per_host = 1\nnoise = 0.5", "noise must be a fraction below 0.5"),
        ("gpus_per_host = 1\nqueue = 'none'", "queue must be a time"),
        ("gpus_per_host = 1\nslow_hosts = [{ host = 1, slowdown = 2.0 }]", "slow_hosts: there is no host 1 of 1 host"),
        ("gpus_per_host = 1\nslow_links = [{ host = 0 }]", "slow_links must be a list of tables with host and link"),
        ("gpus_per_host = 1\ndeaths = [{ host = 0, step = 0 }]", "deaths must be a list of tables with host and step"),
    ],
)
def test_invalid_key_is_refused(tmp_path: Path, text: str, message: str) -> None:
    """Each invalid key is refused with its name and the allowed values."""
    file = tmp_path / "clusters.toml"
    file.write_text(f'[sim]\nbackend = "simulated"\n{text}\n')
    with pytest.raises(ClusterFileError, match=message):
        named.load(file)


def test_doctor_refuses_simulated_hosts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The doctor refuses a simulated cluster with exit code 2 and the reason."""
    file = tmp_path / "clusters.toml"
    file.write_text('[sim]\nbackend = "simulated"\nhosts = 4\ngpus_per_host = 2\n')
    assert main(["doctor", "--cluster=sim", f"--clusters-file={file}"]) == 2
    assert "cluster sim is simulated: it has no hosts to check" in capsys.readouterr().err
