"""Records what Slurm's commands print about jobs in every state that can be reached, for the tests of `parse`.

    python -m tests.clusters.slurm.record [ROOT]

records the Slurm installed here, or that of another system below ROOT, which can be made so (Slurm 20.11, 24.11: trixie):

    debootstrap --variant=minbase --include=slurmctld,slurmd,slurm-client,slurmdbd,munge bullseye ROOT
    chroot ROOT apt-get install --no-install-recommends slurm-wlm-mysql-plugin   # on trixie; bullseye has it in slurmdbd

Accounting needs mariadb-server here. Each command has one file per version, in which `## name` begins its output in one
scenario. README.txt beside them lists the scenarios that could not be recorded. A recording takes two minutes, until Slurm has
noticed that a job is over its time limit.
"""

import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pytest_dtfperf.clusters.slurm.parse import SACCT_DELIMITER, SACCT_FORMAT, SQUEUE_FORMAT
from pytest_dtfperf.testing.backends import wait_until
from tests.clusters.slurm.site import Site, SiteError

TRANSCRIPTS = Path(__file__).with_name("transcripts")
NAME = "a b|c=d 'e' \"f\" UserId=eve(7) JobState=FAILED"
COMMENT = "x | y = \"z\" 'q' NodeList=n9 ExitCode=7:7  StdErr=/nowhere Comment=no"
NEVER = (
    "BOOT_FAIL: a job whose node did not boot in time became NODE_FAIL, or stayed CONFIGURING",
    "REQUEUED, REQUEUE_HOLD: seen as PENDING, with a reason",
    "REVOKED, REQUEUE_FED: need a federation; STAGE_OUT: a burst buffer; STOPPED, SIGNALING, RESIZING: not tried",
)
LONG_S, LATE_S = 10.0, 120.0

PARTITIONS = {
    "all": "Default=YES MaxTime=INFINITE PriorityTier=5",
    "short": "MaxTime=1 PriorityTier=5",
    "small": "MaxNodes=1 PriorityTier=5",
    "closed": "State=DOWN",
    "inactive": "",
    "shrinking": "PriorityTier=9",
    "cheap": "PriorityTier=1 PreemptMode=CANCEL",
    "again": "PriorityTier=1 PreemptMode=REQUEUE",
    "dear": "PriorityTier=9",
}
SETTINGS = """
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
Licenses=matlab:1,other:1
JobAcctGatherType=jobacct_gather/linux
PrologFlags=Alloc
Prolog={folder}/prolog
RebootProgram=/bin/true
ResumeTimeout=5
"""
# In the place of accounting_storage/none, once the accounts' daemon is up: without it slurmctld does not start.
ACCOUNTING = """accounting_storage/slurmdbd
AccountingStorageHost=localhost
AccountingStoragePort={port}
AccountingStoragePass={site}/munge/socket
{comments}
"""
# A prolog that takes as long, and ends, as a scenario wants.
PROLOG = """#!/bin/sh
while [ -e {folder}/slow ]; do sleep 0.1; done
[ ! -e {folder}/fail ]
"""


class Recorder:
    """Puts jobs into states, and keeps Slurm's output about them."""

    def __init__(self, site: Site, folder: Path) -> None:
        self.site = site
        self.folder = folder
        self._answers: dict[str, list[str]] = {"squeue": [], "scontrol": [], "sacct": []}
        self._jobs: dict[str, str] = {}
        self._submitted: list[str] = []
        self.missing: list[str] = []

    def submit(self, *options: str, script: str = "sleep 1000", within: str = "") -> str:
        """`within`: what follows the options, for jobs of several parts."""
        path = Path(tempfile.mkstemp(dir=self.folder)[1])
        path.write_text(f"#!/bin/bash\n{script}\n")
        usual = ["--parsable", "--output=/dev/null", "--job-name=job", "--time=5"]
        try:
            self._submitted.append(self.site.run("sbatch", *usual, *options, *within.split(), str(path)).strip())
        except SiteError as refused:
            self._miss(f"{' '.join(options)}: {' '.join(str(refused).split())}")
            return "0"
        return self._submitted[-1]

    def leave(self) -> None:
        """Let the submitted jobs continue: `clear` does not end them."""
        self._submitted = []

    def clear(self) -> None:
        """End what has been submitted since the last time."""
        if self._submitted:
            self.run("scancel", *self._submitted)
        wait_until("they have ended", lambda: not set(self._submitted) & {job.partition("_")[0] for job in self.site.jobs()})
        self.leave()

    def run(self, *argv: str) -> None:
        """A command that may be refused: the job may be in another state than it should."""
        try:
            self.site.run(*argv)
        except SiteError as refused:
            self._miss(" ".join(str(refused).split()))

    def _miss(self, what: str) -> None:
        self.missing.append(what)
        print(what, file=sys.stderr)

    def want(self, scenario: str, job: str, pattern: str, patience_s: float = LONG_S) -> None:
        """Keep the output about a job as soon as its state and reason match the pattern."""
        deadline = time.monotonic() + patience_s
        seen = ""
        while time.monotonic() < deadline:
            seen = self.site.run("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T %r", check=False)
            if re.search(pattern, seen, re.MULTILINE) and self._keep(scenario, job, pattern):
                self._jobs[scenario] = job
                return
            time.sleep(0.05)
        self._miss(f"{scenario}: job {job} was not {pattern!r} but {' / '.join(seen.split(chr(10))).strip(' /')!r}")

    def _keep(self, scenario: str, job: str, pattern: str) -> bool:
        """Whether both commands showed the job in that state."""
        squeue = self.site.run("squeue", "--noheader", "--states=all", f"--jobs={job}", f"--format={SQUEUE_FORMAT}")
        scontrol = self.site.run("scontrol", "--oneliner", "show", "job", job)
        states = "|".join(re.findall("[A-Z_]{5,}", pattern))
        if not (re.search(states, squeue) and re.search(f"JobState=({states})", scontrol)):
            return False
        self._answers["squeue"].append(f"## {scenario}\n{squeue}")
        self._answers["scontrol"].append(f"## {scenario}\n{scontrol}")
        return True

    def account(self) -> None:
        """Keep the final output of the accounting about all recorded jobs."""
        shape = ["--parsable2", "--noheader", f"--delimiter={SACCT_DELIMITER}", f"--format={SACCT_FORMAT}"]
        for scenario, job in self._jobs.items():
            output = self.site.run("sacct", *shape, f"--jobs={job}")
            self._answers["sacct"].append(f"## {scenario}\n{output}")

    def write(self) -> None:
        version = self.site.run("squeue", "--version").split()[1]
        folder = TRANSCRIPTS / re.sub(r"(\d+\.\d+).*", r"\1", version)
        folder.mkdir(parents=True, exist_ok=True)
        for command, answers in self._answers.items():
            (folder / f"{command}.txt").write_text("".join(answers))
        (folder / "topology.txt").write_text(self.site.run("scontrol", "show", "topology"))
        lines = [
            f"Recorded from Slurm {version} by tests/clusters/slurm/record.py.",
            "Could not be had:",
            *NEVER,
            *self.missing,
        ]
        (folder / "README.txt").write_text("\n".join(lines) + "\n")


def record(recorder: Recorder) -> None:
    """Every scenario, those first that take long."""
    run, submit, want = recorder.run, recorder.submit, recorder.want
    late = submit("--time=1", "--nodelist=n1")
    submit("--licenses=other:1", "--nodelist=n1")
    missed = submit("--licenses=other:1", "--nodelist=n1", "--time=1", "--deadline=now+65seconds")
    recorder.leave()

    want("running", submit(f"--job-name={NAME}", f"--comment={COMMENT}", "--nodelist=n1"), "^RUNNING")
    want("lines", submit("--job-name=two\nlines", "--comment=two\nlines", "--nodelist=n1"), "^RUNNING")
    want("running-on-all", submit("--nodes=4", "--time=1:00:00", "--gres=gpu:1", "--switches=2"), "^RUNNING")
    suspended = submit("--nodelist=n1")
    want("suspended-before", suspended, "^RUNNING")
    run("scontrol", "suspend", suspended)
    want("suspended", suspended, "^SUSPENDED")
    for group in (
        record_pending,
        record_waiting,
        record_ends,
        record_again,
        record_many,
        record_launch,
        record_nodes,
        record_memory,
    ):
        recorder.clear()
        group(recorder)
    want("timeout", late, "^TIMEOUT", LATE_S)
    want("deadline", missed, "^DEADLINE", LATE_S)
    recorder.account()


def record_pending(recorder: Recorder) -> None:
    run, submit, want = recorder.run, recorder.submit, recorder.want
    want("pending-begin", submit("--begin=now+1hour"), "^PENDING BeginTime")
    want("pending-held", submit("--hold"), "^PENDING JobHeldUser|^PENDING JobHeldAdmin")
    want("pending-closed", submit("--partition=closed"), "^PENDING PartitionDown")
    inactive = submit("--partition=inactive", "--begin=now+2seconds")
    run("scontrol", "update", "partitionname=inactive", "state=inactive")
    want("pending-inactive", inactive, "^PENDING PartitionInactive")
    want("pending-node-limit", submit("--partition=small", "--nodes=2"), "^PENDING PartitionNodeLimit")
    want("pending-time-limit", submit("--partition=short", "--time=10"), "^PENDING PartitionTimeLimit")
    licensed = submit("--licenses=matlab:1", "--nodelist=n1")
    want("pending-licenses-before", licensed, "^RUNNING")
    want("pending-licenses", submit("--licenses=matlab:1", "--nodelist=n1"), "^PENDING Licenses")
    soon = ["reservationname=later", "starttime=now+60minutes", "duration=10", "nodes=n2", "users=root"]
    run("scontrol", "create", "reservation", *soon)
    want("pending-reservation", submit("--reservation=later", "--time=1"), "^PENDING Reservation")
    run("scontrol", "update", "nodename=n3", "state=drain", "reason=test")
    want("pending-not-available", submit("--nodelist=n3"), "^PENDING ReqNodeNotAvail")
    run("scontrol", "update", "nodename=n3", "state=resume")
    failing = submit("--nodelist=n1", script="exit 1")
    want("failed-first", failing, "^FAILED")
    want("pending-never", submit(f"--dependency=afterok:{failing}", "--kill-on-invalid-dep=no"), "^PENDING DependencyNever")


def record_waiting(recorder: Recorder) -> None:
    run, submit, want = recorder.run, recorder.submit, recorder.want
    blocker = submit("--exclusive", "--nodes=3")
    want("blocker", blocker, "^RUNNING")
    want("pending-resources", submit("--exclusive", "--nodes=3"), "^PENDING Resources")
    want("pending-priority", submit("--exclusive", "--nodes=3", "--nice=100"), "^PENDING Priority")
    want("pending-dependency", submit(f"--dependency=afterok:{blocker}"), "^PENDING Dependency")
    shrunk = submit("--partition=shrinking", "--exclusive", "--nodes=3")
    run("scontrol", "update", "partitionname=shrinking", "nodes=n1")
    want("pending-config", shrunk, "^PENDING PartitionConfig|^PENDING PartitionNodeLimit|^PENDING BadConstraints")


def record_ends(recorder: Recorder) -> None:
    run, submit, want = recorder.run, recorder.submit, recorder.want
    want("completed", submit("--nodelist=n1", script="srun true"), "^COMPLETED")
    want("failed", submit("--nodelist=n1", script="srun sh -c 'exit 3'"), "^FAILED")
    want("failed-by-signal", submit("--nodelist=n1", script="kill -9 $$"), "^FAILED")
    waiting = submit("--begin=now+1hour")
    run("scancel", waiting)
    want("cancelled-waiting", waiting, "^CANCELLED")
    stubborn = submit("--nodelist=n2", script="trap '' TERM; while :; do sleep 1; done")
    want("cancelled-before", stubborn, "^RUNNING")
    run("scancel", stubborn)
    want("completing", stubborn, "^COMPLETING")
    want("cancelled", stubborn, "^CANCELLED")
    cheap = submit("--partition=cheap", "--exclusive", "--nodelist=n4")
    want("preempted-before", cheap, "^RUNNING")
    submit("--partition=dear", "--exclusive", "--nodelist=n4")
    want("preempted", cheap, "^PREEMPTED")


def record_again(recorder: Recorder) -> None:
    run, submit, want = recorder.run, recorder.submit, recorder.want
    requeued = submit("--requeue", "--nodelist=n1")
    want("requeued-before", requeued, "^RUNNING")
    run("scontrol", "requeue", requeued)
    want("requeued", requeued, "^PENDING")
    held = submit("--requeue", "--nodelist=n1")
    want("requeue-hold-before", held, "^RUNNING")
    run("scontrol", "requeuehold", held)
    want("requeue-hold", held, "^PENDING .*held|^REQUEUE_HOLD")
    special = submit("--requeue", "--nodelist=n1")
    want("special-before", special, "^RUNNING")
    run("scontrol", "requeuehold", "state=SpecialExit", special)
    want("special-exit", special, "^SPECIAL_EXIT")
    cheap = submit("--partition=again", "--exclusive", "--nodelist=n4")
    want("preempted-requeued-before", cheap, "^RUNNING")
    submit("--partition=dear", "--exclusive", "--nodelist=n4")
    want("preempted-requeued", cheap, "^PENDING")


def record_many(recorder: Recorder) -> None:
    submit, want = recorder.submit, recorder.want
    array = submit("--array=0-9%2", "--nodelist=n1", "--job-name=many")
    want("array", array, "^RUNNING")
    brief = submit("--array=1-3", "--nodelist=n1", script="srun sh -c 'exit $SLURM_ARRAY_TASK_ID'")
    want("array-failed", brief, "(?s)FAILED.*FAILED.*FAILED")
    parts = submit("--nodelist=n1", within=": --nodelist=n2 --job-name=other : --nodelist=n4")
    want("heterogeneous", parts, "^RUNNING")
    waiting = submit("--begin=now+1hour", within=": --begin=now+1hour")
    want("heterogeneous-pending", waiting, "^PENDING")


def record_launch(recorder: Recorder) -> None:
    run, submit, want = recorder.run, recorder.submit, recorder.want
    (recorder.folder / "slow").touch()
    slow = submit("--nodelist=n1")
    want("prolog", slow, "^RUNNING Prolog")
    (recorder.folder / "slow").unlink()
    want("prolog-after", slow, "^RUNNING None")
    (recorder.folder / "fail").touch()
    failing = submit("--nodelist=n2")
    want("launch-failed-held", failing, "^PENDING .*held")
    (recorder.folder / "fail").unlink()
    run("scontrol", "update", "nodename=n2", "state=resume")


def record_nodes(recorder: Recorder) -> None:
    run, submit, want = recorder.run, recorder.submit, recorder.want
    lost = submit("--no-requeue", "--nodes=2", "--nodelist=n3,n4", script="srun sleep 1000")
    want("node-fail-before", lost, "^RUNNING")
    run("scontrol", "update", "nodename=n4", "state=down", "reason=test")
    want("node-fail", lost, "^NODE_FAIL")
    again = submit("--requeue", "--nodelist=n3")
    want("node-fail-requeued-before", again, "^RUNNING")
    run("scontrol", "update", "nodename=n3", "state=down", "reason=test")
    want("node-fail-requeued", again, "^PENDING")
    for node in ("n3", "n4"):  # which may have come back by itself
        recorder.site.run("scontrol", "update", f"nodename={node}", "state=resume", check=False)
    booting = submit("--no-requeue", "--reboot", "--exclusive", "--nodelist=n4")
    want("configuring", booting, "^CONFIGURING")
    recorder.leave()
    want("not-booted", booting, "^BOOT_FAIL|^NODE_FAIL", LATE_S)


def record_memory(recorder: Recorder) -> None:
    """Record a job that runs out of memory, on a node with cgroups: only these detect it."""
    site = recorder.site
    version = tuple(int(number) for number in site.run("squeue", "--version").split()[1].split(".")[:2])
    kind = "CgroupPlugin=cgroup/v1" if version >= (22, 5) else "CgroupAutomount=yes"
    (site.folder / "cgroup.conf").write_text(f"{kind}\nConstrainRAMSpace=yes\n")
    conf = site.folder / "slurm.conf"
    conf.write_text(conf.read_text().replace("proctrack/linuxproc", "proctrack/cgroup").replace("task/none", "task/cgroup"))
    site.kill_slurmd("n1")
    site.start_slurmd("n1")
    greedy = recorder.submit("--nodelist=n1", "--mem=30", script="exec tail /dev/zero")
    recorder.want("out-of-memory", greedy, "^OUT_OF_MEMORY")


def remove_cgroups() -> None:
    for folder in sorted(Path("/sys/fs/cgroup").glob("*/slurm_n1/**/"), reverse=True):
        folder.rmdir()


@contextmanager
def run_accounting(site: Site, folder: Path, port: int) -> Iterator[None]:
    """A database, and the daemon through which Slurm keeps its accounts in it."""
    data, door = folder / "mariadb", folder / "mariadb.socket"
    install = ["mariadb-install-db", "--no-defaults", f"--datadir={data}", "--user=root", "--skip-test-db"]
    subprocess.run([*install, "--auth-root-authentication-method=normal"], check=True, capture_output=True)
    small = ["--skip-networking", "--innodb-buffer-pool-size=16M", "--innodb-log-file-size=8M"]
    serve = ["mariadbd", "--no-defaults", "--user=root", f"--datadir={data}", f"--socket={door}", *small]
    with subprocess.Popen(serve, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as database:
        try:
            wait_until("the database is up", door.exists)
            grant = "create user slurm@localhost identified by 'x'; grant all on slurm_acct_db.* to slurm@localhost"
            subprocess.run(["mariadb", "--no-defaults", f"--socket={door}", "--execute", grant], check=True)
            with accounts_daemon(site, door, port):
                yield
        finally:
            database.terminate()


@contextmanager
def accounts_daemon(site: Site, door: Path, port: int) -> Iterator[None]:
    settings = {
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={site.folder}/munge/socket",
        "DbdHost": "localhost",
        "DbdPort": port,
        "SlurmUser": "root",
        "StorageType": "accounting_storage/mysql",
        "StorageUser": "slurm",
        "StoragePass": "x",
        "LogFile": f"{site.folder}/log/slurmdbd.log",
        "PidFile": f"{site.folder}/pid/slurmdbd",
    }
    conf = site.folder / "slurmdbd.conf"
    conf.touch(0o600)
    conf.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    with site.popen("env", f"MYSQL_UNIX_PORT={door}", "slurmdbd", "-D") as daemon:
        try:
            site.stop_controller()
            keep_accounts(site, port)
            site.start_controller()
            yield
        finally:
            daemon.terminate()
            daemon.communicate()


def keep_accounts(site: Site, port: int) -> None:
    """Set the daemon's address in slurm.conf, and wait until the daemon has registered the cluster."""
    of_20 = site.run("squeue", "--version").startswith("slurm-wlm 20.")
    comments = "AccountingStoreJobComment=YES" if of_20 else "AccountingStoreFlags=job_comment"
    conf = site.folder / "slurm.conf"
    text = conf.read_text()
    conf.write_text(text.replace("accounting_storage/none", ACCOUNTING.format(port=port, site=site.folder, comments=comments)))
    (site.folder / "state" / "clustername").unlink()  # the id in it is not the one that the daemon will give the cluster
    wait_until("accounts are kept", lambda: _knows_cluster(site))


def _knows_cluster(site: Site) -> bool:
    site.run("sacctmgr", "--immediate", "add", "cluster", "site", check=False)
    return "site" in site.run("sacctmgr", "--noheader", "list", "cluster", "format=cluster", check=False)


def main(root: str | None) -> None:
    with tempfile.TemporaryDirectory(prefix="record-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "prolog").write_text(PROLOG.format(folder=folder))
        (folder / "prolog").chmod(0o755)
        with socket.socket() as any_port:
            any_port.bind(("127.0.0.1", 0))
            port = any_port.getsockname()[1]
        switches = {"s1": "n[1-2]", "s2": "n[3-4]"}
        settings = SETTINGS.format(folder=folder)
        site = Site(gpus=1, cpus=16, partitions=PARTITIONS, switches=switches, slurm_conf=settings, kill_wait_s=6, root=root)
        with site, run_accounting(site, folder, port):
            site.environment["SLURM_TIME_FORMAT"] = "%s"
            recorder = Recorder(site, folder)
            record(recorder)
            recorder.write()
        remove_cgroups()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
