"""Order of the launcher's tests."""

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run real trainings last: toys fail in seconds, and a real training takes a minute."""
    items.sort(key=lambda item: "launch/test_training.py" in item.nodeid)
