"""Slurm sites for the tests: a shared one, which tests leave as they found it, and new ones for single tests."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from pytest_dtfperf.clusters.slurm import client
from pytest_dtfperf.testing.backends import wait_until
from tests.clusters.slurm.site import Site, why_not
from tests.conftest import open_once

SITE = pytest.StashKey[Site]()
NewSite = Callable[..., Site]
LogIn = Callable[[Site], None]


@pytest.fixture(scope="session")
def shared_site(request: pytest.FixtureRequest) -> Site:
    """Four nodes with four GPUs each, one site for all modules of this process."""
    if reason := why_not():
        pytest.skip(reason)
    return open_once(request.session, SITE, lambda: Site(nodes=4, gpus=4))


@pytest.fixture
def site(shared_site: Site) -> Iterator[Site]:
    """Return the shared site after all jobs of earlier tests have ended on its nodes, which takes a second or more."""
    yield shared_site
    wait_until("no job is left", lambda: shared_site.jobs() == [])


@pytest.fixture(scope="module")
def two_nodes() -> Iterator[Site]:
    """Two nodes that the tests of a file share."""
    if reason := why_not():
        pytest.skip(reason)
    with Site(nodes=2) as site:
        yield site


@pytest.fixture
def new_site() -> Iterator[NewSite]:
    """Make sites with the arguments of `Site`, and take them down after the test."""
    with ExitStack() as sites:

        def make(**arguments: Any) -> Site:
            if reason := why_not(arguments.get("networked", False)):
                pytest.skip(reason)
            return sites.enter_context(Site(**arguments))

        yield make


@pytest.fixture
def log_in(monkeypatch: pytest.MonkeyPatch) -> LogIn:
    """Make this process one on a site's login node, with short pauses between reads of the queue."""
    monkeypatch.setattr(client, "FIRST_PAUSE_S", 0.1)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)

    def enter(site: Site) -> None:
        for name, value in site.environment.items():
            monkeypatch.setenv(name, value)

    return enter


@pytest.fixture
def login_site(site: Site, log_in: LogIn) -> Site:
    """This process is on the login node of the shared site."""
    log_in(site)
    return site
