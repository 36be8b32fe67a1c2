"""The pretend cloud allows a user the calls of the policy, and records refused ones."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.clusters.ec2.cloud.cloud import Cloud
from tests.clusters.ec2.cloud.hands import client, get_refusal, launch, wait_for

TAG = [{"Key": "managed", "Value": "1"}]


@pytest.fixture(name="as_user")
def _as_user(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> Any:
    def enter(*statements: Mapping[str, Any]) -> None:
        for name, value in cloud.user({"Version": "2012-10-17", "Statement": list(statements)}).items():
            monkeypatch.setenv(name, value)

    return enter


def allow(*actions: str, **condition: Mapping[str, object]) -> Mapping[str, Any]:
    statement = {"Effect": "Allow", "Action": list(actions), "Resource": "*"}
    return {**statement, "Condition": condition} if condition else statement


def test_actions(cloud: Cloud, as_user: Any) -> None:
    """A call that the policy does not allow is refused with EC2's own code, and is not carried out."""
    as_user(allow("ec2:Describe*", "ssm:GetParameter"))
    client().describe_instances()
    assert get_refusal(lambda: launch(cloud, 1)) == ("UnauthorizedOperation", 403)
    assert get_refusal(lambda: client("pricing").get_products(ServiceCode="AmazonEC2"))[0] == "AccessDeniedException"
    assert get_refusal(lambda: client("s3").create_bucket(Bucket="bucket"))[0] == "AccessDenied"
    client("sts").get_caller_identity()  # anybody may
    assert cloud.refused == ["ec2:RunInstances", "pricing:GetProducts", "s3:CreateBucket"]
    assert not cloud.list_resources()


def test_tags_at_launch_need_a_permission_of_their_own(cloud: Cloud, as_user: Any) -> None:
    """Tags at a launch need CreateTags, which a condition may limit to launches."""
    tagged: Sequence[Mapping[str, Any]] = [{"ResourceType": "instance", "Tags": TAG}]
    as_user(allow("ec2:RunInstances"))
    launch(cloud, 1)
    assert get_refusal(lambda: launch(cloud, 1, TagSpecifications=tagged))[0] == "UnauthorizedOperation"
    bound = allow("ec2:CreateTags", StringEquals={"ec2:CreateAction": ["RunInstances"]})
    as_user(allow("ec2:RunInstances"), bound)
    (one,) = launch(cloud, 1, TagSpecifications=tagged)
    assert get_refusal(lambda: client().create_tags(Resources=[one], Tags=TAG))[0] == "UnauthorizedOperation"


def test_actions_may_require_a_tag(cloud: Cloud, as_user: Any) -> None:
    """An action may be limited to instances, groups and keys with a tag."""
    ec2 = client()
    ours, others = launch(cloud, 1), launch(cloud, 1)
    ec2.create_tags(Resources=ours, Tags=TAG)
    groups = {}
    for name, tags in (("ours", TAG), ("others", [])):
        kinds = {kind: [{"ResourceType": kind, "Tags": tags}] if tags else [] for kind in ("security-group", "placement-group")}
        made = ec2.create_security_group(
            GroupName=name, Description=name, VpcId=cloud.vpc, TagSpecifications=kinds["security-group"]
        )
        groups[name] = made["GroupId"]
        ec2.create_placement_group(GroupName=name, Strategy="cluster", TagSpecifications=kinds["placement-group"])
    ended = ("ec2:TerminateInstances", "ec2:DeleteSecurityGroup", "ec2:DeletePlacementGroup")
    as_user(allow("ec2:DescribeInstances"), allow(*ended, StringEquals={"aws:ResourceTag/managed": "1"}))
    mine = client()
    mine.terminate_instances(InstanceIds=ours)
    wait_for("terminated", *ours)
    mine.delete_security_group(GroupId=groups["ours"])
    mine.delete_placement_group(GroupName="ours")
    for call in (
        lambda: mine.terminate_instances(InstanceIds=others),
        lambda: mine.delete_security_group(GroupId=groups["others"]),
        lambda: mine.delete_placement_group(GroupName="others"),
    ):
        assert get_refusal(call)[0] == "UnauthorizedOperation"
    assert cloud.list_resources().placement_groups == ("others",)


def test_everything_that_is_touched_must_be_allowed(cloud: Cloud, as_user: Any) -> None:
    """A call that touches several kinds of things needs all of them, and a condition may hold for some of them only."""

    def make_statement(kind: str, **condition: Mapping[str, object]) -> Mapping[str, Any]:
        return {**allow("ec2:CreateSecurityGroup", "ec2:CreateTags", **condition), "Resource": f"arn:aws:ec2:*:*:{kind}/*"}

    def make(*tags: Mapping[str, str]) -> object:
        specification: Sequence[Any] = [{"ResourceType": "security-group", "Tags": tags}] if tags else []
        return client().create_security_group(GroupName="g", Description="g", VpcId=cloud.vpc, TagSpecifications=specification)

    tagged = make_statement("security-group", StringEquals={"aws:RequestTag/managed": "1"})
    as_user(tagged)
    assert get_refusal(lambda: make(*TAG))[0] == "UnauthorizedOperation"
    as_user(tagged, make_statement("vpc"))
    assert get_refusal(make)[0] == "UnauthorizedOperation"
    make(*TAG)
    assert cloud.list_resources().security_groups == ("g",)


def test_actions_may_require_the_caller_as_owner(cloud: Cloud, as_user: Any) -> None:
    """A condition may compare a tag with the caller's user id, for new resources and for deletions."""
    make = allow("ec2:CreatePlacementGroup", StringEquals={"aws:RequestTag/by": "${aws:userid}"})
    end = allow("ec2:DeletePlacementGroup", StringEquals={"aws:ResourceTag/by": "${aws:userid}"})

    def enter() -> str:
        as_user(allow("ec2:CreateTags"), make, end)
        return str(client("sts").get_caller_identity()["UserId"])

    def create(by: str) -> object:
        tags: Any = [{"ResourceType": "placement-group", "Tags": [{"Key": "by", "Value": by}]}]
        return client().create_placement_group(GroupName="g", Strategy="cluster", TagSpecifications=tags)

    one = enter()
    create(by=one)
    as_one = client()
    other = enter()
    assert other != one
    assert get_refusal(lambda: create(by=one))[0] == "UnauthorizedOperation"
    assert get_refusal(lambda: client().delete_placement_group(GroupName="g"))[0] == "UnauthorizedOperation"
    as_one.delete_placement_group(GroupName="g")
    create(by=other)


def test_s3_actions(cloud: Cloud, as_user: Any) -> None:
    """Requests to S3 are known by the actions they need."""
    client("s3").create_bucket(Bucket="bucket")
    as_user(allow("s3:ListBucket", "s3:PutObject"))
    s3 = client("s3")
    s3.put_object(Bucket="bucket", Key="k", Body=b"x")
    assert [each["Key"] for each in s3.list_objects_v2(Bucket="bucket")["Contents"]] == ["k"]
    assert get_refusal(lambda: s3.get_object(Bucket="bucket", Key="k"))[0] == "AccessDenied"
    assert get_refusal(lambda: s3.delete_object(Bucket="bucket", Key="k"))[0] == "AccessDenied"
    assert cloud.refused == ["s3:GetObject", "s3:DeleteObject"]
