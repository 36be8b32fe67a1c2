"""What the project's own tests share; perf tests, which may be run without the tools for these, have none of it."""

import gc
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, settings

from tests.campaign import AGAIN, SEED, WHOLE, left_out, not_again

REPOSITORY = Path(__file__).parents[1]

T = TypeVar("T")

# How long an example takes is the machine's affair: on a busy one, none is any worse.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

gc.disable()  # until all tests are collected: millions of objects that stay, through which each collection would go again


def open_once(session: pytest.Session, key: pytest.StashKey[T], make: Callable[[], AbstractContextManager[T]]) -> T:
    """Open a resource for the first caller with this key, close it at the end of the session, and return it.

    A fixture that several modules import is set up once for each of them, also with the scope of the session.
    """
    if key not in session.stash:
        resource = make()
        session.stash[key] = resource.__enter__()
        session.addfinalizer(lambda: resource.__exit__(None, None, None))
    return session.stash[key]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That of this checkout, as it is now."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(REPOSITORY)]
    subprocess.run(command, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave most of the campaigns to `make campaign`."""
    if WHOLE:
        return
    doomed = {*left_out(items, SEED), *(not_again(items, SEED) if AGAIN else ())}
    if doomed:
        config.hook.pytest_deselected(items=[*doomed])
        items[:] = [item for item in items if item not in doomed]


def pytest_collection_finish() -> None:
    """Let no collection, in this process and in its forks, go through what was imported and collected: all of it stays."""
    gc.collect()
    gc.freeze()
    gc.enable()
