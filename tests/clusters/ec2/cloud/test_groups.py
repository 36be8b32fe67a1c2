"""Placement groups and security groups: there, in use, gone."""

from pytest_dtfperf.testing.backends import wait_until
from tests.clusters.ec2.cloud.cloud import NOTHING, Cloud
from tests.clusters.ec2.cloud.hands import client, get_refusal, launch, wait_for

TAGS = [{"Key": "run", "Value": "7"}]


def test_placement_group(cloud: Cloud) -> None:
    """A placement group is found by its tag, is made and deleted once, and stays while it has instances."""
    ec2 = client()
    tagged = [{"ResourceType": "placement-group", "Tags": TAGS}]
    ec2.create_placement_group(GroupName="close", Strategy="cluster", TagSpecifications=tagged)
    assert get_refusal(lambda: ec2.create_placement_group(GroupName="close", Strategy="cluster"))[0] == (
        "InvalidPlacementGroup.Duplicate"
    )
    found = ec2.describe_placement_groups(Filters=[{"Name": "tag:run", "Values": ["7"]}])["PlacementGroups"]
    assert [each["GroupName"] for each in found] == ["close"]
    ids = launch(cloud, 2, Placement={"GroupName": "close"})
    assert get_refusal(lambda: ec2.delete_placement_group(GroupName="close"))[0] == "InvalidPlacementGroup.InUse"
    ec2.terminate_instances(InstanceIds=ids)
    wait_for("terminated", *ids)
    ec2.delete_placement_group(GroupName="close")
    assert get_refusal(lambda: ec2.delete_placement_group(GroupName="close"))[0] == "InvalidPlacementGroup.Unknown"
    assert cloud.list_resources() == NOTHING


def test_placement_group_stays_in_its_zone(cloud: Cloud) -> None:
    """Instances of one cluster group are in one zone."""
    client().create_placement_group(GroupName="close", Strategy="cluster")
    launch(cloud, 1, Placement={"GroupName": "close"})
    assert get_refusal(lambda: launch(cloud, 1, zone="us-east-1b", Placement={"GroupName": "close"}))[0] == (
        "InvalidPlacementGroup.InUse"
    )


def test_small_types_cannot_be_placed_close_together(cloud: Cloud) -> None:
    """A type without cluster placement is refused in such a group."""
    client().create_placement_group(GroupName="close", Strategy="cluster")
    answer = get_refusal(lambda: launch(cloud, 1, InstanceType="t3.micro", Placement={"GroupName": "close"}))
    assert answer[0] == "InvalidParameterCombination"


def test_security_group_is_held_by_interfaces(cloud: Cloud) -> None:
    """A security group cannot be deleted while an instance has it, nor a moment after its termination."""
    ec2 = client()
    cloud.world.linger_s = 3600
    group = ec2.create_security_group(GroupName="ours", Description="ours", VpcId=cloud.vpc)["GroupId"]
    (one,) = launch(cloud, 1, SecurityGroupIds=[group])
    assert get_refusal(lambda: ec2.delete_security_group(GroupId=group)) == ("DependencyViolation", 400)
    ec2.terminate_instances(InstanceIds=[one])
    wait_for("terminated", one)
    assert get_refusal(lambda: ec2.delete_security_group(GroupId=group)) == ("DependencyViolation", 400)
    assert cloud.list_resources().security_groups == ("ours",)
    cloud.world.linger_s = 0.3

    def is_deleted() -> bool:
        try:
            ec2.delete_security_group(GroupId=group)
        except ec2.exceptions.ClientError:
            return False
        return True

    wait_until("nothing holds it any more", is_deleted)
    assert cloud.list_resources() == NOTHING


def test_rules_are_refused_twice(cloud: Cloud) -> None:
    """A group is open to itself and to one address once each; the second time is a duplicate."""
    ec2 = client()
    group = ec2.create_security_group(GroupName="ours", Description="ours", VpcId=cloud.vpc)["GroupId"]
    for rule in (
        {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group}]},
        {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "IpRanges": [{"CidrIp": "192.0.2.1/32"}]},
    ):

        def allow(rule: object = rule) -> None:
            ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[rule])

        allow()
        assert get_refusal(allow)[0] == "InvalidPermission.Duplicate"
