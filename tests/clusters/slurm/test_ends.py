"""A job ends after every kind of end of pytest: by the watchdog here or by the keep-alive step, each without the other."""

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from pytest_dtfperf.clusters import named
from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.clusters.protocol import Resources
from pytest_dtfperf.clusters.slurm import job_keepalive, request
from pytest_dtfperf.clusters.slurm.client import SlurmClient
from pytest_dtfperf.clusters.slurm.job_keepalive import Keepalive
from pytest_dtfperf.errors import AllocationError
from pytest_dtfperf.node import processes
from pytest_dtfperf.testing.backends import PATIENCE_S, wait_until
from tests.clusters.slurm.conftest import LogIn, NewSite
from tests.clusters.slurm.scene import Driver, children, command, driver, slurm
from tests.clusters.slurm.site import Site

GONE_S = 10.0
ENDED_S = job_keepalive.SRUN_LEAVES_S + PATIENCE_S
KILL = signal.SIGKILL


def list_active_jobs(site: Site) -> list[str]:
    """Return the ids of the jobs that are not about to end."""
    return site.run("squeue", "--noheader", "--states=PENDING,RUNNING,SUSPENDED", "--format=%i").split()


def wait_until_gone(site: Site, *besides: str) -> None:
    wait_until("no job is left", lambda: list_active_jobs(site) == [*besides], GONE_S)
    wait_until("no process is left", lambda: site.processes("DTFPERF_SESSION=") == [], GONE_S)


def watchdog_of(process: Driver) -> int:
    wait_until("it has a watchdog", lambda: children(process.process.pid, "dtfperf-watchdog"))
    return children(process.process.pid, "dtfperf-watchdog")[0]


@pytest.fixture
def own_site(new_site: NewSite, log_in: LogIn) -> Site:
    """Return a new site, for tests that stop it, change its programs, or need the states of all its jobs."""
    site = new_site(nodes=2)
    log_in(site)
    return site


@pytest.fixture
def pair(two_nodes: Site, log_in: LogIn) -> Iterator[Site]:
    """Return the shared site without a job."""
    log_in(two_nodes)
    yield two_nodes
    wait_until("no job is left", lambda: two_nodes.jobs() == [])


def submit_blocking_job(site: Site) -> str:
    """Run another user's job on all nodes, and return its id."""
    job = site.run("sbatch", "--parsable", "--nodes=2", "--exclusive", "--wrap=sleep 1234", "--output=/dev/null").strip()
    wait_until("it runs", lambda: site.processes("sleep 1234"))
    return job


HOW: dict[str, Callable[[Driver], object]] = {
    "killed": lambda each: each.process.kill(),
    "killed with its group": lambda each: os.killpg(each.process.pid, KILL),
    "terminated": lambda each: each.process.terminate(),
    "interrupted": lambda each: each.process.send_signal(signal.SIGINT),
}


def while_pending(site: Site, folder: Path, how: str) -> None:
    """End a session while its job waits, and check that its job is cancelled and others are not."""
    job = submit_blocking_job(site)
    with driver(folder, slurm(), site.environment) as process:
        process.wait_for("waits")
        assert len(list_active_jobs(site)) == 2
        HOW[how](process)
        wait_until_gone(site, job)
    site.run("scancel", job)


def while_training(site: Site, folder: Path, how: str) -> None:
    """End a session while tasks train, and check that the job, the tasks and then the watchdog end."""
    with driver(folder, slurm(), site.environment) as process:
        process.wait_for("ran")
        watchdog = watchdog_of(process)
        assert site.processes("DTFPERF_SESSION=")
        HOW[how](process)
        wait_until_gone(site)
        wait_until("the watchdog is gone", lambda: not processes.inspect(watchdog), 2 * GONE_S)


WHEN: dict[str, Callable[[Site, Path, str], None]] = {"while pending": while_pending, "while training": while_training}


@pytest.mark.campaign
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("when", WHEN)
def test_end(pair: Site, tmp_path: Path, when: str, how: str) -> None:
    """A session that ends in any way at any time leaves neither its job nor a process."""
    WHEN[when](pair, tmp_path, how)


@pytest.mark.parametrize("how", ["killed", "interrupted"])
def test_end_while_sbatch_is_under_way(own_site: Site, tmp_path: Path, how: str) -> None:
    """A job is cancelled even if its pytest ended before sbatch reported its number."""
    sbatch = own_site.folder / "bin" / "sbatch"
    sbatch.write_text(f"#!/bin/sh\ntrap '' INT\n/usr/bin/sbatch \"$@\" >'{tmp_path}/id'\nsleep 1234 & exec sleep 1\n")
    sbatch.chmod(0o755)
    with driver(tmp_path, slurm(), own_site.environment) as process:
        wait_until("the job is submitted", lambda: (tmp_path / "id").exists() and (tmp_path / "id").read_text())
        HOW[how](process)
        wait_until("it is gone", lambda: list_active_jobs(own_site) == [], GONE_S + 5)


def test_keepalive_step_ends_a_session_without_watchdog(pair: Site, tmp_path: Path) -> None:
    """The keep-alive step ends a session after its pytest, watchdog and sruns were all killed."""
    with driver(tmp_path, slurm(heartbeat_timeout_s=2), pair.environment) as process:
        process.wait_for("ran")
        os.kill(watchdog_of(process), KILL)
        sruns = children(process.process.pid, "srun")
        process.process.kill()
        for srun in sruns:
            os.killpg(srun, KILL)
        wait_until_gone(pair)


def sruns_of(process: Driver) -> list[int]:
    """Return the process ids of the sruns of the agents and of the keep-alive step."""
    sruns = children(process.process.pid, "srun --jobid")
    assert len(sruns) == 2
    return sruns


def wait_until_ended(sruns: Sequence[int], within_s: float = ENDED_S) -> None:
    wait_until("no srun is left", lambda: not any(processes.inspect(srun) for srun in sruns), within_s)


def vanish_with(process: Driver, site: Site) -> None:
    """Kill pytest after Slurm is down and before it notices, so that no process is left to end its sruns in order."""
    process.process.send_signal(signal.SIGSTOP)
    site.vanish()
    process.process.kill()
    process.process.wait()


def test_stopped_srun_does_not_outlive_pytest(pair: Site, tmp_path: Path) -> None:
    """A pytest that is killed while its sruns stand still leaves neither them nor its job."""
    with driver(tmp_path, slurm(), pair.environment) as process:
        process.wait_for("ran")
        sruns = sruns_of(process)
        for srun in sruns:
            os.kill(srun, signal.SIGSTOP)
        process.process.kill()
        wait_until_gone(pair)
        wait_until_ended(sruns, GONE_S)


def test_srun_does_not_outlive_pytest_and_slurm(own_site: Site, tmp_path: Path) -> None:
    """sruns of a pytest that is killed while Slurm is down, which wait for its controller, are ended."""
    with driver(tmp_path, slurm(), own_site.environment) as process:
        process.wait_for("ran")
        sruns = sruns_of(process)
        vanish_with(process, own_site)
        wait_until_ended(sruns)


def test_srun_does_not_outlive_pytest_in_an_existing_job(own_site: Site, tmp_path: Path) -> None:
    """sruns in a job that existed before pytest, which has no watchdog, end with pytest."""
    inside = {**own_site.environment, "SLURM_JOB_ID": submit_blocking_job(own_site), "SLURM_JOB_NODELIST": "n[1-2]"}
    with driver(tmp_path, slurm(), inside) as process:
        process.wait_for("ran")
        (srun,) = children(process.process.pid, "srun --jobid")
        vanish_with(process, own_site)
        wait_until_ended([srun])


def test_next_session_ends_sruns_without_a_watchdog(own_site: Site, new_site: NewSite, log_in: LogIn, tmp_path: Path) -> None:
    """An allocation on this machine ends the sruns of a dead session, of any Slurm, and no srun of a living one."""
    with driver(tmp_path, slurm(), own_site.environment) as process:
        process.wait_for("ran")
        sruns = sruns_of(process)
        os.kill(watchdog_of(process), KILL)
        vanish_with(process, own_site)
    other = new_site(nodes=4)
    log_in(other)
    (tmp_path / "other").mkdir()
    with driver(tmp_path / "other", slurm(), other.environment) as at_work:
        at_work.wait_for("ran")
        wait_until_ended(sruns, GONE_S)
        its_own = sruns_of(at_work)
        with named.open_cluster(slurm()).allocate(Resources(devices=2)):
            assert sruns_of(at_work) == its_own
        at_work.wait_for("ran")


def test_keepalive_folders_of_the_dead_are_swept(pair: Site) -> None:
    """A job takes away what killed ones have left on its node, but nothing young, of the living, or of elsewhere."""
    here = pair.run("srun", "--nodes=1", "readlink", "/proc/self/ns/pid").strip()
    left = {"old": ("4194304", here), "young": ("4194304", here), "living": ("1", here), "elsewhere": ("4194304", "pid:[1]")}
    keepalives = {name: Path("/tmp", f"dtfperf-{pair.folder.name}-{name}.keepalive") for name in left}
    past = time.time() - 60 * (job_keepalive.OLD_MIN + 2)
    try:
        for name, (pid, namespace) in left.items():
            keepalives[name].mkdir()
            (keepalives[name] / "pid").write_text(f"{pid}\n")
            (keepalives[name] / "namespace").write_text(f"{namespace}\n")
            if name != "young":
                os.utime(keepalives[name], (past, past))
        (pair.folder / "holder").write_text(job_keepalive.JOB_SCRIPT.replace(f"-lt {job_keepalive.FIRST_KEEPALIVE_S}", "-lt 1"))
        argv = request.make_submit_command(slurm(), nodes=1, name="dtfperf-nobody-2", comment="nobody's")
        pair.run(*argv, str(pair.folder / "holder"))
        wait_until("it has ended", lambda: list_active_jobs(pair) == [])
        assert {name for name, keepalive in keepalives.items() if keepalive.exists()} == {"young", "living", "elsewhere"}
    finally:
        for keepalive in keepalives.values():
            shutil.rmtree(keepalive, ignore_errors=True)


def test_session_stopped_beyond_its_heartbeat_timeout_reports_it(pair: Site, tmp_path: Path) -> None:
    """A pytest that is stopped for longer than its time-out loses its nodes, and reports that when it continues."""
    with driver(tmp_path, slurm(heartbeat_timeout_s=2), pair.environment) as process:
        process.wait_for("ran")
        (job,) = pair.jobs()
        process.process.send_signal(signal.SIGSTOP)
        wait_until_gone(pair)
        process.process.send_signal(signal.SIGCONT)
        failed = process.wait_for("failed")
    assert f"Slurm job {job} ended by itself, as it does when it has heard nothing from pytest" in failed["words"]


def test_job_ends_if_no_keepalive_step_starts(own_site: Site) -> None:
    """A job is ended if its pytest and watchdog die before they start the keep-alive step."""
    argv = request.make_submit_command(slurm(), nodes=1, name="dtfperf-nobody-1", comment="nobody's")
    script = job_keepalive.JOB_SCRIPT.replace(f"-lt {job_keepalive.FIRST_KEEPALIVE_S}", "-lt 1")
    assert script != job_keepalive.JOB_SCRIPT
    (own_site.folder / "holder").write_text(script)
    own_site.run(*argv, str(own_site.folder / "holder"))
    wait_until("it has ended", lambda: list_active_jobs(own_site) == [])
    assert "COMPLETED" in own_site.run("squeue", "--noheader", "--states=all", "--format=%T")


def test_keepalive_step_that_cannot_be_started(own_site: Site) -> None:
    """A job without a startable process on its first node is an error with the node and srun's message, and is cancelled."""
    srun = own_site.folder / "bin" / "srun"
    srun.write_text("#!/bin/sh\nexec /usr/bin/srun --jobid=4711 true\n")
    srun.chmod(0o755)
    words = r"^the keep-alive step on n1 could not be started\n    \| srun: error: .*4711: Invalid job id specified"
    with pytest.raises(AllocationError, match=words), named.open_cluster(slurm()).allocate(Resources(devices=2)):
        pass
    wait_until_gone(own_site)


def test_watchdog_exits_with_its_job(pair: Site) -> None:
    """A session that ends in order leaves no watchdog."""
    config: ClusterConfig = slurm()
    with named.open_cluster(config).allocate(Resources(devices=2)):
        assert [command(pid) for pid in children(os.getpid(), "dtfperf-watchdog")]
    assert children(os.getpid(), "dtfperf-watchdog") == []
    wait_until_gone(pair)


def test_keepalive_step_ignores_output_of_a_prolog() -> None:
    """Output of a site's prolog before the keep-alive step's own message is ignored."""
    talk = ["sh", "-c", "echo Welcome to; printf 'the site\\nhe'; sleep 0.1; echo ld; exec cat >/dev/null"]
    with Keepalive(SlurmClient({"PATH": os.environ["PATH"]}), "n1", talk):
        pass


def test_keepalive_step_that_only_talks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that prints other output for too long is reported."""
    monkeypatch.setattr(job_keepalive, "TAKE_S", 0.3)
    talker = ["sh", "-c", "while echo held on; do sleep 0.01; done"]
    keepalive = Keepalive(SlurmClient({"PATH": os.environ["PATH"]}), "n1", talker)
    with pytest.raises(AllocationError, match=r"^srun has started no keep-alive step on n1"), keepalive:
        pass
