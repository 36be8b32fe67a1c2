"""Descriptions of Amazon's services, read once in a process: each session of boto3 reads them anew, for half a second."""

from collections.abc import Iterator
from contextlib import contextmanager

import botocore.session
import pytest

from pytest_dtfperf.clusters.ec2.amazon import account


@contextmanager
def shared() -> Iterator[None]:
    """Sessions that begin within the block, whoever begins them, have those that accounts have."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(botocore.session, "create_loader", account._descriptions)
        yield
