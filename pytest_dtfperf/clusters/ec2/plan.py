"""The plan of a run of instances, and the requests that are made of it. Pure.

Everything is decided, and on disk, before Amazon is asked for anything. A request that is repeated after a crash must be the
same to the byte, or its token is refused. So all that goes into one is made here once: names, times, the order of zones, and a
random number.
"""

import hashlib
import json
import math
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self

from pytest_dtfperf.clusters.ec2.keys import OURS
from pytest_dtfperf.codec import JsonData, describe
from pytest_dtfperf.node.owner import Owner

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


PREFIX = "dtfperf-"  # of the names of all resources


@dataclass(frozen=True)
class Zone(JsonData):
    """A place for instances: one subnet, which is in one availability zone."""

    name: str
    subnet: str


@dataclass(frozen=True, kw_only=True)
class LaunchPlan(JsonData):
    """One run of instances, from launch to termination."""

    run: str = field(metadata=describe("Id of the run"))
    nonce: str = field(metadata=describe("Random number of the run, which makes its tokens unique"))
    session: str
    cluster: str
    shape: str = field(metadata=describe("Digest of what makes two runs interchangeable"))
    owner: Owner = field(metadata=describe("The process that launches"))
    launched_by: str = field(default="", metadata=describe("The caller's credentials in policies (aws:userid)"))
    account: str
    region: str
    vpc: str
    zones: tuple[Zone, ...] = field(metadata=describe("Zones in the order in which they are tried"))
    instance_type: str
    count: int = field(metadata=describe("Number of instances", at_least=1))
    ami: str
    root_device: str
    volume_gib: int = field(metadata=describe("Size of the root volume", unit="GiB", at_least=1))
    spot: bool
    placement: bool = field(metadata=describe("Whether they are in a placement group of their own"))
    efa: int = field(metadata=describe("Number of network interfaces with EFA; 0: an ordinary one", at_least=0))
    public: bool = field(metadata=describe("Whether they have public addresses, which logins use"))
    caller_cidr: str
    user: str
    port: int = field(metadata=describe("Port for logins", at_least=1, at_most=65535))
    keep: bool
    made: int = field(metadata=describe("Time of the plan, since 1970", unit="s"))
    expires: int = field(metadata=describe("Time at which the instances end, since 1970", unit="s"))
    tags: Mapping[str, str] = field(default_factory=dict, metadata=describe("Additional tags of the cluster file"))

    @property
    def name(self) -> str:
        """The name of the key pair, the security group and the instances."""
        return PREFIX + self.run

    def group(self, attempt: int) -> str:
        """Return the placement group of one attempt: a group stays in the zone of its first instance."""
        return f"{self.name}-{attempt}"

    def token(self, attempt: int, zone: Zone) -> str:
        """Return the token by which Amazon recognises a repeated request. It is unusable once its instances have ended."""
        return hashlib.sha256(f"{self.run}/{self.nonce}/{attempt}/{zone.subnet}".encode()).hexdigest()[:60]

    @property
    def minutes(self) -> int:
        """The longest lifetime of an instance."""
        return max(1, math.ceil((self.expires - self.made) / 60))

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON data, with the owner as text."""
        return {**super().to_json(), "owner": self.owner.text}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Return the plan that `to_json` wrote; keys that a later version has added are ignored."""
        known = {name: data[name] for name in cls.__dataclass_fields__ if name in data}
        return super().from_json({**known, "owner": Owner.read_or_unknown(data["owner"])})


def make_plan(*, session: str, max_hours: float, now: float, **decided: Any) -> LaunchPlan:
    """Return the id and times of a new run, by Amazon's clock, which others use to see that it has expired."""
    now, nonce = int(now), secrets.token_hex(8)
    return LaunchPlan(
        run=f"{session}-{nonce[:6]}", nonce=nonce, session=session, made=now, expires=now + round(max_hours * 3600), **decided
    )


def compute_shape(backend_keys: Mapping[str, Any], account: str, region: str) -> str:
    """Return the digest of interchangeable runs: same keys, except for number, lifetime and cost limit."""
    relevant_keys = {key: value for key, value in backend_keys.items() if key not in _NOT_OF_THE_INSTANCES}
    text = json.dumps([relevant_keys, account, region], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


_NOT_OF_THE_INSTANCES = (
    "count", "keep", "max_hours", "max_usd", "usd_per_hour", "caller_cidr", "setup", "connect_s", "boot_s",
)  # fmt: skip


def format_timestamp(seconds: float) -> str:
    """Format a time for tags: 2026-01-31T02:15:03Z."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_timestamp(text: str) -> float | None:
    """Return seconds since 1970; None for invalid text."""
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None


MANAGED, RUN, USER, EXPIRES, OWNER, CLUSTER, SESSION, KEEP = (
    OURS + name for name in ("managed", "run", "user", "expires", "owner", "cluster", "session", "keep")
)


def make_tags(plan: LaunchPlan) -> list["TagTypeDef"]:
    """Return the tags of every resource, by which it is found again from anywhere and policies can select it."""
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
    """Remove characters that a tag may not contain."""
    return re.sub(r"[^\w +\-=.:/@]", "_", text)[:256]


def make_tag_specifications(plan: LaunchPlan, *kinds: "ResourceTypeType") -> list["TagSpecificationTypeDef"]:
    """Return the tags in the form of creating calls: a crash before a separate tagging call would leave untagged resources."""
    return [{"ResourceType": kind, "Tags": make_tags(plan)} for kind in kinds]


def make_launch_request(
    plan: LaunchPlan, attempt: int, zone: Zone, *, security_group: str, user_data: str
) -> "RunInstancesRequestTypeDef":
    """Return the request for all instances or none, in one zone."""
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
        # One-time: a persistent request would launch terminated instances again, without tags.
        request["InstanceMarketOptions"] = {
            "MarketType": "spot",
            "SpotOptions": {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"},
        }
        kinds.append("spot-instances-request")
    request["TagSpecifications"] = make_tag_specifications(plan, *kinds)
    return request


def make_network_interfaces(plan: LaunchPlan, zone: Zone, group: str) -> list["InstanceNetworkInterfaceSpecificationTypeDef"]:
    """Return one interface, or one per network card; all but the first are device 1 of their card."""
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
    """Return the number of EFA interfaces: the most of the type, or one if the instance has a public address."""
    return min(1, most) if public else most


def make_permissions(plan: LaunchPlan, group: str) -> list["IpPermissionTypeDef"]:
    """Return the ingress rules: the instances among themselves, and logins from this machine's network."""
    return [make_group_permission(group), make_login_permission(plan.caller_cidr, plan.port)]


def make_login_permission(cidr: str, port: int) -> "IpPermissionTypeDef":
    """Return the rule for logins from one network."""
    ranges: list[IpRangeTypeDef] = [{"CidrIp": cidr, "Description": "who launched them"}]
    return {"IpProtocol": "tcp", "FromPort": port, "ToPort": port, "IpRanges": ranges}


def make_group_permission(group: str) -> "IpPermissionTypeDef":
    """Return the rule for all traffic within the group; also for egress, which EFA requires in this form."""
    return {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group}]}
