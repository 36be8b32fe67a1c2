"""What a launch looks up first: the image, the subnets, and the address from which this machine logs in."""

import ipaddress
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError

from pytest_dtfperf.clusters.ec2 import refusals
from pytest_dtfperf.clusters.ec2.account import Account
from pytest_dtfperf.clusters.ec2.instance_types import Offer
from pytest_dtfperf.clusters.ec2.keys import DEFAULT_VOLUME_GIB
from pytest_dtfperf.clusters.ec2.plan import Zone
from pytest_dtfperf.errors import AllocationError, ClusterFileError

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import FilterTypeDef, SubnetTypeDef

CHECK_IP = "https://checkip.amazonaws.com"  # returns the caller's address
_ANSWER_S = 10.0
# Ubuntu 24.04, which has Python 3.12: with NVIDIA's driver (docs.aws.amazon.com/dlami), or without.
_WITH_DRIVER = "/aws/service/deeplearning/ami/{}/base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id"
_WITHOUT = "/aws/service/canonical/ubuntu/server/24.04/stable/current/{}/hvm/ebs-gp3/ami-id"
_CANONICALS = {"x86_64": "amd64", "arm64": "arm64"}


@dataclass(frozen=True)
class Image:
    """An image for instances."""

    id: str
    root_device: str
    least_gib: int  # least size of the instances' volume


def find_image(account: Account, backend_keys: Mapping[str, Any], offer: Offer, where: str) -> Image:
    """Return the image of the cluster file, or Amazon's latest for such instances. Raises `ClusterFileError`."""
    parameter = backend_keys.get("ami_parameter") or get_default_image_parameter(offer)
    ami = backend_keys.get("ami") or _read_parameter(account, parameter, where)
    try:
        found = account.ec2.describe_images(ImageIds=[ami])["Images"]
    except ClientError as error:
        if not refusals.get_code(error).startswith("InvalidAMIID"):
            raise
        found = []
    if not found:
        raise ClusterFileError(
            f"{where}: there is no image {ami} in {account.region}, or not for this account. Images belong to one region: name "
            "one of it with ami, or leave ami out"
        )
    shown = found[0]
    architecture = shown.get("Architecture", "x86_64")
    if offer.architectures and architecture not in offer.architectures:
        raise ClusterFileError(
            f"{where}: image {ami} is made for {architecture}, but {offer.instance_type} is {' or '.join(offer.architectures)}"
        )
    root = shown.get("RootDeviceName", "/dev/sda1")
    sizes = [
        mapping["Ebs"].get("VolumeSize", 0)
        for mapping in shown.get("BlockDeviceMappings", [])
        if mapping.get("DeviceName") == root and "Ebs" in mapping
    ]
    return Image(ami, root, max(sizes, default=0))


def compute_volume_gib(backend_keys: Mapping[str, Any], image: Image) -> int:
    """Return the volume size of the cluster file, or enough for the image and TensorFlow."""
    given: int | None = backend_keys.get("volume_gib")
    return given or max(DEFAULT_VOLUME_GIB, image.least_gib)


def get_default_image_parameter(offer: Offer) -> str:
    """Return the public parameter of the default image."""
    architecture = "arm64" if "x86_64" not in offer.architectures and "arm64" in offer.architectures else "x86_64"
    return _WITH_DRIVER.format(architecture) if offer.gpus else _WITHOUT.format(_CANONICALS[architecture])


def find_zones(account: Account, backend_keys: Mapping[str, Any], where: str) -> tuple[str, tuple[Zone, ...]]:
    """Return the VPC, and a subnet in each zone to try. Raises `ClusterFileError`."""
    named: Sequence[str] = backend_keys.get("subnets", ())
    if named:
        found = account.ec2.describe_subnets(SubnetIds=list(named))["Subnets"]
        found.sort(key=lambda subnet: named.index(subnet["SubnetId"]))
    else:
        found = _list_subnets(account, backend_keys.get("vpc"))
        if backend_keys.get("address") != "private":  # private instances have a route out by other means
            found = [subnet for subnet in found if subnet.get("MapPublicIpOnLaunch")] or found
    if not found:
        vpc = backend_keys.get("vpc")
        raise ClusterFileError(
            f"{where}: {f'VPC {vpc}' if vpc else f'the default VPC of {account.region}'} has no subnets"
            f"{'' if vpc else ', or there is none'}. Name some with subnets = [...] in clusters.toml"
            f"{'' if vpc else ', or make one: aws ec2 create-default-vpc --region ' + account.region}"
        )
    vpcs = sorted({subnet["VpcId"] for subnet in found})
    if len(vpcs) > 1:
        raise ClusterFileError(f"{where}: its subnets belong to {len(vpcs)} VPCs ({', '.join(vpcs)}), but must be of one")
    return vpcs[0], tuple(Zone(subnet["AvailabilityZone"], subnet["SubnetId"]) for subnet in found)


def find_caller_cidr(backend_keys: Mapping[str, Any], check_ip: str = CHECK_IP) -> str:
    """Return the network that may log in: the cluster file's, or only this machine's address as Amazon sees it."""
    if given := backend_keys.get("caller_cidr"):
        return str(ipaddress.IPv4Network(given))  # Amazon requires the prefix length, even of a single address
    try:
        with urllib.request.urlopen(check_ip, timeout=_ANSWER_S) as answer:
            address = ipaddress.IPv4Address(answer.read(64).decode("ascii", "replace").strip())
    except (OSError, ValueError) as error:
        raise AllocationError(
            f"cannot find out from which address Amazon is reached ({check_ip}: {error}). "
            'Set it in clusters.toml: caller_cidr = "203.0.113.7/32"'
        ) from error
    return f"{address}/32"


def _read_parameter(account: Account, name: str, where: str) -> str:
    try:
        return account.ssm.get_parameter(Name=name)["Parameter"]["Value"]
    except ClientError as error:
        if refusals.get_code(error) not in ("ParameterNotFound", "ValidationException"):
            raise
        raise ClusterFileError(
            f"{where}: Systems Manager knows no parameter {name!r} in {account.region}. Name an image with ami, or another "
            "parameter with ami_parameter"
        ) from error


def _list_subnets(account: Account, vpc: str | None) -> list["SubnetTypeDef"]:
    which: FilterTypeDef = {"Name": "vpc-id", "Values": [vpc]} if vpc else {"Name": "default-for-az", "Values": ["true"]}
    pages = account.ec2.get_paginator("describe_subnets").paginate(Filters=[which])
    found = [subnet for page in pages for subnet in page["Subnets"]]
    return sorted(found, key=lambda subnet: (subnet["AvailabilityZone"], subnet["SubnetId"]))
