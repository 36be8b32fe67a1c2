"""Runs that are not known to be over: their owners, their costs, and the end of those that are abandoned.

A run is found in two ways. Its ledger, on the machine it ran on, has what was requested, even if Amazon does not show it yet.
The tags on everything give any machine the owner and the expiry, even if the ledger is damaged or reports that nothing is left.
Only where a session's process can be seen is it known whether it still works. So runs of other machines and containers are left
alone until they have expired by Amazon's clock.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import boto3
from botocore.exceptions import BotoCoreError

from pytest_dtfperf.clusters.ec2 import costs, instance_types, instances, plan, teardown
from pytest_dtfperf.clusters.ec2.account import Account, attempts, translate_errors
from pytest_dtfperf.clusters.ec2.costs import InstanceLifetime, Price, make_bill
from pytest_dtfperf.clusters.ec2.instances import Instance
from pytest_dtfperf.clusters.ec2.ledger import Ledger, LedgerRecord, delete_old_ledgers, list_ledgers
from pytest_dtfperf.clusters.ec2.plan import LaunchPlan, parse_timestamp
from pytest_dtfperf.clusters.ec2.teardown import SETTLE_S, WITHIN_S, tear_down
from pytest_dtfperf.errors import AllocationError, ClusterFileError, first_line
from pytest_dtfperf.formats import format_count
from pytest_dtfperf.node.owner import Fate, Owner

OnStatus = Callable[[str], object]


@dataclass(frozen=True)
class OpenRun:
    """One run that is not known to be over."""

    run: str
    cluster: str
    session: str
    owner: Owner | None  # who holds it; None: nobody, it is kept for whoever needs it next
    fate: Fate
    expires: float  # seconds since 1970
    kept: bool  # it waits for the next session until then
    ledger: Ledger | None  # None: there is none here of a run that is not over
    instances: Mapping[str, Instance] = field(default_factory=dict)
    user: str = ""  # whose credentials launched it; empty where that is not known
    now: float | None = None  # Amazon's time when it was looked at
    why: str = ""  # why there is no ledger to go by, where one should be

    @property
    def name(self) -> str:
        """For people, and by which they name it: of an instance that has lost its run's tag, its id."""
        return self.run or next(iter(self.instances))

    @property
    def has_expired(self) -> bool:
        return self.now is not None and self.expires <= self.now

    @property
    def is_abandoned(self) -> bool:
        """Nobody needs it, and nobody is going to end it."""
        if self.fate is Fate.LIVES:
            return False  # its session sees to it
        return self.has_expired or (self.fate is Fate.GONE and not self.kept)

    @property
    def state(self) -> str:
        """For people."""
        if self.has_expired:
            return "its time is over"
        if self.kept and self.fate is Fate.GONE:
            return "kept for the next session"
        if not self.owner:
            return self.why or self.fate.value
        return f"{self.owner} {self.fate.value}" + (f" ({self.why})" if self.why else "")


def find_runs(account: Account, folder: Path | None = None) -> list[OpenRun]:
    """All runs in this account and region: this user's by their ledgers, all by their tags. Raises `AllocationError`.

    Instances that have lost their run's tag may be anybody's, and of different sessions: each is one of its own.
    """
    with translate_errors(account, "looking for runs that were left"):
        shown = instances.describe_all(account.ec2)
    by_run: dict[str, dict[str, Instance]] = {}
    without_run = [each for each in shown.values() if not each.tags.get(plan.RUN)]
    for each in shown.values():
        if run := each.tags.get(plan.RUN):
            by_run.setdefault(run, {})[each.id] = each
    found, now = [], account.clock.now()
    for ledger in list_ledgers(folder):
        record = ledger.read_record()
        if record is None:
            mine = by_run.pop(ledger.run, None)
            found += [_of_tags(ledger.run, mine, now, why="its ledger here cannot be read")] if mine else []
        elif record.is_closed:
            mine = by_run.pop(ledger.run, None)
            found += [_of_closed(record, mine, now)] if mine else []
        elif (record.plan.account, record.plan.region) == (account.id, account.region):
            found.append(_of_ledger(ledger, record, by_run.pop(ledger.run, {}), now))
    found += [_of_tags(run, mine, now) for run, mine in by_run.items()]
    return found + [_of_tags("", {each.id: each}, now) for each in without_run]


def reap_runs(
    account: Account, *, settle_s: float = SETTLE_S, folder: Path | None = None, on_status: OnStatus = lambda words: None
) -> list[OpenRun]:
    """End what is abandoned. Returns what was ended; raises `AllocationError` if one of this user's may not have."""
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
            # Others' instances may be others' alone to end, and are no reason not to launch one's own.
            on_status(f"run {left.name} is not this user's, and could not be ended: {first_line(error)}")
            continue
        ended.append(left)
    delete_old_ledgers(folder)
    return ended


def end_run(account: Account, left: OpenRun, *, settle_s: float = SETTLE_S, on_status: OnStatus = lambda words: None) -> bool:
    """One run, whosever it is: whoever calls this is sure. False: a session has taken it since. Raises `AllocationError`."""
    if left.ledger:
        with ExitStack() as alone:
            with suppress(AllocationError):  # its file system has no locks, so that nobody else takes it, either
                alone.enter_context(left.ledger.locked())
            record = left.ledger.read_record()
            if record is None or record.is_closed:
                return True
            if record.holder != left.owner:
                return False
            with suppress(AllocationError):  # where this cannot be written, nobody can write that it is theirs, either
                left.ledger.note_held(Owner.me())  # nobody is lent what is about to end
    with translate_errors(account, f"ending run {left.name}"):
        if left.run:
            tear_down(account, left.run, left.ledger, settle_s=settle_s, on_status=on_status)
        else:  # somebody has taken the tag away, by which all else would be found
            _terminate(account, left.instances)
    return True


def _terminate(account: Account, mine: Mapping[str, Instance]) -> None:
    for _ in attempts(WITHIN_S):
        there = [each.id for each in instances.describe_by_id(account.ec2, list(mine)).values() if not each.has_ended]
        if not there:
            return
        teardown.terminate_instances(account, there)
    raise AllocationError(f"{', '.join(mine)} in {account} may still run and cost money: their end could not be proven")


def _of_ledger(ledger: Ledger, record: LedgerRecord, mine: Mapping[str, Instance], now: float | None) -> OpenRun:
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
        now=now,
    )


def _of_closed(record: LedgerRecord, mine: Mapping[str, Instance], now: float | None) -> OpenRun:
    """Its session is done with it, and was shown nothing of it any more; yet something is there."""
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
        now=now,
        why="its ledger says that it is over",
    )


def _of_tags(run: str, mine: Mapping[str, Instance], now: float | None, why: str = "") -> OpenRun:
    """Without its ledger nobody can tell who has taken a kept run since it was launched; of others their owner tells."""
    tags = next(iter(mine.values())).tags
    owner, kept = Owner.parse(tags.get(plan.OWNER, "")), plan.KEEP in tags
    return OpenRun(
        run=run,
        cluster=tags.get(plan.CLUSTER, "?"),
        session=tags.get(plan.SESSION, "?"),
        owner=owner,
        fate=Fate.ELSEWHERE if kept or owner is None else owner.fate,
        # What does not say when its time is over is nobody's but ours to end by hand.
        expires=parse_timestamp(tags.get(plan.EXPIRES, "")) or float("inf"),
        kept=kept,
        ledger=None,
        instances=mine,
        user=tags.get(plan.USER, ""),
        now=now,
        why=why,
    )


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
        record = self.left.ledger.read_record() if self.left.ledger else None
        return record.plan if record else None


def list_running(account: Account, given: Mapping[str, float], folder: Path | None = None) -> list[RunningInstance]:
    """All instances of perf tests in an account's region, in the order of their runs and launch.

    `given` is what the cluster file says that instances of a cluster cost per hour. Raises `AllocationError`.
    """
    rows = [row for left in find_runs(account, folder) for row in _rows(account, left, given)]
    return sorted(rows, key=lambda row: (row.left.run, row.instance.index if row.instance else 0))


def list_regions(folder: Path | None = None) -> list[str | None]:
    """Where something may run: wherever a ledger knows of a run, over or not, and where boto3 goes by itself. None: nowhere."""
    records = [ledger.read_record() for ledger in list_ledgers(folder)]
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
    record = left.ledger.read_record() if left.ledger else None
    spot = record is not None and record.plan.spot
    try:
        offer = instance_types.get_offer(account, instance.kind)
        return costs.get_price(account, offer, spot, instance.zone if spot else None, given)
    except (AllocationError, ClusterFileError):  # what runs is shown whatever it costs
        return None
