"""What holds a job's nodes, and what ends it when nobody needs them any more.

    pytest ──pipe──> keeper                 on this machine: cancels the job, pending or running, when pytest is gone
    pytest ──srun──> lease step             on the job's first node: ends when pytest is gone, silent or cut off
                     holder <- looks at it  the batch script: ends with the lease, and with it Slurm ends the job

Each works without the others: the keeper when the nodes do not answer, the lease when this machine is gone. Beside them stands
the job's time limit, and `dtfperf slurm reap`.
"""

import os
import select
import signal
import subprocess
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Self

from pytest_dtfperf.clusters.keeper import Keeper
from pytest_dtfperf.clusters.slurm.client import Client
from pytest_dtfperf.clusters.slurm.states import Messages
from pytest_dtfperf.clusters.tether import tethered
from pytest_dtfperf.errors import AllocationError, quoted_lines
from pytest_dtfperf.printable import printable_bytes

FIRST_LEASE_S = 150  # from a job's start until its lease is taken: the queue is looked at every 30 s, and srun needs its time
OLD_MIN = 10  # in which every lease that is going to be taken has been
TAKE_S = 60.0  # for srun to start one small step: a node's prolog may come first
PULSE_S = 1.0
_LEAVE_S = 2.0

# The batch script. What it needs of a node is a shell and /tmp; the lease's process leaves its id there, below the job's name:
# a job of another Slurm may have the same number, but none has the name.
HOLDER = f"""#!/bin/sh
# Holds the nodes of a pytest-dtfperf session, for as long as pytest holds the lease.
lease=/tmp/$SLURM_JOB_NAME.lease
rm -rf "$lease"
mkdir -m 700 "$lease" || exit 1
here=$(readlink /proc/self/ns/pid)
echo "$here" >"$lease/namespace"
# What jobs have left here that were killed with their node: old, and of no process. A younger one may be about to begin, and of
# one in another PID namespace nobody here can tell.
find /tmp -maxdepth 1 -name 'dtfperf-*.lease' -user "$(id -u)" -mmin +{OLD_MIN} 2>/dev/null | while read -r old; do
    [ "$(cat "$old/namespace" 2>/dev/null)" = "$here" ] || continue
    kill -0 "$(cat "$old/pid" 2>/dev/null || echo none)" 2>/dev/null || rm -rf "$old"
done
trap 'rm -rf "$lease"' EXIT
trap exit TERM INT HUP
waited=0
until [ -s "$lease/pid" ]; do
    [ "$waited" -lt {FIRST_LEASE_S} ] || {{ echo "dtfperf: nobody has taken the lease for $waited s"; exit 0; }}
    sleep 1
    waited=$((waited + 1))
done
read -r pid <"$lease/pid"
while kill -0 "$pid" 2>/dev/null; do
    sleep 0.5
done
echo "dtfperf: the lease has ended"
"""

# The lease step. `read -t` is bash's; every line is a sign of life.
_LEASE = """
lease=/tmp/$2.lease
for _ in {1..100}; do [ -d "$lease" ] && break; sleep 0.1; done
echo $$ >"$lease/fresh" && mv "$lease/fresh" "$lease/pid" && echo held || exit 1
while IFS= read -r -t "$1" _; do :; done
"""

# The keeper. A job that is being submitted at this very moment is not in the queue yet, and the controller may be away: hence
# more than one look. When Slurm knows of no such job any more, it leaves.
_KEEPER = """
trap '' HUP INT TERM
IFS= read -r word
[ "$word" = over ] && exit
for pause in 0 2 3 5 20 60 240; do
    sleep "$pause"
    scancel --quiet --user="$1" --jobname="$2"
    [ "$pause" -lt 3 ] || [ -n "$(squeue --noheader --user="$1" --name="$2" 2>&1)" ] || exit 0
done
"""


def lease_command(job_name: str, lease_s: float) -> list[str]:
    """What the lease step runs: it ends with its stdin, or when that has been silent for `lease_s` seconds."""
    return ["bash", "-c", _LEASE, "dtfperf-lease", f"{lease_s:g}", job_name]


def keeper(client: Client, job_name: str) -> Keeper:
    """Cancels the job of that name when nobody else does: sbatch may be interrupted before it says a job's id."""
    return Keeper(["/bin/sh", "-c", _KEEPER, "dtfperf-keeper", str(os.getuid()), job_name], client.environment)


class Lease:
    """The lease step's end at this side, for a `with` block: a thread keeps it alive for as long as this process runs."""

    def __init__(self, client: Client, node: str, argv: Sequence[str]) -> None:
        self._client = client
        self._node = node
        self._argv = argv
        self._over = threading.Event()

    def __enter__(self) -> Self:
        """Raises `AllocationError` if the lease cannot be taken."""
        # A session of its own: Ctrl-C in the terminal is for pytest.
        self._process = subprocess.Popen(
            tethered(self._argv, self._client.environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self._client.environment,
            start_new_session=True,
        )
        self._pulse = threading.Thread(target=self._beat, name="dtfperf-slurm-lease", daemon=True)
        try:
            self._wait_until_held()
        except BaseException:  # Ctrl-C too: __exit__ is not called for what has not been entered
            self._end()
            raise
        self._pulse.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._end()
        self._pulse.join(_LEAVE_S)

    def _wait_until_held(self) -> None:
        assert self._process.stdout
        assert self._process.stderr
        ready, _, _ = select.select([self._process.stdout], [], [], TAKE_S)
        if not ready:
            raise AllocationError(f"srun has started no lease on {self._node}, the job's first node, within {TAKE_S:g} s")
        if self._process.stdout.readline() != b"held\n":
            messages = Messages()
            for line in self._process.stderr.read().splitlines():
                messages.feed(printable_bytes(line))
            said = quoted_lines(messages.of_all)
            raise AllocationError(f"the lease on {self._node}, the job's first node, could not be taken{said}")

    def _beat(self) -> None:
        assert self._process.stdin
        with suppress(BrokenPipeError, ValueError):  # the job is over, which its users learn from their channel; or we are
            while not self._over.wait(PULSE_S):
                self._process.stdin.write(b"\n")
                self._process.stdin.flush()

    def _end(self) -> None:
        """srun ends its step when it is told to end; what is left then ends with the job."""
        self._process.terminate()
        self._process.send_signal(signal.SIGCONT)  # also if somebody has stopped it
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_LEAVE_S)
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert pipe
            with suppress(BrokenPipeError):
                pipe.close()
