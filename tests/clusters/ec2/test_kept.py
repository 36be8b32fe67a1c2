"""Instances that wait for the next session: who may have them, and what they are worth by then."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pytest_dtfperf.clusters.ec2 import cluster
from pytest_dtfperf.clusters.ec2.account import Account
from pytest_dtfperf.clusters.ec2.ledger import Ledger
from pytest_dtfperf.errors import AllocationError
from pytest_dtfperf.node.owner import Owner
from tests.clusters.ec2 import runs
from tests.clusters.ec2.cloud.cloud import Cloud
from tests.clusters.ec2.cloud.hands import client
from tests.clusters.ec2.test_teardown import launched
from tests.lockless_disk import without_locks

ME = Owner.me()
GONE = ME._replace(started=ME.started - 1)
SHAPE = runs.PLAN.shape


def waiting(folder: Path, /, *, ready: bool = True, **other: Any) -> Ledger:
    """A run whose session has left it for the next, as its ledger tells it."""
    plan = runs.plan(**{"keep": True, "owner": GONE, "expires": int(time.time()) + 3600, **other})
    ledger = Ledger.of(plan, folder)
    ledger.begin(plan)
    ledger.note_result("instances", token="t", ids=["i-0", "i-1"])
    if ready:
        ledger.note("ready", instances=["i-0", "i-1"])
        ledger.note_kept()
    return ledger


@pytest.fixture
def account() -> Account:
    """Nothing is asked of it: ledgers tell."""
    return Account(None, "us-east-1", "123456789012", "me")  # type: ignore[arg-type]


def test_taken_by_the_next_session(account: Account, tmp_path: Path) -> None:
    """Whoever asks first has them, and is their holder from then on; nobody else gets them."""
    ledger = waiting(tmp_path)
    taken = cluster.take_kept_run(account, SHAPE, 2, tmp_path)
    assert taken is not None
    assert taken[0].run == ledger.run
    record = ledger.read_record()
    assert record
    assert record.holder == ME
    assert cluster.take_kept_run(account, SHAPE, 2, tmp_path) is None


def test_given_back_and_taken_again(account: Account, tmp_path: Path) -> None:
    """A session that keeps them leaves them to the one after it."""
    ledger = waiting(tmp_path)
    for _ in range(2):
        assert cluster.take_kept_run(account, SHAPE, 1, tmp_path)
        ledger.note_kept()


def test_none_is_taken_where_two_could(account: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a file system without locks two sessions could take the same run: that is refused in one line, before it is taken."""
    ledger = waiting(tmp_path)
    without_locks(monkeypatch)
    with pytest.raises(AllocationError, match=r"\.jsonl cannot be locked: No locks available\. .* with XDG_STATE_HOME"):
        cluster.take_kept_run(account, SHAPE, 2, tmp_path)
    record = ledger.read_record()
    assert record
    assert record.holder is None


def test_after_a_session_that_was_killed(account: Account, tmp_path: Path) -> None:
    """A dead holder holds nothing."""
    waiting(tmp_path).note_held(GONE)
    assert cluster.take_kept_run(account, SHAPE, 2, tmp_path)


@pytest.mark.parametrize(
    "facts, why",
    [
        ({"shape": "another"}, "asked for in other words"),
        ({"keep": False}, "not to be kept"),
        ({"ready": False}, "never logged in to"),
        ({"account": "999999999999"}, "another account's"),
        ({"region": "us-west-2"}, "in another region"),
        ({"expires": int(time.time()) + 60}, "about to end"),
    ],
)
def test_not_for_this_session(account: Account, tmp_path: Path, facts: dict[str, Any], why: str) -> None:
    """Runs that are other than what is wanted, or of no more use, are not taken."""
    waiting(tmp_path, **facts)
    assert cluster.take_kept_run(account, SHAPE, 2, tmp_path) is None, why


def test_too_few(account: Account, tmp_path: Path) -> None:
    """Two instances do not serve a session that needs three."""
    waiting(tmp_path)
    assert cluster.take_kept_run(account, SHAPE, 3, tmp_path) is None


@pytest.mark.parametrize("owner", [ME, Owner("another-machine", "b007", "4026531836", 1, 1)])
def test_in_use(account: Account, tmp_path: Path, owner: Owner) -> None:
    """What a session is at work on, or may be at work on where nobody here can see it, is its own."""
    waiting(tmp_path).note_held(owner)
    assert cluster.take_kept_run(account, SHAPE, 2, tmp_path) is None


def test_once_it_is_to_end(account: Account, tmp_path: Path) -> None:
    """A run that somebody has begun to end, or has ended, is nobody's."""
    for event in ("ending", "closed"):
        waiting(tmp_path, run=f"s-{event}").note(event)
    assert cluster.take_kept_run(account, SHAPE, 1, tmp_path) is None


def test_two_sessions_never_share(account: Account, tmp_path: Path) -> None:
    """Of many that look at the same moment, one gets the run."""
    waiting(tmp_path)
    sessions = 8
    together = threading.Barrier(sessions)

    def take() -> bool:
        together.wait()
        return cluster.take_kept_run(account, SHAPE, 2, tmp_path) is not None

    with ThreadPoolExecutor(sessions) as pool:
        answers = [pool.submit(take) for _ in range(sessions)]
    assert sorted(answer.result() for answer in answers) == [False] * (sessions - 1) + [True]


def test_looked_at_before_they_are_used(cloud: Cloud, tmp_path: Path) -> None:
    """What is still running as it was is lent, in the order of its launch; if one has gone, none is."""
    account = runs.account(cloud)
    ledger, found = launched(account, runs.young(cloud, keep=True), tmp_path)
    ledger.note("ready", instances=[each.id for each in found])
    record = ledger.read_record()
    assert record
    inspected = cluster.find_kept_instances(account, record)
    assert inspected is not None
    assert [each.id for each in inspected] == [each.id for each in found]
    client().terminate_instances(InstanceIds=[found[1].id])
    assert cluster.find_kept_instances(account, record) is None
