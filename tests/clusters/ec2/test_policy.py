"""docs/ec2-policy.json is enough, and nothing in it is too much."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from pytest_dtfperf.clusters.ec2 import overview, request
from pytest_dtfperf.clusters.ec2.account import Account
from pytest_dtfperf.clusters.ec2.cluster import Ec2
from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.clusters.protocol import Resources
from pytest_dtfperf.errors import AllocationError, ClusterFileError
from tests.clusters.ec2.cloud.cloud import NOTHING, Cloud
from tests.clusters.ec2.cloud.policy import actions

FILE = Path(__file__).parents[3] / "docs" / "ec2-policy.json"
POLICY: Mapping[str, Any] = json.loads(FILE.read_text())
MOST_CHARACTERS = 6144  # of a managed policy, blanks not counted: docs.aws.amazon.com/IAM, quotas

ENDS = ("ec2:TerminateInstances", "ec2:DeleteSecurityGroup", "ec2:DeletePlacementGroup", "ec2:DeleteKeyPair")


def _allowed() -> set[str]:
    named = [statement["Action"] for statement in POLICY["Statement"]]
    return {action for each in named for action in ([each] if isinstance(each, str) else each)}


@pytest.fixture
def cloud_of_a_user(cloud: Cloud, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cloud:
    """A cloud where this process may do what the policy says, and from which instances cannot be logged in to."""
    ssh = tmp_path / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text("#!/bin/sh\necho 'Connection refused' >&2\nexit 255\n")
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{ssh.parent}:{os.environ['PATH']}")
    for name, value in cloud.user(POLICY).items():
        monkeypatch.setenv(name, value)
    return cloud


def _config(cloud: Cloud, **place: Any) -> ClusterConfig:
    usual = {"region": cloud.region, "instance_type": "g5.12xlarge", "count": 2, "max_usd": 1000.0, "boot_s": 0.01}
    return ClusterConfig(name="g5", backend="ec2", place=usual | {"caller_cidr": "198.51.100.7/32"} | place)


def _run(config: ClusterConfig, message: str, kind: type[Exception] = AllocationError) -> None:
    """Everything of a session but the training: for that, somebody would have to log in."""
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
    spots = cloud.sent("DescribeSpotInstanceRequests")
    _run(_config(cloud, subnets=subnets, instance_type="g6.12xlarge", spot=True), r"instance i-[0-9a-f]+")
    assert len(cloud.sent("DescribeSpotInstanceRequests")) > len(spots)
    overview.overview(Account.in_region(cloud.region), {})
    _run(_config(cloud, instance_type="p2.xlarge"), r"offers no instance type 'p2\.xlarge'", ClusterFileError)


def test_is_enough_and_not_too_much(cloud_of_a_user: Cloud) -> None:
    """No right is missing to launch on demand and on spot, in a placement group and with EFA, to be told of a quota, and to end
    everything; and each action of the policy is one that this asks for."""
    _whole_flow(cloud_of_a_user)

    assert cloud_of_a_user.refused == []
    assert cloud_of_a_user.left() == NOTHING
    assert {action for call in cloud_of_a_user.calls for action in actions(call)} == _allowed()


def test_without_an_action_it_is_named(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever lacks a right is told which, and where all that are needed stand."""
    less = json.loads(FILE.read_text().replace('"ec2:ImportKeyPair"', '"ec2:ImportNothing"'))
    for name, value in cloud.user(less).items():
        monkeypatch.setenv(name, value)

    _run(_config(cloud, subnets=list(cloud.subnets.values())), r"(?s)may not call ec2:ImportKeyPair.*docs/ec2-policy\.json")

    assert "ec2:ImportKeyPair" in cloud.refused
    assert cloud.left() == NOTHING


@pytest.fixture
def of_others(cloud: Cloud) -> Mapping[str, str]:
    """What somebody else has in the account: ids and names, by the action that would end them."""
    ec2 = boto3.client("ec2")
    group = ec2.create_security_group(GroupName="theirs", Description="theirs", VpcId=cloud.vpc)["GroupId"]
    ec2.create_placement_group(GroupName="theirs", Strategy="cluster")
    ec2.create_key_pair(KeyName="theirs")
    subnet = next(iter(cloud.subnets.values()))
    launched = ec2.run_instances(ImageId=cloud.image, InstanceType="t3.micro", MinCount=1, MaxCount=1, SubnetId=subnet)
    return {"instance": launched["Instances"][0]["InstanceId"], "group": group}


def test_what_is_not_ours_is_safe(cloud: Cloud, of_others: Mapping[str, str]) -> None:
    """With these rights nobody ends, opens or marks as ours what others have made, nor makes anything that is not marked."""
    user = cloud.user(POLICY)
    ec2 = boto3.client("ec2", aws_access_key_id=user["AWS_ACCESS_KEY_ID"], aws_secret_access_key=user["AWS_SECRET_ACCESS_KEY"])
    instance, group, subnet = of_others["instance"], of_others["group"], next(iter(cloud.subnets.values()))
    wide_open: Any = [{"IpProtocol": "-1", "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}]
    before = cloud.left()
    for attempt in (
        lambda: ec2.terminate_instances(InstanceIds=[instance]),
        lambda: ec2.delete_security_group(GroupId=group),
        lambda: ec2.delete_placement_group(GroupName="theirs"),
        lambda: ec2.delete_key_pair(KeyName="theirs"),
        lambda: ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=wide_open),
        lambda: ec2.authorize_security_group_egress(GroupId=group, IpPermissions=wide_open),
        lambda: ec2.create_tags(Resources=[instance, group], Tags=[{"Key": request.MANAGED, "Value": "1"}]),
        lambda: ec2.run_instances(ImageId=cloud.image, InstanceType="t3.micro", MinCount=1, MaxCount=1, SubnetId=subnet),
        lambda: ec2.create_security_group(GroupName="mine", Description="mine", VpcId=cloud.vpc),
        lambda: ec2.create_placement_group(GroupName="mine", Strategy="cluster"),
        lambda: ec2.import_key_pair(KeyName="mine", PublicKeyMaterial=b"ssh-ed25519 AAAA"),
    ):
        with pytest.raises(ClientError, match="UnauthorizedOperation"):
            attempt()

    assert cloud.left() == before


def test_what_ends_others_things_is_bound_to_our_tag() -> None:
    """No statement allows to end, open or tag anything without a condition, and all conditions speak of the tag that we set."""
    for statement in POLICY["Statement"]:
        bound = {*ENDS, "ec2:CreateTags", "ec2:AuthorizeSecurityGroupIngress", "ec2:AuthorizeSecurityGroupEgress"}
        if bound & {*([statement["Action"]] if isinstance(statement["Action"], str) else statement["Action"])}:
            (keys,) = statement["Condition"].values()
            assert set(keys) <= {f"aws:ResourceTag/{request.MANAGED}", "ec2:CreateAction"}


def test_fits_into_a_managed_policy() -> None:
    """Amazon takes it as it is."""
    assert len("".join(FILE.read_text().split())) <= MOST_CHARACTERS
    assert len({statement["Sid"] for statement in POLICY["Statement"]}) == len(POLICY["Statement"])
