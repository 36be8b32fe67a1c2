"""Runs that are still there: whose they are, and the end of those that are nobody's.

What a session leaves is found in two ways. Its ledger, on the machine it ran on, knows what it asked for, also when Amazon does
not show it yet. The tags on everything tell any machine whose it is and when its time is over. Only on its own machine can
anybody see whether a session is still at work; so what others have launched is left alone until its time is over.
"""

import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pytest_dtfperf.clusters.ec2 import instances, request
from pytest_dtfperf.clusters.ec2.account import Account
from pytest_dtfperf.clusters.ec2.calls import in_words
from pytest_dtfperf.clusters.ec2.instances import Instance
from pytest_dtfperf.clusters.ec2.ledger import Ledger, Record, forget_old, ledgers
from pytest_dtfperf.clusters.ec2.plan import read_timestamp
from pytest_dtfperf.clusters.ec2.teardown import SETTLE_S, tear_down
from pytest_dtfperf.clusters.owner import Fate, Owner, fate_of

Tell = Callable[[str], object]


@dataclass(frozen=True)
class Left:
    """One run that is not known to be over."""

    run: str
    cluster: str
    session: str
    owner: Owner | None  # who holds it; None: nobody, it is kept for whoever needs it next
    fate: Fate
    expires: float  # seconds since 1970
    kept: bool  # it waits for the next session until then
    ledger: Ledger | None  # None: it was launched from another machine, or by another user
    instances: Mapping[str, Instance] = field(default_factory=dict)

    @property
    def has_expired(self) -> bool:
        return self.expires <= time.time()

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
        return f"{self.owner} {self.fate.value}" if self.owner else self.fate.value


def find(account: Account, folder: Path | None = None) -> list[Left]:
    """All runs in this account and region: this user's by their ledgers, all by their tags. Raises `AllocationError`."""
    here = socket.gethostname()
    with in_words(account, "looking for runs that were left"):
        shown = instances.of_anybody(account.ec2)
    by_run: dict[str, dict[str, Instance]] = {}
    for each in shown.values():
        by_run.setdefault(each.tags.get(request.RUN, ""), {})[each.id] = each
    found = []
    for ledger in ledgers(folder):
        record = ledger.read()
        if record and not record.is_closed and (record.plan.account, record.plan.region) == (account.id, account.region):
            found.append(_of_ledger(ledger, record, here, by_run.pop(ledger.run, {})))
    known = {ledger.run for ledger in ledgers(folder)}
    found += [_of_tags(run, mine) for run, mine in by_run.items() if run and run not in known]
    return found


def reap(
    account: Account, *, settle_s: float = SETTLE_S, folder: Path | None = None, tell: Tell = lambda words: None
) -> list[Left]:
    """End what is abandoned. Returns what was ended; raises `AllocationError` if that cannot be proven of one."""
    ended = [left for left in find(account, folder) if left.is_abandoned]
    for left in ended:
        tell(f"ending what run {left.run} has left: {left.state}, {len(left.instances)} instance(s)")
        end(account, left, settle_s=settle_s, tell=tell)
    forget_old(folder)
    return ended


def end(account: Account, left: Left, *, settle_s: float = SETTLE_S, tell: Tell = lambda words: None) -> None:
    """One run, whosever it is: whoever calls this is sure. Raises `AllocationError`."""
    if left.ledger:
        with left.ledger.locked():
            record = left.ledger.read()
            if record is None or record.is_closed:
                return
            if record.holder != left.owner:
                return  # a session has taken it meanwhile
            left.ledger.held(Owner.me())  # nobody is lent what is about to end
    with in_words(account, f"ending run {left.run}"):
        tear_down(account, left.run, left.ledger, settle_s=settle_s, tell=tell)


def _of_ledger(ledger: Ledger, record: Record, here: str, mine: Mapping[str, Instance]) -> Left:
    plan, owner = record.plan, record.holder
    return Left(
        run=plan.run,
        cluster=plan.cluster,
        session=plan.session,
        owner=owner,
        fate=fate_of(owner, here) if owner else Fate.GONE,
        expires=plan.expires,
        kept=plan.keep and record.is_ready,
        ledger=ledger,
        instances=mine,
    )


def _of_tags(run: str, mine: Mapping[str, Instance]) -> Left:
    """Without its ledger nobody can tell whether a process of that id is the one: many machines have the same name."""
    tags = next(iter(mine.values())).tags
    return Left(
        run=run,
        cluster=tags.get(request.CLUSTER, "?"),
        session=tags.get(request.SESSION, "?"),
        owner=request.read_owner(tags.get(request.OWNER, "")),
        fate=Fate.ELSEWHERE,
        # What does not say when its time is over is nobody's but ours to end by hand.
        expires=read_timestamp(tags.get(request.EXPIRES, "")) or float("inf"),
        kept=request.KEEP in tags,
        ledger=None,
        instances=mine,
    )
