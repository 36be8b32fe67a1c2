"""Runs that are not known to be over: their owners, their costs, and the end of those that are abandoned.

A run is found in two ways. Its ledger, on the machine it ran on, has what was requested, even if Amazon does not show it yet.
The tags on everything give any machine the owner and the expiry, even if the ledger is damaged or reports that nothing is left.
Only where a session's process can be seen is it known whether it still works. So runs of other machines and containers are left
alone until they have expired by Amazon's clock.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import boto3
from botocore.exceptions import BotoCoreError

from pytest_dtfperf.clusters.ec2 import costs, instance_types, instances, plan, teardown
from pytest_dtfperf.clusters.ec2.account import Account, iterate_attempts, translate_errors
from pytest_dtfperf.clusters.ec2.costs import InstanceLifetime, Price, make_bill
from pytest_dtfperf.clusters.ec2.instances import Instance
from pytest_dtfperf.clusters.ec2.ledger import Ledger, LedgerRecord, delete_old_ledgers, list_ledgers
from pytest_dtfperf.clusters.ec2.plan import LaunchPlan, parse_timestamp
from pytest_dtfperf.clusters.ec2.teardown import SETTLE_S, WITHIN_S, tear_down
from pytest_dtfperf.errors import AllocationError, ClusterFileError, get_first_line
from pytest_dtfperf.formats import format_count
from pytest_dtfperf.node.owner import Fate, Owner

OnStatus = Callable[[str], object]


@dataclass(frozen=True)
class OpenRun:
    """One run that is not known to be over."""

    run: str
    cluster: str
    session: str
    owner: Owner | None  # the process that holds it; None: it is kept for the next session
    fate: Fate
    expires: float  # seconds since 1970
    kept: bool  # it waits for the next session until it expires
    ledger: Ledger | None  # None: this machine has no ledger of an open run
    instances: Mapping[str, Instance] = field(default_factory=dict)
    user: str = ""  # credentials that launched it; empty if unknown
    checked_at: float | None = None  # Amazon's time of this information
    reason: str = ""  # reason for a missing ledger that should exist

    @property
    def name(self) -> str:
        """The run's name in messages and commands; the id of an instance that has lost its run's tag."""
        return self.run or next(iter(self.instances))

    @property
    def has_expired(self) -> bool:
        return self.checked_at is not None and self.expires <= self.checked_at

    @property
    def is_abandoned(self) -> bool:
        """Whether no process uses the run and none will end it."""
        if self.fate is Fate.LIVES:
            return False  # its session ends it
        return self.has_expired or (self.fate is Fate.GONE and not self.kept)

    @property
    def state(self) -> str:
        """The run's state, for messages."""
        if self.has_expired:
            return "its time is over"
        if self.kept and self.fate is Fate.GONE:
            return "kept for the next session"
        if not self.owner:
            return self.reason or self.fate.value
        return f"{self.owner} {self.fate.value}" + (f" ({self.reason})" if self.reason else "")


def find_runs(account: Account, folder: Path | None = None) -> list[OpenRun]:
    """Return all runs in this account and region: this user's by ledgers, all by tags. Raises `AllocationError`.

    Instances without a run's tag may be of different owners and sessions: each is a run of its own.
    """
    with translate_errors(account, "looking for runs that were left"):
        shown = instances.describe_all(account.ec2)
    by_run: dict[str, dict[str, Instance]] = {}
    without_run = [each for each in shown.values() if not each.tags.get(plan.RUN)]
    for each in shown.values():
        if run := each.tags.get(plan.RUN):
            by_run.setdefault(run, {})[each.id] = each
    found, now = [], account.clock.get_time()
    for ledger in list_ledgers(folder):
        record = ledger.read_record()
        if record is None:
            mine = by_run.pop(ledger.run, None)
            found += [_make_run_of_tags(ledger.run, mine, now, reason="its ledger here cannot be read")] if mine else []
        elif record.is_closed:
            mine = by_run.pop(ledger.run, None)
            found += [_make_run_of_closed_ledger(record, mine, now)] if mine else []
        elif (record.plan.account, record.plan.region) == (account.id, account.region):
            found.append(_make_run_of_ledger(ledger, record, by_run.pop(ledger.run, {}), now))
    found += [_make_run_of_tags(run, mine, now) for run, mine in by_run.items()]
    return found + [_make_run_of_tags("", {each.id: each}, now) for each in without_run]


def reap_runs(
    account: Account, *, settle_s: float = SETTLE_S, folder: Path | None = None, on_status: OnStatus = lambda status: None
) -> list[OpenRun]:
    """End abandoned runs, and return them. Raises `AllocationError` if one of this user's may still exist."""
    ended = []
    for left in find_runs(account, folder):
        if not left.is_abandoned:
            continue
        on_status(f"ending what run {left.name} has left: {left.state}, {format_count(len(left.instances), 'instance')}")
        try:
            if not end_run(account, left, settle_s=settle_s, on_status=on_status):
                continue
        except AllocationError as error:
            if left.ledger or left.user == account.user:
                raise
            # Another user's instances may be protected by policies, and are no reason not to launch.
            on_status(f"run {left.name} is not this user's, and could not be ended: {get_first_line(error)}")
            continue
        ended.append(left)
    delete_old_ledgers(folder)
    return ended


def end_run(account: Account, left: OpenRun, *, settle_s: float = SETTLE_S, on_status: OnStatus = lambda status: None) -> bool:
    """End one run of any owner. Returns False if a session uses it again. Raises `AllocationError`."""
    if left.ledger:
        with ExitStack() as alone:
            with suppress(AllocationError):  # without locks on its file system, no session can take it, either
                alone.enter_context(left.ledger.locked())
            record = left.ledger.read_record()
            if record is None or record.is_closed:
                return True
            if record.holder != left.owner:
                return False
            with suppress(AllocationError):  # where this cannot be written, no session can record that it holds the run, either
                left.ledger.note_held(Owner.read_own())  # no session may take it any more
    with translate_errors(account, f"ending run {left.name}"):
        if left.run:
            tear_down(account, left.run, left.ledger, settle_s=settle_s, on_status=on_status)
        else:  # the run's tag, by which all else would be found, was removed
            _terminate(account, left.instances)
    return True


def _terminate(account: Account, mine: Mapping[str, Instance]) -> None:
    for _ in iterate_attempts(WITHIN_S):
        there = [each.id for each in instances.describe_by_id(account.ec2, list(mine)).values() if not each.has_ended]
        if not there:
            return
        teardown.terminate_instances(account, there)
    raise AllocationError(f"{', '.join(mine)} in {account} may still run and cost money: their end could not be proven")


def _make_run_of_ledger(ledger: Ledger, record: LedgerRecord, mine: Mapping[str, Instance], now: float | None) -> OpenRun:
    plan, owner = record.plan, record.holder
    return OpenRun(
        run=plan.run,
        cluster=plan.cluster,
        session=plan.session,
        owner=owner,
        fate=owner.fate if owner else Fate.GONE,
        expires=plan.expires,
        kept=plan.keep and record.is_ready,
        ledger=ledger,
        instances=mine,
        user=plan.launched_by,
        checked_at=now,
    )


def _make_run_of_closed_ledger(record: LedgerRecord, mine: Mapping[str, Instance], now: float | None) -> OpenRun:
    """Return a run that its session has closed although something of it exists."""
    plan = record.plan
    return OpenRun(
        run=plan.run,
        cluster=plan.cluster,
        session=plan.session,
        owner=None,
        fate=Fate.GONE,
        expires=plan.expires,
        kept=False,
        ledger=None,
        instances=mine,
        user=plan.launched_by,
        checked_at=now,
        reason="its ledger is closed",
    )


def _make_run_of_tags(run: str, mine: Mapping[str, Instance], now: float | None, reason: str = "") -> OpenRun:
    """Return a run by its tags. Without the ledger, the holder of a kept run is unknown; otherwise the owner is in a tag."""
    tags = next(iter(mine.values())).tags
    owner, kept = Owner.parse(tags.get(plan.OWNER, "")), plan.KEEP in tags
    return OpenRun(
        run=run,
        cluster=tags.get(plan.CLUSTER, "?"),
        session=tags.get(plan.SESSION, "?"),
        owner=owner,
        fate=Fate.ELSEWHERE if kept or owner is None else owner.fate,
        # A run without an expiry can only be ended on request.
        expires=parse_timestamp(tags.get(plan.EXPIRES, "")) or float("inf"),
        kept=kept,
        ledger=None,
        instances=mine,
        user=tags.get(plan.USER, ""),
        checked_at=now,
        reason=reason,
    )


@dataclass(frozen=True)
class RunningInstance:
    """One instance, or a run of which Amazon shows no instance at the moment."""

    open_run: OpenRun
    instance: Instance | None
    price: Price | None  # None: unknown

    def usd_so_far(self, now: float) -> float | None:
        """Return the cost until now."""
        if self.instance is None or self.price is None or not self.instance.launched:
            return None
        return make_bill(self.price, [InstanceLifetime(self.instance.id, self.instance.launched, now)]).usd

    @property
    def plan(self) -> LaunchPlan | None:
        """The plan of the launch if it was made on this machine."""
        record = self.open_run.ledger.read_record() if self.open_run.ledger else None
        return record.plan if record else None


def list_running(account: Account, given: Mapping[str, float]) -> list[RunningInstance]:
    """Return all instances of perf tests in an account's region, ordered by run and launch.

    `given` is the hourly price of the cluster file. Raises `AllocationError`.
    """
    rows = [row for left in find_runs(account) for row in _list_rows(account, left, given)]
    return sorted(rows, key=lambda row: (row.open_run.run, row.instance.index if row.instance else 0))


def list_regions() -> list[str | None]:
    """Return the regions where something may run: those of all ledgers, and boto3's default. None: boto3's default."""
    records = [ledger.read_record() for ledger in list_ledgers()]
    found = {record.plan.region for record in records if record}
    try:
        default = boto3.Session().region_name
    except BotoCoreError:  # an unknown profile, for example: opening the account reports it
        default = None
    return [*sorted(found | ({default} if default else set()))] or [None]


def sum_usd(rows: Sequence[RunningInstance], now: float) -> float:
    """Return the total cost of all instances with a known price."""
    return sum(row.usd_so_far(now) or 0.0 for row in rows)


def _list_rows(account: Account, left: OpenRun, given: Mapping[str, float]) -> Iterator[RunningInstance]:
    if not left.instances:
        yield RunningInstance(left, None, None)
    for instance in left.instances.values():
        yield RunningInstance(left, instance, _find_price(account, left, instance, given.get(left.cluster)))


def _find_price(account: Account, left: OpenRun, instance: Instance, given: float | None) -> Price | None:
    """Return the price: on demand unless the ledger shows a spot run, because that is the upper limit."""
    record = left.ledger.read_record() if left.ledger else None
    spot = record is not None and record.plan.spot
    try:
        offer = instance_types.get_offer(account, instance.kind)
        return costs.get_price(account, offer, spot, instance.zone if spot else None, given)
    except (AllocationError, ClusterFileError):  # instances are listed even without a price
        return None
