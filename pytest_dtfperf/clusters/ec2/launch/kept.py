"""Instances that a session has left for the next one: found in the ledgers, taken by one session at a time, and looked at."""

import time
from pathlib import Path

from pytest_dtfperf.clusters.ec2.amazon.account import Account
from pytest_dtfperf.clusters.ec2.run import instances
from pytest_dtfperf.clusters.ec2.run.instances import Instance
from pytest_dtfperf.clusters.ec2.run.ledger import Ledger, LedgerRecord, list_ledgers
from pytest_dtfperf.node.owner import Fate, Owner

WORTHWHILE_S = 600.0  # with less left to live than that, instances are not worth starting on


def take_kept_run(account: Account, shape: str, count: int, folder: Path | None = None) -> tuple[Ledger, LedgerRecord] | None:
    """A kept run of that shape with enough instances, which is this process's from now on."""
    for ledger in list_ledgers(folder):
        record = ledger.read()
        if record is None or not _is_suitable(record, account, shape, count):
            continue
        with ledger.locked():
            record = ledger.read()
            if record is not None and _is_suitable(record, account, shape, count):
                ledger.held(Owner.me(), account.clock.now())
                return ledger, record
    return None


def find_kept_instances(account: Account, record: LedgerRecord) -> list[Instance] | None:
    """All its instances, in the order of their launch, if all run; None: the run is of no use any more."""
    ids = list(record.ready)
    found = instances.describe_by_id(account.ec2, ids)
    if len(found) < len(ids) or any(each.state != "running" for each in found.values()):
        return None
    return sorted(found.values(), key=lambda each: each.index)


def _is_suitable(record: LedgerRecord, account: Account, shape: str, count: int) -> bool:
    plan, holder = record.plan, record.holder
    return (
        plan.keep
        and record.is_ready
        and not record.is_closed
        and (plan.account, plan.region, plan.shape) == (account.id, account.region, shape)
        and len(record.ready) >= count
        and plan.expires - (account.clock.now() or time.time()) > WORTHWHILE_S
        and (holder is None or holder.fate is Fate.GONE)
    )
