"""Step timestamps of workers, made by hand."""

from collections.abc import Sequence

import numpy as np

from pytest_dtfperf.explain.worker_timings import Numbers
from pytest_dtfperf.traces import StepTimestamps

PYTHON_S, RECEIVE_S, UPDATE_S = 0.001, 0.004, 0.003


def make_lockstep_timestamps(ready: Numbers) -> list[StepTimestamps]:
    """Make timestamps of a synchronous training, from the seconds until each worker (row) has its gradients in each step
    (column)."""
    return [make_timestamps(f"worker:{number}", theirs, ready.max(axis=0) + UPDATE_S) for number, theirs in enumerate(ready)]


def make_timestamps(worker: str, ready: Numbers, end: Numbers) -> StepTimestamps:
    return StepTimestamps(
        worker=worker,
        python_us=_us(np.full_like(ready, PYTHON_S)),
        variables_us=_us(np.full_like(ready, RECEIVE_S)),
        gradients_us=_us(ready - PYTHON_S),
        end_us=_us(end - PYTHON_S),
        cpu_us=_us(0.9 * ready),
    )


def _us(seconds: Numbers) -> Sequence[int]:
    return [int(each) for each in np.rint(1e6 * seconds)]


def make_noise(kind: str, workers: int, steps: int, random: np.random.Generator) -> Numbers:
    """Make steps of about 0.1 s in which all workers are alike."""
    size = (workers, steps)
    if kind == "normal":
        return 0.1 * (1 + 0.05 * random.standard_normal(size))
    if kind == "long tail":
        return 0.1 + 0.03 * random.exponential(size=size)
    found = 0.1 * (1 + 0.05 * random.standard_normal(size))  # "bursts": now and then a worker is slow for a while
    for begin in random.integers(0, steps, size=3):
        found[random.integers(workers), begin : begin + 6] *= 2
    return found
