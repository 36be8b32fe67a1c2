"""The end of a run: nothing is left, or the error has the commands to type."""

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_dtfperf.clusters.ec2 import instance_types, teardown
from pytest_dtfperf.clusters.ec2.account import Account
from pytest_dtfperf.clusters.ec2.contact import make_keys
from pytest_dtfperf.clusters.ec2.instances import Instance
from pytest_dtfperf.clusters.ec2.launcher import Launch
from pytest_dtfperf.clusters.ec2.ledger import Ledger
from pytest_dtfperf.clusters.ec2.plan import LaunchPlan
from pytest_dtfperf.clusters.ec2.teardown import tear_down
from pytest_dtfperf.errors import AllocationError
from tests.clusters.ec2 import runs
from tests.clusters.ec2.cloud.cloud import NOTHING, Cloud
from tests.clusters.ec2.cloud.hands import client
from tests.full_disk import full_behind


@pytest.fixture
def account(cloud: Cloud) -> Account:
    return runs.account(cloud)


def launch_run(account: Account, plan: LaunchPlan, folder: Path) -> tuple[Ledger, list[Instance]]:
    """Launch a run with all kinds of resources."""
    ledger = Ledger.from_plan(plan, folder)
    ledger.begin(plan)
    make_keys(ledger.folder, plan.name)
    offer = instance_types.get_offer(account, plan.instance_type)
    return ledger, Launch(account, plan, ledger, offer, lambda words: None)()


@pytest.fixture
def run(cloud: Cloud, account: Account, tmp_path: Path) -> tuple[Ledger, list[Instance]]:
    return launch_run(account, runs.make_new_plan(cloud), tmp_path)


Run = tuple[Ledger, list[Instance]]


def test_end_leaves_nothing(cloud: Cloud, account: Account, run: Run) -> None:
    """Instances, volumes, interfaces, groups and keys are deleted, and the ledger is closed."""
    ledger, _ = run
    assert cloud.list_resources()
    tear_down(account, ledger.run, ledger, settle_s=0.0)
    assert cloud.list_resources() == NOTHING
    record = ledger.read_record()
    assert record
    assert record.is_closed
    assert not ledger.folder.exists()


def test_run_is_ended_on_a_full_disk(cloud: Cloud, account: Account, run: Run) -> None:
    """A run ends even if its ledger cannot be written, and the ledger is closed by a later end."""
    ledger, _ = run
    with full_behind(ledger.path, room=10):
        tear_down(account, ledger.run, ledger, settle_s=0.0)
    assert cloud.list_resources() == NOTHING
    assert not ledger.folder.exists()
    record = ledger.read_record()
    assert record
    assert not record.is_closed
    tear_down(account, ledger.run, ledger, settle_s=0.0)
    record = ledger.read_record()
    assert record
    assert record.is_closed


def test_spot_requests_too(cloud: Cloud, account: Account, tmp_path: Path) -> None:
    """A spot request that is still open would launch again."""
    ledger, _ = launch_run(account, runs.make_new_plan(cloud, spot=True), tmp_path)
    assert cloud.list_resources().spot_requests
    tear_down(account, ledger.run, ledger, settle_s=0.0)
    assert cloud.list_resources() == NOTHING


def test_run_is_ended_by_its_tags(cloud: Cloud, account: Account, run: Run) -> None:
    """A run with its ledger on another machine is ended by its tags."""
    tear_down(account, run[0].run, None)
    assert cloud.list_resources() == NOTHING


def test_second_end_sends_no_calls(cloud: Cloud, account: Account, run: Run) -> None:
    """A second end of a closed run sends no calls."""
    ledger, _ = run
    tear_down(account, ledger.run, ledger, settle_s=0.0)
    before = len(cloud.calls)
    tear_down(account, ledger.run, ledger, settle_s=0.0)
    assert len(cloud.calls) == before


def test_other_runs_are_kept(cloud: Cloud, account: Account, run: Run, tmp_path: Path) -> None:
    """Another run keeps all of its resources."""
    other, _ = launch_run(account, runs.make_new_plan(cloud, run="s-654321", nonce="fedcba0987654321"), tmp_path)
    client().create_security_group(GroupName="mine", Description="mine", VpcId=cloud.vpc)
    tear_down(account, run[0].run, run[0], settle_s=0.0)
    left = cloud.list_resources()
    assert (len(left.instances), left.key_pairs) == (2, ("dtfperf-s-654321",))
    assert set(left.security_groups) == {"dtfperf-s-654321", "mine"}
    tear_down(account, other.run, other, settle_s=0.0)


def test_run_without_a_plan_sends_no_calls(cloud: Cloud, account: Account, tmp_path: Path) -> None:
    """The end of a run without a plan on disk sends no calls."""
    tear_down(account, runs.PLAN.run, Ledger.from_plan(runs.PLAN, tmp_path))
    assert cloud.names() == []


@pytest.mark.campaign
@pytest.mark.parametrize(
    "action", ["TerminateInstances", "DeleteSecurityGroup", "DeletePlacementGroup", "DeleteKeyPair", "DescribeInstances"]
)
@pytest.mark.parametrize("fault", ["throttle", "lose_answer", "lose_request"])
def test_end_survives_failing_calls(cloud: Cloud, account: Account, run: Run, action: str, fault: str) -> None:
    """The end succeeds although calls are refused for a moment or lost."""
    getattr(cloud.faults, fault)(action)
    tear_down(account, run[0].run, run[0], settle_s=0.0)
    assert cloud.list_resources() == NOTHING


def test_groups_are_needed_longer_than_their_instances(cloud: Cloud, account: Account, run: Run) -> None:
    """A group is refused for as long as an interface of an instance that has ended is in it; it goes when that has gone."""
    cloud.world.held_calls = 2
    tear_down(account, run[0].run, run[0], settle_s=0.0)
    assert cloud.list_resources() == NOTHING
    assert len(cloud.list_calls("DeleteSecurityGroup")) == 3


def test_hidden_instances_are_ended_by_id(cloud: Cloud, account: Account, run: Run) -> None:
    """Known instances are ended by their ids while Amazon does not show them."""
    cloud.world.visible_after_s = 1.5
    tear_down(account, run[0].run, run[0], settle_s=3.0)
    cloud.world.visible_after_s = 0.0
    assert cloud.list_resources() == NOTHING


def test_unanswered_intent_delays_the_end(cloud: Cloud, account: Account, tmp_path: Path) -> None:
    """The end waits for the instances of an unanswered call, with a message."""
    plan = runs.make_new_plan(cloud)
    ledger = Ledger.from_plan(plan, tmp_path)
    ledger.begin(plan)
    ledger.note_intent("instances", token="t", subnet="s")
    output: list[str] = []
    tear_down(account, ledger.run, ledger, settle_s=3.0, on_status=output.append)
    assert re.fullmatch(r"waiting \d s for an answer that was lost: instances may still appear", "".join(output))


def test_old_intents_are_settled(cloud: Cloud, account: Account, tmp_path: Path) -> None:
    """An unanswered call of an hour ago does not delay the end."""
    plan = runs.make_new_plan(cloud)
    ledger = Ledger.from_plan(plan, tmp_path)
    ledger.begin(plan)
    ledger.note_intent("instances", token="t", subnet="s")
    text = ledger.path.read_text()
    at = text.rpartition('"at": ')[2].partition("}")[0]
    ledger.path.write_text(text.replace(f'"at": {at}', f'"at": {time.time() - 3600}'))
    output: list[str] = []
    tear_down(account, ledger.run, ledger, settle_s=600.0, on_status=output.append)
    assert output == []


def loud(account: Account, ledger: Ledger, within_s: float = 0.5) -> list[str]:
    """The lines of the error that is not to be overlooked."""
    with pytest.raises(AllocationError) as caught:
        tear_down(account, ledger.run, ledger, settle_s=0.0, within_s=within_s)
    return str(caught.value).splitlines()


def test_unproven_end_shows_commands(cloud: Cloud, account: Account, run: Run) -> None:
    """Resources that cannot be deleted are reported with the exact commands that would delete them."""
    ledger, found = run
    client().modify_instance_attribute(InstanceId=found[0].id, DisableApiTermination={"Value": True})
    cloud.instance(found[0].id).disable_api_termination = True
    head, *commands = loud(account, ledger)
    assert head.startswith(
        f"INSTANCES MAY STILL RUN AND COST MONEY. The end of run {ledger.run} in {account} could not be proven"
    )
    assert "may not be terminated" in head
    ids = " ".join(each.id for each in found)
    group = client().describe_security_groups(GroupNames=[])["SecurityGroups"]
    (mine,) = [each["GroupId"] for each in group if each["GroupName"] == "dtfperf-s-123456"]
    assert commands == [
        f"    aws ec2 terminate-instances --instance-ids {ids} --region us-east-1",
        f"    aws ec2 wait instance-terminated --instance-ids {ids} --region us-east-1",
        f"    aws ec2 delete-security-group --group-id {mine} --region us-east-1",
        "    aws ec2 delete-placement-group --group-name dtfperf-s-123456-0 --region us-east-1",
        "    aws ec2 delete-key-pair --key-name dtfperf-s-123456 --region us-east-1",
    ]
    record = ledger.read_record()
    assert record
    assert not record.is_closed
    assert not record.is_ready


def test_unproven_end_without_the_right_to_list(cloud: Cloud, account: Account, run: Run) -> None:
    """The command of an end without the right to list instances is the one that lists them."""
    cloud.faults.error("DescribeInstances", "UnauthorizedOperation", times=99)
    head, command = loud(account, run[0])
    assert "may not call ec2:DescribeInstances" in head
    assert command == ("    aws ec2 describe-instances --region us-east-1 --filters Name=tag:dtfperf:run,Values=s-123456")


def test_slow_end_is_unproven(cloud: Cloud, account: Account, run: Run) -> None:
    """An end that takes longer than the limit is not proven."""
    cloud.world.pending_s = 3600.0
    head, *_ = loud(account, run[0])
    assert "could not be proven." in head


def test_protected_instance_does_not_keep_others(cloud: Cloud, account: Account, run: Run) -> None:
    """All other instances are terminated if Amazon refuses a call for one of them."""
    ledger, (first, second) = run
    cloud.instance(first.id).disable_api_termination = True
    loud(account, ledger)
    assert cloud.states()[second.id] in ("shutting-down", "terminated")
    assert cloud.states()[first.id] == "running"


@pytest.fixture(autouse=True)
def no_protection(cloud: Cloud) -> Iterator[None]:
    yield
    for instance in cloud.world.instances():
        instance.disable_api_termination = False


def test_belongings_of_a_run_are_found_by_tag(account: Account, run: Run) -> None:
    """All resources of a run are found by its tag; an unknown run has none."""
    ledger, found = run
    left = teardown.find_belongings(account, ledger.run, None, settle_s=0.0)
    assert list(left.instances) == [each.id for each in found]
    assert (len(left.security_groups), len(left.placement_groups), len(left.key_pairs)) == (1, 1, 1)
    assert left
    assert not teardown.find_belongings(account, "another", None, settle_s=0.0)
