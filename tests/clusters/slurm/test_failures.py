"""Whatever fails on a real Slurm: a task that fails is named with its node, a place that fails says why in Slurm's words.

Nothing hangs, nothing is left, and the next run on new nodes is good.
"""

import os
import re
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.errors import HostLost, TaskFailed
from tests.clusters.slurm.scene import ENDLESS, Driver, Scene, driver, scene, slurm, wait_until_nothing_is_left
from tests.clusters.slurm.site import Site, why_not
from tests.node.handheld import wait_until

KILL = signal.SIGKILL


@pytest.fixture(scope="module", autouse=True)
def timed_out(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """A session whose job will reach its time limit: Slurm takes a minute and a half, so it begins before all others."""
    if reason := why_not():
        pytest.skip(reason)
    config = slurm(place={"partition": "short", "time_limit": 1})
    with Site(nodes=2) as site, driver(tmp_path_factory.mktemp("timed-out"), config, site.environment) as process:
        yield process


class Strike:
    """Does something to the run, once, when its first step is made. Knows the run's session from then on."""

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
def test_failing_task_fails_the_test(on_site: Site, tmp_path: Path, end: str) -> None:
    """How a task ended, and on which node, is what the run fails with; the same agents carry out the next one."""
    plan, words = TASKS[end]
    with scene(on_site, tmp_path) as stage:
        session = stage.session
        plan(stage)
        with pytest.raises(TaskFailed, match=words):
            stage.stage.run(steps=ENDLESS)
        stage.stage.forget()
        assert len(stage.stage.run(steps=2).step_s) == 2
        assert stage.session == session
    wait_until_nothing_is_left(on_site, [session])


# -- the place fails: so does nobody's test


@dataclass(frozen=True)
class Loss:
    """Something that happens to the place while tasks train, and what is said of it in the first line."""

    blow: Callable[[Scene], object]
    words: str
    mend: Callable[[Site], object] = lambda site: None
    tasks: str = ""  # what they do, in the words of tests/node/toy_task.py


def cancel(s: Scene) -> None:
    s.site.run("scancel", s.job)


def requeue(s: Scene) -> None:
    """As an administrator, who can have that of any job."""
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
        mend=lambda site: site.run("scontrol", "update", "nodename=n2", "state=resume", check=False),
    ),
    "holder killed": Loss(lambda s: os.kill(s.holder(), KILL), r"Slurm job \d+ failed with signal 9"),
    "stepd killed": Loss(lambda s: s.site.kill_stepds("n2"), r"has given no sign of life for \d+ s"),
    "srun killed": Loss(lambda s: os.kill(s.srun("agents"), KILL), "srun, the line to it, was killed by SIGKILL"),
    "srun and its group killed": Loss(
        lambda s: os.killpg(s.srun("agents"), KILL), "srun, the line to it, was killed by SIGKILL"
    ),
    "srun of the lease killed": Loss(
        lambda s: os.killpg(s.srun("lease"), KILL), r"Slurm job \d+ ended by itself, as it does when .* lease_s seconds"
    ),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_lost_place_is_no_failing_test(on_site: Site, tmp_path: Path, loss: str) -> None:
    """The run ends as an infrastructure error whose first line says what Slurm says; nothing is left; new nodes work."""
    row = LOSSES[loss]
    with scene(on_site, tmp_path, slurm(lease_s=5)) as stage:
        session = stage.session
        if row.tasks:
            stage.stage.script("worker:1", at="step", do=row.tasks)
        with pytest.raises(HostLost) as error:
            run_and_strike(stage, row.blow)
    first = str(error.value).splitlines()[0]
    assert re.match(f"the agent on n[12] (is gone: )?{row.words}", first), first
    row.mend(on_site)
    wait_until_nothing_is_left(on_site, [session])
    wait_until("all nodes are idle", lambda: set(on_site.run("sinfo", "--noheader", "--format=%T").split()) == {"idle"})
    expect_good_run(on_site, tmp_path)
