"""Instances that are kept for the next session: which session may take them, and when."""

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
from tests.clusters.ec2.test_teardown import launch_run
from tests.lockless_disk import without_locks

ME = Owner.read_own()
GONE = ME._replace(started=ME.started - 1)
SHAPE = runs.PLAN.shape


def make_kept_run(folder: Path, /, *, ready: bool = True, **other: Any) -> Ledger:
    """Return the ledger of a run that its session has left for the next one."""
    plan = runs.plan(**{"keep": True, "owner": GONE, "expires": int(time.time()) + 3600, **other})
    ledger = Ledger.from_plan(plan, folder)
    ledger.begin(plan)
    ledger.note_result("instances", token="t", ids=["i-0", "i-1"])
    if ready:
        ledger.note("ready", instances=["i-0", "i-1"])
        ledger.note_kept()
    return ledger


@pytest.fixture
def account() -> Account:
    """Return an account without clients: only ledgers are read."""
    return Account(None, "us-east-1", "123456789012", "me")  # type: ignore[arg-type]


def test_kept_run_is_taken_by_the_next_session(account: Account, tmp_path: Path) -> None:
    """The first session that takes a kept run holds it, and no other session gets it."""
    ledger = make_kept_run(tmp_path)
    taken = cluster.take_kept_run(account, SHAPE, 2, tmp_path)
    assert taken is not None
    assert taken[0].run == ledger.run
    record = ledger.read_record()
    assert record
    assert record.holder == ME
    assert cluster.take_kept_run(account, SHAPE, 2, tmp_path) is None


def test_kept_run_is_taken_again(account: Account, tmp_path: Path) -> None:
    """A session that keeps them leaves them to the one after it."""
    ledger = make_kept_run(tmp_path)
    for _ in range(2):
        assert cluster.take_kept_run(account, SHAPE, 1, tmp_path)
        ledger.note_kept()


def test_run_without_locks_is_not_taken(account: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kept run on a file system without locks is refused in one line, because two sessions could take it."""
    ledger = make_kept_run(tmp_path)
    without_locks(monkeypatch)
    with pytest.raises(AllocationError, match=r"\.jsonl cannot be locked: No locks available\. .* with XDG_STATE_HOME"):
        cluster.take_kept_run(account, SHAPE, 2, tmp_path)
    record = ledger.read_record()
    assert record
    assert record.holder is None


def test_kept_run_of_a_killed_session_is_taken(account: Account, tmp_path: Path) -> None:
    """A run held by a dead session can be taken."""
    make_kept_run(tmp_path).note_held(GONE)
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
def test_unsuitable_runs_are_not_taken(account: Account, tmp_path: Path, facts: dict[str, Any], why: str) -> None:
    """Runs with another request, or that end soon, are not taken."""
    make_kept_run(tmp_path, **facts)
    assert cluster.take_kept_run(account, SHAPE, 2, tmp_path) is None, why


def test_too_few_instances_are_not_taken(account: Account, tmp_path: Path) -> None:
    """Two instances do not serve a session that needs three."""
    make_kept_run(tmp_path)
    assert cluster.take_kept_run(account, SHAPE, 3, tmp_path) is None


@pytest.mark.parametrize("owner", [ME, Owner("another-machine", "b007", "4026531836", 1, 1)])
def test_run_in_use_is_not_taken(account: Account, tmp_path: Path, owner: Owner) -> None:
    """A run that a session uses, or may use on another machine, is not taken."""
    make_kept_run(tmp_path).note_held(owner)
    assert cluster.take_kept_run(account, SHAPE, 2, tmp_path) is None


def test_ending_run_is_not_taken(account: Account, tmp_path: Path) -> None:
    """A run that is ending or has ended is not taken."""
    for event in ("ending", "closed"):
        make_kept_run(tmp_path, run=f"s-{event}").note(event)
    assert cluster.take_kept_run(account, SHAPE, 1, tmp_path) is None


def test_two_sessions_never_share(account: Account, tmp_path: Path) -> None:
    """One of several simultaneous sessions gets the run."""
    make_kept_run(tmp_path)
    sessions = 8
    together = threading.Barrier(sessions)

    def take() -> bool:
        together.wait()
        return cluster.take_kept_run(account, SHAPE, 2, tmp_path) is not None

    with ThreadPoolExecutor(sessions) as pool:
        answers = [pool.submit(take) for _ in range(sessions)]
    assert sorted(answer.result() for answer in answers) == [False] * (sessions - 1) + [True]


def test_kept_instances_are_checked_before_use(cloud: Cloud, tmp_path: Path) -> None:
    """Kept instances that still run are returned in the order of their launch; if one has gone, none is."""
    account = runs.account(cloud)
    ledger, found = launch_run(account, runs.make_new_plan(cloud, keep=True), tmp_path)
    ledger.note("ready", instances=[each.id for each in found])
    record = ledger.read_record()
    assert record
    inspected = cluster.find_kept_instances(account, record)
    assert inspected is not None
    assert [each.id for each in inspected] == [each.id for each in found]
    client().terminate_instances(InstanceIds=[found[1].id])
    assert cluster.find_kept_instances(account, record) is None
