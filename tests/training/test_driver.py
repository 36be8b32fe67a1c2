"""The program that forks tasks for tests: one run that goes wrong costs no other."""

from pathlib import Path
from typing import Any, cast

import pytest

from pytest_dtfperf.spec import Spec, TaskOrder
from tests.training.conftest import RunTasks, orders_of
from tests.training.programs import told


class NoOrder:
    """What no task can be made of."""

    def to_json(self) -> dict[str, Any]:
        return {}


def test_a_run_that_cannot_be_made_fails_alone(run_tasks: RunTasks, tiny: Spec) -> None:
    """Whoever asked for it hears why, and the next run is as any other."""
    with pytest.raises(AssertionError, match="KeyError: 'job'"):
        run_tasks([cast("TaskOrder", NoOrder())])
    with orders_of(tiny, workers=1) as orders:
        assert [outcome["code"] for outcome in run_tasks(orders)] == [0]


TOLD_TOO_LATE = """
import os
from tests.training.driver import Task
task = Task({"job": "worker"})  # ends at once: that is no order
os.waitid(os.P_PID, task.pid, os.WEXITED | os.WNOWAIT)
task.send("go")
while task.code is None:
    task.hear()
task.send("go")
print(task.code)
"""


def test_a_task_that_has_ended_hears_nothing(tmp_path: Path) -> None:
    """A word to a task that has just ended, or whose end is known, breaks nothing: what it ended with is what counts."""
    assert told(tmp_path / "log", "-c", TOLD_TOO_LATE) == "1\n"
