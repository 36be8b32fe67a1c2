"""The probes of a task: the arithmetic of readings, and the result of failed ones."""

import json
import re
import subprocess
import sys
import time
from typing import Any

import pytest

from pytest_dtfperf.training import probe_readings
from pytest_dtfperf.training.probe_readings import LEAST_REPEATS, REPEATS, measure_repeatedly
from tests.training.programs import run_program


def test_a_reading_is_work_over_time() -> None:
    """A call that does 10 units in 20 ms does no more than 500 units a second, by the clocks of this process."""
    found = measure_repeatedly(lambda: time.sleep(0.02), 10, {"threads": 1}, cores=1)
    assert 0 < found["per_s"] <= 500
    assert (found["repeats"], found["how"]) == (REPEATS, {"threads": 1})
    assert found["spread"] >= 0
    assert found["cpu_share"] > 0


BESIDE = """
import json, os, sys, time
from pytest_dtfperf.training.probe_readings import measure_repeatedly

core = {min(os.sched_getaffinity(0))}
os.sched_setaffinity(0, core)
beside = os.fork()
while beside == 0:
    pass
try:
    print(json.dumps(measure_repeatedly(lambda: sum(range(10_000)), 1, {}, cores=1)))
finally:
    os.kill(beside, 9)
"""


@pytest.mark.parametrize("cores, share", [(1, 0.5), (2, 0.25)])
def test_cpu_share_is_cpu_time_over_time_and_cores(cores: int, share: float) -> None:
    """Work that had a core for half of the time reports half of one core, and a quarter of two."""
    clock = _Clock(0.2)
    found = measure_repeatedly(clock, 1, {}, cores=cores, clock=clock.time, cpu_clock=lambda: clock.time() / 2)
    assert found["cpu_share"] == pytest.approx(share)


@pytest.mark.campaign(only=True)
def test_other_load_on_the_core_is_reported() -> None:
    """A reading with another busy process on its only core has a CPU share of about one half."""
    found = json.loads(subprocess.run([sys.executable, "-c", BESIDE], capture_output=True, text=True, check=True).stdout)
    assert found["cpu_share"] < 0.75


class _Clock:
    """The clock of calls with given durations; the last duration is repeated."""

    def __init__(self, *takes_s: float) -> None:
        self._now, self._takes_s = 0.0, list(takes_s)

    def __call__(self) -> None:
        self._now += self._takes_s.pop(0) if len(self._takes_s) > 1 else self._takes_s[0]

    def time(self) -> float:
        return self._now


def test_reading_is_the_median_with_its_spread() -> None:
    """The rate is the median of five windows, and the spread is half of their range."""
    clock = _Clock(9.0, 0.2, 0.25, 0.2, 0.5, 0.2)
    found = measure_repeatedly(clock, 1, {}, cores=None, clock=clock.time)
    assert (found["per_s"], found["spread"], found["cpu_share"]) == (pytest.approx(5.0), pytest.approx(0.3), None)


def test_slow_probes_have_fewer_repeats() -> None:
    """A probe of seconds has three repeats, and a slower one has no reading."""
    slow = _Clock(3.0)
    assert measure_repeatedly(slow, 1, {}, cores=None, clock=slow.time)["repeats"] == LEAST_REPEATS
    slower = _Clock(8.0)
    with pytest.raises(TimeoutError, match="2 repeats took 16 s"):
        measure_repeatedly(slower, 1, {}, cores=None, clock=slower.time)


@pytest.fixture(scope="module")
def readings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the output of tests/training/probed.py."""
    found: dict[str, Any] = json.loads(run_program(tmp_path_factory.mktemp("probed") / "log", "-m", "tests.training.probed"))
    return found


@pytest.mark.parametrize("chain", ["1", "3"])
@pytest.mark.parametrize("operation", ["matmul", "convolution", "matmul of one core", "convolution of one core"])
def test_operations_are_counted_as_tensorflow_does(readings: dict[str, Any], operation: str, chain: str) -> None:
    """The multiplications and additions of an operation are those that TensorFlow's profiler counts in its graph."""
    counted = readings["counted"][operation][chain]
    assert counted["theirs"] == pytest.approx(counted["ours"], abs=2 * counted["drawn"])


def test_chain_runs_on_a_cpu(readings: dict[str, Any]) -> None:
    """A chain of operations on a device, as GPUs get it, is computed and has its rate."""
    assert readings["cpu"]["per_s"] > 0
    assert readings["cpu"]["how"] == {"size": 64}


def test_missing_device_is_an_error(readings: dict[str, Any]) -> None:
    """A missing GPU has an error instead of a reading, and is not replaced by the CPU."""
    found = readings["no such device"]
    assert found.keys() == {"error"}
    assert "GPU:7" in found["error"]
    assert re.match(r"RuntimeError: .*sees 0 of 2 GPUs", readings["two gpus"])


def test_memory() -> None:
    """A core copies some bytes a second; where little is free, it leaves that to others."""
    found = probe_readings.measure_memory(1, None)
    assert found["per_s"] > 0
    assert found["how"] == {"threads": 1, "bytes": 2 * probe_readings.BUFFER_BYTES}
    with pytest.raises(MemoryError, match="100 MiB are free, and it takes 512"):
        probe_readings.measure_memory(1, 100 << 20)


def test_input(readings: dict[str, Any]) -> None:
    """A worker's batches are fetched as its training would, but unshuffled, without a network being trained on them."""
    assert readings["input"]["per_s"] > 0
    assert not readings["input"]["shuffles"]
    assert readings["input"]["how"] == {"data": "synthetic-host", "model": "trivial", "batch": 4, "threads": 1}


APART = """
import os, sys, time
from pytest_dtfperf.training.subprocess_call import NoAnswer, call_in_fork

def answer(function, within_s=60.0):
    looks = []
    try:
        return call_in_fork(function, within_s, lambda: looks.append(1)), bool(looks)
    except NoAnswer as why:
        return str(why)

print(answer(lambda: {"pid": os.getpid() != PARENT, "sleeps": time.sleep(0.2)}))
print(answer(lambda: 1 / 0))
print(answer(lambda: os._exit(3)))
print(answer(lambda: os.kill(os.getpid(), 9)))
print(answer(lambda: os.kill(os.getpid(), 40)))
print(answer(lambda: time.sleep(600), 0.3))
print(answer(lambda: {"much": "x" * 1_000_000})[0].keys())
"""


def test_subprocess_call_returns_an_answer_or_a_reason() -> None:
    """A call in a process of its own that fails, exits, is killed or hangs returns the reason."""
    done = subprocess.run([sys.executable, "-c", f"PARENT = 0\n{APART}"], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "({'pid': True, 'sleeps': None}, True)",
        "ZeroDivisionError: division by zero",
        "its process ended with exit code 3",
        "its process was killed by SIGKILL",
        "its process was killed by SIGRTMIN+6",
        "no answer within 0.3 s",
        "dict_keys(['much'])",
    ]
