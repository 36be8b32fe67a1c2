"""The wait for a job: with a clock and outputs of squeue set by tests, and by many processes on a real Slurm."""

import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_dtfperf.clusters.locks import lock_file
from pytest_dtfperf.clusters.slurm import cluster, parse
from pytest_dtfperf.clusters.slurm.client import ControllerDown, SlurmClient
from pytest_dtfperf.clusters.slurm.cluster import SharedQueue, wait_until_running
from pytest_dtfperf.clusters.slurm.parse import SlurmJob
from pytest_dtfperf.errors import AllocationError, AllocationOver
from pytest_dtfperf.node import retry
from pytest_dtfperf.testing.backends import wait_until
from tests.clusters.slurm.site import Site
from tests.full_disk import full_behind

FIELDS = dict(zip("iuTrNSlkj", ("17", "me", "PENDING", "None", "", "N/A", "1:00:00", "", "dtfperf-x"), strict=True))
READERS, READS = 3, 8
READER = f"""
import sys, time
from pathlib import Path
from pytest_dtfperf.clusters.slurm.client import SlurmClient
from pytest_dtfperf.clusters.slurm.cluster import SharedQueue
queue, since = SharedQueue(SlurmClient(), Path(sys.argv[1])), float(sys.argv[2])
for moment in range({READS}):
    assert queue.find(sys.argv[3], not_before=since + moment).state == "RUNNING"
"""


class Clock:
    """A clock that advances only by sleeps."""

    def __init__(self) -> None:
        self.now = time.time()
        self.pauses: list[float] = []

    def time(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    stand_in = SimpleNamespace(time=clock.time, monotonic=clock.time, sleep=clock.sleep)
    monkeypatch.setattr(cluster, "time", stand_in)
    monkeypatch.setattr(retry, "time", stand_in)
    return clock


def line(**fields: str) -> str:
    """One job as squeue prints it; a field is named by its letter in the format: T for the state, r for the reason."""
    text = parse.SQUEUE_FORMAT
    for letter, value in {**FIELDS, **fields}.items():
        text = text.replace(f"%{letter}", value)
    return text + "\n"


RUNS = line(T="RUNNING", N="n[1-2]")


class ScriptedClient(SlurmClient):
    """Answer with the script's lines, and repeat the last one."""

    def __init__(self, script: Iterable[str | Exception], job: SlurmJob | None = None) -> None:
        super().__init__({})
        self._script = list(script)
        self._job = job
        self.asked = 0

    def read_queue(self) -> str:
        self.asked += 1
        answer = self._script.pop(0) if len(self._script) > 1 else self._script[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def find_job(self, job_id: str) -> SlurmJob | None:
        return self._job


class Wait:
    """Return the result of one wait for job 17, and its messages."""

    def __init__(self, folder: Path, *script: str | Exception, job: SlurmJob | None = None) -> None:
        self.status_lines: list[str] = []
        self.client = ScriptedClient(script, job)
        self._queue = SharedQueue(self.client, folder)

    def __call__(self, max_pending_s: float | None = None) -> SlurmJob:
        return wait_until_running(
            self.client, self._queue, "17", max_pending_s=max_pending_s, on_status=self.status_lines.append
        )


def test_wait_shows_state_reason_and_start(clock: Clock, tmp_path: Path) -> None:
    """A waiting user is shown the state, the reason and the expected start, and then the nodes."""
    start = int(clock.now) + 600
    wait = Wait(tmp_path, line(), line(r="Priority"), line(r="Resources", S=str(start)), RUNS)
    assert wait().nodes == ("n1", "n2")
    assert wait.status_lines == [
        "Slurm job 17 pending",
        "Slurm job 17 pending: others go first (Priority)",
        f"Slurm job 17 pending, expected to start {datetime.fromtimestamp(start):%H:%M}: others go first (Resources)",
        "Slurm job 17 runs on n1, n2",
    ]


HOPELESS: Mapping[str, str] = {
    "PartitionConfig": "its partition has no such nodes",
    "PartitionNodeLimit": "its partition does not allocate so many nodes",
    "PartitionTimeLimit": "its partition does not allocate nodes for so long",
    "BadConstraints": "no node is as was asked for",
    "QOSMaxNodePerJobLimit": "one job may not have so much",
    "JobHeldUser": "it is held",
}


@pytest.mark.parametrize("reason", HOPELESS)
def test_hopeless_reason_ends_the_wait(clock: Clock, tmp_path: Path, reason: str) -> None:
    """A reason for which waiting cannot help is an error as soon as Slurm has reported it twice."""
    wait = Wait(tmp_path, line(), line(r=reason))
    with pytest.raises(AllocationError, match=rf"^Slurm job 17 cannot start: {HOPELESS[reason]}.*\({reason}\)$"):
        wait()
    assert wait.client.asked == 3


def test_reason_that_passes_is_waited_out(clock: Clock, tmp_path: Path) -> None:
    """A reason that Slurm reports only once is preliminary; nodes that are unavailable may return."""
    waits = [line(r="PartitionConfig"), line(r="ReqNodeNotAvail, UnavailableNodes:n3"), line(r="BeginTime")]
    assert Wait(tmp_path, *waits, RUNS)().state == "RUNNING"


def test_patience_has_an_end(clock: Clock, tmp_path: Path) -> None:
    """A job that waits for longer than max_pending is given up, with the reason and the number."""
    began = clock.now
    with pytest.raises(AllocationError, match=r"others go first \(Priority\): not started within max_pending = 100 s"):
        Wait(tmp_path, line(r="Priority"))(max_pending_s=100)
    assert 100 < clock.now - began < 120


def test_pauses_grow(clock: Clock, tmp_path: Path) -> None:
    """The longer a job waits, the more seldom it is looked for: from each second to twice a minute."""
    wait = Wait(tmp_path, *[line(r="Priority")] * 200, RUNS)
    wait()
    assert clock.pauses[:2] == [1.0, 1.1]
    assert clock.pauses == sorted(clock.pauses)
    assert clock.pauses[-1] == 30.0
    assert wait.client.asked == 201


def test_controller_away_and_back(clock: Clock, tmp_path: Path) -> None:
    """An outage takes time and is reported."""
    wait = Wait(tmp_path, line(), ControllerDown("squeue: away"), ControllerDown("squeue: away"), RUNS)
    assert wait().state == "RUNNING"
    assert [words for words in wait.status_lines if "away" in words] == ["squeue: away: asking again for up to 10 minutes"] * 2


def test_controller_that_stays_away(clock: Clock, tmp_path: Path) -> None:
    """The wait ends after ten minutes without an answer."""
    began = clock.now
    with pytest.raises(ControllerDown, match="squeue: away"):
        Wait(tmp_path, line(), ControllerDown("squeue: away"))()
    assert 600 < clock.now - began < 700


@pytest.mark.parametrize(
    ("state", "words"), [("CANCELLED", "was cancelled"), ("BOOT_FAIL", "did not boot"), ("TIMEOUT", "limit")]
)
def test_ended_while_it_was_waited_for(clock: Clock, tmp_path: Path, state: str, words: str) -> None:
    """A job that others end is reported with the reason."""
    with pytest.raises(AllocationOver, match=rf"^Slurm job 17 .*{words}.* \({state}\)"):
        Wait(tmp_path, line(), line(T=state))()


def test_vanished_job(clock: Clock, tmp_path: Path) -> None:
    """A job that is unknown to the queue, the controller and the accounting is an error of its own."""
    with pytest.raises(AllocationOver, match="Slurm job 17 has vanished"):
        Wait(tmp_path, line(), line(i="18"))()


def test_job_missing_in_the_queue_is_read_from_the_controller(clock: Clock, tmp_path: Path) -> None:
    """A job that the queue does not show is read from the controller."""
    job = SlurmJob(id="17", name="dtfperf-x", user="me", state="RUNNING", reason="", nodes=("n1",))
    assert Wait(tmp_path, line(), line(i="18"), job=job)() is job


def test_a_full_disk_is_no_obstacle(clock: Clock, tmp_path: Path) -> None:
    """A process that cannot write the shared queue still waits on its own."""
    with full_behind(tmp_path / "none"):
        assert Wait(tmp_path, line(), RUNS)().state == "RUNNING"


def test_stopped_process_does_not_block_the_queue(tmp_path: Path) -> None:
    """The queue is read without the lock if a process holds it for longer than Slurm may take for an answer."""
    client = ScriptedClient([RUNS])
    mine = SharedQueue(client, tmp_path, patience_s=0.2)
    assert mine.find("17", not_before=time.time())
    (seen,) = tmp_path.glob("*.squeue")
    with lock_file(seen.with_suffix(".lock")):
        assert mine.find("17", not_before=0)
    assert client.asked == 2
    assert mine.find("17", not_before=0)
    assert client.asked == 2


def test_clusters_of_one_configuration_are_distinguished(tmp_path: Path) -> None:
    """Sessions on two clusters that SLURM_CLUSTERS names do not confuse jobs with the same number."""
    found = {}
    for name, state in (("a", "RUNNING"), ("b", "PENDING")):
        client = ScriptedClient([line(T=state)])
        client.environment["SLURM_CLUSTERS"] = name
        found[name] = SharedQueue(client, tmp_path).find("17", not_before=0)
    assert {name: job and job.state for name, job in found.items()} == {"a": "RUNNING", "b": "PENDING"}


def test_queue_file_from_the_future_is_old(tmp_path: Path) -> None:
    """A queue file with a date in the future counts as old; otherwise a job's start would be unnoticed until then."""
    client = ScriptedClient([line(T="PENDING"), line(T="RUNNING")])
    shared = SharedQueue(client, tmp_path)
    shared.find("17", not_before=0)
    (seen,) = tmp_path.glob("*.squeue")
    os.utime(seen, (time.time() + 3600, time.time() + 3600))
    job = shared.find("17", not_before=time.time() - 15)
    assert job
    assert job.state == "RUNNING"


def test_works_without_sacct(login_site: Site, tmp_path: Path) -> None:
    """A job that ended long ago is unknown, with no accounting and with no sacct."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "scontrol").symlink_to("/usr/bin/scontrol")
    assert SlurmClient().find_job("4711") is None
    assert SlurmClient({**login_site.environment, "PATH": str(folder)}).find_job("4711") is None


@pytest.mark.parametrize("what", ["closed to this user", "no folder"])
def test_missing_commands_are_reported(tmp_path: Path, what: str) -> None:
    """A missing Slurm is an error and a missing sacct is none, also if PATH has unreadable folders."""
    path = tmp_path / "in_path"
    if what == "no folder":
        path.touch()
    else:  # the kernel's error for a folder that is closed, which none is to root
        path.mkdir()
        (path / "squeue").touch(mode=0o600)
    with pytest.raises(
        AllocationError, match=r"^squeue cannot be started here \(.+\): is this machine a login node of a Slurm"
    ):
        SlurmClient({"PATH": str(path)}).read_queue()
    (tmp_path / "scontrol").symlink_to("/bin/true")  # which knows of no job; and there is no sacct
    assert SlurmClient({"PATH": f"{tmp_path}:{path}"}).find_job("4711") is None


def test_many_ask_once(login_site: Site, tmp_path: Path) -> None:
    """Processes that wait at the same time share each answer of squeue's."""
    calls = tmp_path / "calls"
    squeue = tmp_path / "squeue"
    squeue.write_text(f'#!/bin/sh\necho >>"{calls}"\nexec /usr/bin/squeue "$@"\n')
    squeue.chmod(0o755)
    job = login_site.run("sbatch", "--parsable", "--wrap=sleep 1234", "--output=/dev/null").strip()
    wait_until("it runs", lambda: login_site.run("squeue", "--noheader", f"--jobs={job}", "--format=%T").strip() == "RUNNING")
    # The answer that the first of them gets is new enough for all: they accept older ones.
    since = time.time() - READS - 1
    environment = {
        **login_site.environment,
        "PATH": f"{tmp_path}:{login_site.environment['PATH']}",
        "PYTHONPATH": str(Path.cwd()),
    }
    command = [sys.executable, "-c", READER, str(tmp_path), str(since), job]
    readers = [subprocess.Popen(command, env=environment) for _ in range(READERS)]
    assert [reader.wait() for reader in readers] == [0] * READERS
    assert len(calls.read_text().splitlines()) == 1
    SharedQueue(SlurmClient(), tmp_path).find(job, not_before=time.time())
    login_site.run("scancel", job)
