"""Tests of pytest on a real Slurm: measured rates are simulated, jobs and queues are real."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from pytest_dtfperf.node import processes
from pytest_dtfperf.testing.backends import wait_until
from tests.clusters.slurm import site_files
from tests.clusters.slurm.conftest import NewSite, new_site, shared_site, site
from tests.clusters.slurm.site import Site
from tests.plugin.conftest import ENDS_S, Ended, PerfTests
from tests.plugin.test_allocations import MANY
from tests.plugin.test_verdicts import records, session
from tests.plugin.zygote import Started

__all__ = ["new_site", "shared_site", "site"]

COMMANDS = ("sbatch", "srun", "salloc", "squeue", "scontrol", "scancel", "sacct", "sinfo")
TRAINING = "training = { repeats = 3, batch_size = 10, warmup_steps = 1, steps = 4 }"
TOY = 'entry = "tests.plugin.toy_training:run"'
CORES = ["nodes = 4", "devices_per_host = 1", 'device = "cpu"']
TWO = """
def test_a(train):
    train(model="trivial", gpus=1)

def test_b(train):
    train(model="trivial", gpus=1, batch_size=3)
"""


@dataclass(frozen=True)
class Job:
    """One of Slurm's own records."""

    id: str
    name: str
    state: str
    exit_code: str
    nodes: int
    began: int  # both in seconds since 1970
    ended: int


class Mini:
    """Perf tests on the login node of a site, which is the cluster `mini`."""

    def __init__(self, perf: PerfTests, site: Site, backend_keys: Sequence[str] = CORES) -> None:
        self.perf = perf
        self.site = site
        self.folder = perf.folder
        perf.environment |= site.environment
        self.add_keys(
            'backend = "slurm"',
            "dedicated = false",
            f'python = "{sys.executable}"',
            "time_limit = 5",
            TRAINING,
            'environment = ["TOY_*"]',
        )
        self.add_keys(*([] if any(line.startswith("entry ") for line in backend_keys) else [TOY]), *backend_keys)
        self._before = {job.id for job in self._records()}

    def add_keys(self, *lines: str) -> None:
        """Add lines to the cluster's table."""
        clusters = self.folder / "perf" / "clusters.toml"
        output = clusters.read_text()
        clusters.write_text("\n".join([output if "[mini]" in output else f"{output}\n[mini]", *lines, ""]))

    def run(self, *arguments: str, **environment: str) -> Ended:
        return self.perf.run("--cluster=mini", *arguments, **environment)

    @contextmanager
    def start(self, *arguments: str, name: str = "out.txt", **environment: str) -> Iterator["Running"]:
        """The same while it goes on, as in a terminal: it leads a process group of its own."""
        out = self.folder / name
        with (
            out.open("w") as file,
            self.perf.start("--cluster=mini", *arguments, variables=environment, out=file.fileno(), leads=True) as process,
        ):
            running = Running(process, out)
            try:
                yield running
            finally:
                if process.poll() is None:
                    running.press_ctrl_c()

    @property
    def jobs(self) -> list[Job]:
        """Those of this test, in order."""
        return [job for job in self._records() if job.id not in self._before]

    def list_pending(self) -> list[Job]:
        return [job for job in self.jobs if job.state == "PENDING"]

    @contextmanager
    def occupy_nodes(self) -> Iterator[str]:
        """All nodes have other work to do: the id of the job that is it."""
        options = ["--parsable", f"--nodes={len(self.site.nodes)}", "--exclusive", "--time=10", "--output=/dev/null"]
        job_id = self.site.run("sbatch", *options, "--job-name=others", "--chdir=/", "--wrap=sleep 600").strip()
        wait_until("it runs", lambda: "R" in self.site.run("squeue", "--noheader", "--format=%t", f"--jobs={job_id}"))
        self._before.add(job_id)
        try:
            yield job_id
        finally:
            self.site.run("scancel", job_id)

    def _records(self) -> list[Job]:
        text = self.site.run("env", "SLURM_TIME_FORMAT=%s", "scontrol", "--oneliner", "show", "job")
        lines = [line for line in text.splitlines() if line.startswith("JobId=")]
        return sorted(map(_job, lines), key=lambda job: int(job.id))


@dataclass(frozen=True)
class Running:
    """A pytest process, and its output so far."""

    process: Started
    out: Path

    @property
    def output(self) -> str:
        return self.out.read_text()

    def wait_for(self, words: str) -> None:
        wait_until(f"{words!r} is said", lambda: words in self.output)

    def press_ctrl_c(self) -> int:
        """All processes of the terminal's foreground get the signal. Gives pytest's exit code."""
        os.killpg(self.process.pid, signal.SIGINT)
        return self.process.wait(ENDS_S)


def _job(line: str) -> Job:
    output = dict(re.findall(r"\b(JobId|JobName|JobState|ExitCode|NumNodes|StartTime|EndTime)=(\S+)", line))
    began, ended = (int(output[key]) if output[key].isdigit() else 0 for key in ("StartTime", "EndTime"))
    nodes = int(output["NumNodes"].partition("-")[0])
    return Job(output["JobId"], output["JobName"], output["JobState"], output["ExitCode"], nodes, began, ended)


def most_at_once(jobs: Sequence[Job]) -> int:
    """How many held nodes at the same time; in one second, others end before some begin."""
    changes = sorted(change for job in jobs for change in ((job.began, 1), (job.ended, -1)))
    held = [sum(step for _, step in changes[: number + 1]) for number in range(len(changes))]
    return max(held)


def of_folder(folder: Path) -> list[int]:
    """Return the living processes that were started in this folder, on the login node and on all others."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environment = (process / "environ").read_bytes()
        except OSError:
            continue
        if str(folder).encode() in environment:
            found.append(int(process.name))
    return found


@contextmanager
def leaving_nothing(mini: Mini) -> Iterator[Mini]:
    """After whatever a test does, no job and no process is left."""
    yield mini
    wait_until("no job is left", lambda: mini.site.jobs() == [])
    wait_until("no process is left", lambda: of_folder(mini.folder) == [])


@pytest.fixture
def mini(site: Site, perf: PerfTests) -> Iterator[Mini]:
    """Four nodes, each of them one device."""
    with leaving_nothing(Mini(perf, site)) as mini:
        yield mini


def test_session_is_one_job_of_its_largest_test(mini: Mini) -> None:
    """All tests share one job with the nodes of the largest, which is named after the session."""
    ended = mini.run("--gpus=1,2,4")
    assert ended.code == 0, ended.out
    (job,) = mini.jobs
    assert job.nodes == 4
    assert session(mini.perf)["id"] in job.name
    assert [record["hosts"] for record in records(mini.perf)] == [["n1"], ["n1", "n2"], ["n1", "n2", "n3", "n4"]]
    ended.line("dtfperf: cluster mini (slurm, 4 hosts, 4 cpu devices)")
    ended.line(f"Slurm job {job.id} runs on n1, n2, n3, n4")


def test_each_measurement_is_a_job(mini: Mini) -> None:
    """With allocation = "test" each measurement is a job of its own size, and one runs at a time."""
    mini.add_keys('allocation = "test"')
    ended = mini.run("--gpus=1,2,4")
    assert ended.code == 0, ended.out
    assert [job.nodes for job in mini.jobs] == [1, 2, 4]
    assert most_at_once(mini.jobs) == 1


# Jobs are counted by Slurm either way: two at a time show the limit, and four that there is no other.
@pytest.mark.campaign(part=2)
@pytest.mark.parametrize("max_jobs", [4, 2])
def test_xdist_workers_have_their_own_jobs(mini: Mini, max_jobs: int) -> None:
    """With -n 4 max_jobs jobs run at the same time, in one session, and baselines are merged once."""
    mini.add_keys(f"max_jobs = {max_jobs}")
    mini.perf.write(MANY)
    ended = mini.run("-n4", "--update-baselines", TOY_WALL_S="1")
    assert ended.code == 0, ended.out
    assert most_at_once(mini.jobs) == max_jobs
    assert len(list((mini.folder / "perf_results").iterdir())) == 1
    assert len(records(mini.perf)) == 6
    (file,) = (mini.folder / "baselines").glob("*.json")
    assert len(json.loads(file.read_text())["entries"]) == 6
    assert ended.out.count("Baselines written") == 1


def test_session_inside_a_job_uses_its_nodes(mini: Mini) -> None:
    """pytest inside a job of two nodes trains on these, submits nothing, and does not end the job."""
    tests = shlex.join(mini.perf.command("perf", "--cluster=mini"))
    script = f"{tests}; echo pytest left with $?; srun --overlap --mem=0 -N2 -n2 echo still here"
    options = ["--parsable", "--nodes=2", "--exclusive", "--time=5", f"--chdir={mini.folder}", "--output=job.txt"]
    job_id = subprocess.run(
        ["sbatch", *options, f"--wrap={script}"], env=mini.perf.environ(), capture_output=True, text=True, check=True
    ).stdout.strip()
    wait_until("the job is over", lambda: mini.jobs[-1].state not in ("PENDING", "RUNNING", "COMPLETING"), ENDS_S)
    output = (mini.folder / "job.txt").read_text()
    assert [(job.id, job.state) for job in mini.jobs] == [(job_id, "COMPLETED")], output
    assert "dtfperf: cluster mini (slurm, inside a job with 2 hosts, 2 cpu devices)" in output
    assert f"\ninside Slurm job {job_id}, on n1, n2\n" in output
    assert "2 undecided" in output  # one device and two: not four
    assert "pytest left with 0" in output
    assert output.count("still here") == 2
    assert [len(record["hosts"]) for record in records(mini.perf)] == [1, 2]


def test_session_inside_an_ended_job_is_an_error(mini: Mini) -> None:
    """With the SLURM_JOB_ID of an ended job each test has an error with the remedy."""
    with mini.occupy_nodes() as job_id:
        pass
    wait_until("it is over", lambda: mini.site.jobs() == [])
    ended = mini.run("--gpus=1,2", SLURM_JOB_ID=job_id, SLURM_JOB_NUM_NODES="2", SLURM_JOB_NODELIST="n[1-2]")
    assert ended.code == pytest.ExitCode.TESTS_FAILED
    words = f"SLURM_JOB_ID names Slurm job {job_id}, but that is CANCELLED. Unset SLURM_JOB_ID for a job of"
    assert ended.out.count(f"\n{words}") == 2


def test_pending_job_shows_its_reason_and_ends_on_interrupt(mini: Mini) -> None:
    """A pending job shows its reason and expected start, and Ctrl-C cancels it and ends pytest with its summary."""
    with mini.occupy_nodes(), mini.start("--gpus=2") as running:
        running.wait_for(" pending, expected to start ")
        running.wait_for(": others go first (Resources)")
        (job,) = mini.list_pending()
        assert running.press_ctrl_c() == pytest.ExitCode.INTERRUPTED
        assert f"Slurm job {job.id} pending" in running.output
        assert "KeyboardInterrupt" in running.output
        assert "no tests ran in" in running.output.splitlines()[-1]
        wait_until("it is cancelled", lambda: mini.jobs[-1].state == "CANCELLED")


@pytest.mark.parametrize("how", ["SIGTERM", "SIGHUP", "SIGKILL", "SIGINT twice"])
def test_pending_job_is_cancelled_by_any_signal(mini: Mini, how: str) -> None:
    """SIGTERM, SIGHUP, SIGKILL or a second SIGINT to pytest cancels its pending job."""
    name, _, again = how.partition(" ")
    with mini.occupy_nodes(), mini.start("--gpus=2") as running:
        running.wait_for(" pending")
        for _ in range(2 if again else 1):
            os.killpg(running.process.pid, signal.Signals[name])
        running.process.wait(ENDS_S)
        wait_until("it is cancelled", lambda: [job.state for job in mini.jobs] == ["CANCELLED"])
    for pid in of_folder(mini.folder):  # what cancels it looks again for minutes, lest the job was not in the queue yet
        processes.kill(pid, signal.SIGKILL)


def test_job_above_a_limit_of_its_partition_is_an_error(mini: Mini) -> None:
    """A job that breaks a limit of its partition is cancelled, and each test has an error with the key to change."""
    mini.add_keys('partition = "short"')
    ended = mini.run("--gpus=1,2")
    assert ended.code == pytest.ExitCode.TESTS_FAILED
    (job,) = mini.jobs
    assert job.state == "CANCELLED"
    words = (
        f"Slurm job {job.id} cannot start: its partition does not allocate nodes for so long: lower time_limit in clusters.toml"
    )
    assert ended.out.count(f"\n{words}") == 2
    ended.line("2 errors")


def test_job_pending_too_long_is_cancelled(mini: Mini) -> None:
    """After max_pending the only job is cancelled, and each test has an error with the reason."""
    mini.add_keys('max_pending = "2s"')
    with mini.occupy_nodes():
        ended = mini.run("--gpus=1,2")
    assert ended.code == pytest.ExitCode.TESTS_FAILED
    (job,) = mini.jobs
    assert job.state == "CANCELLED"
    assert (
        len(re.findall(rf"^Slurm job {job.id} pending.*: not started within max_pending = 2 s", ended.out, re.MULTILINE)) == 2
    )


def test_job_that_sbatch_refuses_is_an_error(mini: Mini) -> None:
    """A job that sbatch refuses is an error of each test with Slurm's message and a hint."""
    mini.add_keys('constraint = "gold"')
    ended = mini.run("--gpus=1,2")
    assert ended.code == pytest.ExitCode.TESTS_FAILED
    assert mini.jobs == []
    words = "sbatch: Batch job submission failed: Invalid feature specification. See the cluster's table in clusters.toml"
    assert ended.out.count(f"\n{words}") == 2
    ended.line("2 errors")


def test_cancelled_job_is_replaced_for_the_next_test(mini: Mini) -> None:
    """A test with a cancelled job has an error of the cluster, and the next one passes on a new job."""
    mini.perf.write(
        TWO.replace("def test_a(train):", "def test_a(train, monkeypatch):\n    monkeypatch.setenv('TOY_DO', 'wait')")
    )
    waits = mini.folder / "waits"
    with mini.start("-v", TOY_WAITS=str(waits)) as running:
        wait_until("it trains", waits.exists)
        (job,) = mini.jobs
        mini.site.run("scancel", job.id)
        assert running.process.wait(ENDS_S) == pytest.ExitCode.TESTS_FAILED
    lines = [line for line in running.output.splitlines() if f"Slurm job {job.id} was cancelled" in line]
    assert lines, running.output
    assert re.search(r"test_a.*ERROR \(INFRASTRUCTURE\)", running.output, re.DOTALL)
    assert "1 passed, 1 error" in running.output.splitlines()[-1]
    first, second = mini.jobs
    assert (first.id, first.state) == (job.id, "CANCELLED")
    assert second.began >= first.ended


def test_dry_run_runs_no_slurm_command(perf: PerfTests) -> None:
    """--dry-run prints the commands and the placement without running any of Slurm's programs."""
    called = perf.folder / "called"
    for command in COMMANDS:
        stand_in = perf.folder / command
        stand_in.write_text(f'#!/bin/sh\necho "$0 $*" >>{called}\nexit 1\n')
        stand_in.chmod(0o755)
    lines = ["[mini]", 'backend = "slurm"', "dedicated = false", TOY, *CORES]
    (perf.folder / "perf" / "clusters.toml").write_text("\n".join(lines))
    perf.write("def test_x(train, baseline, gpus): baseline.check(train(model='trivial', gpus=gpus))\n")
    ended = perf.run("--cluster=mini", "--gpus=1,4", "--dry-run", PATH=f"{perf.folder}{os.pathsep}{os.environ['PATH']}")
    assert ended.code == 0, ended.out
    assert not called.exists()
    ended.line("4 nodes, for the session:")
    ended.line("sbatch --parsable", "--nodes=4")
    ended.line("srun", "--job-name=agents", "--nodes=4")
    ended.line("worker 0-3 on nodes 1-4")


def test_job_with_fewer_gpus_is_incomparable(perf: PerfTests, new_site: NewSite) -> None:
    """A job with one GPU fewer than requested is INCOMPARABLE, with the requested and the granted numbers."""
    site = new_site(nodes=2, gpus=2)
    smi = site.folder / "bin" / "nvidia-smi"
    smi.write_text(site_files.NVIDIA_SMI.replace("GPUS", '$([ "$SLURMD_NODENAME" = n2 ] && echo 1 || echo 2)'))
    with leaving_nothing(Mini(perf, site, ["nodes = 2", "gpus_per_node = 2"])) as mini:
        ended = mini.run("--gpus=2,3")
    assert ended.code == 0, ended.out
    assert [record["verdict"] for record in records(perf)] == ["NO_BASELINE", "INCOMPARABLE"]
    ended.line("INCOMPARABLE: ", "requested: 2 nodes, 2 GPUs each; granted: 2 nodes, 2 GPUs on n1, 1 GPU on n2")
    ended.line("1 measurement has no baseline.")


def test_baseline_belongs_to_hardware_not_clusters(mini: Mini) -> None:
    """A node with the same hardware as this machine is compared with this machine's baseline, and two nodes are
    INCOMPARABLE."""
    clusters = mini.folder / "perf" / "clusters.toml"
    clusters.write_text(clusters.read_text().replace("devices_per_host = 1", "devices_per_host = 2"))
    accepted = mini.perf.run("--cluster=local", "--gpus=2", "--update-baselines")
    assert accepted.code == 0, accepted.out
    assert mini.jobs == []
    assert mini.run("--gpus=2").code == 0
    assert [(record["verdict"], record["hosts"]) for record in records(mini.perf)] == [("PASSED", ["n1"])]
    slower = mini.run("--gpus=2", TOY_STEP_S="0.02")
    slower.line("REGRESSED: trivial b10 gpus=2")
    mini.add_keys("nodes_per_gpu_count = { 2 = 2 }")
    assert mini.run("--gpus=2").code == 0
    (record,) = records(mini.perf)
    assert (record["verdict"], record["hosts"]) == ("INCOMPARABLE", ["n1", "n2"])
    assert "hosts: 1 before, 2 after" in record["reason"]


def test_job_of_a_killed_session_is_reaped(mini: Mini) -> None:
    """Of two sessions with pending jobs one is killed with its watchdogs, and `dtfperf slurm reap` cancels that job only."""
    with mini.occupy_nodes(), mini.start("--gpus=1", name="dies.txt") as dies:
        wait_until("it has a job", lambda: len(mini.list_pending()) == 1)
        with mini.start("--gpus=2", name="lives.txt") as lives:
            wait_until("both have a job", lambda: len(mini.list_pending()) == 2)
            left, kept = sorted(mini.list_pending(), key=lambda job: job.nodes)
            kill_with_watchdog(dies.process)
            reaped = mini.perf.run_python("-m", "pytest_dtfperf.cli", "slurm", "reap")
            assert reaped.code == 0, reaped.err
            assert re.search(rf"^{left.id} .* is gone +cancelled *$", reaped.out, re.MULTILINE), reaped.out
            assert re.search(rf"^{kept.id} .* is at work +left alone *$", reaped.out, re.MULTILINE), reaped.out
            wait_until("its job is cancelled", lambda: [job.id for job in mini.list_pending()] == [kept.id])
            assert lives.press_ctrl_c() == pytest.ExitCode.INTERRUPTED


def kill_with_watchdog(process: Started) -> None:
    """Kill all processes as an outage of the machine does, so that none is left to cancel jobs."""
    for below in processes.list_descendants(process.pid):
        processes.kill(below.pid, signal.SIGKILL)
    process.kill()
    process.wait()


@pytest.mark.campaign(only=True)  # tests/cli/test_separate_servers.py shows it over SSH and on this machine
def test_sessions_with_different_servers_have_their_own_jobs(mini: Mini) -> None:
    """Two sessions with one and with two hosts for parameter servers are jobs of their own sizes, one after the other.

    Four nodes do not suffice for both. Each worker and server has its own node in its session's job.
    """
    mini.add_keys("ps_on_worker_hosts = false")
    held = mini.folder / "held"
    held.mkdir()
    (held / "hold").touch()
    names = {servers: f"results{servers}" for servers in (1, 2)}
    with mini.start("--gpus=1", "--num-ps=1", f"--perf-results={names[1]}", name="out1", TOY_HOLD=str(held)) as one:
        wait_until("the first session trains", lambda: any(held.glob("[0-9]*")), patience_s=ENDS_S)
        with mini.start("--gpus=1", "--num-ps=2", f"--perf-results={names[2]}", name="out2", TOY_HOLD=str(held)) as two:
            wait_until("the job of the second one is pending", lambda: len(mini.list_pending()) == 1, patience_s=ENDS_S)
            (held / "hold").unlink()
            codes = [each.process.wait(ENDS_S) for each in (one, two)]
    assert codes == [0, 0], one.output + two.output
    assert [job.nodes for job in mini.jobs] == [2, 3]
    assert most_at_once(mini.jobs) == 1
    for servers, name in names.items():
        (path,) = mini.folder.glob(f"{name}/*/measurements.jsonl")
        (record,) = [json.loads(line) for line in path.read_text().splitlines()]
        placed = [run["task_hosts"] for run in record["runs"]]
        tasks = {*(f"ps:{number}" for number in range(servers)), "worker:0"}
        assert all(found.keys() == tasks and len({*found.values()}) == servers + 1 for found in placed), placed
