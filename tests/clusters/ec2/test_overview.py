"""Running instances and their costs so far."""

import time

import pytest

from pytest_dtfperf.clusters.ec2 import reap
from pytest_dtfperf.clusters.ec2.contact import make_keys
from pytest_dtfperf.clusters.ec2.costs import Price
from pytest_dtfperf.clusters.ec2.instance_types import get_offer
from pytest_dtfperf.clusters.ec2.instances import Instance
from pytest_dtfperf.clusters.ec2.launcher import Launch
from pytest_dtfperf.clusters.ec2.ledger import Ledger
from pytest_dtfperf.clusters.ec2.reap import OpenRun, RunningInstance
from pytest_dtfperf.node.owner import Fate
from tests.clusters.ec2 import runs
from tests.clusters.ec2.cloud.cloud import Cloud

LEFT = OpenRun("run", "g5", "session", None, Fate.GONE, expires=0.0, kept=False, ledger=None)
PRICE = Price(3.6, "AWS price list", "2026-01-31")


def _instance(launched: float) -> Instance:
    return Instance("i-1", 0, "running", "10.0.0.4", None, "us-east-1a", "g5.xlarge", "", launched, {})


def test_cost_so_far() -> None:
    """An instance costs its seconds; one without a description, a price or a launch time is not counted."""
    rows = [
        RunningInstance(LEFT, _instance(1000.0), PRICE),
        RunningInstance(LEFT, _instance(1500.0), PRICE),
        RunningInstance(LEFT, None, None),
        RunningInstance(LEFT, _instance(1000.0), None),
        RunningInstance(LEFT, _instance(0.0), PRICE),
    ]

    assert [row.usd_so_far(2000.0) for row in rows] == [1.0, 0.5, None, None, None]
    assert reap.sum_usd(rows, 2000.0) == 1.5
    assert reap.sum_usd([], time.time()) == 0.0


@pytest.fixture
def launch(cloud: Cloud) -> Launch:
    """Return a launch of two spot instances, with an open ledger."""
    account = runs.account(cloud)
    plan = runs.make_new_plan(cloud, spot=True)
    ledger = Ledger.from_plan(plan)
    ledger.begin(plan)
    make_keys(ledger.folder, plan.name)
    return Launch(account, plan, ledger, get_offer(account, plan.instance_type), lambda words: None)


def test_spot_instances_cost_the_spot_price(launch: Launch) -> None:
    """The price of spot instances is the spot price of their zone, as the ledger has it."""
    launch()

    rows = reap.list_running(launch.account, {})

    assert [row.instance and row.instance.index for row in rows] == [0, 1]
    prices = [row.price for row in rows if row.price]
    assert [price.usd for price in prices] == pytest.approx([0.526 * 0.4] * 2)
    assert {price.source for price in prices} == {"spot price in us-east-1a"}
    assert rows[0].plan == launch.plan


def test_a_run_without_instances_is_shown(launch: Launch) -> None:
    """A ledger that is open and of which Amazon shows no instance is one row all the same: something may come of it."""
    (row,) = reap.list_running(launch.account, {})

    assert (row.open_run.run, row.instance, row.price) == (launch.plan.run, None, None)


def test_regions(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    """The regions are boto3's and those of ledgers; without any, the region is None."""
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    assert reap.list_regions() == ["eu-west-1", "us-east-1"]

    launch.ledger.close()
    assert reap.list_regions() == ["eu-west-1", "us-east-1"]

    launch.ledger.path.unlink()
    assert reap.list_regions() == ["eu-west-1"]

    monkeypatch.delenv("AWS_DEFAULT_REGION")
    assert reap.list_regions() == [None]


def test_regions_with_an_unknown_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown profile is no error of the list of regions."""
    monkeypatch.setenv("AWS_PROFILE", "nobody's")

    assert reap.list_regions() == [None]
