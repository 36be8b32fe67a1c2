"""The program that forks tasks for tests: a failed run does not affect the next one."""

from pathlib import Path
from typing import Any, cast

import pytest

from pytest_dtfperf.spec import Spec, TaskOrder
from tests.training.conftest import RunTasks, orders_of
from tests.training.programs import run_program


class NoOrder:
    """An order from which no task can be made."""

    def to_json(self) -> dict[str, Any]:
        return {}


def test_invalid_run_fails_alone(run_tasks: RunTasks, tiny: Spec) -> None:
    """An invalid run fails with its reason, and the next run succeeds."""
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
    task.receive()
task.send("go")
print(task.code)
"""


def test_word_to_an_ended_task_is_lost(tmp_path: Path) -> None:
    """A word to a task that has just ended is lost, without an error."""
    assert run_program(tmp_path / "log", "-c", TOLD_TOO_LATE) == "1\n"
