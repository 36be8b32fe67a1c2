"""The guard that ends programs together with the process that started them."""

import os
import signal
import subprocess
import sys

import pytest

from pytest_dtfperf.clusters.children import guard_against_parent_death
from pytest_dtfperf.node import processes
from pytest_dtfperf.testing.backends import wait_until

START_CAT = """
import os, subprocess, sys
from pytest_dtfperf.clusters.children import guard_against_parent_death
argv = guard_against_parent_death(["cat"], os.environ)
cat = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
cat.stdin.write(b"x\\n"); cat.stdin.flush(); cat.stdout.readline()
print(cat.pid, flush=True)
sys.stdin.read()
"""


def test_stopped_program_does_not_outlive_its_parent() -> None:
    """A program that is stopped when its parent is killed is continued and ends."""
    with subprocess.Popen([sys.executable, "-c", START_CAT], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout
        cat = int(parent.stdout.readline())
        os.kill(cat, signal.SIGSTOP)
        wait_until("it stands still", lambda: (seen := processes.inspect(cat)) and seen.stopped)
        parent.kill()
        wait_until("it is gone", lambda: not processes.inspect(cat))


@pytest.mark.parametrize(
    "command", [["cat", "/proc/self/cmdline", "-"], ["env"], ["grep", "Sig[BIC]", "/proc/self/status"], ["ls", "/proc/self/fd"]]
)
def test_guarded_program_is_unchanged(command: list[str]) -> None:
    """The program has its own name, arguments, environment, signals and files."""
    environment = {"PATH": os.environ["PATH"], "X": "y"}

    def output(argv: list[str]) -> bytes:
        return subprocess.run(argv, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True).stdout

    assert output(guard_against_parent_death(command, environment)) == output(command)


def test_missing_program_is_an_error() -> None:
    """A missing program raises FileNotFoundError, as without the guard."""
    with pytest.raises(FileNotFoundError, match="no-such-program"):
        guard_against_parent_death(["no-such-program"], os.environ)
