"""A real Slurm for the tests below: one that they share and leave as they found it, and as many of their own as they want."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.clusters.slurm.site import Site, why_not

NewSite = Callable[..., Site]


@pytest.fixture(scope="session")
def site() -> Iterator[Site]:
    """Four nodes with four GPUs each."""
    if reason := why_not():
        pytest.skip(reason)
    with Site(nodes=4, gpus=4) as site:
        yield site


@pytest.fixture
def new_site() -> Iterator[NewSite]:
    """Makes sites, with the arguments of `Site`, that are taken down after the test."""
    with ExitStack() as sites:

        def make(**arguments: Any) -> Site:
            if reason := why_not(arguments.get("networked", False)):
                pytest.skip(reason)
            return sites.enter_context(Site(**arguments))

        yield make
