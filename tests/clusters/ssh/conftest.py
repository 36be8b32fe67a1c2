"""Machines for the tests: two shared ones, which tests leave as they found them, and new ones for single tests."""

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from pytest_dtfperf.testing.backends import wait_until
from tests.clusters.ssh.lab import Lab, why_not
from tests.conftest import open_once
from tests.machines.machine import Machine

LAB = pytest.StashKey[Lab]()
NewLab = Callable[..., Lab]


@pytest.fixture(scope="session")
def shared_lab(request: pytest.FixtureRequest) -> Lab:
    """Two machines, the same for all modules of this process."""
    if reason := why_not():
        pytest.skip(reason)
    return open_once(request.session, LAB, lambda: Lab(2))


@pytest.fixture
def lab(shared_lab: Lab) -> Iterator[Lab]:
    """Return the shared machines, and wait after the test until no user is logged in."""
    yield shared_lab
    for machine in shared_lab.machines:
        wait_until(f"nobody is logged in to {machine.name}", functools.partial(_is_quiet, machine))


@pytest.fixture
def new_lab() -> Iterator[NewLab]:
    """Make labs with the arguments of `Lab`, and take them down after the test."""
    with ExitStack() as labs:

        def make(*arguments: Any, **named: Any) -> Lab:
            if reason := why_not(named.get("namespaces")):
                pytest.skip(reason)
            return labs.enter_context(Lab(*arguments, **named))

        yield make


def _is_quiet(machine: Machine) -> bool:
    return not machine.sessions()
