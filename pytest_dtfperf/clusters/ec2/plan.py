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
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self

from pytest_dtfperf.clusters.ec2.keys import OURS
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


PREFIX = "dtfperf-"  # of every name we give


@dataclass(frozen=True)
class Zone:
    """Where instances may stand: one subnet, which is in one availability zone."""

    name: str
    subnet: str


@dataclass(frozen=True, kw_only=True)
class LaunchPlan:
    """One run of instances, from launch to termination."""

    run: str  # its id
    nonce: str  # drawn for this run: makes its tokens nobody else's
    session: str
    cluster: str
    shape: str  # what makes two runs interchangeable, as a digest
    owner: Owner  # the process that launches
    launched_by: str = ""  # whose credentials it has, as policies know them (aws:userid)
    account: str
    region: str
    vpc: str
    zones: tuple[Zone, ...]  # tried in this order
    instance_type: str
    count: int
    ami: str
    root_device: str
    volume_gib: int
    spot: bool
    placement: bool  # all close together, in a group of their own
    efa: int  # network interfaces with EFA; 0: an ordinary one
    public: bool  # whether they have public addresses, by which they are logged in to
    caller_cidr: str
    user: str
    port: int
    keep: bool
    made: int  # seconds since 1970
    expires: int
    tags: Mapping[str, str] = field(default_factory=dict)  # what the cluster file adds

    @property
    def name(self) -> str:
        """Of the key pair and the security group, and of the instances."""
        return PREFIX + self.run

    def group(self, attempt: int) -> str:
        """The placement group of one attempt: a group stays in the zone of its first instance."""
        return f"{self.name}-{attempt}"

    def token(self, attempt: int, zone: Zone) -> str:
        """By which Amazon knows a repeated request. Of one attempt: it is worthless once its instances are terminated."""
        return hashlib.sha256(f"{self.run}/{self.nonce}/{attempt}/{zone.subnet}".encode()).hexdigest()[:60]

    @property
    def minutes(self) -> int:
        """How long an instance may live."""
        return max(1, math.ceil((self.expires - self.made) / 60))

    def to_json(self) -> dict[str, Any]:
        """What `from_json` reads."""
        return {**asdict(self), "owner": self.owner.text}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """What `to_json` gave, also if a later version has added to it."""
        known = {name: data[name] for name in cls.__dataclass_fields__ if name in data}
        return cls(
            **{**known, "owner": Owner.read_or_unknown(data["owner"]), "zones": tuple(Zone(**zone) for zone in data["zones"])}
        )


def make_plan(*, session: str, max_hours: float, now: float, **decided: Any) -> LaunchPlan:
    """A new run's, from now on: by Amazon's clock, for others read there when its time is over."""
    now, nonce = int(now), secrets.token_hex(8)
    return LaunchPlan(
        run=f"{session}-{nonce[:6]}", nonce=nonce, session=session, made=now, expires=now + round(max_hours * 3600), **decided
    )


def compute_shape(backend_keys: Mapping[str, Any], account: str, region: str) -> str:
    """Of runs that may stand in for each other: asked for in the same words, but for how many, how long and for how much."""
    words = {key: value for key, value in backend_keys.items() if key not in _NOT_OF_THE_INSTANCES}
    text = json.dumps([words, account, region], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


_NOT_OF_THE_INSTANCES = (
    "count", "keep", "max_hours", "max_usd", "usd_per_hour", "caller_cidr", "setup", "connect_s", "boot_s",
)  # fmt: skip


def format_timestamp(seconds: float) -> str:
    """As it stands in tags: 2026-01-31T02:15:03Z."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_timestamp(text: str) -> float | None:
    """Seconds since 1970; None for what is no time."""
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None


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
