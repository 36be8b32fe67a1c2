"""The processes that hold a job's nodes and end the job when it is no longer needed, and the jobs that they left.

    pytest ──pipe──> watchdog               on this machine: when pytest is gone, it cancels the job, pending or running,
                                            and ends sruns that wait for a controller that is gone as well
    pytest ──srun──> keep-alive step        on the job's first node: ends when pytest is gone, silent or cut off
                     job script <- reads it the batch script: ends with the keep-alive step, and with it Slurm ends the job

Each works without the others: the watchdog when the nodes do not answer, the keep-alive step when this machine is gone. The
job's time limit and `dtfperf slurm reap` come on top. In a job that was there before pytest, only the watchdog is started,
and it ends only sruns.

`find_left_jobs` and `find_left_sruns` find what an outage has left behind: pytest, its watchdog and its keep-alive step are
gone. Each job has its process in its comment, and each srun in its environment. Only on that machine, and in that process's PID
namespace, can it be checked whether the process still runs. Other jobs are listed, and cancelled only on request. An srun is on
the same machine, and waits for Slurm's controller without end.
"""

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pytest_dtfperf.clusters.children import Watchdog, guard_against_parent_death
from pytest_dtfperf.clusters.slurm.client import SlurmClient, classify_error
from pytest_dtfperf.clusters.slurm.parse import SlurmJob
from pytest_dtfperf.clusters.slurm.request import NAME_PREFIX, parse_job_comment
from pytest_dtfperf.clusters.slurm.states import Phase, SrunMessages, get_phase
from pytest_dtfperf.errors import AllocationError, quote_lines
from pytest_dtfperf.formats import printable_bytes
from pytest_dtfperf.node import processes, sweep
from pytest_dtfperf.node.owner import Fate, Owner

FIRST_KEEPALIVE_S = 150  # from a job's start to its keep-alive step's: the queue is polled every 30 s, and srun takes time
OLD_MIN = 10  # after which no keep-alive step starts any more
TAKE_S = 60.0  # for srun to start one small step: a node's prolog may come first
PULSE_S = 1.0
SRUN_LEAVES_S = 5.0  # srun ends with its step, and that with its agents, a second or two after pytest; at once after a signal
_LEAVE_S = 2.0
_WORD_BYTES = 64  # of an incomplete line: longer ones are not the keep-alive step's

# The batch script. It needs a shell and /tmp on the node. The keep-alive step's process leaves its id there, under the job's
# name: a job of another Slurm may have the same number, but not the same name.
JOB_SCRIPT = f"""#!/bin/sh
# Holds the nodes of a pytest-dtfperf session, for as long as pytest keeps its keep-alive step going.
keepalive=/tmp/$SLURM_JOB_NAME.keepalive
rm -rf "$keepalive"
mkdir -m 700 "$keepalive" || exit 1
here=$(readlink /proc/self/ns/pid)
echo "$here" >"$keepalive/namespace"
# Remove the folders of jobs that were killed with their node: old ones without a process. Younger ones may be starting, and
# those of another PID namespace cannot be checked from here.
find /tmp -maxdepth 1 -name 'dtfperf-*.keepalive' -user "$(id -u)" -mmin +{OLD_MIN} 2>/dev/null | while read -r old; do
    [ "$(cat "$old/namespace" 2>/dev/null)" = "$here" ] || continue
    kill -0 "$(cat "$old/pid" 2>/dev/null || echo none)" 2>/dev/null || rm -rf "$old"
done
trap 'rm -rf "$keepalive"' EXIT
trap exit TERM INT HUP
waited=0
until [ -s "$keepalive/pid" ]; do
    [ "$waited" -lt {FIRST_KEEPALIVE_S} ] || {{ echo "dtfperf: no keep-alive step has started for $waited s"; exit 0; }}
    sleep 1
    waited=$((waited + 1))
done
read -r pid <"$keepalive/pid"
while kill -0 "$pid" 2>/dev/null; do
    sleep 0.5
done
echo "dtfperf: the keep-alive step has ended"
"""

# The keep-alive step. `read -t` is bash's; every line is a sign of life.
_KEEPALIVE = """
keepalive=/tmp/$2.keepalive
for _ in {1..100}; do [ -d "$keepalive" ] && break; sleep 0.1; done
echo $$ >"$keepalive/fresh" && mv "$keepalive/fresh" "$keepalive/pid" && echo held || exit 1
while IFS= read -r -t "$1" _; do :; done
"""

# The watchdog of a job. A job that is just being submitted is not in the queue yet, and the controller may not answer:
# hence several tries. They end when Slurm knows no such job.
_CANCEL = """
for pause in 0 2 3 5 20 60 240; do
    sleep "$pause"
    scancel --quiet --user="$3" --jobname="$4"
    [ "$pause" -lt 3 ] || [ -n "$(squeue --noheader --user="$3" --name="$4" 2>&1)" ] || break
done
"""
# The watchdog of sruns: while they are to end, a wait for Slurm's answer may take minutes.
_WATCHDOG = """
trap '' HUP INT TERM
IFS= read -r word
[ "$word" = over ] && exit
(sleep "$2"; exec "$1" -P -m pytest_dtfperf.node.sweep --abandoned --grace="$2") &
{}wait
"""


def make_keepalive_command(job_name: str, heartbeat_timeout_s: float) -> list[str]:
    """Return the command of the keep-alive step: it ends with its stdin, or without a line for `heartbeat_timeout_s`."""
    return ["bash", "-c", _KEEPALIVE, "dtfperf-keepalive", f"{heartbeat_timeout_s:g}", job_name]


def make_job_watchdog(client: SlurmClient, job_name: str) -> Watchdog:
    """Return a watchdog that cancels the job of that name: sbatch may be interrupted before it prints the job's id."""
    return _make_watchdog(client, _CANCEL, str(os.getuid()), job_name)


def make_srun_watchdog(client: SlurmClient) -> Watchdog:
    """Return a watchdog for a user's own job: it ends only what this process has started in it."""
    return _make_watchdog(client, "")


def _make_watchdog(client: SlurmClient, extra: str, *arguments: str) -> Watchdog:
    argv = ["/bin/sh", "-c", _WATCHDOG.format(extra), "dtfperf-watchdog", sys.executable, f"{SRUN_LEAVES_S:g}", *arguments]
    return Watchdog(argv, client.environment)


class Keepalive:
    """This side of the keep-alive step, for a `with` block: a thread keeps it alive as long as this process runs."""

    def __init__(self, client: SlurmClient, node: str, argv: Sequence[str]) -> None:
        self._client = client
        self._node = node
        self._argv = argv
        self._over = threading.Event()

    def __enter__(self) -> Self:
        """Start the step. Raises `AllocationError` if that fails: `ControllerAway` if it may be possible later."""
        # A session of its own: Ctrl-C in the terminal reaches only pytest.
        environment = self._client.step_environment
        self._process = subprocess.Popen(
            guard_against_parent_death(self._argv, environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        self._pulse = threading.Thread(target=self._beat, name="dtfperf-slurm-keepalive", daemon=True)
        try:
            self._wait_until_held()
        except BaseException:  # Ctrl-C too: __exit__ is not called if __enter__ fails
            self._end()
            raise
        self._pulse.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._end()
        self._pulse.join(_LEAVE_S)

    def _wait_until_held(self) -> None:
        assert self._process.stderr
        if not self._confirms_held(time.monotonic() + TAKE_S):
            messages = SrunMessages()
            for line in self._process.stderr.read().splitlines():
                messages.feed(printable_bytes(line))
            output = quote_lines(messages.of_all)
            what = f"the keep-alive step on {self._node} could not be started"
            raise classify_error(" ".join(messages.of_all))(f"{what}{output}")

    def _confirms_held(self, deadline: float) -> bool:
        """Return whether the step has started. Skips a prolog's output. Raises `AllocationError` if it is too late."""
        assert self._process.stdout
        rest = b""
        while select.select([self._process.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
            data = os.read(self._process.stdout.fileno(), 4096)
            *lines, rest = (rest[-_WORD_BYTES:] + data).split(b"\n")
            if b"held" in lines or not data:
                return b"held" in lines
            if time.monotonic() > deadline:  # it prints other lines without end
                break
        raise AllocationError(f"srun has started no keep-alive step on {self._node} within {TAKE_S:g} s")

    def _beat(self) -> None:
        assert self._process.stdin
        with suppress(BrokenPipeError, ValueError):  # the job is over, which the channel reports; or this side has ended
            while not self._over.wait(PULSE_S):
                self._process.stdin.write(b"\n")
                self._process.stdin.flush()

    def _end(self) -> None:
        """End srun, which then ends its step; the rest ends with the job."""
        self._process.terminate()
        self._process.send_signal(signal.SIGCONT)  # also if it is stopped
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_LEAVE_S)
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert pipe
            with suppress(BrokenPipeError):
                pipe.close()


@dataclass(frozen=True)
class LeftJob:
    """A job of this package in the queue."""

    job: SlurmJob
    session: str
    owner: Owner
    fate: Fate


def find_left_sruns() -> dict[Owner, list[int]]:
    """Return this user's sruns on this machine by owner, of owners that have ended. Each has a child process of its own."""
    all_of_them = _list_sruns()
    found: dict[Owner, list[int]] = defaultdict(list)
    for process, owner in all_of_them.items():
        seen = processes.inspect(process)
        if seen and seen.parent not in all_of_them:
            found[owner].append(process)
    return found


def end_sruns(owner: Owner) -> bool:
    """End an owner's sruns, and return whether none is left. Searches again, because a process id may be reused."""
    return not processes.end_processes(
        lambda: [process for process, its in _list_sruns().items() if its == owner], grace_s=SRUN_LEAVES_S
    )


def _list_sruns() -> dict[int, Owner]:
    seen = {
        pid: Owner.parse(sweep.read_environment(pid).get(sweep.OWNER, ""))
        for pid in sweep.find_left_processes((), abandoned=True)
    }
    return {pid: owner for pid, owner in seen.items() if owner and _read_program(pid) == "srun"}


def _read_program(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").rstrip("\n")
    except OSError:  # it has just ended
        return ""


def find_left_jobs(client: SlurmClient) -> list[LeftJob]:
    """Return this user's jobs that a session has submitted and that are not over. Raises `AllocationError`."""
    found = []
    for job in client.list_jobs():
        comment = parse_job_comment(job.comment)
        if comment and job.name.startswith(NAME_PREFIX) and get_phase(job.state) is not Phase.OVER:
            session, owner = comment
            found.append(LeftJob(job, session, owner, owner.fate))
    return found
