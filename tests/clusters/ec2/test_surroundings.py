"""What a launch asks for before it begins: image, subnets, and from where we knock."""

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
def test_the_newest_image_for_a_type(cloud: Cloud, account: Account, kind: str, name: str) -> None:
    """Where none is named, a type with GPUs gets Amazon's image with their driver, another one a plain one."""
    assert image(account, kind).id == getattr(cloud, name)


@pytest.mark.parametrize("architectures, in_it", [(["x86_64"], "x86_64"), (["arm64"], "arm64"), (["i386", "x86_64"], "x86_64")])
def test_images_are_for_an_architecture(account: Account, architectures: list[str], in_it: str) -> None:
    """The parameter asked for is that of the type's processors."""
    offer = replace(instance_types.get_offer(account, "g4dn.xlarge"), architectures=architectures)
    assert f"/{in_it}/" in launcher.get_default_image_parameter(offer)


def test_an_image_by_its_id_or_its_parameter(cloud: Cloud, account: Account) -> None:
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
def test_images_that_do_not_serve(account: Account, backend_keys: Mapping[str, str], words: str) -> None:
    """An unknown image, an unknown parameter and the wrong processor are found before anything is made."""
    with pytest.raises(ClusterFileError, match=words):
        image(account, **backend_keys)


@pytest.mark.parametrize("given, least, gib", [(None, 8, 100), (None, 135, 135), (60, 8, 60)])
def test_how_large_a_volume_is(given: int | None, least: int, gib: int) -> None:
    """As the cluster file says, or 100 GiB, or what the image needs if that is more."""
    backend_keys = {"volume_gib": given} if given else {}
    assert launcher.compute_volume_gib(backend_keys, Image("ami", "/dev/sda1", least)) == gib


def test_named_subnets_are_tried_in_their_order(cloud: Cloud, account: Account) -> None:
    """Amazon lists them as it likes."""
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


def test_subnets_without_a_way_out_are_not_chosen(cloud: Cloud, account: Account) -> None:
    """For public addresses, subnets that give them go before those that do not; named ones are taken as they are."""
    ec2 = client()
    hidden = ec2.create_subnet(VpcId=cloud.vpc, CidrBlock=_another(cloud), AvailabilityZone="us-east-1c")["Subnet"]["SubnetId"]
    assert hidden not in {zone.subnet for zone in launcher.find_zones(account, {"vpc": cloud.vpc}, "here")[1]}
    private = {"vpc": cloud.vpc, "address": "private"}
    assert hidden in {zone.subnet for zone in launcher.find_zones(account, private, "here")[1]}
    assert [zone.subnet for zone in launcher.find_zones(account, {"subnets": [hidden]}, "here")[1]] == [hidden]


def _another(cloud: Cloud) -> str:
    """A range of addresses of the VPC's that no subnet has yet."""
    ec2 = client()
    ec2.associate_vpc_cidr_block(VpcId=cloud.vpc, CidrBlock="10.99.0.0/24")
    return "10.99.0.0/24"


def test_the_default_vpc(account: Account) -> None:
    """Where nothing is said, the default subnet of every zone is tried."""
    vpc, zones = launcher.find_zones(account, {}, "here")
    (default,) = client().describe_vpcs(Filters=[{"Name": "is-default", "Values": ["true"]}])["Vpcs"]
    assert vpc == default["VpcId"]
    assert len(zones) > 1
    assert list(zones) == sorted(zones, key=lambda zone: zone.name)


def test_no_default_vpc(account: Account) -> None:
    """Where there is none, the message says how to name subnets, and how to make one."""
    ec2 = client()
    for subnet in ec2.describe_subnets(Filters=[{"Name": "default-for-az", "Values": ["true"]}])["Subnets"]:
        ec2.delete_subnet(SubnetId=subnet["SubnetId"])
    with pytest.raises(
        ClusterFileError, match=r"the default VPC of us-east-1 has no subnets, or there is none\. Name some with"
    ):
        launcher.find_zones(account, {}, "here")


def test_a_vpc_without_subnets(account: Account) -> None:
    """It is named."""
    with pytest.raises(ClusterFileError, match=r"VPC vpc-0badbad has no subnets\. Name some with"):
        launcher.find_zones(account, {"vpc": "vpc-0badbad"}, "here")


def test_subnets_of_two_vpcs(cloud: Cloud, account: Account) -> None:
    """One security group cannot hold instances of both, so they are refused before it is made."""
    default = launcher.find_zones(account, {}, "here")[1][0].subnet
    with pytest.raises(ClusterFileError, match="its subnets belong to 2 VPCs"):
        launcher.find_zones(account, {"subnets": [default, *cloud.subnets.values()]}, "here")


def test_from_where_logins_come(cloud: Cloud) -> None:
    """The cluster file's word counts; without one, Amazon is asked how it sees us, and that address alone is let in."""
    assert launcher.find_caller_cidr({"caller_cidr": "10.0.0.0/16"}, cloud.check_ip) == "10.0.0.0/16"
    assert launcher.find_caller_cidr({}, cloud.check_ip) == f"{cloud.caller}/32"


@pytest.mark.parametrize("given, sent", [("203.0.113.7", "203.0.113.7/32"), ("10.0.0.0/255.0.0.0", "10.0.0.0/8")])
def test_a_network_as_amazon_writes_it(given: str, sent: str) -> None:
    """An address alone, or a mask of bytes, is what Amazon calls malformed: it is told the same with the network's length."""
    assert launcher.find_caller_cidr({"caller_cidr": given}) == sent


@pytest.mark.parametrize("path", ["/", "/nowhere"])
def test_nobody_tells_from_where(cloud: Cloud, path: str) -> None:
    """What is no address, a web page for instance, is not let in; the message says how to go on."""
    with pytest.raises(AllocationError, match=r"cannot find out from which address .* caller_cidr = "):
        launcher.find_caller_cidr({}, cloud.url + path)


def test_nobody_answers() -> None:
    """The same where there is no network."""
    with pytest.raises(AllocationError, match="cannot find out from which address"):
        launcher.find_caller_cidr({}, "http://127.0.0.1:9/")
