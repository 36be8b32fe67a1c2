"""Whole runs of toy tasks: what comes back, and what a failure leaves."""

import dataclasses
import os
import signal
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from pytest_dtfperf.clusters.local import ADDRESS, LocalAllocation
from pytest_dtfperf.clusters.named import Limits
from pytest_dtfperf.clusters.protocol import Channel, Host
from pytest_dtfperf.datamodel.fingerprint import AllocatedNode, Fingerprint, Hardware
from pytest_dtfperf.errors import (
    AllocationError,
    AllocationOver,
    DeadlineExceeded,
    InvalidMeasurement,
    PortInUse,
    SpecError,
    TaskFailed,
    TaskStopped,
)
from pytest_dtfperf.launch.launcher import Launcher, merge_fingerprints
from pytest_dtfperf.launch.placement import FIRST_FIXED_PORT
from pytest_dtfperf.node import ports
from tests.fixed_ports import fixed_ports_held
from tests.launch.stage import CONFIG, TWO_HOSTS, Stage, staged


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(tmp_path_factory.mktemp("stage")) as stage:
        yield stage


@pytest.fixture
def stage(shared: Stage) -> Stage:
    """A launcher that has been through whatever the tests before did to it."""
    shared.forget()
    return shared


def test_run_yields_what_its_tasks_report(stage: Stage) -> None:
    """Every worker's steps, the rate, the phases of launching and the wall time come back."""
    run = stage.run(steps=4)
    assert {task: len(step_s) for task, step_s in run.step_s.items()} == {"worker:0": 4, "worker:1": 4}
    assert run.images_per_sec == pytest.approx(2 * 32 * 4 / run.elapsed_s)
    assert {"reserve", "fork", "ready", "stop"} <= set(run.startup_s)
    assert run.wall_s > run.elapsed_s


def test_hosts_and_fingerprint_are_known(stage: Stage) -> None:
    """The launcher returns its hosts and their properties."""
    assert stage.launcher.hosts == [socket.gethostname()]
    assert set(stage.launcher.fingerprint.to_json()) == {"hardware", "software", "program", "state"}


def test_progress_is_passed_on(stage: Stage) -> None:
    """Whoever watches hears each task's steps."""
    heard: list[tuple[str, int, int]] = []
    stage.launcher.run(
        stage.spec(steps=3), log_dir=stage.logs, on_progress=lambda task, step, of, rate: heard.append((task, step, of))
    )
    assert [each for each in heard if each[0] == "worker:1"] == [("worker:1", step, 3) for step in (1, 2, 3)]


def test_injected_sleep_slows_its_task(stage: Stage) -> None:
    """An injected slow-down reaches the task it names: toys do not wait for each other, so that it fits the chief no longer."""
    sleeps = {"worker:1": 0.1, "worker:7": 9.0}
    try:
        run = stage.launcher.run(stage.spec(steps=5), log_dir=stage.logs, injected_slowdowns=sleeps)
    except InvalidMeasurement as error:
        told = str(error)
    else:  # on a machine that others use it is one more disturbance
        told = " ".join(map(str, run.disturbances))
    assert "steps of worker:1" in told


def test_logs_are_kept_of_good_and_bad_runs(stage: Stage) -> None:
    """Each task's output is in a file of its own, whatever became of the run."""
    stage.script("worker:0", at="start", do="print", what="hello from the chief")
    stage.run()
    assert (stage.logs / "worker-0.log").read_text() == "hello from the chief\n"
    assert (stage.logs / "ps-0.log").exists()
    stage.script("worker:1", at="step", do="exit", what=3)
    with pytest.raises(TaskFailed):
        stage.run()
    assert (stage.logs / "worker-1.log").read_text() == "leaving early\n"


def test_failure_names_task_host_words_and_log(stage: Stage) -> None:
    """A task's failure is reported with its message, its host and the path of its log."""
    stage.script("worker:1", at="step", do="raise", what="out of cheese")
    with pytest.raises(TaskFailed) as failed:
        stage.run(steps=1000)
    culprit = failed.value.culprit
    assert (culprit.task, culprit.host, culprit.what) == ("worker:1", socket.gethostname(), "left with exit code 1")
    assert culprit.last_lines[-1] == "RuntimeError: out of cheese"
    assert culprit.log == str(stage.logs / "worker-1.log")


def test_logs_that_cannot_be_written_do_not_hide_a_failure(stage: Stage, tmp_path: Path) -> None:
    """If a log cannot be written, the failure has the reason, and the other tasks' logs are there."""
    for taken in ("ps-0.log", "worker-1.log"):
        (tmp_path / taken).mkdir()
    stage.script("worker:1", at="step", do="signal", what=signal.SIGSTOP)
    with pytest.raises(TaskStopped, match=r"worker:1 on .* is stopped") as failed:
        stage.launcher.run(stage.spec(steps=1000), log_dir=tmp_path)
    culprit = failed.value.culprit
    assert (culprit.log, culprit.unwritten) == (None, f"logs cannot be written to {tmp_path}: Is a directory")
    assert (tmp_path / "worker-0.log").is_file()


def test_a_failure_s_reason_is_shown_in_the_place_of_its_traceback(stage: Stage) -> None:
    """Only the task's own output is quoted, and its log has the rest."""
    stage.script("worker:1", at="step", do="explain", what=["it was the cheese"])
    with pytest.raises(TaskFailed) as failed:
        stage.run(steps=1000)
    assert str(failed.value).splitlines()[1:] == [
        "    | it was the cheese",
        f"    whole log: {stage.logs / 'worker-1.log'}",
    ]
    assert "RuntimeError: somewhere deep within" in (stage.logs / "worker-1.log").read_text()


@pytest.mark.parametrize(
    ("task", "at", "do", "what", "words"),
    [
        ("worker:0", "start", "signal", 9, "was killed by SIGKILL"),
        ("worker:1", "ready", "exit", 0, "ended without a report"),
        ("worker:1", "end", "say nothing", None, "ended without a report"),
        ("ps:0", "ready", "exit", 0, "left with exit code 0 before its workers were done"),
        ("ps:0", "end", "raise", "no", "left with exit code 1"),
    ],
)
def test_launcher_is_ready_after_every_failure(stage: Stage, task: str, at: str, do: str, what: object, words: str) -> None:
    """A failed run names its task, ends, and the next run on the same agents is as good as any."""
    stage.script(task, at=at, do=do, what=what)
    with pytest.raises(TaskFailed, match=words) as failed:
        stage.run(steps=200)
    assert failed.value.culprit.task == task
    stage.forget()
    assert len(stage.run(steps=2).step_s) == 2


def test_lone_process_needs_no_ports(stage: Stage) -> None:
    """Without parameter servers one worker runs alone, with an empty cluster and all the devices."""
    run = stage.run(gpus=2, num_ps=0, variable_update="replicated")
    assert list(run.step_s) == ["worker:0"]


def test_too_many_devices_are_refused_before_anything_starts(stage: Stage) -> None:
    """What the hosts cannot hold is a matter of the spec."""
    with pytest.raises(SpecError, match="needs 3 device"):
        stage.run(gpus=3)


def test_interrupt_ends_the_run_and_goes_on_up(stage: Stage) -> None:
    """Ctrl-C while training stops all tasks, keeps the logs, and is passed on."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stage.launcher.run(stage.spec(steps=1000), log_dir=stage.logs / "interrupted", on_progress=interrupt)
    assert (stage.logs / "interrupted" / "worker-0.log").exists()
    assert not any(os.path.exists(f"/proc/{stage.pid(task)}") for task in ("ps:0", "worker:0", "worker:1"))
    stage.run(steps=2)


def test_hosts_share_a_run(tmp_path: Path) -> None:
    """Tasks on two hosts make one run."""
    with staged(tmp_path, TWO_HOSTS) as stage:
        assert len(stage.launcher.hosts) == 2
        assert set(stage.run(steps=2).step_s) == {"worker:0", "worker:1"}
        stage.script("worker:1", at="step", do="signal", what=9)
        with pytest.raises(TaskFailed) as failed:
            stage.run(steps=1000)
        assert failed.value.culprit.host == stage.launcher.hosts[1]
        stage.forget()
        stage.run(steps=2)


def test_run_tells_which_hosts_it_was_on(tmp_path: Path) -> None:
    """A run on one of two hosts counts as one host, and is recorded with what that host is."""
    with staged(tmp_path, TWO_HOSTS) as stage:
        first, second = stage.launcher.hosts
        assert stage.run(gpus=1, num_ps=1).hosts == [first]
        assert stage.run(gpus=2, num_ps=1).hosts == [first, second]
        apart = dataclasses.replace(TWO_HOSTS, ps_on_worker_hosts=False)
    with staged(tmp_path, apart) as stage:
        assert stage.run(gpus=1, num_ps=1).hosts == stage.launcher.hosts, "a parameter server's host is one, too"


def test_placement_is_what_the_hosts_are_against_what_was_asked_for(tmp_path: Path) -> None:
    """The launcher returns both, for all its hosts, and in the fingerprint for those of one run."""
    with staged(tmp_path, TWO_HOSTS) as stage:
        assert stage.launcher.placement.requested == stage.launcher.placement.granted == ["2 nodes"]
        assert [node.name for node in stage.launcher.placement.nodes] == stage.launcher.hosts
        found = stage.launcher.collect_fingerprint(stage.launcher.hosts[1:])
        assert found.placement
        assert found.placement.nodes == [AllocatedNode(name=stage.launcher.hosts[1], gpus=0, switch=None)]
        assert found.placement.matches


def test_cold_start_works_as_well(tmp_path: Path) -> None:
    """Tasks that share no zygote make the same run."""
    with staged(tmp_path, dataclasses.replace(CONFIG, start="cold")) as stage:
        assert len(stage.run(steps=2).step_s) == 2
        assert len(stage.run(steps=2).step_s) == 2


def test_a_run_may_be_longer_than_its_heartbeats_time_out(tmp_path: Path) -> None:
    """Agents hear from this process for as long as it lives, also where nothing is ordered: they do not give it up."""
    with staged(tmp_path, dataclasses.replace(CONFIG, heartbeat_timeout_s=4.0)) as stage:
        stage.script("worker:0", step_s=0.5)
        assert len(stage.run(gpus=1, num_ps=0, variable_update="independent", steps=12).step_s["worker:0"]) == 12


@pytest.fixture
def fixed_ports() -> Iterator[None]:
    with fixed_ports_held():
        yield


@pytest.mark.usefixtures("fixed_ports")
def test_fixed_ports_are_used_again_and_again(tmp_path: Path) -> None:
    """Fixed ports serve one run after the other, and the error names a port that is taken."""
    if not all(ports.is_free(port) for port in (2220, 2221, 2230)):
        pytest.skip("somebody on this machine uses the ports of the fixed scheme, 2220, 2221 or 2230")
    with staged(tmp_path, dataclasses.replace(CONFIG, fixed_ports=True, backend_keys={"network": "host"})) as stage:
        stage.run(steps=2)
        stage.run(steps=2)
        with (
            socket.create_server(("0.0.0.0", FIRST_FIXED_PORT["worker"] + 1)),
            pytest.raises(PortInUse, match="port 2221 is taken"),
        ):
            stage.run(steps=2)
        stage.run(steps=2)


def test_deadline_names_who_is_late(tmp_path: Path) -> None:
    """A task that hangs before it is ready is named when its time is up."""
    config = dataclasses.replace(CONFIG, limits=Limits(ready_s=1.0))
    with staged(tmp_path, config) as stage:
        stage.script("worker:1", at="start", do="hang")
        with pytest.raises(DeadlineExceeded, match=r"worker:1 on .* was not ready within 1 s"):
            stage.run()


class Over:
    """Return an allocation with reclaimed hosts."""

    hosts = (Host("n1", "127.0.0.1"),)

    def start(self, argv: Sequence[str]) -> Channel:
        raise AllocationOver("Slurm job 17 ended: node n1 failed (NODE_FAIL)")


def test_end_of_an_allocation_is_told_as_such() -> None:
    """The user of reclaimed hosts gets the backend's message, and can request others."""
    with pytest.raises(AllocationOver, match=r"^Slurm job 17 ended: node n1 failed \(NODE_FAIL\)$"), Launcher(Over(), CONFIG):
        pass


def test_agent_that_cannot_start_is_explained(tmp_path: Path) -> None:
    """The reason why an agent does not start is in the error."""
    with (
        pytest.raises(AllocationError, match=r"(?s)did not start.*has no module 'nowhere'"),
        staged(tmp_path, dataclasses.replace(CONFIG, entry="nowhere:run")),
    ):
        pass
    with (
        pytest.raises(AllocationError, match="cannot start /no/python"),
        staged(tmp_path, dataclasses.replace(CONFIG, python="/no/python")),
    ):
        pass


def test_what_only_the_cluster_knows_is_part_of_the_fingerprint() -> None:
    """A host's zone, which it cannot see itself, is in the fingerprint beside its agent's findings."""
    host = Host("h", ADDRESS, fingerprint=Fingerprint(hardware=Hardware(cloud={"zone": "a"}), software={"ami": "ami-1"}))
    with Launcher(LocalAllocation([host]), CONFIG) as launcher:
        found = launcher.fingerprint
    assert found.hardware.cloud == {"zone": "a"}
    assert found.hardware.cores == os.cpu_count()
    assert found.software["ami"] == "ami-1"
    assert found.software["kernel"] == os.uname().release


def test_a_number_that_one_host_does_not_know_is_unknown_of_all() -> None:
    """Of different hosts the smallest number of cores counts, and none if a host has none; names are joined."""
    known, fewer, unknown = (
        Fingerprint(hardware=Hardware(cpu=cpu, cores=cores)) for cpu, cores in (("A", 8), ("B", 4), ("A", None))
    )
    assert merge_fingerprints([known, fewer]).hardware == Hardware(cpu="A | B", cores=4)
    assert merge_fingerprints([known, unknown]).hardware == Hardware(cpu="A", cores=None)


def test_software_that_one_host_lacks_is_in_the_fingerprint_of_all() -> None:
    """A host in a container and one without have one fingerprint, which has the image and its absence."""
    inside, outside = Fingerprint(software={"kernel": "6.1", "container": "sha256:a"}), Fingerprint(software={"kernel": "6.1"})
    assert merge_fingerprints([inside, outside]).software == {"kernel": "6.1", "container": "None | sha256:a"}


def test_names_of_many_different_hosts_stay_readable_from_a_record() -> None:
    """The joined names of a thousand kinds of processors are cut to the length that a record may have."""
    merged = merge_fingerprints([Fingerprint(hardware=Hardware(cpu=f"processor {number}")) for number in range(1000)])
    assert Fingerprint.from_json(merged.to_json()) == merged
