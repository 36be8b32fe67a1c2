"""What the repository's tests share: the order they run in, and that none leaves its environment to another."""

import os
from collections.abc import Iterator

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

# Variables that we, or what we start, go by; others are set by libraries when they are imported.
DECIDES = ("AWS_", "CUDA_", "DTFPERF_", "HOME", "PATH", "PYTEST_XDIST", "PYTHON", "SLURM", "TMPDIR", "XDG_")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort whole folders; within one, tests stay as they stand."""
    items.sort(key=lambda item: next((i for i, folder in enumerate(ORDER, 1) if item.nodeid.startswith(folder)), 0))


@pytest.fixture(autouse=True)
def environment_stays() -> Iterator[None]:
    """What a test leaves in the environment would decide over another one, which may run anywhere."""
    before = {name: value for name, value in os.environ.items() if name.startswith(DECIDES)}
    yield
    after = {name: value for name, value in os.environ.items() if name.startswith(DECIDES)}
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    assert not changed, f"the test has changed {', '.join(sorted(changed))} in the environment, and not changed it back"
