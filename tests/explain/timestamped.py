"""Timestamps of workers that were never there."""

from collections.abc import Sequence

import numpy as np

from pytest_dtfperf.explain.worker_timings import Numbers
from pytest_dtfperf.traces import StepTimestamps

PYTHON_S, RECEIVE_S, UPDATE_S = 0.001, 0.004, 0.003


def in_lockstep(ready: Numbers) -> list[StepTimestamps]:
    """Of a synchronous training: when each worker (row) had its gradients in each step (column), seconds after its begin."""
    return [of(f"worker:{number}", theirs, ready.max(axis=0) + UPDATE_S) for number, theirs in enumerate(ready)]


def of(worker: str, ready: Numbers, end: Numbers) -> StepTimestamps:
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


def noise(kind: str, workers: int, steps: int, random: np.random.Generator) -> Numbers:
    """Steps of about 0.1 s in which all workers are alike."""
    size = (workers, steps)
    if kind == "normal":
        return 0.1 * (1 + 0.05 * random.standard_normal(size))
    if kind == "long tail":
        return 0.1 + 0.03 * random.exponential(size=size)
    found = 0.1 * (1 + 0.05 * random.standard_normal(size))  # "bursts": now and then a worker is slow for a while
    for begin in random.integers(0, steps, size=3):
        found[random.integers(workers), begin : begin + 6] *= 2
    return found
