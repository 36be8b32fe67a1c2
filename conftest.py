"""What the repository's tests share: the order they run in."""

import pytest

# Fast checks first: by folder, what takes longest last. What is not named runs first.
ORDER = (
    "tests/report",
    "tests/machines",
    "tests/clusters",
    "tests/node",
    "tests/launch",
    "tests/cli",
    "tests/doctor",
    "tests/plugin",
    "tests/training",
    "tests/ci",
    "tests/real",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort whole folders; within one, tests stay as they stand."""
    items.sort(key=lambda item: next((i for i, folder in enumerate(ORDER, 1) if item.nodeid.startswith(folder)), 0))
