"""Amazon's time."""

import time

import pytest

from pytest_dtfperf.clusters.ec2.account import Account, Clock
from tests.clusters.ec2.cloud.cloud import Cloud

DAY_S = 86400.0


def test_as_answers_tell_it(cloud: Cloud) -> None:
    """Opening an account tells it, each later answer tells it anew, and it goes on between them."""
    cloud.set_clock_ahead(2 * DAY_S)
    account = Account.in_region(cloud.region)
    now = account.clock.now()
    assert now is not None
    assert round((now - time.time()) / DAY_S) == 2
    later = account.clock.now()
    assert later is not None
    assert later >= now

    cloud.set_clock_ahead(-2 * DAY_S)
    account.ec2.describe_instances()
    now = account.clock.now()
    assert now is not None
    assert round((now - time.time()) / DAY_S) == -2


@pytest.mark.parametrize("date", [None, "", "soon", "Tue, 99 Jan 2026 02:15:03 GMT"])
def test_what_is_no_time(date: str | None) -> None:
    """Before anything has told it, and of what is no time, nothing is known."""
    clock = Clock()
    clock.read_date(date)
    assert clock.now() is None
