"""From a plan to running instances: Amazon's answers, and the ledger before each request."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from botocore.exceptions import ClientError

from pytest_dtfperf.clusters.ec2 import contact, instance_types, refusals
from pytest_dtfperf.clusters.ec2.contact import make_keys
from pytest_dtfperf.clusters.ec2.instances import Instance
from pytest_dtfperf.clusters.ec2.launcher import Launch
from pytest_dtfperf.clusters.ec2.ledger import Ledger, LedgerRecord
from pytest_dtfperf.clusters.ec2.plan import LaunchPlan
from pytest_dtfperf.errors import AllocationError
from tests.clusters.ec2 import runs
from tests.clusters.ec2.cloud import ending
from tests.clusters.ec2.cloud.cloud import Cloud
from tests.clusters.ec2.cloud.hands import client

A, B = "us-east-1a", "us-east-1b"


class Attempt:
    """A launch of one plan, with its messages."""

    def __init__(self, cloud: Cloud, plan: LaunchPlan, folder: Path) -> None:
        self.cloud, self.plan = cloud, plan
        self.ledger = Ledger.from_plan(plan, folder)
        self.ledger.begin(plan)
        make_keys(self.ledger.folder, plan.name)
        self.output: list[str] = []

    def go(self) -> list[Instance]:
        account = runs.account(self.cloud)
        return Launch(
            account, self.plan, self.ledger, instance_types.get_offer(account, self.plan.instance_type), self.output.append
        )()

    @property
    def record(self) -> LedgerRecord:
        record = self.ledger.read_record()
        assert record
        return record

    def asked_in(self) -> list[str]:
        """Return the zones of all requests for instances."""
        subnets = {subnet: zone for zone, subnet in self.cloud.subnets.items()}
        return [subnets[call.parameters["NetworkInterface.1.SubnetId"]] for call in self.cloud.list_calls("RunInstances")]

    def tokens(self) -> list[str]:
        return [call.parameters["ClientToken"] for call in self.cloud.list_calls("RunInstances")]


@pytest.fixture
def attempt(cloud: Cloud, tmp_path: Path) -> Callable[..., Attempt]:
    return lambda **other: Attempt(cloud, runs.make_new_plan(cloud, **other), tmp_path)


Make = Callable[..., Attempt]


def test_instances_have_the_order_of_their_launch(attempt: Make) -> None:
    """Instances run, have both addresses, and are in the order of Amazon's launch index."""
    found = attempt(count=3).go()
    assert [each.index for each in found] == [0, 1, 2]
    assert all(each.state == "running" and each.private and each.public for each in found)
    assert {each.zone for each in found} == {A}


def test_intents_are_on_disk_before_their_calls(cloud: Cloud, attempt: Make) -> None:
    """Each call is in the ledger before it is sent."""
    launching = attempt()
    makes = {
        "ImportKeyPair": "key-pair",
        "CreateSecurityGroup": "security-group",
        "CreatePlacementGroup": "placement-group",
        "RunInstances": "instances",
    }
    for action, kind in makes.items():
        cloud.faults.error(action, "UnauthorizedOperation")
        with pytest.raises(ClientError):
            launching.go()
        assert launching.record.entries[-1]["event"] in ("intent", "refused")
        assert launching.record.entries[-1]["kind"] == kind


def test_answers_are_on_disk(attempt: Make) -> None:
    """The ledger has an answer to every intent, and the instances' ids."""
    launching = attempt()
    found = launching.go()
    assert list(launching.record.instances) == [each.id for each in found]
    assert launching.record.unanswered_since is None


def test_repeated_launch_returns_the_same_instances(cloud: Cloud, attempt: Make) -> None:
    """A launch that is repeated from the ledger returns the same instances and launches no others."""
    launching = attempt()
    first = launching.go()
    assert [each.id for each in launching.go()] == [each.id for each in first]
    assert len(cloud.list_resources().instances) == 2


def test_security_group_rules(cloud: Cloud, attempt: Make) -> None:
    """The group lets in its own members and logins from the caller; for EFA its members may also send to each other."""
    launching = attempt(efa=1)
    launching.go()
    (group,) = client().describe_security_groups(GroupIds=[str(launching.record.security_group)])["SecurityGroups"]
    sources = [
        (
            rule["IpProtocol"],
            [each["CidrIp"] for each in rule["IpRanges"]],
            [each["GroupId"] for each in rule["UserIdGroupPairs"]],
        )
        for rule in group["IpPermissions"]
    ]
    assert sorted(sources) == [("-1", [], [group["GroupId"]]), ("tcp", ["203.0.113.7/32"], [])]
    out = [pair["GroupId"] for rule in group["IpPermissionsEgress"] for pair in rule["UserIdGroupPairs"]]
    assert out == [group["GroupId"]]


def test_only_the_runs_public_key_is_imported(attempt: Make) -> None:
    """The imported key pair is the public half of this run's own key."""
    launching = attempt()
    launching.go()
    (pair,) = client().describe_key_pairs(KeyNames=[launching.plan.name], IncludePublicKey=True)["KeyPairs"]
    mine = (launching.ledger.folder / f"{contact.LOGIN_KEY}.pub").read_text()
    assert pair["PublicKey"].split()[:2] == mine.split()[:2]


@pytest.mark.parametrize("action", ["ImportKeyPair", "CreateSecurityGroup", "CreatePlacementGroup", "RunInstances"])
def test_lost_answers_make_no_duplicates(cloud: Cloud, attempt: Make, action: str) -> None:
    """A resource with a lost answer is found again, and nothing exists twice."""
    cloud.faults.lose_answer(action)
    launching = attempt()
    assert len(launching.go()) == 2
    left = cloud.list_resources()
    assert (len(left.instances), len(left.security_groups), len(left.placement_groups), len(left.key_pairs)) == (2, 1, 1, 1)


@pytest.mark.parametrize("code", ["InvalidGroup.NotFound", "InvalidKeyPair.NotFound", "InvalidPlacementGroup.Unknown"])
def test_launch_waits_for_new_resources(cloud: Cloud, attempt: Make, code: str) -> None:
    """A launch that does not find its own group or key is repeated with the same token."""
    cloud.faults.error("RunInstances", code, times=2)
    launching = attempt()
    assert len(launching.go()) == 2
    assert len(launching.tokens()) == 3
    assert len(set(launching.tokens())) == 1


def test_rules_wait_for_a_new_group(cloud: Cloud, attempt: Make) -> None:
    """The rules of a new group are added as soon as Amazon shows it."""
    cloud.faults.error("AuthorizeSecurityGroupIngress", "InvalidGroup.NotFound", times=2)
    assert len(attempt().go()) == 2


def test_each_zone_has_its_own_placement_group_and_token(cloud: Cloud, attempt: Make) -> None:
    """A group stays in its first zone, and a token with its first request."""
    cloud.world.capacity[A, runs.KIND] = 1
    launching = attempt()
    assert {each.zone for each in launching.go()} == {B}
    assert launching.asked_in() == [A, B]
    assert len(set(launching.tokens())) == 2
    assert cloud.list_resources().placement_groups == (launching.plan.group(0), launching.plan.group(1))
    assert launching.output[-2:] == [f"no room in {A}", f"launching 2 x {runs.KIND} in {B}"]


def test_no_zone_has_room(cloud: Cloud, attempt: Make) -> None:
    """The message has every zone's reason, and what else could be tried."""
    cloud.world.capacity.update({(A, runs.KIND): 1, (B, runs.KIND): 0})
    with pytest.raises(AllocationError) as caught:
        attempt().go()
    first, *zones = str(caught.value).splitlines()
    assert first.startswith(f"no zone of us-east-1 has room for 2 x {runs.KIND} at once: try later, or")
    assert 'leave out placement = "cluster"' in first
    assert [line.split(":")[:2] for line in zones] == [
        [f"    {A}", " InsufficientInstanceCapacity"],
        [f"    {B}", " InsufficientInstanceCapacity"],
    ]


def test_full_reservation_leads_to_the_next_zone(cloud: Cloud, attempt: Make) -> None:
    """A used-up capacity reservation leads to the next zone, like missing capacity."""
    words = "The requested reservation does not have sufficient compatible and available capacity for this request."
    cloud.faults.error("RunInstances", "ReservationCapacityExceeded", words)
    launching = attempt()
    assert {each.zone for each in launching.go()} == {B}
    assert launching.output[-2] == f"no room in {A}"


def test_denied_launch_is_requested_once(cloud: Cloud, attempt: Make) -> None:
    """A launch that a policy of the organisation denies is requested once, and the message names the administrators."""
    words = (
        "You are not authorized to perform this operation. User: arn:aws:iam::1:user/me is not authorized to perform: "
        "ec2:RunInstances on resource: * with an explicit deny in a service control policy. Encoded authorization failure "
        "message: a1b2"
    )
    cloud.faults.error("RunInstances", "UnauthorizedOperation", words, times=9)
    launching = attempt()
    with pytest.raises(ClientError) as caught:  # the caller of the launch makes its message
        launching.go()
    text = refusals.format_refusal(caught.value)
    assert (
        "a service control policy denies it explicitly, and adding rights does not help. Ask the administrators of the" in text
    )
    assert launching.asked_in() == [A]


def test_used_up_token_is_replaced(cloud: Cloud, attempt: Make) -> None:
    """A token with ended instances is replaced by another one in the same zone."""
    cloud.faults.error("RunInstances", "IdempotentInstanceTerminated")
    launching = attempt()
    assert len(launching.go()) == 2
    assert launching.asked_in() == [A, A]
    assert len(set(launching.tokens())) == 2


def test_used_up_token_is_replaced_once_per_zone(cloud: Cloud, attempt: Make) -> None:
    """A token is replaced once per zone, so that instances that end at once are not launched without end."""
    cloud.faults.error("RunInstances", "IdempotentInstanceTerminated", times=99)
    launching = attempt()
    with pytest.raises(AllocationError, match="its instances had ended before anybody heard of them"):
        launching.go()
    assert launching.asked_in() == [A, A, B, B]


def test_quota_is_explained(cloud: Cloud, attempt: Make) -> None:
    """An exceeded quota ends the launch, and the message has the needed vCPUs, the quota and its code."""
    code = cloud.limit(runs.KIND, 4)
    launching = attempt()
    with pytest.raises(AllocationError) as caught:
        launching.go()
    words = str(caught.value)
    assert f"2 x {runs.KIND} need 8 vCPUs (4 each)" in words
    assert f"({code}) is 4 vCPUs" in words
    assert words.endswith("(Amazon's code: VcpuLimitExceeded)")
    assert launching.asked_in() == [A]


@pytest.mark.parametrize("code", ["UnauthorizedOperation", "InvalidParameterValue", "IdempotentParameterMismatch"])
def test_final_refusals_are_not_repeated(cloud: Cloud, attempt: Make, code: str) -> None:
    """A final refusal is repeated neither in this zone nor in another one."""
    cloud.faults.error("RunInstances", code, times=9)
    launching = attempt()
    with pytest.raises(ClientError, match=code):
        launching.go()
    assert launching.asked_in() == [A]
    assert launching.record.unanswered_since is None


def test_instance_that_ends_before_it_runs(cloud: Cloud, attempt: Make) -> None:
    """An instance that ends for another reason than capacity is an error with Amazon's message."""
    cloud.world.pending_s = 3600.0

    def end_all() -> None:
        for instance in cloud.world.instances():
            ending.power_off(instance)
        if not cloud.world.instances():
            cloud.world.schedule(0.05, end_all)

    cloud.world.schedule(0.0, end_all)
    with pytest.raises(AllocationError, match=r"instance i-\w+ is (shutting-down|terminated) before it ran: Client\."):
        attempt().go()


def test_addresses_may_come_later(cloud: Cloud, attempt: Make) -> None:
    """A launch waits until a running instance has both addresses."""
    cloud.world.addressed_after_s = 0.5
    assert all(each.private and each.public for each in attempt().go())


def test_private_instances_need_no_public_address(attempt: Make) -> None:
    """A private launch does not wait for public addresses."""
    assert all(each.public is None for each in attempt(public=False).go())


def test_several_interfaces_exclude_a_public_address(attempt: Make) -> None:
    """A plan for several EFA interfaces in a private network is taken as it is."""
    assert len(attempt(instance_type="p4d.24xlarge", efa=4, public=False, count=1).go()) == 1


def test_ledger_has_no_secrets(attempt: Make) -> None:
    """The ledger holds neither keys nor credentials."""
    launching = attempt()
    launching.go()
    text = launching.ledger.path.read_text()
    assert not re.search(r"PRIVATE KEY|AKIA|testing|ssh-ed25519", text)
