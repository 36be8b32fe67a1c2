"""The words in which instances, and what they need, are asked for. Pure: everything that varies stands in the plan."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytest_dtfperf.clusters.ec2.run.plan import LaunchPlan, Zone, format_timestamp
from pytest_dtfperf.clusters.keys.ec2 import OURS

if TYPE_CHECKING:
    from mypy_boto3_ec2.literals import ResourceTypeType
    from mypy_boto3_ec2.type_defs import (
        InstanceNetworkInterfaceSpecificationTypeDef,
        IpPermissionTypeDef,
        IpRangeTypeDef,
        RunInstancesRequestTypeDef,
        TagSpecificationTypeDef,
        TagTypeDef,
    )

MANAGED, RUN, USER, EXPIRES, OWNER, CLUSTER, SESSION, KEEP = (
    OURS + name for name in ("managed", "run", "user", "expires", "owner", "cluster", "session", "keep")
)


def make_tags(plan: LaunchPlan) -> list["TagTypeDef"]:
    """Of everything that is made: by them it is found again from anywhere, and a policy can tell ours from others'."""
    ours = {
        "Name": plan.name,
        MANAGED: "1",
        RUN: plan.run,
        USER: _clean_tag_value(plan.launched_by),
        EXPIRES: format_timestamp(plan.expires),
        OWNER: _clean_tag_value(plan.owner.text),
        CLUSTER: _clean_tag_value(plan.cluster),
        SESSION: _clean_tag_value(plan.session),
    }
    if plan.keep:
        ours[KEEP] = "1"
    return [{"Key": key, "Value": value} for key, value in {**plan.tags, **ours}.items()]


def _clean_tag_value(text: str) -> str:
    """With no other letters than those that a tag may hold."""
    return re.sub(r"[^\w +\-=.:/@]", "_", text)[:256]


def make_tag_specifications(plan: LaunchPlan, *kinds: "ResourceTypeType") -> list["TagSpecificationTypeDef"]:
    """The same, as every call that makes something takes them: what is tagged later is not found after a crash between."""
    return [{"ResourceType": kind, "Tags": make_tags(plan)} for kind in kinds]


def make_launch_request(
    plan: LaunchPlan, attempt: int, zone: Zone, *, security_group: str, user_data: str
) -> "RunInstancesRequestTypeDef":
    """All of them or none, in one zone."""
    kinds: list[ResourceTypeType] = ["instance", "volume", "network-interface"]
    request: RunInstancesRequestTypeDef = {
        "ImageId": plan.ami,
        "InstanceType": plan.instance_type,  # type: ignore[typeddict-item]  # any that Amazon has by now
        "MinCount": plan.count,
        "MaxCount": plan.count,
        "KeyName": plan.name,
        "UserData": user_data,
        "ClientToken": plan.token(attempt, zone),
        "InstanceInitiatedShutdownBehavior": "terminate",
        "MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 1, "HttpEndpoint": "enabled"},
        "NetworkInterfaces": make_network_interfaces(plan, zone, security_group),
        "BlockDeviceMappings": [
            {
                "DeviceName": plan.root_device,
                "Ebs": {"VolumeSize": plan.volume_gib, "VolumeType": "gp3", "Encrypted": True, "DeleteOnTermination": True},
            }
        ],
    }
    if plan.placement:
        request["Placement"] = {"GroupName": plan.group(attempt)}
    if plan.spot:
        # One-time: a persistent request launches anew what is terminated, for ever and without tags.
        request["InstanceMarketOptions"] = {
            "MarketType": "spot",
            "SpotOptions": {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"},
        }
        kinds.append("spot-instances-request")
    request["TagSpecifications"] = make_tag_specifications(plan, *kinds)
    return request


def make_network_interfaces(plan: LaunchPlan, zone: Zone, group: str) -> list["InstanceNetworkInterfaceSpecificationTypeDef"]:
    """One, or one per network card; all but the first are device 1 of their card."""
    first: InstanceNetworkInterfaceSpecificationTypeDef = {
        "DeviceIndex": 0,
        "NetworkCardIndex": 0,
        "SubnetId": zone.subnet,
        "Groups": [group],
        "DeleteOnTermination": True,
        "InterfaceType": "efa" if plan.efa else "interface",
    }
    if plan.efa <= 1:
        return [{**first, "AssociatePublicIpAddress": plan.public}]
    others: Sequence[InstanceNetworkInterfaceSpecificationTypeDef] = [
        {**first, "DeviceIndex": 1, "NetworkCardIndex": card} for card in range(1, plan.efa)
    ]
    return [first, *others]


def count_efa_interfaces(most: int, *, public: bool) -> int:
    """How many an instance gets: all that its type can have, but a public address goes with a single one only."""
    return min(1, most) if public else most


def make_permissions(plan: LaunchPlan, group: str) -> list["IpPermissionTypeDef"]:
    """Who may come in: the instances among themselves, and logins from where we are."""
    return [make_group_permission(group), make_login_permission(plan.caller_cidr, plan.port)]


def make_login_permission(cidr: str, port: int) -> "IpPermissionTypeDef":
    """Logins from one network."""
    ranges: list[IpRangeTypeDef] = [{"CidrIp": cidr, "Description": "who launched them"}]
    return {"IpProtocol": "tcp", "FromPort": port, "ToPort": port, "IpRanges": ranges}


def make_group_permission(group: str) -> "IpPermissionTypeDef":
    """Everything between members of the group; also as a way out, which EFA wants in this form and in no other."""
    return {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group}]}
