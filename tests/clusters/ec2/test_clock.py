"""Amazon's time."""

import time

import pytest

from pytest_dtfperf.clusters.ec2.account import Account, Clock
from tests.clusters.ec2.cloud.cloud import Cloud

DAY_S = 86400.0


def test_clock_follows_the_answers(cloud: Cloud) -> None:
    """The clock is set by opening an account and by each later answer, and runs between them."""
    cloud.set_clock_ahead(2 * DAY_S)
    account = Account.open_region(cloud.region)
    now = account.clock.get_time()
    assert now is not None
    assert round((now - time.time()) / DAY_S) == 2
    later = account.clock.get_time()
    assert later is not None
    assert later >= now

    cloud.set_clock_ahead(-2 * DAY_S)
    account.ec2.describe_instances()
    now = account.clock.get_time()
    assert now is not None
    assert round((now - time.time()) / DAY_S) == -2


@pytest.mark.parametrize("date", [None, "", "soon", "Tue, 99 Jan 2026 02:15:03 GMT"])
def test_invalid_dates_are_ignored(date: str | None) -> None:
    """The time is unknown before the first answer and after an invalid date."""
    clock = Clock()
    clock.read_date(date)
    assert clock.get_time() is None
