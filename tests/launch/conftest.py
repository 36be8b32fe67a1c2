"""Order among the launcher's tests."""

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What trains in earnest goes last: toys fail in seconds where it would take a minute."""
    items.sort(key=lambda item: "launch/test_training.py" in item.nodeid)
