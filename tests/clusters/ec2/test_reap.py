"""Runs that are left: whose they are, and which of them are ended."""

import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_dtfperf.clusters.ec2 import reap
from pytest_dtfperf.clusters.ec2.account import Account
from pytest_dtfperf.clusters.ec2.ledger import Ledger
from pytest_dtfperf.clusters.ec2.reap import Left
from pytest_dtfperf.clusters.owner import Fate, Owner
from pytest_dtfperf.errors import AllocationError
from tests.clusters.ec2 import runs
from tests.clusters.ec2.cloud.cloud import NOTHING, Cloud
from tests.clusters.ec2.test_teardown import launched

HERE = socket.gethostname()
ME = Owner.me()
GONE = Owner(HERE, ME.pid, ME.started - 1)  # somebody had this process's id before it
ELSEWHERE = Owner("another-machine", 17, 4711)
PAST = int(time.time()) - 60

Launched = Callable[..., Ledger]


@pytest.fixture
def account(cloud: Cloud) -> Account:
    return runs.account(cloud)


@pytest.fixture
def left(cloud: Cloud, account: Account, tmp_path: Path) -> Launched:
    """Launches a run, as a session did that this one knows by its ledger alone, or by its tags alone."""

    def launch(name: str = "1", *, ready: bool = False, elsewhere: bool = False, **other: Any) -> Ledger:
        plan = runs.young(cloud, run=f"s-{name}", nonce=f"{name}{time.time()}", **other)
        ledger, found = launched(account, plan, tmp_path / "elsewhere" if elsewhere else tmp_path)
        if ready:
            ledger.note("ready", instances=[each.id for each in found])
        return ledger

    return launch


def find(account: Account, tmp_path: Path) -> Left:
    (found,) = reap.find(account, tmp_path)
    return found


@pytest.mark.parametrize(
    "facts, fate, abandoned, state",
    [
        ({"owner": ME}, Fate.LIVES, False, "{} is at work"),
        ({"owner": GONE}, Fate.GONE, True, "{} is gone"),
        ({"owner": ELSEWHERE}, Fate.ELSEWHERE, False, "{} cannot be seen from here"),
        ({"owner": ME, "expires": PAST}, Fate.LIVES, False, "its time is over"),
        ({"owner": ELSEWHERE, "expires": PAST}, Fate.ELSEWHERE, True, "its time is over"),
        ({"owner": GONE, "keep": True}, Fate.GONE, True, "{} is gone"),
        ({"owner": GONE, "keep": True, "ready": True}, Fate.GONE, False, "kept for the next session"),
        ({"owner": GONE, "keep": True, "ready": True, "expires": PAST}, Fate.GONE, True, "its time is over"),
        ({"owner": ME, "elsewhere": True}, Fate.ELSEWHERE, False, "{} cannot be seen from here"),
        ({"owner": GONE, "elsewhere": True}, Fate.ELSEWHERE, False, "{} cannot be seen from here"),
        ({"owner": GONE, "elsewhere": True, "expires": PAST}, Fate.ELSEWHERE, True, "its time is over"),
    ],
)  # fmt: skip
def test_whose_it_is(
    account: Account, tmp_path: Path, left: Launched, facts: dict[str, Any], fate: Fate, abandoned: bool, state: str
) -> None:
    """A run is abandoned when its process is gone or its time is over. Of others' processes nobody here can tell, and a kept
    run that had begun to work waits for the next session."""
    left(**facts)
    found = find(account, tmp_path)
    assert (found.fate, found.is_abandoned, found.state) == (fate, abandoned, state.format(facts["owner"]))
    assert len(found.instances) == 2
    assert (found.cluster, found.session) == ("test", "s")


def test_only_what_is_abandoned_ends(cloud: Cloud, account: Account, tmp_path: Path, left: Launched) -> None:
    """The others keep what they have; who waits is told what is being ended."""
    dead, living = left("dead", owner=GONE), left("living", owner=ME)
    said: list[str] = []
    assert [each.run for each in reap.reap(account, settle_s=0.0, folder=tmp_path, tell=said.append)] == [dead.run]
    assert said == [f"ending what run s-dead has left: {GONE} is gone, 2 instance(s)"]
    assert cloud.left().key_pairs == ("dtfperf-s-living",)
    assert [each.run for each in reap.find(account, tmp_path)] == [living.run]


def test_a_run_of_which_amazon_shows_nothing(cloud: Cloud, account: Account, tmp_path: Path) -> None:
    """A ledger that is open is looked after, though nothing carries its tag."""
    plan = runs.young(cloud, owner=GONE)
    ledger = Ledger.of(plan, tmp_path)
    ledger.begin(plan)
    ledger.intend("key-pair", name=plan.name)
    assert find(account, tmp_path).instances == {}
    reap.reap(account, settle_s=0.1, folder=tmp_path)
    record = ledger.read()
    assert record
    assert record.is_closed


def test_other_accounts_and_regions_are_others_business(cloud: Cloud, account: Account, tmp_path: Path) -> None:
    """A ledger of another account or region says nothing about this one, and stays open."""
    for number, other in enumerate(({"account": "999999999999"}, {"region": "us-west-2"})):
        plan = runs.young(cloud, owner=GONE, run=f"s-{number}", **other)
        Ledger.of(plan, tmp_path).begin(plan)
    assert reap.find(account, tmp_path) == []


def test_without_rights(cloud: Cloud, account: Account, tmp_path: Path) -> None:
    """Whoever may not look is told which right is missing."""
    cloud.faults.error("DescribeInstances", "UnauthorizedOperation")
    with pytest.raises(AllocationError, match=r"looking for runs that were left: .* may not call ec2:DescribeInstances"):
        reap.find(account, tmp_path)


def test_ended_by_hand(cloud: Cloud, account: Account, tmp_path: Path, left: Launched) -> None:
    """Whoever is sure ends any run: a kept one, or another machine's."""
    left("kept", owner=GONE, keep=True, ready=True)
    left("far", owner=ELSEWHERE, elsewhere=True)
    for each in reap.find(account, tmp_path):
        reap.end(account, each, settle_s=0.0)
    assert cloud.left() == NOTHING


def test_what_a_session_has_taken_meanwhile_is_left_alone(
    cloud: Cloud, account: Account, tmp_path: Path, left: Launched
) -> None:
    """Between looking and ending, a kept run may have become somebody's."""
    ledger = left("kept", owner=GONE, keep=True, ready=True, expires=PAST)
    found = find(account, tmp_path)
    ledger.held(ME)
    reap.end(account, found, settle_s=0.0)
    assert len(cloud.left().instances) == 2


def test_tags_of_a_run_without_a_time(cloud: Cloud, account: Account, tmp_path: Path, left: Launched) -> None:
    """What does not say until when it may live is shown, and not ended unasked."""
    left("far", owner=ELSEWHERE, elsewhere=True)
    for instance in cloud.world.instances():
        instance.ec2_backend.delete_tags([instance.id], {"dtfperf:expires": None})
    found = find(account, tmp_path)
    assert (found.is_abandoned, found.expires) == (False, float("inf"))
