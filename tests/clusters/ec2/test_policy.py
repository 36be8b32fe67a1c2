"""The rights in docs/ec2-policy.json are sufficient, and all are needed."""

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from pytest_dtfperf.clusters.ec2 import reap
from pytest_dtfperf.clusters.ec2.account import Account
from pytest_dtfperf.clusters.ec2.cluster import Ec2
from pytest_dtfperf.clusters.ec2.plan import MANAGED, USER, make_tags
from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.clusters.protocol import Resources
from pytest_dtfperf.errors import AllocationError, ClusterFileError
from pytest_dtfperf.node.owner import Owner
from tests.clusters.ec2 import runs
from tests.clusters.ec2.cloud.cloud import NOTHING, Cloud
from tests.clusters.ec2.cloud.policy import actions
from tests.clusters.ec2.test_teardown import launch_run

FILE = Path(__file__).parents[3] / "docs" / "ec2-policy.json"
POLICY: Mapping[str, Any] = json.loads(FILE.read_text())
ELSEWHERE = Owner("another-machine", "b007", "4026531836", 17, 4711)
MOST_CHARACTERS = 6144  # of a managed policy, blanks not counted: docs.aws.amazon.com/IAM, quotas

MINE = {f"aws:ResourceTag/{MANAGED}", f"aws:ResourceTag/{USER}"}
REAPERS: Mapping[str, Any] = json.loads(FILE.with_name("ec2-reaper-policy.json").read_text())
ENDS = ("ec2:TerminateInstances", "ec2:DeleteSecurityGroup", "ec2:DeletePlacementGroup", "ec2:DeleteKeyPair")


def _list_allowed_actions() -> set[str]:
    named = [statement["Action"] for statement in POLICY["Statement"]]
    return {action for each in named for action in ([each] if isinstance(each, str) else each)}


@pytest.fixture
def cloud_of_a_user(cloud: Cloud, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cloud:
    """Return a cloud that this process uses with the policy, and without logins to instances."""
    ssh = tmp_path / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text("#!/bin/sh\necho 'Connection refused' >&2\nexit 255\n")
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{ssh.parent}:{os.environ['PATH']}")
    for name, value in cloud.user(POLICY).items():
        monkeypatch.setenv(name, value)
    return cloud


def _config(cloud: Cloud, **backend_keys: Any) -> ClusterConfig:
    usual = {"region": cloud.region, "instance_type": "g5.12xlarge", "count": 2, "max_usd": 1000.0, "boot_s": 0.01}
    return ClusterConfig(name="g5", backend="ec2", backend_keys=usual | {"caller_cidr": "198.51.100.7/32"} | backend_keys)


def _run(config: ClusterConfig, message: str, kind: type[Exception] = AllocationError) -> None:
    """Run a session without the training, which would need a login."""
    with (
        pytest.raises(kind, match=message),
        Ec2(config, settle_s=0.0).allocate(Resources(devices=8, session="policy")),
    ):
        raise AssertionError("logged in to an instance that is no machine")


def _whole_flow(cloud: Cloud) -> None:
    """Every way that the backend takes, until nothing is left."""
    subnets = list(cloud.subnets.values())
    _run(_config(cloud, subnets=subnets, placement="cluster", efa=True), r"instance i-[0-9a-f]+")
    cloud.limit("g5.12xlarge", 0.0)
    _run(_config(cloud, subnets=subnets), "L-DB2E81BA")
    spots = cloud.list_calls("DescribeSpotInstanceRequests")
    _run(_config(cloud, subnets=subnets, instance_type="g6.12xlarge", spot=True), r"instance i-[0-9a-f]+")
    assert len(cloud.list_calls("DescribeSpotInstanceRequests")) > len(spots)
    reap.list_running(Account.open_region(cloud.region), {})
    _run(_config(cloud, instance_type="p2.xlarge"), r"offers no instance type 'p2\.xlarge'", ClusterFileError)


def test_policy_is_sufficient_and_minimal(cloud_of_a_user: Cloud) -> None:
    """The backend's whole flow needs all rights of the policy and no others."""
    _whole_flow(cloud_of_a_user)

    assert cloud_of_a_user.refused == []
    assert cloud_of_a_user.list_resources() == NOTHING
    assert {action for call in cloud_of_a_user.calls for action in actions(call)} == _list_allowed_actions()


def test_missing_right_is_named_with_the_policy(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing right is named, with the file of all rights."""
    less = json.loads(FILE.read_text().replace('"ec2:ImportKeyPair"', '"ec2:ImportNothing"'))
    for name, value in cloud.user(less).items():
        monkeypatch.setenv(name, value)

    _run(_config(cloud, subnets=list(cloud.subnets.values())), r"(?s)may not call ec2:ImportKeyPair.*docs/ec2-policy\.json")

    assert "ec2:ImportKeyPair" in cloud.refused
    assert cloud.list_resources() == NOTHING


@pytest.fixture
def foreign_resources(cloud: Cloud) -> Mapping[str, str]:
    """Create resources of another user, and return their ids."""
    ec2 = boto3.client("ec2")
    group = ec2.create_security_group(GroupName="theirs", Description="theirs", VpcId=cloud.vpc)["GroupId"]
    ec2.create_placement_group(GroupName="theirs", Strategy="cluster")
    ec2.create_key_pair(KeyName="theirs")
    subnet = next(iter(cloud.subnets.values()))
    launched = ec2.run_instances(ImageId=cloud.image, InstanceType="t3.micro", MinCount=1, MaxCount=1, SubnetId=subnet)
    return {"instance": launched["Instances"][0]["InstanceId"], "group": group}


def test_policy_protects_other_resources(cloud: Cloud, foreign_resources: Mapping[str, str]) -> None:
    """The policy allows to end, open or tag no resource of others, and to make none without tags."""
    user = cloud.user(POLICY)
    ec2 = boto3.client("ec2", aws_access_key_id=user["AWS_ACCESS_KEY_ID"], aws_secret_access_key=user["AWS_SECRET_ACCESS_KEY"])
    instance, group, subnet = foreign_resources["instance"], foreign_resources["group"], next(iter(cloud.subnets.values()))
    wide_open: Any = [{"IpProtocol": "-1", "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}]
    before = cloud.list_resources()
    for attempt in (
        lambda: ec2.terminate_instances(InstanceIds=[instance]),
        lambda: ec2.delete_security_group(GroupId=group),
        lambda: ec2.delete_placement_group(GroupName="theirs"),
        lambda: ec2.delete_key_pair(KeyName="theirs"),
        lambda: ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=wide_open),
        lambda: ec2.authorize_security_group_egress(GroupId=group, IpPermissions=wide_open),
        lambda: ec2.create_tags(Resources=[instance, group], Tags=[{"Key": MANAGED, "Value": "1"}]),
        lambda: ec2.run_instances(ImageId=cloud.image, InstanceType="t3.micro", MinCount=1, MaxCount=1, SubnetId=subnet),
        lambda: ec2.create_security_group(GroupName="mine", Description="mine", VpcId=cloud.vpc),
        lambda: ec2.create_placement_group(GroupName="mine", Strategy="cluster"),
        lambda: ec2.import_key_pair(KeyName="mine", PublicKeyMaterial=b"ssh-ed25519 AAAA"),
    ):
        with pytest.raises(ClientError, match="UnauthorizedOperation"):
            attempt()

    assert cloud.list_resources() == before


def test_policy_protects_runs_of_other_users(cloud: Cloud, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The policy allows to end or open no run of another user; the reaper's rights open nothing."""
    one, other, reaper = (_account(cloud, monkeypatch, each) for each in (POLICY, POLICY, REAPERS))
    assert one.user != other.user
    plan = runs.make_new_plan(cloud, owner=ELSEWHERE, launched_by=one.user)
    _, found = launch_run(one, plan, tmp_path)
    ids = [each.id for each in found]
    group = _group_id(other, plan.name)
    wide_open: Any = [{"IpProtocol": "-1", "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}]
    in_their_name: Any = [{"ResourceType": "key-pair", "Tags": make_tags(plan)}]
    for attempt in (
        lambda: other.ec2.terminate_instances(InstanceIds=ids),
        lambda: other.ec2.delete_key_pair(KeyName=plan.name),
        lambda: other.ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=wide_open),
        lambda: reaper.ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=wide_open),
        lambda: other.ec2.import_key_pair(KeyName="x", PublicKeyMaterial=b"ssh-ed25519 A", TagSpecifications=in_their_name),
        lambda: reaper.ec2.create_tags(Resources=ids, Tags=[{"Key": USER, "Value": reaper.user}]),
    ):
        with pytest.raises(ClientError, match="UnauthorizedOperation"):
            attempt()
    (seen,) = reap.find_runs(other, tmp_path / "other")
    with pytest.raises(AllocationError, match="may not call ec2:"):
        reap.end_run(other, seen, settle_s=0.0)
    assert set(cloud.list_resources().instances) == set(ids)
    reap.end_run(one, seen, settle_s=0.0)
    assert cloud.list_resources() == NOTHING


def test_reaper_policy_is_sufficient_and_minimal(cloud: Cloud, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The reaper's rights are enough for `dtfperf ec2 reap` to end whosever runs are past their time, and none is too much."""
    one, reaper = (_account(cloud, monkeypatch, each) for each in (POLICY, REAPERS))
    past = int(time.time()) - 60
    for run, spot in (("s-0", False), ("s-1", True)):
        plan = runs.make_new_plan(cloud, run=run, nonce=run, owner=ELSEWHERE, launched_by=one.user, expires=past, spot=spot)
        launch_run(one, plan, tmp_path / "one")
    before = len(cloud.calls)
    assert len(reap.reap_runs(reaper, settle_s=0.0, folder=tmp_path / "reaper")) == 2
    assert cloud.list_resources() == NOTHING
    asked = {action for call in cloud.calls[before:] for action in actions(call)}
    allowed = {action for statement in REAPERS["Statement"] for action in statement["Action"]}
    assert asked <= allowed
    assert allowed - asked <= {"sts:GetCallerIdentity", "ec2:CancelSpotInstanceRequests"}  # to open it; of what did not launch


def _account(cloud: Cloud, monkeypatch: pytest.MonkeyPatch, policy: Mapping[str, Any]) -> Account:
    """Return the account of a new user with the policy."""
    with monkeypatch.context() as environment:
        for name, value in cloud.user(policy).items():
            environment.setenv(name, value)
        account = Account.open_region(cloud.region)
        for client in ("ec2", "launcher", "pricing", "quotas"):
            getattr(account, client)  # made now, with these credentials
    return account


def _group_id(account: Account, name: str) -> str:
    filters: Any = [{"Name": "group-name", "Values": [name]}]
    return account.ec2.describe_security_groups(Filters=filters)["SecurityGroups"][0]["GroupId"]


def test_destructive_actions_are_bound_to_the_tag() -> None:
    """No statement allows to end, open or tag anything but one's own, or what is being made."""
    for statement in POLICY["Statement"]:
        bound = {*ENDS, "ec2:CreateTags", "ec2:AuthorizeSecurityGroupIngress", "ec2:AuthorizeSecurityGroupEgress"}
        if bound & {*([statement["Action"]] if isinstance(statement["Action"], str) else statement["Action"])}:
            (keys,) = statement["Condition"].values()
            assert set(keys) in (MINE, {"ec2:CreateAction"})


def test_policy_fits_into_a_managed_policy() -> None:
    """The policy is within Amazon's size limit."""
    assert len("".join(FILE.read_text().split())) <= MOST_CHARACTERS
    assert len({statement["Sid"] for statement in POLICY["Statement"]}) == len(POLICY["Statement"])
