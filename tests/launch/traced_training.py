"""Real training with tasks that write their process ids for a test: `<data_dir>/<task>.pid`."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_dtfperf.training import AgentConnection, task


def run(order: Mapping[str, Any], connection: AgentConnection) -> None:
    file = Path(order["spec"]["data_dir"], f"{order['job']}-{order['index']}")
    file.with_suffix(".new").write_text(str(os.getpid()))
    file.with_suffix(".new").rename(file.with_suffix(".pid"))  # whoever sees it, sees all of it
    task.run(order, connection)
