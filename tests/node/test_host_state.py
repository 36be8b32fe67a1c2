"""The load of a host during a run, and the share of the run itself."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from pytest_dtfperf.datamodel.host_state import HostState
from pytest_dtfperf.node import processes
from pytest_dtfperf.node.host_state import (
    HostCounters,
    add_siblings,
    compute_growth_of_threads,
    format_ranges,
    has_quota,
    parse_available_bytes,
    parse_core_times,
    parse_memory_stalls,
    parse_swapped_in_bytes,
)
from pytest_dtfperf.testing.backends import wait_until

STAT = """cpu  900 90 300 5000 40 3 20 16 0 0
cpu0 100 10 50 1000 10 1 5 4 0 0
cpu1 200 20 50 1000 10 1 5 4 0 0
cpu10 600 60 200 3000 20 1 10 8 0 0
intr 12345 0 9
ctxt 4711
"""
PRESSURE = """some avg10=0.00 avg60=0.08 avg300=0.28 total=7222686
full avg10=0.00 avg60=0.02 avg300=0.10 total=4520474
"""


def test_core_times() -> None:
    """User, nice and system time of each core; stolen time is separate."""
    found = parse_core_times(STAT)
    assert {cpu: core.busy_s * processes.TICKS_PER_S for cpu, core in found.items()} == {0: 160, 1: 270, 10: 860}
    assert {cpu: core.steal_s * processes.TICKS_PER_S for cpu, core in found.items()} == {0: 4, 1: 4, 10: 8}


def test_core_times_of_an_old_kernel() -> None:
    """A kernel that writes fewer columns has nothing stolen."""
    (core,) = parse_core_times("cpu0 100 10 50 1000\n").values()
    assert (core.busy_s, core.steal_s) == (160 / processes.TICKS_PER_S, 0)


def test_stalls() -> None:
    """The seconds in which some process, and the whole host, waited for memory; nothing where the kernel does not count."""
    assert parse_memory_stalls(PRESSURE) == {"some": 7.222686, "full": 4.520474}
    assert parse_memory_stalls("") == {}


def test_memory() -> None:
    """Available memory and what came back from swap, in bytes; None where a kernel does not report it."""
    assert parse_available_bytes("MemTotal:       24684084 kB\nMemAvailable:   21871704 kB\n") == 21871704 * 1024
    assert parse_available_bytes("MemTotal:       24684084 kB\n") is None
    assert parse_swapped_in_bytes("pgpgout 1\npswpin 3\npswpout 9\n") == 3 * os.sysconf("SC_PAGE_SIZE")
    assert parse_swapped_in_bytes("") is None


@pytest.mark.parametrize("cpus, text", [([], ""), ([3], "3"), ([1, 0, 2, 8, 10, 11], "0-2,8,10-11")])
def test_ranges(cpus: list[int], text: str) -> None:
    """Cores are written as the kernel writes them."""
    assert format_ranges(cpus) == text


QUOTAS = {
    "none": ("0::/user.slice/me", {}, False),
    "no limit": ("0::/user.slice/me", {"user.slice/me/cpu.max": "max 100000"}, False),
    "its own": ("0::/user.slice/me", {"user.slice/me/cpu.max": "150000 100000"}, True),
    "of a group above": ("0::/user.slice/me", {"user.slice/cpu.max": "150000 100000"}, True),
    "of a container's root": ("0::/", {"cpu.max": "150000 100000"}, True),
    "first version": ("4:memory:/a\n2:cpu,cpuacct:/a/b", {"cpu/a/b/cpu.cfs_quota_us": "50000"}, True),
    "first version without a limit": ("2:cpu,cpuacct:/a/b", {"cpu/a/b/cpu.cfs_quota_us": "-1"}, False),
}


@pytest.mark.parametrize("cgroup, files, found", QUOTAS.values(), ids=QUOTAS)
def test_quota(tmp_path: Path, cgroup: str, files: dict[str, str], found: bool) -> None:
    """A limit to CPU time is found in whichever group it is set, in both versions of the kernel's groups."""
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    assert has_quota(cgroup, str(tmp_path)) is found


PARENT = """
import os, time
if not os.fork():
    while time.process_time() < 0.3:
        pass
    os._exit(0)
os.wait()
print("it is reaped", flush=True)
time.sleep(3600)
"""


def test_own_time_is_that_of_all_descendants() -> None:
    """A grandchild's work is our own while it lives, when its parent has reaped it, and when that one is dead, too."""
    before = processes.read_cpu_s(os.getpid())

    def used_s() -> float:
        return processes.read_cpu_s(os.getpid()) - before

    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE) as parent:
        wait_until("it works", lambda: used_s() >= 0.1)
        assert parent.stdout
        assert parent.stdout.readline()
        assert used_s() >= 0.28
        parent.kill()
        wait_until("its parent is dead", lambda: (dead := processes.inspect(parent.pid)) and dead.state == "Z")
        assert used_s() >= 0.28
    assert used_s() >= 0.28


def test_account_of_own_work() -> None:
    """The CPU time of this process is counted as busy and as its own."""
    host = HostCounters()
    before = host.sample()
    end_s = time.process_time() + 0.5
    while time.process_time() < end_s:
        pass
    found = host.account(before, before, host.sample())
    assert found["window_s"] >= 0.5
    assert found["cpu"]["own_s"] >= 0.45
    assert found["cpu"]["busy_s"] >= 0.4
    assert found["cores"] == len(os.sched_getaffinity(0))
    assert found["load"]["before"] >= 0
    assert found["memory"]["available_mib"]["after"] > 0


def test_account_has_the_fields_of_the_data_model() -> None:
    """The agent cannot import the data model: what it sends has exactly the keys, types and ranges of `HostState`."""
    host = HostCounters()
    before = host.sample()
    found = host.account(before, before, host.sample())
    assert HostState.from_json(found).to_json() == found


BUSY = "while True: pass"


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this kernel does not count it")
def test_waiting_for_a_shared_core_is_counted() -> None:
    """Two programs on one core wait for each other, and the waits of all descendants are counted."""
    pinned = ["taskset", "--cpu-list", str(min(os.sched_getaffinity(0))), sys.executable, "-c", BUSY]
    host = HostCounters()
    before = host.sample()
    with subprocess.Popen(pinned) as one, subprocess.Popen(pinned) as other:
        wait_until("they wait", lambda: (host.account(before, before, host.sample())["cpu"]["waited_s"] or 0.0) >= 0.2)
        one.kill()
        other.kill()


def test_waits_of_ended_threads_are_not_counted() -> None:
    """A new thread counts completely, an ended one not at all, and none below zero."""
    assert compute_growth_of_threads({1: 2.0, 2: 5.0}, {1: 2.5, 3: 1.0}) == 1.5
    assert compute_growth_of_threads({1: 2.0}, {1: 1.0}) == 0.0
    assert compute_growth_of_threads(None, {1: 1.0}) is None


def test_account_of_some_cores() -> None:
    """A run with some of the allocated cores accounts for these: what others do on the rest is left out."""
    host = HostCounters()
    before = host.sample()
    found = host.account(before, before, host.sample(), {host.cpus[0]})
    assert str(host.cpus[0]) in found["cpus"]
    assert found["cores"] == len(add_siblings({host.cpus[0]}))


def test_waits_of_many_threads_are_unknown() -> None:
    """The waits of more threads than can be read within some milliseconds are unknown."""
    over = threading.Event()
    threads = [threading.Thread(target=over.wait) for _ in range(processes.MOST_THREADS + 1)]
    for thread in threads:
        thread.start()
    try:
        assert processes.read_waited_s(os.getpid()) is None
    finally:
        over.set()
        for thread in threads:
            thread.join()
