"""Who was late in the measured steps, and by how much: scores of workers from their stamps (`stamps.py`). Pure.

    a worker's step    python           receive            compute              finish
                  begin ----> called ----------> variables ----------> gradients ------> end

Each of the four is a duration on one clock, that of the worker's host; times of two hosts are never subtracted. A synchronous
step ends for all workers at once, so whoever waits least after its last gradient was last.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from pytest_dtfperf.explain.pauses import Pause, Period
from pytest_dtfperf.plain import Plain

SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class WorkerScore(Plain):
    """Means over one worker's steps, in seconds per step. None: not known."""

    steps: int  # that were stamped
    python_s: float | None  # from the end of the step before until its session is asked: Python, and an injected slow-down
    receive_s: float | None  # until the values of its variables are there
    compute_s: float | None  # until its last gradient is there
    finish_s: float | None  # until the step's end: sending, updating, and waiting for the others
    cpu_s: float | None  # user and system time of its process
    ready_s: float | None  # the first three together: from the step's begin until its last gradient is there
    ready_error_s: float | None  # standard error of that mean
    # Against the others, where all workers have a common step, else None:
    last: float | None = None  # fraction of the steps in which it was the last to have its gradients
    late_s: float | None = None  # by which its gradients came after the others' median; negative: before
    late_error_s: float | None = None  # standard error of that mean
    behind: float | None = None  # fraction of the steps in which they came clearly after the others' median


@dataclass(frozen=True, kw_only=True)
class Scores(Plain):
    """Of the workers of one run."""

    steps: int  # the measured ones
    step_s: float  # mean of a measured step; not in lockstep: over the workers, too
    workers: Mapping[str, WorkerScore]
    paused: int = 0  # how many steps stand out
    pauses: Sequence[Pause] = ()  # the longest of these, the longest first
    periods: Sequence[Period] = ()

    def to_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA, **super().to_json()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Of what was held against `baselines/schema/stragglers.json`."""
        return super().from_json({name: value for name, value in data.items() if name != "schema"})
