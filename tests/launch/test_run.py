"""Tests of whole runs of toy tasks: their results, and the state after a failure."""

import dataclasses
import os
import signal
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from pytest_dtfperf.clusters.local import ADDRESS, LocalAllocation
from pytest_dtfperf.clusters.named import Limits
from pytest_dtfperf.clusters.placement import FIRST_FIXED_PORT
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
from pytest_dtfperf.node import ports
from tests.fixed_ports import fixed_ports_held
from tests.launch.stage import CONFIG, TWO_HOSTS, Stage, start_stage


@pytest.fixture(scope="module")
def shared_stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with start_stage(tmp_path_factory.mktemp("stage")) as stage:
        yield stage


@pytest.fixture
def stage(shared_stage: Stage) -> Stage:
    """Return a launcher that has been through the tests before."""
    shared_stage.forget()
    return shared_stage


def test_run_has_steps_rate_and_times(stage: Stage) -> None:
    """A run has the steps of each worker, the rate, the phases of launching and the wall time."""
    run = stage.run(steps=4)
    assert {task: len(step_s) for task, step_s in run.step_s.items()} == {"worker:0": 4, "worker:1": 4}
    assert run.images_per_sec == pytest.approx(2 * 32 * 4 / run.elapsed_s)
    assert {"reserve", "fork", "ready", "stop"} <= set(run.startup_s)
    assert run.wall_s > run.elapsed_s


def test_launcher_has_hosts_and_fingerprint(stage: Stage) -> None:
    """The launcher has its hosts and their fingerprint."""
    assert stage.launcher.hosts == [socket.gethostname()]
    assert set(stage.launcher.fingerprint.to_json()) == {"hardware", "software", "program", "state"}


def test_progress_of_each_step_is_reported(stage: Stage) -> None:
    """The callback for progress receives each step of a task."""
    heard: list[tuple[str, int, int]] = []
    stage.launcher.run(
        stage.spec(steps=3),
        log_dir=stage.logs,
        on_progress=lambda task, step, total_steps, rate: heard.append((task, step, total_steps)),
    )
    assert [each for each in heard if each[0] == "worker:1"] == [("worker:1", step, 3) for step in (1, 2, 3)]


def test_injected_sleep_slows_its_task(stage: Stage) -> None:
    """An injected slow-down delays only its task, so that a toy does not fit the chief any more."""
    sleeps = {"worker:1": 0.1, "worker:7": 9.0}
    try:
        run = stage.launcher.run(stage.spec(steps=5), log_dir=stage.logs, injected_slowdowns=sleeps)
    except InvalidMeasurement as error:
        output = str(error)
    else:  # on a machine that others use it is one more disturbance
        output = " ".join(map(str, run.disturbances))
    assert "steps of worker:1" in output


def test_logs_are_kept_after_success_and_failure(stage: Stage) -> None:
    """Each task's output is in its own file, after a run and after a failure."""
    stage.script("worker:0", at="start", do="print", what="hello from the chief")
    stage.run()
    assert (stage.logs / "worker-0.log").read_text() == "hello from the chief\n"
    assert (stage.logs / "ps-0.log").exists()
    stage.script("worker:1", at="step", do="exit", what=3)
    with pytest.raises(TaskFailed):
        stage.run()
    assert (stage.logs / "worker-1.log").read_text() == "leaving early\n"


def test_failure_has_task_host_output_and_log(stage: Stage) -> None:
    """The failure of a task has its host, its exit code, its last output and the path of its log."""
    stage.script("worker:1", at="step", do="raise", what="out of cheese")
    with pytest.raises(TaskFailed) as failed:
        stage.run(steps=1000)
    culprit = failed.value.culprit
    assert (culprit.task, culprit.host, culprit.description) == ("worker:1", socket.gethostname(), "left with exit code 1")
    assert culprit.last_lines[-1] == "RuntimeError: out of cheese"
    assert culprit.log == str(stage.logs / "worker-1.log")


def test_unwritable_log_does_not_hide_a_failure(stage: Stage, tmp_path: Path) -> None:
    """If a log cannot be written, the failure has the reason, and another task's log is written."""
    for taken in ("ps-0.log", "worker-1.log"):
        (tmp_path / taken).mkdir()
    stage.script("worker:1", at="step", do="signal", what=signal.SIGSTOP)
    with pytest.raises(TaskStopped, match=r"worker:1 on .* is stopped") as failed:
        stage.launcher.run(stage.spec(steps=1000), log_dir=tmp_path)
    culprit = failed.value.culprit
    assert (culprit.log, culprit.unwritten) == (None, f"logs cannot be written to {tmp_path}: Is a directory")
    assert (tmp_path / "worker-0.log").is_file()


def test_reason_of_a_failure_replaces_its_traceback(stage: Stage) -> None:
    """A failure shows the task's own reason, and its log has the traceback."""
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
    """A failed run names its task and ends, and the next run on the same agents succeeds."""
    stage.script(task, at=at, do=do, what=what)
    with pytest.raises(TaskFailed, match=words) as failed:
        stage.run(steps=200)
    assert failed.value.culprit.task == task
    stage.forget()
    assert len(stage.run(steps=2).step_s) == 2


def test_single_process_has_all_devices(stage: Stage) -> None:
    """Without servers one worker has all devices."""
    run = stage.run(gpus=2, num_ps=0, variable_update="replicated")
    assert list(run.step_s) == ["worker:0"]
    assert run.task_devices == {"worker:0": 2}


def test_too_many_devices_are_refused(stage: Stage) -> None:
    """Too many devices are refused before any task starts."""
    with pytest.raises(SpecError, match="needs 3 device"):
        stage.run(gpus=3)
    assert not list(stage.folder.glob("*.pid"))


def test_interrupt_ends_the_run(stage: Stage) -> None:
    """Ctrl-C during a run ends all tasks, keeps the logs and is raised again, and the next run succeeds."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stage.launcher.run(stage.spec(steps=1000), log_dir=stage.logs / "interrupted", on_progress=interrupt)
    assert (stage.logs / "interrupted" / "worker-0.log").exists()
    assert not any(os.path.exists(f"/proc/{stage.pid(task)}") for task in ("ps:0", "worker:0", "worker:1"))
    stage.run(steps=2)


def test_tasks_on_two_hosts_make_one_run(tmp_path: Path) -> None:
    """Tasks on two hosts make one run, a failure names its host, and the next run succeeds."""
    with start_stage(tmp_path, TWO_HOSTS) as stage:
        assert len(stage.launcher.hosts) == 2
        assert set(stage.run(steps=2).step_s) == {"worker:0", "worker:1"}
        stage.script("worker:1", at="step", do="signal", what=9)
        with pytest.raises(TaskFailed) as failed:
            stage.run(steps=1000)
        assert failed.value.culprit.host == stage.launcher.hosts[1]
        stage.forget()
        stage.run(steps=2)


def test_run_has_the_hosts_that_it_used(tmp_path: Path) -> None:
    """A run has only the hosts with its tasks, also that of a server."""
    with start_stage(tmp_path, TWO_HOSTS) as stage:
        first, second = stage.launcher.hosts
        assert stage.run(gpus=1, num_ps=1).hosts == [first]
        assert stage.run(gpus=2, num_ps=1).hosts == [first, second]
        apart = dataclasses.replace(TWO_HOSTS, ps_on_worker_hosts=False)
    with start_stage(tmp_path, apart) as stage:
        assert stage.run(gpus=1, num_ps=1).hosts == stage.launcher.hosts, "a parameter server's host is one, too"


def test_placement_has_requested_and_allocated_hosts(tmp_path: Path) -> None:
    """The launcher has the requested and the allocated hosts, and the fingerprint those of one run."""
    with start_stage(tmp_path, TWO_HOSTS) as stage:
        assert stage.launcher.placement.requested == stage.launcher.placement.granted == ["2 nodes"]
        assert [node.name for node in stage.launcher.placement.nodes] == stage.launcher.hosts
        found = stage.launcher.collect_fingerprint(stage.launcher.hosts[1:])
        assert found.placement
        assert found.placement.nodes == [AllocatedNode(name=stage.launcher.hosts[1], gpus=0, switch=None)]
        assert found.placement.matches


def test_cold_start_makes_two_runs(tmp_path: Path) -> None:
    """Tasks without a common zygote make one run after the other."""
    with start_stage(tmp_path, dataclasses.replace(CONFIG, start="cold")) as stage:
        assert len(stage.run(steps=2).step_s) == 2
        assert len(stage.run(steps=2).step_s) == 2


def test_run_may_be_longer_than_the_heartbeat_timeout(tmp_path: Path) -> None:
    """A run that is longer than the heartbeat's time limit ends well."""
    with start_stage(tmp_path, dataclasses.replace(CONFIG, heartbeat_timeout_s=4.0)) as stage:
        stage.script("worker:0", step_s=0.5)
        assert len(stage.run(gpus=1, num_ps=0, variable_update="independent", steps=12).step_s["worker:0"]) == 12


@pytest.fixture
def fixed_ports() -> Iterator[None]:
    with fixed_ports_held():
        yield


@pytest.mark.usefixtures("fixed_ports")
def test_fixed_ports_serve_several_runs(tmp_path: Path) -> None:
    """Fixed ports serve one run after the other, and the error names a port that is taken."""
    if not all(ports.is_free(port) for port in (2220, 2221, 2230)):
        pytest.skip("somebody on this machine uses the ports of the fixed scheme, 2220, 2221 or 2230")
    with start_stage(tmp_path, dataclasses.replace(CONFIG, fixed_ports=True, backend_keys={"network": "host"})) as stage:
        stage.run(steps=2)
        stage.run(steps=2)
        with (
            socket.create_server(("0.0.0.0", FIRST_FIXED_PORT["worker"] + 1)),
            pytest.raises(PortInUse, match="port 2221 is taken"),
        ):
            stage.run(steps=2)
        stage.run(steps=2)


def test_deadline_names_the_late_task(tmp_path: Path) -> None:
    """A task that hangs before it is ready is named after its time limit."""
    config = dataclasses.replace(CONFIG, limits=Limits(ready_s=1.0))
    with start_stage(tmp_path, config) as stage:
        stage.script("worker:1", at="start", do="hang")
        with pytest.raises(DeadlineExceeded, match=r"worker:1 on .* was not ready within 1 s"):
            stage.run()


class ReclaimedAllocation:
    """Stand in for an allocation with reclaimed hosts."""

    hosts = (Host("n1", "127.0.0.1"),)

    def start(self, argv: Sequence[str]) -> Channel:
        raise AllocationOver("Slurm job 17 ended: node n1 failed (NODE_FAIL)")


def test_end_of_an_allocation_has_its_reason() -> None:
    """The end of an allocation is raised with the backend's message."""
    with (
        pytest.raises(AllocationOver, match=r"^Slurm job 17 ended: node n1 failed \(NODE_FAIL\)$"),
        Launcher(ReclaimedAllocation(), CONFIG),
    ):
        pass


def test_agent_that_cannot_start_has_its_reason(tmp_path: Path) -> None:
    """The error on an agent that does not start has the reason."""
    with (
        pytest.raises(AllocationError, match=r"(?s)did not start.*has no module 'nowhere'"),
        start_stage(tmp_path, dataclasses.replace(CONFIG, entry="nowhere:run")),
    ):
        pass
    with (
        pytest.raises(AllocationError, match="cannot start /no/python"),
        start_stage(tmp_path, dataclasses.replace(CONFIG, python="/no/python")),
    ):
        pass


def test_fingerprint_has_properties_from_the_cluster() -> None:
    """The fingerprint has a host's zone and image from the cluster, beside the findings of its agent."""
    host = Host("h", ADDRESS, fingerprint=Fingerprint(hardware=Hardware(cloud={"zone": "a"}), software={"ami": "ami-1"}))
    with Launcher(LocalAllocation([host]), CONFIG) as launcher:
        found = launcher.fingerprint
    assert found.hardware.cloud == {"zone": "a"}
    assert found.hardware.cores == os.cpu_count()
    assert found.software["ami"] == "ami-1"
    assert found.software["kernel"] == os.uname().release


def test_merged_fingerprint_has_the_smallest_number() -> None:
    """Different hosts have the smallest number of cores, or none if it is unknown on one, and their names joined."""
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
