"""The parameters of requests for instances."""

from typing import Any

import pytest

from pytest_dtfperf.clusters.ec2.plan import OWNER, count_efa_interfaces, make_launch_request, make_permissions, make_tags
from pytest_dtfperf.node.owner import Owner
from tests.clusters.ec2.runs import PLAN, plan

ZONE = PLAN.zones[0]


def ask(**other: Any) -> dict[str, Any]:
    return dict(make_launch_request(plan(**other), 0, ZONE, security_group="sg-1", user_data="#cloud-config\n"))


def test_all_or_nothing() -> None:
    """The smallest number of instances equals the largest, because a partial cluster is useless and costs money."""
    assert (ask(count=4)["MinCount"], ask(count=4)["MaxCount"]) == (4, 4)


def test_a_repeated_request_is_the_same_to_the_byte() -> None:
    """Amazon takes a token twice only with the very same request."""
    assert ask() == ask()


def test_an_instance_that_shuts_down_is_gone() -> None:
    """`shutdown` in an instance terminates it, so that its own timer ends what it costs."""
    assert ask()["InstanceInitiatedShutdownBehavior"] == "terminate"


def test_metadata_only_with_a_token_and_from_the_instance_itself() -> None:
    """IMDSv2 is required, and its answers do not travel further than one hop."""
    assert ask()["MetadataOptions"] == {"HttpTokens": "required", "HttpPutResponseHopLimit": 1, "HttpEndpoint": "enabled"}


def test_volumes_are_encrypted_and_go_with_their_instance() -> None:
    """The root volume is gp3, encrypted, of the size that was planned, and deleted at the end."""
    (volume,) = ask(volume_gib=200, root_device="/dev/xvda")["BlockDeviceMappings"]
    assert volume["DeviceName"] == "/dev/xvda"
    assert volume["Ebs"] == {"VolumeSize": 200, "VolumeType": "gp3", "Encrypted": True, "DeleteOnTermination": True}


def test_no_instance_profile() -> None:
    """Instances may do nothing in the account."""
    assert "IamInstanceProfile" not in ask()


def test_a_cluster_group_only_where_it_is_planned() -> None:
    """The attempt's placement group is named in the request, or none."""
    assert ask()["Placement"] == {"GroupName": "dtfperf-s-123456-0"}
    assert "Placement" not in ask(placement=False)


def test_spot_requests_are_one_time() -> None:
    """A spot request is one-time, because a persistent one would replace terminated instances."""
    assert "InstanceMarketOptions" not in ask()
    assert ask(spot=True)["InstanceMarketOptions"] == {
        "MarketType": "spot",
        "SpotOptions": {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"},
    }


@pytest.mark.parametrize("spot", [False, True])
def test_everything_is_tagged_at_creation(spot: bool) -> None:
    """Instances, volumes, interfaces and spot requests carry the run, its owner and its end from their first moment."""
    specifications = ask(spot=spot, tags={"project": "resnet"})["TagSpecifications"]
    kinds = ["instance", "volume", "network-interface", *(["spot-instances-request"] if spot else [])]
    assert [each["ResourceType"] for each in specifications] == kinds
    for each in specifications:
        assert {tag["Key"]: tag["Value"] for tag in each["Tags"]} == {
            "Name": "dtfperf-s-123456",
            "dtfperf:managed": "1",
            "dtfperf:run": "s-123456",
            "dtfperf:user": "AIDAPRETENDTESTER",
            "dtfperf:session": "s",
            "dtfperf:cluster": "test",
            "dtfperf:owner": "here:b007:4026531836:17:4711",
            "dtfperf:expires": "2027-01-15T12:00:00Z",
            "project": "resnet",
        }


def test_kept_run_has_a_tag() -> None:
    """A kept run has a tag, so that other machines do not end it."""
    assert {"Key": "dtfperf:keep", "Value": "1"} in make_tags(plan(keep=True))


def test_tags_have_valid_characters_only() -> None:
    """A cluster's name may be anything; Amazon would refuse the whole launch for one letter."""
    (value,) = [tag["Value"] for tag in make_tags(plan(cluster="p4d {big}!")) if tag["Key"] == "dtfperf:cluster"]
    assert value == "p4d _big__"


def test_owner_is_read_back() -> None:
    """The owner in the tag is read back unchanged."""
    (value,) = [tag["Value"] for tag in make_tags(PLAN) if tag["Key"] == OWNER]
    assert Owner.parse(value) == PLAN.owner


def test_one_interface_with_a_public_address() -> None:
    """An ordinary instance has one interface in the run's security group, which goes with it."""
    assert ask()["NetworkInterfaces"] == [
        {
            "DeviceIndex": 0,
            "NetworkCardIndex": 0,
            "SubnetId": "subnet-a",
            "Groups": ["sg-1"],
            "DeleteOnTermination": True,
            "InterfaceType": "interface",
            "AssociatePublicIpAddress": True,
        }
    ]


def test_private_instances_have_no_public_address() -> None:
    """An instance with address = "private" has no public address, independent of its subnet."""
    (interface,) = ask(public=False)["NetworkInterfaces"]
    assert interface["AssociatePublicIpAddress"] is False


def test_one_efa_interface_per_card() -> None:
    """The interfaces after the first are device 1 of their card, without a setting of public addresses."""
    interfaces = ask(efa=4, public=False)["NetworkInterfaces"]
    assert [(each["NetworkCardIndex"], each["DeviceIndex"]) for each in interfaces] == [(0, 0), (1, 1), (2, 1), (3, 1)]
    assert {each["InterfaceType"] for each in interfaces} == {"efa"}
    assert not any("AssociatePublicIpAddress" in each for each in interfaces)


@pytest.mark.parametrize("most, public, given", [(4, True, 1), (4, False, 4), (1, True, 1), (0, False, 0)])
def test_number_of_efa_interfaces(most: int, public: bool, given: int) -> None:
    """An instance has all EFA interfaces of its type, but one with a public address."""
    assert count_efa_interfaces(most, public=public) == given


def test_permissions_of_the_security_group() -> None:
    """The instances among themselves, and logins from the caller alone."""
    among, login = make_permissions(plan(port=2222), "sg-1")
    assert among == {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": "sg-1"}]}
    assert (login["IpProtocol"], login["FromPort"], login["ToPort"]) == ("tcp", 2222, 2222)
    assert [each["CidrIp"] for each in login["IpRanges"]] == ["203.0.113.7/32"]
