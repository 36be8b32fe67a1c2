"""Runs that are still there: whose they are, and the end of those that are nobody's.

What a session leaves is found in two ways. Its ledger, on the machine it ran on, knows what it asked for, also when Amazon does
not show it yet. The tags on everything tell any machine whose it is and when its time is over, also where the ledger is damaged
or says that nothing is left. Only where a session's process can be seen can anybody tell whether it is still at work; so what
others have launched, on other machines or in other containers, is left alone until its time is over by Amazon's clock.
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from pytest_dtfperf.clusters.ec2.amazon.account import Account
from pytest_dtfperf.clusters.ec2.amazon.calls import translate_errors, attempts
from pytest_dtfperf.clusters.ec2.end.teardown import SETTLE_S, WITHIN_S, tear_down
from pytest_dtfperf.clusters.ec2.run import belongings, instances, request
from pytest_dtfperf.clusters.ec2.run.instances import Instance
from pytest_dtfperf.clusters.ec2.run.ledger import Ledger, LedgerRecord, delete_old_ledgers, list_ledgers
from pytest_dtfperf.clusters.ec2.run.plan import parse_timestamp
from pytest_dtfperf.errors import AllocationError, first_line
from pytest_dtfperf.formats import counted
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
    without_run = [each for each in shown.values() if not each.tags.get(request.RUN)]
    for each in shown.values():
        if run := each.tags.get(request.RUN):
            by_run.setdefault(run, {})[each.id] = each
    found, now = [], account.clock.now()
    for ledger in list_ledgers(folder):
        record = ledger.read()
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
        on_status(f"ending what run {left.name} has left: {left.state}, {counted(len(left.instances), 'instance')}")
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
            record = left.ledger.read()
            if record is None or record.is_closed:
                return True
            if record.holder != left.owner:
                return False
            with suppress(AllocationError):  # where this cannot be written, nobody can write that it is theirs, either
                left.ledger.held(Owner.me())  # nobody is lent what is about to end
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
        belongings.terminate_instances(account, there)
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
    owner, kept = Owner.read(tags.get(request.OWNER, "")), request.KEEP in tags
    return OpenRun(
        run=run,
        cluster=tags.get(request.CLUSTER, "?"),
        session=tags.get(request.SESSION, "?"),
        owner=owner,
        fate=Fate.ELSEWHERE if kept or owner is None else owner.fate,
        # What does not say when its time is over is nobody's but ours to end by hand.
        expires=parse_timestamp(tags.get(request.EXPIRES, "")) or float("inf"),
        kept=kept,
        ledger=None,
        instances=mine,
        user=tags.get(request.USER, ""),
        now=now,
        why=why,
    )
