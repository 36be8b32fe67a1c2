"""Abandoned runs: their owners, and which of them are ended."""

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
from tests.clusters.ec2.test_teardown import launch_run
from tests.full_disk import full_behind
from tests.lockless_disk import without_locks
from tests.node.namespaces import in_pid_namespace, why_not
from tests.plugin import zygote

ME = Owner.read_own()
GONE = ME._replace(started=ME.started - 1)  # an earlier process with this process's id
ELSEWHERE = Owner("another-machine", "b007", "4026531836", 17, 4711)
OTHER_CONTAINER = ME._replace(namespace="1")
PAST = int(time.time()) - 60

Launched = Callable[..., Ledger]


@pytest.fixture
def account(cloud: Cloud) -> Account:
    return runs.account(cloud)


@pytest.fixture
def leave_run(cloud: Cloud, account: Account, tmp_path: Path) -> Launched:
    """Return a function that launches a run, known here by its ledger or by its tags alone."""

    def launch(name: str = "1", *, ready: bool = False, elsewhere: bool = False, **other: Any) -> Ledger:
        plan = runs.make_new_plan(cloud, run=f"s-{name}", nonce=f"{name}{time.time()}", **other)
        ledger, found = launch_run(account, plan, tmp_path / "elsewhere" if elsewhere else tmp_path)
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
def test_state_of_a_run(
    account: Account, tmp_path: Path, leave_run: Launched, facts: dict[str, Any], fate: Fate, abandoned: bool, state: str
) -> None:
    """A run is abandoned when its process is gone, unless it is kept, or when its time is over."""
    leave_run(**facts)
    found = find(account, tmp_path)
    assert (found.fate, found.is_abandoned, found.state) == (fate, abandoned, state.format(facts["owner"]))
    assert len(found.instances) == 2
    assert (found.cluster, found.session) == ("test", "s")


def test_only_abandoned_runs_are_ended(cloud: Cloud, account: Account, tmp_path: Path, leave_run: Launched) -> None:
    """Abandoned runs are ended with a message, and living ones keep everything."""
    dead, living = leave_run("dead", owner=GONE), leave_run("living", owner=ME)
    output: list[str] = []
    assert [each.run for each in reap.reap_runs(account, settle_s=0.0, folder=tmp_path, on_status=output.append)] == [dead.run]
    assert output == [f"ending what run s-dead has left: {GONE} is gone, 2 instances"]
    assert cloud.list_resources().key_pairs == ("dtfperf-s-living",)
    assert [each.run for each in reap.find_runs(account, tmp_path)] == [living.run]


def test_run_without_resources_is_found(cloud: Cloud, account: Account, tmp_path: Path) -> None:
    """A run with an open ledger is found, even if no resource has its tag."""
    plan = runs.make_new_plan(cloud, owner=GONE)
    ledger = Ledger.from_plan(plan, tmp_path)
    ledger.begin(plan)
    ledger.note_intent("key-pair", name=plan.name)
    assert find(account, tmp_path).instances == {}
    reap.reap_runs(account, settle_s=0.1, folder=tmp_path)
    record = ledger.read_record()
    assert record
    assert record.is_closed


def test_ledgers_of_other_accounts_and_regions_stay_open(cloud: Cloud, account: Account, tmp_path: Path) -> None:
    """A ledger of another account or region is not read as a run of this one."""
    for number, other in enumerate(({"account": "999999999999"}, {"region": "us-west-2"})):
        plan = runs.make_new_plan(cloud, owner=GONE, run=f"s-{number}", **other)
        Ledger.from_plan(plan, tmp_path).begin(plan)
    assert reap.find_runs(account, tmp_path) == []


def test_missing_right_to_list_runs(cloud: Cloud, account: Account, tmp_path: Path) -> None:
    """A missing right to list instances is named."""
    cloud.faults.error("DescribeInstances", "UnauthorizedOperation")
    with pytest.raises(AllocationError, match=r"looking for runs that were left: .* may not call ec2:DescribeInstances"):
        reap.find_runs(account, tmp_path)


def test_any_run_can_be_ended_by_hand(cloud: Cloud, account: Account, tmp_path: Path, leave_run: Launched) -> None:
    """A kept run, or one of another machine, can be ended by hand."""
    leave_run("kept", owner=GONE, keep=True, ready=True)
    leave_run("far", owner=ELSEWHERE, elsewhere=True)
    for each in reap.find_runs(account, tmp_path):
        reap.end_run(account, each, settle_s=0.0)
    assert cloud.list_resources() == NOTHING


def test_run_taken_by_a_session_is_not_ended(cloud: Cloud, account: Account, tmp_path: Path, leave_run: Launched) -> None:
    """A kept run that a session takes before the end is not ended."""
    ledger = leave_run("kept", owner=GONE, keep=True, ready=True, expires=PAST)
    found = find(account, tmp_path)
    ledger.note_held(ME)
    reap.end_run(account, found, settle_s=0.0)
    assert len(cloud.list_resources().instances) == 2


def test_run_without_an_expiry_is_not_abandoned(cloud: Cloud, account: Account, tmp_path: Path, leave_run: Launched) -> None:
    """A run without an expiry in its tags is shown and not abandoned."""
    leave_run("far", owner=ELSEWHERE, elsewhere=True)
    for instance in cloud.world.instances():
        instance.ec2_backend.delete_tags([instance.id], {"dtfperf:expires": None})
    found = find(account, tmp_path)
    assert (found.is_abandoned, found.expires) == (False, float("inf"))


@pytest.mark.parametrize("owner", [ELSEWHERE, OTHER_CONTAINER], ids=["others'", "another container's, with a ledger here"])
def test_expiry_uses_amazons_clock(cloud: Cloud, account: Account, tmp_path: Path, leave_run: Launched, owner: Owner) -> None:
    """A run of another machine ends by Amazon's clock, not by this machine's."""
    leave_run("far", owner=owner, expires=PAST, elsewhere=owner is ELSEWHERE)
    cloud.set_clock_ahead(-2 * 86400.0)  # which is to Amazon as if this machine's were two days ahead
    assert reap.reap_runs(account, settle_s=0.0, folder=tmp_path) == []
    assert len(cloud.list_resources().instances) == 2
    cloud.set_clock_ahead(0.0)
    assert [each.run for each in reap.reap_runs(account, settle_s=0.0, folder=tmp_path)] == ["s-far"]
    assert cloud.list_resources() == NOTHING


def test_run_is_ended_on_a_full_disk(cloud: Cloud, account: Account, tmp_path: Path, leave_run: Launched) -> None:
    """An abandoned run is ended even if its ledger cannot be written."""
    leave_run("gone", owner=GONE)
    with full_behind(tmp_path / "s-gone.jsonl"):
        assert [each.run for each in reap.reap_runs(account, settle_s=0.0, folder=tmp_path)] == ["s-gone"]
    assert cloud.list_resources() == NOTHING


def test_run_is_ended_on_a_disk_without_locks(
    cloud: Cloud, account: Account, tmp_path: Path, leave_run: Launched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An abandoned run is ended even if its ledger's file system has no locks."""
    leave_run("gone", owner=GONE)
    without_locks(monkeypatch)
    assert [each.run for each in reap.reap_runs(account, settle_s=0.0, folder=tmp_path)] == ["s-gone"]
    assert cloud.list_resources() == NOTHING


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a disk")
def test_run_is_ended_on_a_read_only_disk(cloud: Cloud, leave_run: Launched, tmp_path: Path) -> None:
    """`dtfperf ec2 reap` ends what is abandoned also where the kernel has made the ledgers' disk read-only."""
    leave_run("gone", owner=GONE)
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
    assert cloud.list_resources() == NOTHING


@pytest.mark.skipif(bool(why_not()), reason=why_not() or "")
def test_runs_are_kept_from_another_pid_namespace(cloud: Cloud, leave_run: Launched, tmp_path: Path) -> None:
    """`dtfperf ec2 reap` in another container of the same machine, name and home leaves a live session's instances alone."""
    leave_run("lives", owner=ME)
    leave_run("gone", owner=GONE)
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
    assert len(cloud.list_resources().instances) == 4

    output = zygote.dtfperf("ec2", "reap", XDG_STATE_HOME=str(tmp_path / "home"))
    assert output.stdout.splitlines()[-1] == "dtfperf: 1 of 2 runs ended.", output.stderr
    assert len(cloud.list_resources().instances) == 2


def test_run_is_not_over_without_amazons_clock() -> None:
    """A run is not over by its expiry if Amazon's time is unknown."""
    assert not OpenRun("run", "c", "s", ELSEWHERE, Fate.ELSEWHERE, expires=0.0, kept=False, ledger=None).is_abandoned


def test_refused_end_of_foreign_runs_is_reported(cloud: Cloud, account: Account, tmp_path: Path, leave_run: Launched) -> None:
    """A refused end of another user's run is a message, and of the user's own run an error."""
    leave_run("far", owner=ELSEWHERE, elsewhere=True, expires=PAST, launched_by="AIDASOMEBODY")
    output: list[str] = []
    cloud.faults.error("TerminateInstances", "UnauthorizedOperation", times=2)
    assert reap.reap_runs(account, settle_s=0.0, folder=tmp_path, on_status=output.append) == []
    assert "run s-far is not this user's, and could not be ended: " in output[-1]
    leave_run("mine", owner=GONE)
    cloud.faults.error("TerminateInstances", "UnauthorizedOperation", times=100)
    with pytest.raises(AllocationError, match="INSTANCES MAY STILL RUN"):
        reap.reap_runs(account, settle_s=0.0, folder=tmp_path)
