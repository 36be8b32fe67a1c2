"""Real training whose tasks leave in files where they are: see `toy_training`."""

from collections.abc import Mapping
from typing import Any

from pytest_dtfperf.spec import TaskOrder
from pytest_dtfperf.training import task
from pytest_dtfperf.training.connection import Connection
from tests.plugin import toy_training


def run(order: Mapping[str, Any], connection: Connection) -> None:
    toy_training.report_order(TaskOrder.from_json(order))
    task.run(order, connection)
