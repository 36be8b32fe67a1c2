"""What a host can do, as its own task measures it: the arithmetic of what is measured, and what becomes of what cannot be."""

import json
import re
import subprocess
import sys
import time
from typing import Any

import pytest

from pytest_dtfperf.training import probe_readings
from pytest_dtfperf.training.probe_readings import LEAST_REPEATS, REPEATS, measure_repeatedly
from tests.training.programs import told


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
def test_somebody_else_on_the_core_shows() -> None:
    """With another process busy on its only core, what is measured has no more than about half of it, and says so."""
    found = json.loads(subprocess.run([sys.executable, "-c", BESIDE], capture_output=True, text=True, check=True).stdout)
    assert found["cpu_share"] < 0.75


class _Clock:
    """Of calls that take so long, one after the other; the last one's time is that of all further ones."""

    def __init__(self, *takes_s: float) -> None:
        self._now, self._takes_s = 0.0, list(takes_s)

    def __call__(self) -> None:
        self._now += self._takes_s.pop(0) if len(self._takes_s) > 1 else self._takes_s[0]

    def time(self) -> float:
        return self._now


def test_the_median_counts_and_how_far_repeats_are_apart() -> None:
    """Of five windows of one call each, the one in the middle is the rate; half of what lies between all is the spread."""
    clock = _Clock(9.0, 0.2, 0.25, 0.2, 0.5, 0.2)
    found = measure_repeatedly(clock, 1, {}, cores=None, clock=clock.time)
    assert (found["per_s"], found["spread"], found["cpu_share"]) == (pytest.approx(5.0), pytest.approx(0.3), None)


def test_what_takes_its_time_is_repeated_less() -> None:
    """Of what takes seconds there are three repeats; of what takes longer still there is no reading."""
    slow = _Clock(3.0)
    assert measure_repeatedly(slow, 1, {}, cores=None, clock=slow.time)["repeats"] == LEAST_REPEATS
    slower = _Clock(8.0)
    with pytest.raises(TimeoutError, match="2 repeats took 16 s"):
        measure_repeatedly(slower, 1, {}, cores=None, clock=slower.time)


@pytest.fixture(scope="module")
def probed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What tests/training/probed.py tells."""
    found: dict[str, Any] = json.loads(told(tmp_path_factory.mktemp("probed") / "log", "-m", "tests.training.probed"))
    return found


@pytest.mark.parametrize("chain", ["1", "3"])
@pytest.mark.parametrize("operation", ["matmul", "convolution", "matmul of one core", "convolution of one core"])
def test_operations_are_counted_as_tensorflow_does(probed: dict[str, Any], operation: str, chain: str) -> None:
    """What an operation counts as its multiplications and additions is what TensorFlow's profiler counts in its graph. At the
    borders a convolution multiplies by nothing, which neither leaves out."""
    counted = probed["counted"][operation][chain]
    assert counted["theirs"] == pytest.approx(counted["ours"], abs=2 * counted["drawn"])


def test_a_cpu_stands_in_for_a_gpu(probed: dict[str, Any]) -> None:
    """A chain of operations on a device, as GPUs get it, is computed and has its rate."""
    assert probed["cpu"]["per_s"] > 0
    assert probed["cpu"]["how"] == {"size": 64}


def test_a_device_that_is_not_there_is_an_error_of_its_own(probed: dict[str, Any]) -> None:
    """Where TensorFlow sees no such GPU, there is no reading but the reason; the CPU is not taken instead."""
    found = probed["no such device"]
    assert found.keys() == {"error"}
    assert "GPU:7" in found["error"]
    assert re.match(r"RuntimeError: .*sees 0 of 2 GPUs", probed["two gpus"])


def test_memory() -> None:
    """A core copies some bytes a second; where little is free, it leaves that to others."""
    found = probe_readings.measure_memory(1, None)
    assert found["per_s"] > 0
    assert found["how"] == {"threads": 1, "bytes": 2 * probe_readings.BUFFER_BYTES}
    with pytest.raises(MemoryError, match="100 MiB are free, and it takes 512"):
        probe_readings.measure_memory(1, 100 << 20)


def test_input(probed: dict[str, Any]) -> None:
    """A worker's batches are fetched as its training would, without a network being trained on them."""
    assert probed["input"]["per_s"] > 0
    assert probed["input"]["how"] == {"data": "synthetic-host", "model": "trivial", "batch": 4, "threads": 1}


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


def test_whatever_happens_apart_is_an_answer_or_a_reason() -> None:
    """A function in a process of its own answers, fails, leaves, is killed or hangs: who asked lives on, and knows which."""
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
