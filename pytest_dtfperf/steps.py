"""Tells pytest-dtfperf how long each step of a training program takes. docs/command.md has examples.

    steps = Steps(images_per_step=64)  # of this process, on all its devices
    for images in batches:
        with steps:
            loss = train(images)
            steps.wait_for(loss)  # if the device continues after the call has returned

This file needs only the standard library and may be copied into a program. TensorFlow, Keras, JAX and PyTorch are imported only
if they are used. Unless `train(command=...)` has started the program, nothing is measured, waited for or written.
"""

import importlib
import json
import os
import sys
import time
from typing import Any

VARIABLE = "DTFPERF_STEPS"  # number of the pipe to which steps are written, a line of JSON each


class Steps:
    """Measures steps: a step is the time between `begin` and `end`, or in a `with` block.

    `images_per_step` may be changed before a step ends, and may be None if the perf test sets `batch_size`. The first
    `warmup` steps are reported as such and do not count for a rate: the first one builds. One with an exception is not.
    """

    def __init__(self, images_per_step: float | None = None, *, warmup: int = 1) -> None:
        """Open the pipe. Raises `ValueError` if `warmup` is no number of steps."""
        if not isinstance(warmup, int) or isinstance(warmup, bool) or warmup < 0:
            raise ValueError(f"warmup must be a whole number of steps, 0 or more, not {warmup!r}")
        self.images_per_step = images_per_step
        self._warmup = warmup
        self._count = 0
        self._began: float | None = None
        self._pipe = _open(os.environ.get(VARIABLE))

    @property
    def measured(self) -> bool:
        """Whether steps are being measured."""
        return self._pipe is not None

    def begin(self) -> None:
        """Begin a step. Raises `RuntimeError` in a step that has not ended."""
        if self._pipe is None:
            return
        if self._began is not None:
            raise RuntimeError("a step begins before the last one has ended: one Steps for each loop, and no loop in a step")
        self._began = time.monotonic()

    def end(self) -> None:
        """End the step. Raises `RuntimeError` if no step has begun."""
        ended = time.monotonic()
        if self._pipe is None:
            return
        if self._began is None:
            raise RuntimeError("a step ends that has not begun")
        began, self._began = self._began, None
        self._count += 1
        is_warmup = self._count <= self._warmup
        line = {"pid": os.getpid(), "began": began, "ended": ended, "images": self.images_per_step, "warmup": is_warmup}
        try:
            os.write(self._pipe, json.dumps(line, default=float).encode() + b"\n")  # short enough for an atomic write
        except OSError:  # the reader has ended
            self._pipe = None

    def drop(self) -> None:
        """Discard the step that has begun."""
        self._began = None

    def wait_for(self, result: Any) -> None:
        """Wait until devices have computed it: an array or tensor, several in a list, tuple or dict, or a function to call."""
        if self._pipe is not None:
            _wait_for(result)

    def __enter__(self) -> "Steps":
        self.begin()
        return self

    def __exit__(self, kind: Any, value: Any, traceback: Any) -> None:
        if kind is None:
            self.end()
        else:
            self.drop()


def StepTimes(images_per_step: float | None = None, *, warmup: int = 1) -> Any:
    """Return a callback for Keras 3 and 2 (tf_keras): `model.fit(..., callbacks=[StepTimes(images_per_step=64)])`.

    A step is a batch of `fit`, or `steps_per_execution` batches. It ends when its devices have finished.
    """
    is_keras_2 = _is_keras_2()

    class _StepTimes(_keras_callback()):  # type: ignore[misc]  # Keras has no types
        def __init__(self) -> None:
            super().__init__()
            self._steps = Steps(images_per_step, warmup=warmup)
            self._first, self._updates = 0, 0

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            self._first, self._updates = batch, self._count_updates()
            self._steps.drop()  # of a batch that ended with the data, or by an exception
            self._steps.begin()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self._steps.wait_for(_finish_keras(logs))
            batches = self._batches(batch)
            if images_per_step is not None:
                self._steps.images_per_step = images_per_step * batches
            elif batches > 1 and self._steps.measured:
                raise ValueError("steps_per_execution: give the number of images of a batch, StepTimes(images_per_step=...)")
            self._steps.end()

        def on_train_end(self, logs: Any = None) -> None:
            self._steps.drop()

        def _implements_train_batch_hooks(self) -> bool:  # Keras 2 calls it
            return True

        def _implements_test_batch_hooks(self) -> bool:
            return False

        def _implements_predict_batch_hooks(self) -> bool:
            return False

        def _batches(self, last: int) -> int:
            """Return the number of batches in this step.

            Keras 2 passes the last one, Keras 3 the last possible one, or the first one again.
            """
            if is_keras_2:
                return max(1, last - self._first + 1)
            most: int = getattr(self.model, "steps_per_execution", 1)  # a custom loop may have set no model
            of_epoch: int | None = (self.params or {}).get("steps")  # None: unknown yet
            if of_epoch or most == 1:
                return max(1, min(most, of_epoch - self._first) if of_epoch else most)
            return min(most, self._count_updates() - self._updates) or most

        def _count_updates(self) -> int:
            """Return the number of the optimizer's batches if only that shows how many a step has; else 0."""
            optimizer = getattr(self.model, "optimizer", None)
            if (
                is_keras_2
                or getattr(self.model, "steps_per_execution", 1) == 1
                or (self.params or {}).get("steps")
                or not optimizer
            ):
                return 0
            return int(optimizer.iterations.numpy())

    return _StepTimes()


def step_hook(images_per_step: float | None = None, *, warmup: int = 1, train_op: Any = None) -> Any:
    """Return a hook for `tf.compat.v1.train.MonitoredTrainingSession(hooks=[...])`.

    Each `run` of the session is a step or, with `train_op`, each one that fetches it. `run` returns when its devices end.
    With SyncReplicasOptimizer, pass `stop_grace_period_secs=1` to the session: else worker 0 ends two minutes later.
    """
    import tensorflow.compat.v1 as tf

    class _StepHook(tf.train.SessionRunHook):  # type: ignore[misc]  # nor has TensorFlow
        def __init__(self) -> None:
            self._steps = Steps(images_per_step, warmup=warmup)
            self._in_step = False

        def before_run(self, run_context: Any) -> None:
            fetches = tf.nest.flatten(run_context.original_args.fetches)
            self._in_step = train_op is None or any(each is train_op for each in fetches)
            self._steps.drop()  # of a run that failed
            if self._in_step:
                self._steps.begin()

        def after_run(self, run_context: Any, run_values: Any) -> None:
            if self._in_step:
                self._steps.end()

    return _StepHook()


def _open(path: str | None) -> int | None:
    if not path:
        return None
    try:
        return os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    except OSError as exc:
        print(f"{VARIABLE}: cannot write steps to {path}, so none are measured: {exc.strerror}", file=sys.stderr)
        return None


def _is_keras_2() -> bool:
    """Return whether the program trains with tf_keras: by TensorFlow's own variable, or because only tf_keras is imported."""
    is_asked_for = os.environ.get("TF_USE_LEGACY_KERAS", "").lower() in ("1", "true")
    return is_asked_for or ("tf_keras" in sys.modules and "keras" not in sys.modules)


def _keras_callback() -> Any:
    """Return the base class of callbacks."""
    return importlib.import_module("tf_keras.callbacks" if _is_keras_2() else "keras.callbacks").Callback


def _finish_keras(logs: Any) -> Any:
    """Return what to wait for at the end of a batch: the pending work of Keras' framework."""

    def wait() -> None:
        if _is_keras_2() or importlib.import_module("keras").backend.backend() == "tensorflow":
            _sync_devices()
        _wait_for(logs or {})

    return wait


def _sync_devices() -> None:
    """Wait for TensorFlow's devices of this process.

    `tf.test.experimental.sync_devices` includes those of other workers, and fails under MultiWorkerMirroredStrategy.
    """
    import tensorflow as tf

    names = [device.name for device in tf.config.list_logical_devices()]
    here, _, _ = tf.zeros(()).device.rpartition("/device:")
    mine = [name for name in names if not name.startswith("/job:") or name.startswith(f"{here}/")]
    if mine == names:
        tf.test.experimental.sync_devices()
        return
    for name in mine:
        with tf.device(name):
            tf.raw_ops.SyncDevice()


def _wait_for(result: Any) -> None:
    if isinstance(result, dict):
        result = list(result.values())
    if isinstance(result, (list, tuple)):
        for each in result:
            _wait_for(each)
    elif hasattr(result, "block_until_ready"):  # JAX
        result.block_until_ready()
    elif hasattr(result, "is_cuda"):  # PyTorch
        if result.is_cuda:
            import torch

            torch.cuda.synchronize(result.device)
    elif hasattr(result, "numpy"):  # TensorFlow
        result.numpy()
    elif callable(result):
        result()
    elif result is not None and not hasattr(result, "__float__"):
        raise TypeError(f"wait_for() takes arrays, tensors, or a function to call, not {type(result).__name__}")
