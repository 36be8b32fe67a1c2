"""TensorFlow's profiler: a worker survives each of its failures, and reports them."""

from pathlib import Path

import pytest

from tests.training.programs import run_program

# Of the second of two workers: what is left of three steps, where the profiler aborts so many attempts to stop it.
PROGRAM = """
import os, sys, time
import tensorflow as tf
from pytest_dtfperf.spec import Spec, TaskOrder
from pytest_dtfperf.training import tracing

aborted, index, device = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
attempts, stop = tracing._MORE_THREADS, tracing._stop
tracing._stop = lambda number: os.abort() if attempts.index(number) < aborted else stop(number)
spec = Spec(model="mnist", batch_size=1, gpus=2, variable_update="multi_worker_mirrored")
order = TaskOrder(run="test", job="worker", index=index, spec=spec, cluster={}, num_devices=1, device=device)
step = tf.function(lambda: tf.matmul(tf.random.uniform((8, 8)), tf.random.uniform((8, 8))))
step()
with tracing.profile_steps(order) as done:
    for _ in range(3):
        step()
found = {each.operation.type for each in done.profile.activities()} if done.profile else set()
print("MatMul" in found, done.why_not)
"""

# The same where it hangs: one attempt has all the time there is.
HANGS = PROGRAM.replace("os.abort()", "time.sleep(600)").replace("spec = Spec(", "tracing._STOPS_S = 0.5\nspec = Spec(")


@pytest.mark.parametrize(
    ("aborted", "index", "device", "expected"),
    [
        (0, 1, "cpu", "True None"),
        (9, 1, "cpu", "True None"),
        (10, 1, "cpu", "False TensorFlow's profiler could not be stopped: its process was killed by SIGABRT"),
        (10, 0, "cpu", "True None"),
        (0, 1, "gpu", "False TensorFlow's profiler may abort all workers but the first, and a copy of the process has no GPU"),
    ],
    ids=["never", "but for the last attempt", "always", "in the first worker, which it does not", "on GPUs"],
)
def test_a_worker_that_the_profiler_aborts_lives_on(
    tmp_path: Path, aborted: int, index: int, device: str, expected: str
) -> None:
    """The profile is that of the first attempt that was not aborted; without any there is a reason, and the worker goes on."""
    assert run_program(tmp_path / "log", "-c", PROGRAM, str(aborted), str(index), device) == f"{expected}\n"


def test_hanging_profiler_is_waited_for_once(tmp_path: Path) -> None:
    """The wait for a profiler that hangs ends after the time of all attempts, and the worker continues."""
    output = run_program(tmp_path / "log", "-c", HANGS, "10", "1", "cpu")
    assert output == "False TensorFlow's profiler could not be stopped: no answer within 0.5 s\n"


BREAKS = """
import tensorflow as tf
from pytest_dtfperf.spec import Spec, TaskOrder
from pytest_dtfperf.training.tracing import profile_steps, run_steps, trace_of_steps
def start(*_):
    raise OSError("no room\\nfor it")
tf.profiler.experimental.start = start
made = []
order = TaskOrder(run="test", job="worker", index=0, spec=Spec(model="mnist", batch_size=1), cluster={}, num_devices=1)
with profile_steps(order) as done:
    run_steps(done, 3, lambda: made.append(1), 0.0, lambda: None)
print(len(made))
try:
    trace_of_steps("worker:0", done)
except OSError as error:
    print(error)
"""


def test_profiler_that_fails_ends_no_step(tmp_path: Path) -> None:
    """A worker with a failing profiler makes all of its steps, and reports why it has no trace."""
    assert run_program(tmp_path / "log", "-c", BREAKS).splitlines() == ["3", "no room", "for it"]


REFUSES = """
import sys
from pathlib import Path
from pytest_dtfperf.training import tracing
folder = Path(sys.argv[1])
def report():
    try:
        print(len(tracing._read_xspace(folder).planes), "planes")
    except Exception as error:
        print(type(error).__name__, error)
report()
file = folder / "vm.xplane.pb"
file.write_bytes(b"")
report()
file.write_bytes(b"\\xff\\xff not a profile")
report()
tracing.MOST_BYTES = 10
report()
"""


def test_profile_that_is_none_is_refused(tmp_path: Path) -> None:
    """A profiler that has written nothing, what cannot be parsed, or too much has left no profile, in one line."""
    folder = tmp_path / "profile"
    folder.mkdir()
    nothing, empty, garbage, large = run_program(tmp_path / "log", "-c", REFUSES, str(folder)).splitlines()
    assert (nothing, empty) == ("ValueError TensorFlow's profiler has written 0 files", "0 planes")
    assert garbage.startswith("DecodeError")
    assert large == "ValueError the profile has 0 MiB, 0 can be read"
