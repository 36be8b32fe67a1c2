"""Runs that are left: whose they are, and which of them are ended."""

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_dtfperf.clusters.ec2 import reap
from pytest_dtfperf.clusters.ec2.account import Account
from pytest_dtfperf.clusters.ec2.ledger import Ledger
from pytest_dtfperf.clusters.ec2.reap import OpenRun
from pytest_dtfperf.errors import AllocationError
from pytest_dtfperf.node.owner import Fate, Owner
from tests.clusters.ec2 import runs
from tests.clusters.ec2.cloud.cloud import NOTHING, Cloud
from tests.clusters.ec2.test_teardown import launched
from tests.full_disk import full_behind
from tests.lockless_disk import without_locks
from tests.node.namespaces import in_pid_namespace, why_not
from tests.plugin import zygote

ME = Owner.me()
GONE = ME._replace(started=ME.started - 1)  # somebody had this process's id before it
ELSEWHERE = Owner("another-machine", "b007", "4026531836", 17, 4711)
OTHER_CONTAINER = ME._replace(namespace="1")
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


def find(account: Account, tmp_path: Path) -> OpenRun:
    (found,) = reap.find_runs(account, tmp_path)
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
        ({"owner": ME, "elsewhere": True}, Fate.LIVES, False, "{} is at work"),
        ({"owner": GONE, "elsewhere": True}, Fate.GONE, True, "{} is gone"),
        ({"owner": GONE, "elsewhere": True, "keep": True}, Fate.ELSEWHERE, False, "{} cannot be seen from here"),
        ({"owner": GONE, "elsewhere": True, "keep": True, "expires": PAST}, Fate.ELSEWHERE, True, "its time is over"),
        ({"owner": ELSEWHERE, "elsewhere": True}, Fate.ELSEWHERE, False, "{} cannot be seen from here"),
        ({"owner": OTHER_CONTAINER}, Fate.ELSEWHERE, False, "{} cannot be seen from here"),
        ({"owner": OTHER_CONTAINER, "expires": PAST}, Fate.ELSEWHERE, True, "its time is over"),
    ],
)  # fmt: skip
def test_whose_it_is(
    account: Account, tmp_path: Path, left: Launched, facts: dict[str, Any], fate: Fate, abandoned: bool, state: str
) -> None:
    """A run is abandoned when its process is gone or its time is over. Of processes on other machines and in other containers
    nobody here can tell, nor who has taken a kept run that has no ledger here; one that had begun to work waits."""
    left(**facts)
    found = find(account, tmp_path)
    assert (found.fate, found.is_abandoned, found.state) == (fate, abandoned, state.format(facts["owner"]))
    assert len(found.instances) == 2
    assert (found.cluster, found.session) == ("test", "s")


def test_only_what_is_abandoned_ends(cloud: Cloud, account: Account, tmp_path: Path, left: Launched) -> None:
    """The others keep what they have; who waits is told what is being ended."""
    dead, living = left("dead", owner=GONE), left("living", owner=ME)
    output: list[str] = []
    assert [each.run for each in reap.reap_runs(account, settle_s=0.0, folder=tmp_path, on_status=output.append)] == [dead.run]
    assert output == [f"ending what run s-dead has left: {GONE} is gone, 2 instances"]
    assert cloud.left().key_pairs == ("dtfperf-s-living",)
    assert [each.run for each in reap.find_runs(account, tmp_path)] == [living.run]


def test_a_run_of_which_amazon_shows_nothing(cloud: Cloud, account: Account, tmp_path: Path) -> None:
    """A ledger that is open is looked after, though nothing carries its tag."""
    plan = runs.young(cloud, owner=GONE)
    ledger = Ledger.of(plan, tmp_path)
    ledger.begin(plan)
    ledger.note_intent("key-pair", name=plan.name)
    assert find(account, tmp_path).instances == {}
    reap.reap_runs(account, settle_s=0.1, folder=tmp_path)
    record = ledger.read_record()
    assert record
    assert record.is_closed


def test_other_accounts_and_regions_are_others_business(cloud: Cloud, account: Account, tmp_path: Path) -> None:
    """A ledger of another account or region says nothing about this one, and stays open."""
    for number, other in enumerate(({"account": "999999999999"}, {"region": "us-west-2"})):
        plan = runs.young(cloud, owner=GONE, run=f"s-{number}", **other)
        Ledger.of(plan, tmp_path).begin(plan)
    assert reap.find_runs(account, tmp_path) == []


def test_without_rights(cloud: Cloud, account: Account, tmp_path: Path) -> None:
    """Whoever may not look is told which right is missing."""
    cloud.faults.error("DescribeInstances", "UnauthorizedOperation")
    with pytest.raises(AllocationError, match=r"looking for runs that were left: .* may not call ec2:DescribeInstances"):
        reap.find_runs(account, tmp_path)


def test_ended_by_hand(cloud: Cloud, account: Account, tmp_path: Path, left: Launched) -> None:
    """Whoever is sure ends any run: a kept one, or another machine's."""
    left("kept", owner=GONE, keep=True, ready=True)
    left("far", owner=ELSEWHERE, elsewhere=True)
    for each in reap.find_runs(account, tmp_path):
        reap.end_run(account, each, settle_s=0.0)
    assert cloud.left() == NOTHING


def test_what_a_session_has_taken_meanwhile_is_left_alone(
    cloud: Cloud, account: Account, tmp_path: Path, left: Launched
) -> None:
    """Between looking and ending, a kept run may have become somebody's."""
    ledger = left("kept", owner=GONE, keep=True, ready=True, expires=PAST)
    found = find(account, tmp_path)
    ledger.note_held(ME)
    reap.end_run(account, found, settle_s=0.0)
    assert len(cloud.left().instances) == 2


def test_tags_of_a_run_without_a_time(cloud: Cloud, account: Account, tmp_path: Path, left: Launched) -> None:
    """What does not say until when it may live is shown, and not ended unasked."""
    left("far", owner=ELSEWHERE, elsewhere=True)
    for instance in cloud.world.instances():
        instance.ec2_backend.delete_tags([instance.id], {"dtfperf:expires": None})
    found = find(account, tmp_path)
    assert (found.is_abandoned, found.expires) == (False, float("inf"))


@pytest.mark.parametrize("owner", [ELSEWHERE, OTHER_CONTAINER], ids=["others'", "another container's, with a ledger here"])
def test_a_clock_that_is_days_ahead(cloud: Cloud, account: Account, tmp_path: Path, left: Launched, owner: Owner) -> None:
    """What cannot be seen from here ends when its time is over by Amazon's clock, not when this machine's says so."""
    left("far", owner=owner, expires=PAST, elsewhere=owner is ELSEWHERE)
    cloud.set_clock_ahead(-2 * 86400.0)  # which is to Amazon as if this machine's were two days ahead
    assert reap.reap_runs(account, settle_s=0.0, folder=tmp_path) == []
    assert len(cloud.left().instances) == 2
    cloud.set_clock_ahead(0.0)
    assert [each.run for each in reap.reap_runs(account, settle_s=0.0, folder=tmp_path)] == ["s-far"]
    assert cloud.left() == NOTHING


def test_a_full_disk_is_no_obstacle(cloud: Cloud, account: Account, tmp_path: Path, left: Launched) -> None:
    """What is abandoned ends also where nothing can be written down of that."""
    left("gone", owner=GONE)
    with full_behind(tmp_path / "s-gone.jsonl"):
        assert [each.run for each in reap.reap_runs(account, settle_s=0.0, folder=tmp_path)] == ["s-gone"]
    assert cloud.left() == NOTHING


def test_a_disk_without_locks_is_no_obstacle(
    cloud: Cloud, account: Account, tmp_path: Path, left: Launched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is abandoned ends also where its ledger's file system has no locks."""
    left("gone", owner=GONE)
    without_locks(monkeypatch)
    assert [each.run for each in reap.reap_runs(account, settle_s=0.0, folder=tmp_path)] == ["s-gone"]
    assert cloud.left() == NOTHING


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a disk")
def test_a_read_only_disk_is_no_obstacle(cloud: Cloud, left: Launched, tmp_path: Path) -> None:
    """`dtfperf ec2 reap` ends what is abandoned also where the kernel has made the ledgers' disk read-only."""
    left("gone", owner=GONE)
    state = tmp_path / "home" / "dtfperf" / "ec2"
    state.mkdir(parents=True)
    for path in tmp_path.glob("s-*"):
        path.rename(state / path.name)
    disk = shlex.quote(str(tmp_path / "home"))
    reap_there = shlex.join([sys.executable, "-m", "pytest_dtfperf.cli", "ec2", "reap"])
    script = f"mount --bind {disk} {disk} && mount -o remount,bind,ro {disk} && {reap_there}"
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "home")}
    ended = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout.splitlines()[-1:]) == (0, ["dtfperf: 1 of 1 run ended."]), ended.stderr
    assert cloud.left() == NOTHING


@pytest.mark.skipif(bool(why_not()), reason=why_not() or "")
def test_from_another_pid_namespace(cloud: Cloud, left: Launched, tmp_path: Path) -> None:
    """`dtfperf ec2 reap` in another container of the same machine, name and home leaves a live session's instances alone."""
    left("lives", owner=ME)
    left("gone", owner=GONE)
    state = tmp_path / "home" / "dtfperf" / "ec2"
    state.parent.mkdir(parents=True)
    (tmp_path / "ec2").mkdir()
    for path in [*tmp_path.glob("s-*")]:
        path.rename(tmp_path / "ec2" / path.name)
    (tmp_path / "ec2").rename(state)
    command = [sys.executable, "-m", "pytest_dtfperf.cli", "ec2", "reap"]
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "home")}

    output = subprocess.run([*in_pid_namespace(), *command], env=environment, capture_output=True, text=True, check=True)
    assert output.stdout.count("cannot be seen from here") == 2
    assert output.stdout.splitlines()[-1].startswith(
        f"dtfperf: 0 of 2 runs ended. Of those of another container on {ME.host} (or {ME.host} before its last start) the state"
    )
    assert len(cloud.left().instances) == 4

    output = zygote.dtfperf("ec2", "reap", XDG_STATE_HOME=str(tmp_path / "home"))
    assert output.stdout.splitlines()[-1] == "dtfperf: 1 of 2 runs ended.", output.stderr
    assert len(cloud.left().instances) == 2


def test_without_amazons_time_nothing_is_over() -> None:
    """Whose time cannot be compared with Amazon's is left alone."""
    assert not OpenRun("run", "c", "s", ELSEWHERE, Fate.ELSEWHERE, expires=0.0, kept=False, ledger=None).is_abandoned


def test_others_that_may_not_be_ended_are_no_obstacle(cloud: Cloud, account: Account, tmp_path: Path, left: Launched) -> None:
    """Whoever may end only their own is told of others' left ones, and goes on; of their own they must know the end."""
    left("far", owner=ELSEWHERE, elsewhere=True, expires=PAST, launched_by="AIDASOMEBODY")
    output: list[str] = []
    cloud.faults.error("TerminateInstances", "UnauthorizedOperation", times=2)
    assert reap.reap_runs(account, settle_s=0.0, folder=tmp_path, on_status=output.append) == []
    assert "run s-far is not this user's, and could not be ended: " in output[-1]
    left("mine", owner=GONE)
    cloud.faults.error("TerminateInstances", "UnauthorizedOperation", times=100)
    with pytest.raises(AllocationError, match="INSTANCES MAY STILL RUN"):
        reap.reap_runs(account, settle_s=0.0, folder=tmp_path)
