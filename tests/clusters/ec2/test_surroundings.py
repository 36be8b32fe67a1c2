"""The environment of a launch: image, subnets, and the caller's address."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from pytest_dtfperf.clusters.ec2 import instance_types, launcher
from pytest_dtfperf.clusters.ec2.account import Account
from pytest_dtfperf.clusters.ec2.launcher import Image
from pytest_dtfperf.clusters.ec2.plan import Zone
from pytest_dtfperf.errors import AllocationError, ClusterFileError
from tests.clusters.ec2 import runs
from tests.clusters.ec2.cloud.cloud import Cloud
from tests.clusters.ec2.cloud.hands import client


@pytest.fixture
def account(cloud: Cloud) -> Account:
    return runs.account(cloud)


def image(account: Account, kind: str = "g4dn.xlarge", **backend_keys: Any) -> Image:
    return launcher.find_image(account, backend_keys, instance_types.get_offer(account, kind), "cluster 'mine'")


@pytest.mark.parametrize("kind, name", [("g4dn.xlarge", "image"), ("c5.large", "plain_image")])
def test_default_image_of_a_type(cloud: Cloud, account: Account, kind: str, name: str) -> None:
    """The default image has a GPU driver for types with GPUs, and is a plain one for others."""
    assert image(account, kind).id == getattr(cloud, name)


@pytest.mark.parametrize("architectures, in_it", [(["x86_64"], "x86_64"), (["arm64"], "arm64"), (["i386", "x86_64"], "x86_64")])
def test_images_are_for_an_architecture(account: Account, architectures: list[str], in_it: str) -> None:
    """The parameter of the default image is that of the type's architecture."""
    offer = replace(instance_types.get_offer(account, "g4dn.xlarge"), architectures=architectures)
    assert f"/{in_it}/" in launcher.get_default_image_parameter(offer)


def test_image_by_id_or_parameter(cloud: Cloud, account: Account) -> None:
    """Either names it; a parameter is looked up once, so that a repeated launch is the same."""
    client("ssm").put_parameter(Name="/mine/image", Value=cloud.image, Type="String")
    assert image(account, ami=cloud.image) == image(account, ami_parameter="/mine/image")


@pytest.mark.parametrize(
    "backend_keys, words",
    [
        ({"ami": "ami-0badbadbadbadbad0"}, "there is no image ami-0badbadbadbadbad0 in us-east-1"),
        ({"ami_parameter": "/none"}, "Systems Manager knows no parameter '/none' in us-east-1"),
        ({"ami": Cloud.arm_image}, f"image {Cloud.arm_image} is made for arm64, but g4dn.xlarge is x86_64"),
    ],
)
def test_unusable_images(account: Account, backend_keys: Mapping[str, str], words: str) -> None:
    """An unknown image, an unknown parameter and the wrong architecture are refused before anything is made."""
    with pytest.raises(ClusterFileError, match=words):
        image(account, **backend_keys)


@pytest.mark.parametrize("given, least, gib", [(None, 8, 100), (None, 135, 135), (60, 8, 60)])
def test_size_of_a_volume(given: int | None, least: int, gib: int) -> None:
    """A volume has the size in the cluster file, or 100 GiB, or the image's size if that is larger."""
    backend_keys = {"volume_gib": given} if given else {}
    assert launcher.compute_volume_gib(backend_keys, Image("ami", "/dev/sda1", least)) == gib


def test_named_subnets_are_tried_in_their_order(cloud: Cloud, account: Account) -> None:
    """Subnets are tried in the order of the cluster file, not of Amazon's answer."""
    b, a = cloud.subnets["us-east-1b"], cloud.subnets["us-east-1a"]
    assert launcher.find_zones(account, {"subnets": [b, a]}, "here") == (
        cloud.vpc,
        (Zone("us-east-1b", b), Zone("us-east-1a", a)),
    )


def test_all_subnets_of_a_vpc(cloud: Cloud, account: Account) -> None:
    """Those of the VPC that is named, in the order of their zones."""
    vpc, zones = launcher.find_zones(account, {"vpc": cloud.vpc}, "here")
    assert vpc == cloud.vpc
    assert [zone.name for zone in zones] == ["us-east-1a", "us-east-1b"]


def test_private_subnets_are_not_used_for_public_addresses(cloud: Cloud, account: Account) -> None:
    """Subnets that give no public addresses are used only for private instances, or if they are named."""
    ec2 = client()
    hidden = ec2.create_subnet(VpcId=cloud.vpc, CidrBlock=_add_range(cloud), AvailabilityZone="us-east-1c")["Subnet"][
        "SubnetId"
    ]
    assert hidden not in {zone.subnet for zone in launcher.find_zones(account, {"vpc": cloud.vpc}, "here")[1]}
    private = {"vpc": cloud.vpc, "address": "private"}
    assert hidden in {zone.subnet for zone in launcher.find_zones(account, private, "here")[1]}
    assert [zone.subnet for zone in launcher.find_zones(account, {"subnets": [hidden]}, "here")[1]] == [hidden]


def _add_range(cloud: Cloud) -> str:
    """A range of addresses of the VPC's that no subnet has yet."""
    ec2 = client()
    ec2.associate_vpc_cidr_block(VpcId=cloud.vpc, CidrBlock="10.99.0.0/24")
    return "10.99.0.0/24"


def test_default_vpc(account: Account) -> None:
    """The default subnets of all zones are used without a setting."""
    vpc, zones = launcher.find_zones(account, {}, "here")
    (default,) = client().describe_vpcs(Filters=[{"Name": "is-default", "Values": ["true"]}])["Vpcs"]
    assert vpc == default["VpcId"]
    assert len(zones) > 1
    assert list(zones) == sorted(zones, key=lambda zone: zone.name)


def test_missing_default_vpc(account: Account) -> None:
    """A missing default VPC is an error with the setting that names subnets."""
    ec2 = client()
    for subnet in ec2.describe_subnets(Filters=[{"Name": "default-for-az", "Values": ["true"]}])["Subnets"]:
        ec2.delete_subnet(SubnetId=subnet["SubnetId"])
    with pytest.raises(
        ClusterFileError, match=r"the default VPC of us-east-1 has no subnets, or there is none\. Name some with"
    ):
        launcher.find_zones(account, {}, "here")


def test_vpc_without_subnets(account: Account) -> None:
    """A VPC without subnets is named in the error."""
    with pytest.raises(ClusterFileError, match=r"VPC vpc-0badbad has no subnets\. Name some with"):
        launcher.find_zones(account, {"vpc": "vpc-0badbad"}, "here")


def test_subnets_of_two_vpcs(cloud: Cloud, account: Account) -> None:
    """One security group cannot hold instances of both, so they are refused before it is made."""
    default = launcher.find_zones(account, {}, "here")[1][0].subnet
    with pytest.raises(ClusterFileError, match="its subnets belong to 2 VPCs"):
        launcher.find_zones(account, {"subnets": [default, *cloud.subnets.values()]}, "here")


def test_caller_network(cloud: Cloud) -> None:
    """The network in the cluster file is used; without one, the address that Amazon sees."""
    assert launcher.find_caller_cidr({"caller_cidr": "10.0.0.0/16"}, cloud.check_ip) == "10.0.0.0/16"
    assert launcher.find_caller_cidr({}, cloud.check_ip) == f"{cloud.caller}/32"


@pytest.mark.parametrize("given, sent", [("203.0.113.7", "203.0.113.7/32"), ("10.0.0.0/255.0.0.0", "10.0.0.0/8")])
def test_network_is_normalised(given: str, sent: str) -> None:
    """An address, or a network with a mask of bytes, is sent as a network with its length."""
    assert launcher.find_caller_cidr({"caller_cidr": given}) == sent


@pytest.mark.parametrize("path", ["/", "/nowhere"])
def test_invalid_caller_address(cloud: Cloud, path: str) -> None:
    """An answer that is no address, such as a web page, is refused with a hint."""
    with pytest.raises(AllocationError, match=r"cannot find out from which address .* caller_cidr = "):
        launcher.find_caller_cidr({}, cloud.url + path)


def test_unreachable_address_service() -> None:
    """An unreachable address service is an error."""
    with pytest.raises(AllocationError, match="cannot find out from which address"):
        launcher.find_caller_cidr({}, "http://127.0.0.1:9/")
