"""Seeing processes and ending them."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from pytest_dtfperf.node import processes
from pytest_dtfperf.testing.backends import wait_until

# Prints when it is ready; only SIGKILL ends it.
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(3600)"
PARENT = "import subprocess, sys, time; subprocess.Popen(['sleep', '3600']); print(flush=True); time.sleep(3600)"


def start(program: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-S", "-c", program], stdout=subprocess.PIPE)
    assert process.stdout
    process.stdout.readline()
    return process


def finish(process: subprocess.Popen[bytes]) -> int:
    assert process.stdout
    process.stdout.close()
    return process.wait()


def test_this_process_is_seen() -> None:
    """A living process has a parent, a state, a start and CPU time; an unused process id has nothing."""
    me = processes.inspect(os.getpid())
    assert me
    assert (me.parent, me.state, me.stopped) == (os.getppid(), "R", False)
    assert me.started > 0
    assert me.cpu_s > 0
    assert processes.inspect(2**22 + 1) is None


def test_name_with_parentheses_is_read() -> None:
    """A command with a name that looks like the rest of the line is read correctly."""
    with open("/proc/self/comm") as file:
        name = file.read()
    try:
        with open("/proc/self/comm", "w") as file:
            file.write("a) Z 1 (b")
        me = processes.inspect(os.getpid())
        assert me
        assert (me.parent, me.state) == (os.getppid(), "R")
    finally:
        with open("/proc/self/comm", "w") as file:
            file.write(name)


def test_stopped_process_is_seen() -> None:
    """SIGSTOP shows as state T."""
    process = start(STUBBORN)
    process.send_signal(signal.SIGSTOP)
    wait_until("it stops", lambda: (seen := processes.inspect(process.pid)) and seen.stopped)
    process.kill()
    assert finish(process) == -signal.SIGKILL


@pytest.mark.parametrize("listed", [True, False], ids=["the kernel lists children", "it does not"])
def test_everything_below_is_found(listed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Children and grandchildren are below; the dead are not."""
    if listed and not processes._KERNEL_LISTS_CHILDREN:
        pytest.skip("this kernel was built without CONFIG_PROC_CHILDREN")
    monkeypatch.setattr(processes, "_KERNEL_LISTS_CHILDREN", listed)
    process = start(PARENT)
    (grandchild,) = processes.list_descendants(process.pid)
    assert grandchild.parent == process.pid
    assert {process.pid, grandchild.pid} <= {each.pid for each in processes.list_descendants(os.getpid())}
    processes.kill(grandchild.pid)
    wait_until("the grandchild is gone", lambda: not processes.list_descendants(process.pid))
    process.kill()
    finish(process)


def test_child_of_a_thread_is_found() -> None:
    """A child that another thread than the first started is found below its process."""
    sleepers: list[subprocess.Popen[bytes]] = []
    started, over = threading.Event(), threading.Event()

    def start_one() -> None:
        sleepers.append(subprocess.Popen(["sleep", "3600"]))
        started.set()
        over.wait()

    thread = threading.Thread(target=start_one)
    thread.start()
    started.wait()
    assert sleepers[0].pid in {each.pid for each in processes.list_descendants(os.getpid())}
    over.set()
    thread.join()
    sleepers[0].kill()
    sleepers[0].wait()


def test_stubborn_process_is_ended_after_its_grace() -> None:
    """A process that ignores SIGTERM gets SIGKILL, also while it is stopped."""
    process = start(STUBBORN)
    process.send_signal(signal.SIGSTOP)
    survivors = processes.end_processes(lambda: [] if process.poll() is not None else [process.pid], grace_s=0.1)
    assert survivors == []
    assert finish(process) == -signal.SIGKILL


def test_process_that_obeys_sigterm_is_not_killed() -> None:
    """A process that ends on SIGTERM is not sent SIGKILL."""
    process = start(PARENT)
    grandchild = processes.list_descendants(process.pid)[0].pid
    assert processes.end_processes(lambda: [] if process.poll() is not None else [process.pid], grace_s=30.0) == []
    assert finish(process) == -signal.SIGTERM
    processes.kill(grandchild)


# Starts a child as root, then changes its user and starts another; prints which of both are left.
NOT_MINE = """
import os, subprocess
from pytest_dtfperf.node import processes
processes._KILL_S = 0.2
theirs = subprocess.Popen(["sleep", "3600"], stdout=subprocess.DEVNULL)
os.setgroups([])
os.setgid(54321)
os.setuid(54321)
mine = subprocess.Popen(["sleep", "3600"], stdout=subprocess.DEVNULL)
print(theirs.pid, flush=True)
print(processes.end_descendants() == [theirs.pid], processes.inspect(mine.pid), flush=True)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change its user")
def test_one_that_may_not_be_ended_keeps_no_other_alive() -> None:
    """A process below that has become another user's, by sudo for one, is reported as left over, and all others are ended."""
    with subprocess.Popen([sys.executable, "-c", NOT_MINE], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        theirs = int(process.stdout.readline())
        try:
            assert process.stdout.read() == "True None\n"
        finally:
            processes.kill(theirs)
