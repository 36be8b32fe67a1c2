"""RunInstances: all or nothing, once per token, refused where and how Amazon refuses."""

from typing import Any

import pytest

from tests.clusters.ec2.cloud.cloud import NOTHING, Cloud
from tests.clusters.ec2.cloud.hands import KIND, client, describe, get_refusal, launch, state, wait_for

NO_ROOM = ("InsufficientInstanceCapacity", 500)


def test_instances_are_pending_then_running(cloud: Cloud) -> None:
    """A new instance is pending in the first answer and for a while, then running."""
    cloud.world.pending_s = 3600
    (one,) = launch(cloud, 1)
    assert state(one) == "pending"
    cloud.world.pending_s = 0
    (other,) = launch(cloud, 1)
    wait_for("running", other)
    assert state(one) == "pending"


def test_launch_is_limited_by_capacity(cloud: Cloud) -> None:
    """A launch gets between MinCount and MaxCount instances by the zone's capacity, or none with status 500."""
    cloud.world.capacity["us-east-1a", KIND] = 3
    assert len(launch(cloud, 1, MaxCount=2)) == 2
    assert get_refusal(lambda: launch(cloud, 2)) == NO_ROOM
    assert len(launch(cloud, 1, MaxCount=4)) == 1
    assert get_refusal(lambda: launch(cloud, 1)) == NO_ROOM
    assert len(launch(cloud, 4, zone="us-east-1b")) == 4


def test_same_token_is_the_same_launch(cloud: Cloud) -> None:
    """A request repeated with its token returns the same instances, in their present state."""
    first = launch(cloud, 2, ClientToken="once")
    wait_for("running", *first)
    assert launch(cloud, 2, ClientToken="once") == first
    assert len(cloud.list_resources().instances) == 2
    assert set(describe(client_token="once")) == set(first)
    assert launch(cloud, 2, ClientToken="twice") != first


def test_same_token_with_another_request_is_refused(cloud: Cloud) -> None:
    """A token is valid for one request only."""
    launch(cloud, 2, ClientToken="once")
    assert get_refusal(lambda: launch(cloud, 1, ClientToken="once")) == ("IdempotentParameterMismatch", 400)


def test_token_of_terminated_instances_is_used_up(cloud: Cloud) -> None:
    """A token of terminated instances gives neither the old instances nor new ones."""
    ids = launch(cloud, 2, ClientToken="once")
    client().terminate_instances(InstanceIds=ids)
    assert get_refusal(lambda: launch(cloud, 2, ClientToken="once")) == ("IdempotentInstanceTerminated", 400)


def test_accepted_then_terminated(cloud: Cloud) -> None:
    """Missing capacity may show only after the answer: the instance ends with a reason."""
    cloud.world.withdrawn = 1
    ids = launch(cloud, 2)
    wait_for("running", ids[1])
    assert state(ids[0]) == "terminated"
    assert describe(ids[0])[ids[0]]["StateReason"]["Code"] == "Server.InsufficientInstanceCapacity"


@pytest.mark.parametrize(
    "request_, code",
    [
        pytest.param({"ImageId": "ami-00000000000000000"}, "InvalidAMIID.NotFound", id="image"),
        pytest.param({"InstanceType": "p2.xlarge"}, "InvalidParameterValue", id="type"),
        pytest.param({"KeyName": "nobody's"}, "InvalidKeyPair.NotFound", id="key pair"),
        pytest.param({"MaxCount": 1}, "InvalidParameterValue", id="counts"),
        pytest.param({"Placement": {"GroupName": "none"}}, "InvalidPlacementGroup.Unknown", id="placement group"),
        pytest.param({"UserData": "x" * 16385}, "InvalidParameterValue", id="user data"),
        pytest.param({"DryRun": True}, "DryRunOperation", id="dry run"),
        pytest.param({"InstanceType": "p3dn.24xlarge"}, "Unsupported", id="zone"),
    ],
)
def test_refused_requests(cloud: Cloud, request_: dict[str, Any], code: str) -> None:
    """An invalid request is refused with Amazon's code, and nothing is made."""
    assert get_refusal(lambda: launch(cloud, 2, **request_))[0] == code
    assert cloud.list_resources() == NOTHING


def test_public_address_and_many_interfaces_exclude_each_other(cloud: Cloud) -> None:
    """An instance with several network cards gets no public address by itself."""

    def interfaces(public: bool) -> list[dict[str, Any]]:
        subnet = cloud.subnets["us-east-1a"]
        more = [{"DeviceIndex": 1, "NetworkCardIndex": i, "SubnetId": subnet, "InterfaceType": "efa"} for i in range(1, 4)]
        return [{"DeviceIndex": 0, "SubnetId": subnet, "InterfaceType": "efa", "AssociatePublicIpAddress": public}, *more]

    answer = get_refusal(lambda: launch(cloud, 1, InstanceType="g6.48xlarge", NetworkInterfaces=interfaces(public=True)))
    assert answer == ("InvalidParameterCombination", 400)
    (one,) = launch(cloud, 1, InstanceType="g6.48xlarge", NetworkInterfaces=interfaces(public=False))
    assert [nic["InterfaceType"] for nic in describe(one)[one]["NetworkInterfaces"]] == ["efa"] * 4
    client().terminate_instances(InstanceIds=[one])
    wait_for("terminated", one)
    assert cloud.list_resources() == NOTHING


def test_quota(cloud: Cloud) -> None:
    """A launch beyond the quota of virtual CPUs is refused, and Service Quotas shows the quota."""
    code = cloud.limit(KIND, 8)
    launch(cloud, 1)
    assert get_refusal(lambda: launch(cloud, 2)) == ("VcpuLimitExceeded", 400)
    launch(cloud, 1)
    quota = client("service-quotas").get_service_quota(ServiceCode="ec2", QuotaCode=code)["Quota"]
    assert (quota["QuotaName"], quota["Value"]) == ("Running On-Demand G and VT instances", 8.0)
    assert get_refusal(lambda: client("service-quotas").get_service_quota(ServiceCode="ec2", QuotaCode="L-0"))[0] == (
        "NoSuchResourceException"
    )


def test_everything_is_tagged_at_launch(cloud: Cloud) -> None:
    """Instance, volume and interface have the tags that their launch gave them."""
    tags = [{"Key": "run", "Value": "7"}]
    kinds = ("instance", "volume", "network-interface")
    (one,) = launch(cloud, 1, TagSpecifications=[{"ResourceType": kind, "Tags": tags} for kind in kinds])
    assert describe(one)[one]["Tags"] == tags
    wanted = [{"Name": "tag:run", "Values": ["7"]}]
    assert len(client().describe_volumes(Filters=wanted)["Volumes"]) == 1
    assert len(client().describe_network_interfaces(Filters=wanted)["NetworkInterfaces"]) == 1
