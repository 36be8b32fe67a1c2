"""What runs now, until when, and what it has cost so far."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import boto3
from botocore.exceptions import BotoCoreError

from pytest_dtfperf.clusters.ec2.amazon.account import Account
from pytest_dtfperf.clusters.ec2.end import reap
from pytest_dtfperf.clusters.ec2.end.reap import OpenRun
from pytest_dtfperf.clusters.ec2.market import offers, prices
from pytest_dtfperf.clusters.ec2.market.bill import InstanceLifetime, make_bill
from pytest_dtfperf.clusters.ec2.market.prices import Price
from pytest_dtfperf.clusters.ec2.run.instances import Instance
from pytest_dtfperf.clusters.ec2.run.ledger import list_ledgers
from pytest_dtfperf.clusters.ec2.run.plan import LaunchPlan
from pytest_dtfperf.errors import AllocationError, ClusterFileError


@dataclass(frozen=True)
class RunningInstance:
    """One instance, or a run of which Amazon shows none at the moment."""

    left: OpenRun
    instance: Instance | None
    price: Price | None  # None: nobody knows

    def usd_so_far(self, now: float) -> float | None:
        """What it has cost until now."""
        if self.instance is None or self.price is None or not self.instance.launched:
            return None
        usd: float = make_bill(self.price, [InstanceLifetime(self.instance.id, self.instance.launched, now)])["usd"]
        return usd

    @property
    def plan(self) -> LaunchPlan | None:
        """What it was launched with, where that was done from here."""
        record = self.left.ledger.read() if self.left.ledger else None
        return record.plan if record else None


def list_running(account: Account, given: Mapping[str, float], folder: Path | None = None) -> list[RunningInstance]:
    """All instances of perf tests in an account's region, in the order of their runs and launch.

    `given` is what the cluster file says that instances of a cluster cost per hour. Raises `AllocationError`.
    """
    rows = [row for left in reap.find_runs(account, folder) for row in _rows(account, left, given)]
    return sorted(rows, key=lambda row: (row.left.run, row.instance.index if row.instance else 0))


def list_regions(folder: Path | None = None) -> list[str | None]:
    """Where something may run: wherever a ledger knows of a run, over or not, and where boto3 goes by itself. None: nowhere."""
    records = [ledger.read() for ledger in list_ledgers(folder)]
    found = {record.plan.region for record in records if record}
    try:
        default = boto3.Session().region_name
    except BotoCoreError:  # a profile that there is not, perhaps: opening the account says so
        default = None
    return [*sorted(found | ({default} if default else set()))] or [None]


def sum_usd(rows: Sequence[RunningInstance], now: float | None = None) -> float:
    """Of all whose price is known."""
    return sum(row.usd_so_far(now or time.time()) or 0.0 for row in rows)


def _rows(account: Account, left: OpenRun, given: Mapping[str, float]) -> Iterator[RunningInstance]:
    if not left.instances:
        yield RunningInstance(left, None, None)
    for instance in left.instances.values():
        yield RunningInstance(left, instance, _price(account, left, instance, given.get(left.cluster)))


def _price(account: Account, left: OpenRun, instance: Instance, given: float | None) -> Price | None:
    """On demand, where a run's ledger does not say that it is on spot: that is the most it can cost."""
    record = left.ledger.read() if left.ledger else None
    spot = record is not None and record.plan.spot
    try:
        offer = offers.get_offer(account, instance.kind)
        return prices.get_price(account, offer, spot, instance.zone if spot else None, given)
    except (AllocationError, ClusterFileError):  # what runs is shown whatever it costs
        return None
