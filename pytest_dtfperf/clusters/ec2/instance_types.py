"""Instance types as EC2 describes them (GPUs, network, vCPUs), and the quota that counts their vCPUs.

The description is kept on disk: it does not change, and tests are collected without a network. EC2 counts vCPUs per group of
families, and its refusal names neither the group nor the quota. The quotas' codes and names:
docs.aws.amazon.com/ec2/latest/instancetypes/ec2-instance-quotas.html (2026-11).
"""

import difflib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from pytest_dtfperf.clusters.answer_cache import cached
from pytest_dtfperf.errors import AllocationError, ClusterFileError

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import InstanceTypeInfoTypeDef, NetworkInfoTypeDef

    from pytest_dtfperf.clusters.ec2.account import Account
    from pytest_dtfperf.clusters.named import ClusterConfig


MAX_AGE_S = 30 * 86400.0  # a type does not change, but regions gain and lose types
_SHOWN = 6  # similar names in an error
_UNKNOWN = ("InvalidInstanceType", "InvalidParameterValue")  # the second for text that is no type name, like "g5"


@dataclass(frozen=True)
class Offer:
    """An instance type that a region offers."""

    instance_type: str
    gpus: int  # as a program sees them: a part of a GPU counts as one
    gpu_model: str | None
    vcpus: int
    baseline_gbps: float | None  # permanent bandwidth of one interface
    peak_gbps: float | None  # of one interface until its credits are used up
    network: str  # Amazon's description
    efa_interfaces: int
    placement_strategies: Sequence[str]
    usage_classes: Sequence[str]
    architectures: Sequence[str]

    @property
    def bursts(self) -> bool:
        """Whether the network's speed depends on its earlier use."""
        return None not in (self.baseline_gbps, self.peak_gbps) and self.peak_gbps != self.baseline_gbps

    def __str__(self) -> str:
        gpus = f"{self.gpus} x {self.gpu_model}" if self.gpus else "no GPU"
        baseline = f"{self.baseline_gbps:g} Gbit/s" if self.baseline_gbps is not None else self.network
        return f"{self.instance_type} ({gpus}, {self.vcpus} vCPUs, {baseline})"


def count_used_gpus(config: "ClusterConfig", offer: Offer) -> int:
    """Return the GPUs of an instance that the cluster uses: none if its device is the CPU."""
    return 0 if config.device == "cpu" else offer.gpus


def set_devices(config: "ClusterConfig", offer: Offer) -> "ClusterConfig":
    """Return the cluster with the GPUs of an instance as devices per host, unless the file sets a number."""
    return replace(config, devices_per_host=config.devices_per_host or count_used_gpus(config, offer) or None)


def get_offer(account: "Account", instance_type: str) -> Offer:
    """Return the description of a type. Raises `ClusterFileError` with similar names if the account's region lacks it."""

    def ask() -> object:
        found = _request_offer(account, instance_type)
        cached(_parse_gpus(instance_type), 0, lambda: found.gpus)
        return asdict(found)

    return Offer(**cached(f"offer {account.region} {instance_type}", MAX_AGE_S, ask))


def get_known_gpus(backend_keys: Mapping[str, Any]) -> int | None:
    """Return the GPUs of a cluster's instances from the cache, of any region; None if unknown. Makes no request."""

    def refuse() -> int:
        raise LookupError

    try:
        gpus: int = cached(_parse_gpus(backend_keys["instance_type"]), math.inf, refuse)
    except LookupError:  # also if the key is missing
        return None
    return gpus


def _parse_gpus(instance_type: str) -> str:
    return f"gpus of {instance_type}"


def find_problem(offer: Offer, backend_keys: Mapping[str, Any]) -> str | None:
    """Return the first requirement of a cluster's keys that the type does not meet; None if it meets all."""
    name = offer.instance_type
    usage = "spot" if backend_keys.get("spot") else "on-demand"
    if usage not in offer.usage_classes:
        return f"{name} is not offered {_USAGE[usage]}, but as: {', '.join(offer.usage_classes) or 'nothing'}"
    if "placement" in backend_keys and backend_keys["placement"] not in offer.placement_strategies:
        return f"{name} cannot have placement = {backend_keys['placement']!r}: leave it out, or take a larger type"
    if backend_keys.get("efa") and not offer.efa_interfaces:
        return f"{name} has no EFA: leave efa out, or take a larger type"
    return None


_USAGE = {"spot": "as spot instance: leave spot out", "on-demand": "on demand: capacity blocks must be bought before"}


def find_nearest(instance_type: str, offered: Iterable[str]) -> list[str]:
    """Return the most similar type names: first of its own family's letter, else of its size.

    For a GPU type all GPU families count as its own: p2.xlarge is gone, and g5.xlarge is what comes nearest.
    """
    names = sorted(offered)
    family = _split_letters(instance_type)
    relatives = [name for name in names if _split_letters(name) in _KIN.get(family, (family,))]
    size = instance_type.partition(".")[2]
    same_size = [name for name in relatives if name.partition(".")[2] == size]
    found = [
        *difflib.get_close_matches(instance_type, names, n=1, cutoff=0.85),  # a typing error
        *difflib.get_close_matches(instance_type, same_size, n=3, cutoff=0.0),
        *difflib.get_close_matches(instance_type, relatives or names, n=_SHOWN, cutoff=0.0),
    ]
    return list(dict.fromkeys(found))[:_SHOWN]


_KIN = {"p": ("p", "g"), "g": ("g", "p")}


def _split_letters(instance_type: str) -> str:
    found = re.match("[a-z]*", instance_type)
    return found[0] if found else ""


def _request_offer(account: "Account", instance_type: str) -> Offer:
    from botocore.exceptions import BotoCoreError, ClientError  # not at load time: known_gpus works without boto3, too

    found: list[InstanceTypeInfoTypeDef] = []
    try:
        found = account.ec2.describe_instance_types(InstanceTypes=[cast("Any", instance_type)])["InstanceTypes"]
    except (BotoCoreError, ClientError) as exc:
        if not isinstance(exc, ClientError) or exc.response["Error"]["Code"] not in _UNKNOWN:
            raise AllocationError(f"what {instance_type} is could not be found out: {account.explain(exc)}") from exc
    if not found:
        near = find_nearest(instance_type, _list_offered(account))
        raise ClusterFileError(
            f"region {account.region} offers no instance type {instance_type!r}. "
            f"Nearest there: {', '.join(near) or 'none'}. All: aws ec2 describe-instance-types --region {account.region}"
        )
    return parse_offer(found[0])


def _list_offered(account: "Account") -> list[str]:
    pages = account.ec2.get_paginator("describe_instance_type_offerings").paginate(LocationType="region")
    return [each["InstanceType"] for page in pages for each in page["InstanceTypeOfferings"]]


def parse_offer(info: "InstanceTypeInfoTypeDef") -> Offer:
    """Parse one entry of DescribeInstanceTypes."""
    gpus = info.get("GpuInfo", {}).get("Gpus") or []
    network = info.get("NetworkInfo", {})
    card = _get_first_card(network)
    return Offer(
        instance_type=info["InstanceType"],
        # For a type with a part of a GPU, Count is 0.
        gpus=sum(gpu.get("LogicalGpuCount") or gpu.get("Count", 0) for gpu in gpus),
        gpu_model=" + ".join(gpu.get("Name", "unnamed") for gpu in gpus) or None,
        vcpus=info["VCpuInfo"]["DefaultVCpus"],
        baseline_gbps=card.get("BaselineBandwidthInGbps"),
        peak_gbps=card.get("PeakBandwidthInGbps"),
        network=network.get("NetworkPerformance", "unknown"),
        efa_interfaces=network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 0),
        placement_strategies=list(info.get("PlacementGroupInfo", {}).get("SupportedStrategies", [])),
        usage_classes=list(info.get("SupportedUsageClasses", [])),
        architectures=list(info.get("ProcessorInfo", {}).get("SupportedArchitectures", [])),
    )


def _get_first_card(network: "NetworkInfoTypeDef") -> Mapping[str, Any]:
    """Return the card of an instance's first interface. Several cards need several interfaces, defined elsewhere."""
    first = network.get("DefaultNetworkCardIndex", 0)
    cards = network.get("NetworkCards", [])
    return next((card for card in cards if card.get("NetworkCardIndex") == first), {})


@dataclass(frozen=True)
class Quota:
    """A number of vCPUs that all running instances of some families share."""

    code: str
    name: str


# Quotas of the families, by the first letters of their names: on demand, spot.
_STANDARD = Quota("L-1216C47A", "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances")
_STANDARD_SPOT = Quota("L-34B43A08", "All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests")
_G = Quota("L-DB2E81BA", "Running On-Demand G and VT instances")
_G_SPOT = Quota("L-3819A6DF", "All G and VT Spot Instance Requests")
_P = Quota("L-417A185B", "Running On-Demand P instances")
_P4_SPOT = Quota("L-7212CCBC", "All P4, P3 and P2 Spot Instance Requests")
_P5_SPOT = Quota("L-C4BD4855", "All P5 Spot Instance Requests")
_QUOTAS = (
    (r"(g|gr|vt)\d", _G, _G_SPOT),
    (r"p[2-4]", _P, _P4_SPOT),
    (r"p5", _P, _P5_SPOT),
    (r"p\d", _P, None),  # the quota for spot instances of later families is not documented yet
    (r"(a|c|d|h|i|im|is|m|r|t|z)\d", _STANDARD, _STANDARD_SPOT),
)


def find_quota(instance_type: str, *, spot: bool) -> Quota | None:
    """Return the quota that counts a type's vCPUs; None if unknown."""
    for families, on_demand, on_spot in _QUOTAS:
        if re.match(families, instance_type):
            return on_spot if spot else on_demand
    return None


def get_quota_vcpus(account: "Account", quota: Quota) -> float | None:
    """Return the vCPUs that the quota allows in the account's region; None if Amazon does not return it."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        answer = account.quotas.get_service_quota(ServiceCode="ec2", QuotaCode=quota.code)
    except (BotoCoreError, ClientError):  # it only improves another message
        return None
    return answer["Quota"]["Value"]


def explain_quota(account: "Account", offer: Offer, count: int, *, spot: bool) -> str:
    """Return the cause of VcpuLimitExceeded and similar codes, and the remedy."""
    vcpus = count * offer.vcpus
    needed = f"{count} x {offer.instance_type} need {vcpus} vCPUs ({offer.vcpus} each)"
    fewer = "Ask for fewer devices, end" if count > 1 else "End"
    counts = find_quota(offer.instance_type, spot=spot)
    if counts is None:
        return (
            f"{needed}, which is more than this account may still run in {account.region}. {fewer} what else runs, "
            f"or ask for more at https://{account.region}.console.aws.amazon.com/servicequotas/home/services/ec2/quotas"
        )
    most = get_quota_vcpus(account, counts)
    has = "is too small for that" if most is None else f"is {most:g} vCPUs"
    return (
        f"{needed}. In {account.region} this account's quota {counts.name!r} ({counts.code}) {has}; all running instances of "
        f"these families share it, and new accounts begin with few or none. {fewer} what else runs, or ask for more: "
        f"aws service-quotas request-service-quota-increase --region {account.region} --service-code ec2 "
        f"--quota-code {counts.code} --desired-value {vcpus}"
    )
