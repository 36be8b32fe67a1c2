"""Hooks and fixtures of the project's own tests. Perf tests do not have them, and need fewer packages."""

import gc
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings

from tests.campaign import AGAIN, SEED, WHOLE, list_left_out, list_not_repeated

REPOSITORY = Path(__file__).parents[1]

T = TypeVar("T")

# An example has no deadline, because the machine may be busy. Campaigns try more examples of a property.
EXAMPLES = 300 if WHOLE else 30
settings.register_profile("any machine", max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

gc.disable()  # until all tests are collected: each collection would go through millions of objects that stay


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
    """Build and return the wheel of this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(REPOSITORY)]
    subprocess.run(command, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.hookimpl(tryfirst=True)  # before pytest selects by `-m campaign`
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Make each property a campaign, and deselect the tests that only `make campaign` runs."""
    for item in items:
        if is_hypothesis_test(getattr(item, "obj", None)):
            item.add_marker("campaign")
    if WHOLE:
        return
    deselected = {*list_left_out(items, SEED), *(list_not_repeated(items, SEED) if AGAIN else ())}
    if deselected:
        config.hook.pytest_deselected(items=[*deselected])
        items[:] = [item for item in items if item not in deselected]


def pytest_collection_finish() -> None:
    """Exclude all imported modules and collected tests from garbage collections, here and in forks, because they stay."""
    gc.collect()
    gc.freeze()
    gc.enable()
