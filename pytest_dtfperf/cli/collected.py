"""Loaded into `pytest --collect-only` by `dtfperf baselines audit`: writes down which tests there are.

pytest's own list lacks the tests that the cluster at hand cannot hold.
"""

import os
from typing import Any

FILE = "DTFPERF_COLLECTED"  # names, for the process that is started, where to write


def pytest_itemcollected(item: Any) -> None:
    with open(os.environ[FILE], "a", encoding="utf-8") as file:
        file.write(f"{item.nodeid}\n")
