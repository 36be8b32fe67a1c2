"""The helpers of `pytest_dtfperf.steps` in real programs: a Keras callback and a hook for TensorFlow 1's sessions."""

import json
import socket
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from pytest_dtfperf.steps import VARIABLE
from pytest_dtfperf.training.output import ReportedSteps
from tests.training import programs

KERAS = """
import keras, numpy as np
from pytest_dtfperf.steps import StepTimes
model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(2)])
model.compile("sgd", "mse")
x, y = np.zeros((24, 4), "float32"), np.zeros((24, 2), "float32")
model.fit(x, y, batch_size=8, epochs=2, validation_data=(x, y), verbose=0, callbacks=[StepTimes(images_per_step=8)])
"""
# What Keras 2 (tf_keras) and 3 train alike.
EITHER = """
import os
import tensorflow as tf, numpy as np
from pytest_dtfperf.steps import StepTimes
x, y = np.zeros((80, 4), "float32"), np.zeros((80, 2), "float32")
def batches(count=10**9):
    for _ in range(count):
        yield x[:8], y[:8]
made = {}  # models by how many batches their steps have: one traces its step once for data of a kind
for several in (1, 4):
    made[several] = tf.keras.Sequential([tf.keras.layers.Input((4,)), tf.keras.layers.Dense(2)])
    made[several].compile("sgd", "mse", steps_per_execution=several)
known = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
unknown = tf.data.Dataset.from_generator(lambda: batches(10), output_signature=(tf.TensorSpec((8, 4)), tf.TensorSpec((8, 2))))
"""
FIT = """
os.environ[{variable!r}] = {path!r}
made[{several}].fit({data}, verbose=0, callbacks=[StepTimes(images_per_step=8)])
"""
# What is trained, how many batches a step has, steps behind the warm-up, their images.
EITHER_CASES = {
    "arrays": ("x, y, batch_size=8, epochs=2, validation_data=(x, y)", 1, 19, 152),
    "a remainder of an epoch": ("x[:76], y[:76], batch_size=8, epochs=2", 1, 19, 152),
    "a remainder of a step": ("x, y, batch_size=8, epochs=2", 4, 5, 128),
    "a generator": ("batches(), steps_per_epoch=10, epochs=3", 1, 29, 232),
    "a generator, several at once": ("batches(), steps_per_epoch=10, epochs=3", 4, 8, 208),
    "a data set that is repeated": ("known.repeat(), steps_per_epoch=7, epochs=2", 4, 3, 80),
    "data that end": ("unknown, epochs=3", 1, 29, 232),
}
# Keras 3 does not know how many batches an epoch has: the last of its steps, with two of four, counts as two.
KERAS_3_CASES = {**EITHER_CASES, "data that end, several at once": ("unknown, epochs=3", 4, 8, 8 * (30 - 4))}
MULTI_WORKER = """
import os, sys
import tensorflow as tf, numpy as np
from pytest_dtfperf.steps import StepTimes
strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Input((4,)), tf.keras.layers.Dense(2)])
    model.compile("sgd", "mse")
x, y = np.zeros((44, 4), "float32"), np.zeros((44, 2), "float32")
model.fit(x, y, batch_size=16, epochs=2, verbose=0, callbacks=[StepTimes(images_per_step=8)])
"""
IMPORTED = """
import tf_keras, numpy as np
from pytest_dtfperf.steps import StepTimes
model = tf_keras.Sequential([tf_keras.layers.Input((4,)), tf_keras.layers.Dense(2)])
model.compile("sgd", "mse")
model.fit(np.zeros((24, 4)), np.zeros((24, 2)), batch_size=8, verbose=0, callbacks=[StepTimes(images_per_step=8)])
"""
AS_BEFORE = """
from types import SimpleNamespace
from pytest_dtfperf.steps import StepTimes
times = StepTimes(images_per_step=8, warmup=0)
times.set_model(SimpleNamespace(steps_per_execution=4))
times.set_params({"steps": 10})
for first in (0, 4, 8):
    times.on_train_batch_begin(first)
    times.on_train_batch_end(first, {"loss": 0.5})
"""
NO_NUMBER = """
from types import SimpleNamespace
from pytest_dtfperf.steps import StepTimes
times = StepTimes()
times.set_model(SimpleNamespace(steps_per_execution=4))
times.set_params({"steps": 10})
times.on_train_batch_begin(0)
try:
    times.on_train_batch_end(3, {"loss": 0.5})
except ValueError as error:
    assert "StepTimes(images_per_step=...)" in str(error)
else:
    raise SystemExit("nothing was said")
"""
OWN_LOOP = """
from pytest_dtfperf.steps import StepTimes
times = StepTimes(images_per_step=8)
for batch in (0, 1, 2):
    times.on_train_batch_begin(batch)
    times.on_train_batch_end(batch, {"loss": 0.5})
"""
FAILED = """
from types import SimpleNamespace
from pytest_dtfperf.steps import StepTimes
times = StepTimes(images_per_step=8)
times.set_model(SimpleNamespace(steps_per_execution=1))
times.set_params({"steps": None})
for first in (0, 1, 2):
    times.on_train_batch_begin(first)
    if first != 1:
        times.on_train_batch_end(first, {"loss": 0.5})
"""
SESSION = """
import tensorflow.compat.v1 as tf
from pytest_dtfperf.steps import step_hook
with tf.Graph().as_default():
    steps = tf.train.get_or_create_global_step()
    train_op = tf.assign_add(steps, 1)
    with tf.train.MonitoredTrainingSession(hooks=[step_hook(8, train_op=train_op)]) as session:
        for _ in range(6):
            session.run(train_op)
            session.run(steps)  # which is no step
"""


# As on a host that has TensorFlow alone: tf_keras would import them, and use none here.
HIDE = """
import sys
from pytest_dtfperf.training.first_import import HIDDEN
sys.modules.update(dict.fromkeys(HIDDEN))
"""

# To import it here, as `importorskip` does, would import TensorFlow into the tests' process.
needs_keras_2 = pytest.mark.skipif(find_spec("tf_keras") is None, reason="needs tf_keras")


def steps_of(source: str, folder: Path, **environment: str) -> ReportedSteps:
    folder.mkdir(exist_ok=True)
    found = ReportedSteps(None)
    with programs.start(["-c", HIDE + source], {VARIABLE: found.path, **environment}, folder / "log") as program:
        program.stdin.close()
        program.stdout.read()
        code = program.exit_code.readline().strip()
    found.end()
    assert code == "0", (folder / "log").read_text()
    return found


def test_keras_reports_its_batches(tmp_path: Path) -> None:
    """Two epochs of three batches are six steps, one of them warm-up, and validation between them is none."""
    found = steps_of(KERAS, tmp_path)
    assert (found.wrong, len(found.step_s), found.images) == (None, 5, 40)
    assert sum(found.step_s) < found.window_s


def test_keras_that_names_the_first_batch_alone(tmp_path: Path) -> None:
    """All batches of a step count in Keras 3.5, which names only the first of them at the end."""
    found = steps_of(AS_BEFORE, tmp_path)
    assert (found.wrong, len(found.step_s), found.images) == (None, 3, 80)


def test_images_of_several_batches_must_be_given(tmp_path: Path) -> None:
    """A step of several batches without a given number of images makes no rate."""
    assert not steps_of(NO_NUMBER, tmp_path).step_s


def test_a_loop_of_ones_own_may_call_it(tmp_path: Path) -> None:
    """One that has set neither model nor parameters takes a batch for a step."""
    found = steps_of(OWN_LOOP, tmp_path)
    assert (found.wrong, len(found.step_s), found.images) == (None, 2, 16)


def test_a_batch_that_fails_is_no_step(tmp_path: Path) -> None:
    """A batch that an exception has ended is not reported, and the same callback goes on with the next one."""
    found = steps_of(FAILED, tmp_path)
    assert (found.wrong, len(found.step_s), found.images) == (None, 1, 8)


def test_a_session_reports_its_training(tmp_path: Path) -> None:
    """Six runs of the training operation are six steps, one of them warm-up, and other runs of the session are none."""
    found = steps_of(SESSION, tmp_path)
    assert (found.wrong, len(found.step_s), found.images) == (None, 5, 40)


@pytest.fixture(scope="module")
def run_fits(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Mapping[str, ReportedSteps]]:
    """Return a function that makes all fits of a version of Keras in one program, and returns the steps of each."""

    @cache
    def run_fits(version: int) -> Mapping[str, ReportedSteps]:
        cases = KERAS_3_CASES if version == 3 else EITHER_CASES
        found = {case: ReportedSteps(None) for case in cases}
        calls = [
            FIT.format(variable=VARIABLE, path=found[case].path, data=data, several=several)
            for case, (data, several, _, _) in cases.items()
        ]
        steps_of("".join([EITHER, *calls]), tmp_path_factory.mktemp("fits"), TF_USE_LEGACY_KERAS=str(int(version == 2)))
        for each in found.values():
            each.end()
        return found

    return run_fits


@pytest.mark.parametrize(
    "version, case",
    [*((3, case) for case in KERAS_3_CASES), *(pytest.param(2, case, marks=needs_keras_2) for case in EITHER_CASES)],
    ids=str,
)
def test_each_keras_reports_all_its_batches(
    run_fits: Callable[[int], Mapping[str, ReportedSteps]], version: int, case: str
) -> None:
    """Generators, remainders and `steps_per_epoch` make as many steps and images in Keras 3 and in tf_keras, Keras 2."""
    _, _, steps, images = KERAS_3_CASES[case]
    found = run_fits(version)[case]
    assert (found.wrong, len(found.step_s), found.images) == (None, steps, images)


@needs_keras_2
def test_keras_2_may_be_imported_by_its_own_name(tmp_path: Path) -> None:
    """A program that imports tf_keras itself, without TensorFlow's variable, is given a callback that it takes."""
    found = steps_of(IMPORTED, tmp_path)
    assert (found.wrong, len(found.step_s), found.images) == (None, 2, 16)


@needs_keras_2
def test_keras_2_reports_steps_of_several_workers(tmp_path: Path) -> None:
    """Each of two workers of MultiWorkerMirroredStrategy reports its `fit`: six batches, the last of an epoch a smaller one."""
    workers = [f"127.0.0.1:{port}" for port in free_ports(2)]
    tasks = [{"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}} for index in range(2)]

    def train(index: int) -> ReportedSteps:
        return steps_of(MULTI_WORKER, tmp_path / str(index), TF_USE_LEGACY_KERAS="1", TF_CONFIG=json.dumps(tasks[index]))

    with ThreadPoolExecutor(2) as threads:
        for found in threads.map(train, range(2)):
            assert (found.wrong, len(found.step_s), found.images) == (None, 5, 40)


def free_ports(count: int) -> list[int]:
    """Return ports without listeners."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [int(each.getsockname()[1]) for each in sockets]
