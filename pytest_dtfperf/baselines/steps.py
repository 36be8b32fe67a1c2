"""What a baseline keeps of its last run's steps, so that one can tell why a later training is slower: a few kilobytes.

It is taken as the run has it. What anatomies and scores mean is known to `explain/`, which rests on nothing of baselines.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from pytest_dtfperf.baselines.canonical import rounded
from pytest_dtfperf.measurement import Measurement

MOST_TASKS = 32  # of each job, by number: of any more workers, which are equal, those that are kept tell what is usual

Told = Mapping[str, Any] | None


def of_its_steps(measurement: Measurement) -> tuple[Told, Told]:
    """Anatomy and scores of the last run that has both, or else of the last that has each."""
    last_first = list(reversed(measurement.samples))
    both = [run for run in last_first if run.anatomy and run.stragglers] or last_first
    anatomy = next((run.anatomy for run in both if run.anatomy), None)
    stragglers = next((run.stragglers for run in both if run.stragglers), None)
    return _kept(anatomy, "tasks", "clock_error_s"), _kept(stragglers, "workers")


def _kept(found: Told, *by_task: str) -> Told:
    if found is None:
        return None
    fewer = {name: {task: found[name][task] for task in _first(found[name])} for name in by_task}
    kept: Mapping[str, Any] = rounded({**found, **fewer})
    return kept


def _first(tasks: Iterable[str]) -> list[str]:
    return sorted(task for task in tasks if int(task.partition(":")[2] or 0) < MOST_TASKS)
