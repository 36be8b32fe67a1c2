"""Hooks for all tests of the repository: their order, and a check that no test changes the environment of others."""

import os
from collections.abc import Iterator

import pytest

# The slowest folders come last. Folders that are not listed run first.
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

# Prefixes of variables that change the behaviour of the package or of programs that it starts. Libraries set others at import.
DECIDES = ("AWS_", "CUDA_", "DTFPERF_", "HOME", "PATH", "PYTEST_XDIST", "PYTHON", "SLURM", "TMPDIR", "XDG_")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the tests by folder. Within a folder they keep their order."""
    items.sort(key=lambda item: next((i for i, folder in enumerate(ORDER, 1) if item.nodeid.startswith(folder)), 0))


@pytest.fixture(autouse=True)
def environment_stays() -> Iterator[None]:
    """Fail a test that leaves a changed variable, because later tests in the process would see it."""
    before = {name: value for name, value in os.environ.items() if name.startswith(DECIDES)}
    yield
    after = {name: value for name, value in os.environ.items() if name.startswith(DECIDES)}
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    assert not changed, f"the test has changed {', '.join(sorted(changed))} in the environment, and not changed it back"
