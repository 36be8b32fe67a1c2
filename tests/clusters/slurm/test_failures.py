"""Failures on a real Slurm: a failed task is reported with its node, a failed cluster with Slurm's reason.

Nothing hangs, nothing is left, and the next run on new nodes is good.
"""

import os
import re
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from pytest_dtfperf.clusters import named
from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.clusters.protocol import Resources
from pytest_dtfperf.errors import AllocationError, AllocationOver, HostLost, TaskFailed
from pytest_dtfperf.launch.launcher import Launcher
from pytest_dtfperf.node import sweep
from pytest_dtfperf.testing.backends import PATIENCE_S, wait_until
from tests.clusters.slurm.conftest import LogIn, NewSite
from tests.clusters.slurm.scene import ENDLESS, Driver, Scene, children, driver, scene, slurm, wait_until_all_is_gone
from tests.clusters.slurm.site import Site, why_not

KILL = signal.SIGKILL


@pytest.fixture(scope="module", autouse=True)
def timed_out_driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """Start a session with a job that will reach its time limit, before all others, because Slurm takes 1.5 minutes for it."""
    if reason := why_not():
        pytest.skip(reason)
    config = slurm(backend_keys={"partition": "short", "time_limit": 1})
    folder = tmp_path_factory.mktemp("timed-out")
    for task in ("worker-0", "worker-1"):
        (folder / f"{task}.json").write_text('{"step_s": 1.0}')  # each step is an event of two processes
    with Site(nodes=2) as site, driver(folder, config, site.environment, ENDLESS) as process:
        yield process


class Strike:
    """An action on the run, done once, when its first step is made. It has the run's session from then on."""

    def __init__(self, scene: Scene, blow: Callable[[Scene], object]) -> None:
        self.session = ""
        self._scene = scene
        self._blow = blow

    def __call__(self, *_: object) -> None:
        if not self.session:
            self.session = self._scene.session
            self._blow(self._scene)


def run_and_strike(stage: Scene, blow: Callable[[Scene], object], steps: int = ENDLESS) -> None:
    strike = Strike(stage, blow)
    stage.stage.launcher.run(stage.stage.spec(steps=steps), log_dir=stage.stage.logs, on_progress=strike)


def expect_good_run(site: Site, folder: Path, config: ClusterConfig | None = None) -> None:
    with scene(site, folder, config) as again:
        again.stage.forget()
        assert len(again.stage.run(steps=2).step_s) == 2


# -- a task fails: so does the test


def exit_with(s: Scene, codes: Mapping[str, int]) -> None:
    for task, code in codes.items():
        s.stage.script(task, at="ready", do="exit", what=code)


TASKS: dict[str, tuple[Callable[[Scene], object], str]] = {
    "exits 3": (
        lambda s: s.stage.script("worker:1", at="step", do="exit", what=3),
        r"worker:1 on n2 left with exit code 3\n    \| leaving early\n    whole log: ",
    ),
    "exit 3, 7, 0": (
        lambda s: exit_with(s, {"worker:0": 3, "worker:1": 7}),
        "worker:[01] on n[12] left with exit code [37]",
    ),
    "SIGKILL": (
        lambda s: s.stage.script("worker:1", at="step", do="signal", what=signal.SIGKILL),
        "worker:1 on n2 was killed by SIGKILL",
    ),
    "SIGSEGV": (
        lambda s: s.stage.script("worker:1", at="step", do="signal", what=signal.SIGSEGV),
        r"(?s)worker:1 on n2 was killed by SIGSEGV.*Fatal Python error: Segmentation fault",
    ),
}


@pytest.mark.parametrize("end", TASKS)
def test_failing_task_fails_the_test(login_site: Site, tmp_path: Path, end: str) -> None:
    """A run fails with the end and the node of a failed task, and the same agents carry out the next run."""
    plan, words = TASKS[end]
    with scene(login_site, tmp_path) as stage:
        session = stage.session
        plan(stage)
        with pytest.raises(TaskFailed, match=words):
            stage.stage.run(steps=ENDLESS)
        stage.stage.forget()
        assert len(stage.stage.run(steps=2).step_s) == 2
        assert stage.session == session
    wait_until_all_is_gone(login_site, [session])


# -- failures of the cluster, which fail no test


@dataclass(frozen=True)
class Loss:
    """An event in the cluster while tasks train, and the first line of its error."""

    blow: Callable[[Scene], object]
    words: str
    repair: Callable[[Site], object] = lambda site: None
    tasks: str = ""  # their action, as tests/node/toy_task.py names it


def cancel(s: Scene) -> None:
    s.site.run("scancel", s.job)


def requeue(s: Scene) -> None:
    """Requeue the job as an administrator, who may access any job."""
    s.site.run("scontrol", "update", f"jobid={s.job}", "requeue=1")
    s.site.run("scontrol", "requeue", s.job)


def take_down(s: Scene) -> None:
    s.site.run("scontrol", "update", "nodename=n2", "state=down", "reason=smoke")


LOSSES = {
    "job cancelled": Loss(cancel, r"Slurm job \d+ was cancelled \(CANCELLED\)"),
    "job cancelled, tasks ignore SIGTERM": Loss(cancel, r"Slurm job \d+ was cancelled \(CANCELLED\)", tasks="ignore SIGTERM"),
    "job suspended": Loss(
        lambda s: s.site.run("scontrol", "suspend", s.job), r"Slurm job \d+ was suspended: its processes are stopped"
    ),
    "job requeued": Loss(requeue, r"Slurm job \d+ was put back into the queue"),
    "node set down": Loss(
        take_down,
        r"Slurm job \d+ ended: node n2 failed \(NODE_FAIL\): try again; exclude_nodes in clusters.toml",
        repair=lambda site: site.run("scontrol", "update", "nodename=n2", "state=resume", check=False),
    ),
    "holder killed": Loss(lambda s: os.kill(s.holder(), KILL), r"Slurm job \d+ failed with signal 9"),
    "stepd killed": Loss(lambda s: s.site.kill_stepds("n2"), r"has given no sign of life for \d+ s"),
    "srun killed": Loss(lambda s: os.kill(s.srun("agents"), KILL), "srun, which connects to it, was killed by SIGKILL"),
    "srun and its group killed": Loss(
        lambda s: os.killpg(s.srun("agents"), KILL), "srun, which connects to it, was killed by SIGKILL"
    ),
    "srun of the keep-alive step killed": Loss(
        lambda s: os.killpg(s.srun("keepalive"), KILL),
        r"Slurm job \d+ ended by itself, as it does when .* heartbeat_timeout_s seconds",
    ),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_lost_allocation_is_an_infrastructure_error(login_site: Site, tmp_path: Path, loss: str) -> None:
    """A run on a lost allocation ends with Slurm's reason in its first line; nothing is left, and new nodes work."""
    row = LOSSES[loss]
    with scene(login_site, tmp_path, slurm(heartbeat_timeout_s=5)) as stage:
        session = stage.session
        if row.tasks:
            stage.stage.script("worker:1", at="step", do=row.tasks)
        with pytest.raises(HostLost) as error:
            run_and_strike(stage, row.blow)
    first = str(error.value).splitlines()[0]
    assert re.match(f"the agent on n[12] (is gone: )?{row.words}", first), first
    row.repair(login_site)
    wait_until_all_is_gone(login_site, [session])
    wait_until("all nodes are idle", lambda: set(login_site.run("sinfo", "--noheader", "--format=%T").split()) == {"idle"})
    expect_good_run(login_site, tmp_path)


def test_preempted_job(new_site: NewSite, log_in: LogIn, tmp_path: Path) -> None:
    """A job of higher priority that takes the nodes is reported."""
    partitions = {"low": "Default=YES PriorityTier=1", "high": "PriorityTier=9"}
    site = new_site(nodes=2, partitions=partitions, slurm_conf="PreemptType=preempt/partition_prio\nPreemptMode=CANCEL")
    log_in(site)
    with scene(site, tmp_path) as stage:
        session = stage.session
        with pytest.raises(HostLost, match=r"Slurm job \d+ was preempted: a job of higher priority took its nodes"):
            run_and_strike(
                stage, lambda s: site.run("sbatch", "--nodes=2", "--partition=high", "--wrap=sleep 1", "-o/dev/null")
            )
    wait_until_all_is_gone(site, [session])
    expect_good_run(site, tmp_path)


def test_node_that_is_switched_off_is_lost(new_site: NewSite, log_in: LogIn, tmp_path: Path) -> None:
    """A disconnected node is reported long before Slurm notices it; afterwards, the next run reports the job's end."""
    site = new_site(nodes=3, networked=True)
    log_in(site)
    with scene(site, tmp_path) as stage:
        session = stage.session
        with pytest.raises(HostLost, match=r"the agent on n2 has given no sign of life for \d+ s"):
            run_and_strike(stage, lambda s: s.site.power_off("n2"))
        wait_until(
            "Slurm misses it", lambda: "NODE_FAIL" in site.run("squeue", "--noheader", "--states=all", "--format=%T"), 90
        )
        with pytest.raises(AllocationOver, match=r"Slurm job \d+ ended: .*\bn2\b.* \(NODE_FAIL\)"):
            stage.stage.run()
    wait_until_all_is_gone(site, [session])
    expect_good_run(site, tmp_path)


# -- the cluster has trouble that is none of the run's


def test_run_outlives_slurmd(new_site: NewSite, log_in: LogIn, tmp_path: Path) -> None:
    """Runs continue and end normally after the daemon that started their agents was killed."""
    site = new_site(nodes=2)
    log_in(site)
    with scene(site, tmp_path) as stage:
        session = stage.session
        run_and_strike(stage, lambda s: s.site.kill_slurmd("n2"), steps=50)
        assert len(stage.stage.run(steps=2).step_s) == 2
        assert stage.session == session
    site.start_slurmd("n2")
    wait_until_all_is_gone(site, [session])
    expect_good_run(site, tmp_path)


def test_runs_need_no_controller(new_site: NewSite, log_in: LogIn, tmp_path: Path) -> None:
    """Runs begin, fail and end without Slurm's controller, once the agents are up."""
    site = new_site(nodes=2)
    log_in(site)
    with scene(site, tmp_path) as stage:
        session = stage.session
        run_and_strike(stage, lambda s: s.site.stop_controller(), steps=50)
        stage.stage.script("worker:1", at="step", do="exit", what=3)
        with pytest.raises(TaskFailed, match="worker:1 on n2 left with exit code 3"):
            stage.stage.run()
        stage.stage.forget()
        assert len(stage.stage.run(steps=2).step_s) == 2
        assert stage.session == session
        site.start_controller()
    wait_until_all_is_gone(site, [session])


def test_controller_away_at_the_end(new_site: NewSite, log_in: LogIn, tmp_path: Path) -> None:
    """A job that could not be cancelled during an outage is cancelled after it."""
    site = new_site(nodes=2)
    log_in(site)
    with scene(site, tmp_path) as stage:
        session = stage.session
        site.stop_controller()
    site.start_controller()
    (watchdog,) = children(os.getpid(), "dtfperf-watchdog")
    # Slurm itself may then take minutes to see that the nodes are free.
    wait_until("the job is ending", lambda: "RUNNING" not in site.run("scontrol", "show", "job", "1"))
    wait_until("no process of the session is left", lambda: sweep.find_left_processes([session]) == [])
    os.kill(watchdog, KILL)  # it would go on for minutes


# -- the cluster does not allocate its nodes

REFUSALS: dict[str, tuple[ClusterConfig, int, str]] = {
    "GPUs that no node has": (slurm(backend_keys={"gres": "gpu:9"}), 2, "Requested node configuration is not available"),
    "feature that no node has": (slurm(backend_keys={"constraint": "fat"}), 2, "Invalid feature specification"),
    "more nodes than exist": (
        slurm(backend_keys={"nodes": 9}),
        9,
        r"Slurm job \d+ cannot start: its partition (has no such nodes|does not allocate so many nodes)",
    ),
    "unknown partition": (slurm(backend_keys={"partition": "nowhere"}), 2, "invalid partition specified: nowhere"),
    "unknown reservation": (slurm(backend_keys={"reservation": "tests"}), 2, "Requested reservation is invalid"),
    "unknown license": (slurm(backend_keys={"licenses": "matlab:1"}), 2, "Invalid license specification"),
    "account that may not": (
        slurm(backend_keys={"partition": "phys", "account": "chem"}),
        2,
        r"Slurm job \d+ cannot start: this user may not use that account or qos there",
    ),
    "too long": (
        slurm(backend_keys={"partition": "short"}),
        2,
        r"Slurm job \d+ cannot start: its partition .* for so long.*time_limit",
    ),
    "no such program": (slurm(python="/no/such/python"), 2, r"(?s)the agent on n[12] could not be started.*/no/such/python"),
    "setup line fails": (
        slurm(backend_keys={"setup": ["true", "module load 'no such'"]}),
        2,
        r"(?s)the agent on n[12] could not be started.*setup line 2 failed with exit code 127: module load 'no such'",
    ),
}


@pytest.fixture(scope="module")
def choosy() -> Iterator[Site]:
    """Return a site with partitions, accounts and limits that refuse some requests."""
    with Site(nodes=2, gpus=4, partitions={"all": "Default=YES", "short": "MaxTime=1", "phys": "AllowAccounts=phys"}) as site:
        yield site


@pytest.mark.parametrize("case", REFUSALS)
def test_refused_at_once(choosy: Site, log_in: LogIn, case: str) -> None:
    """A request that Slurm will never grant is an error with its message, at once, and leaves no job behind."""
    log_in(choosy)
    config, devices, words = REFUSALS[case]
    resources = Resources(devices=devices)
    with (
        pytest.raises(AllocationError, match=words),
        named.open_cluster(config).allocate(resources) as allocation,
        Launcher(allocation, config, resources),
    ):
        pass
    wait_until_all_is_gone(choosy)


def test_busy_cluster(choosy: Site, log_in: LogIn) -> None:
    """Occupied nodes are waited for up to max_pending, with the reason; then the job is cancelled."""
    log_in(choosy)
    messages: list[str] = []
    other = choosy.run("sbatch", "--parsable", "--nodes=2", "--exclusive", "--wrap=sleep 1234", "-o/dev/null").strip()
    config = slurm(backend_keys={"max_pending": 4})
    with (
        pytest.raises(AllocationError, match=r"Slurm job \d+ pending.*\(Resources\): not started within max_pending = 4 s"),
        named.open_cluster(config).allocate(Resources(devices=2, on_status=messages.append)),
    ):
        pass
    assert any(re.search(r"Slurm job \d+ pending.*: others go first \(Resources\)", words) for words in messages)
    assert choosy.jobs() == [other]
    choosy.run("scancel", other)
    wait_until_all_is_gone(choosy)


# -- at its time limit


def test_time_limit(timed_out_driver: Driver) -> None:
    """A job that reaches its time limit reports that, and how to raise it."""
    failed = timed_out_driver.wait_for("failed")
    assert failed["kind"] in ("HostLost", "AllocationOver")
    assert re.search(
        r"Slurm job 1 reached its time limit of \S+ \(TIMEOUT\): raise time_limit in clusters.toml", failed["words"]
    )
    assert timed_out_driver.process.wait(PATIENCE_S) == 0
