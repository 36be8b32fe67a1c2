"""Real training with tasks that report their location in files, in a folder for each model: see `toy_training`."""

import os
from collections.abc import Mapping
from typing import Any

from pytest_dtfperf.spec import TaskOrder
from pytest_dtfperf.training import AgentConnection, task
from tests.plugin import toy_training


def run(order: Mapping[str, Any], connection: AgentConnection) -> None:
    task_order = TaskOrder.from_json(order)
    folder = os.environ["TOY_REPORTS"] = os.path.join(os.environ["TOY_REPORTS"], task_order.spec.model)
    os.makedirs(folder, exist_ok=True)
    toy_training.report_order(task_order)
    task.run(order, connection)
