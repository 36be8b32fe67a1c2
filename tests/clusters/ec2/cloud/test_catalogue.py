"""Prices, images and instance types, which are read before a launch."""

import json

import pytest

from tests.clusters.ec2.cloud.cloud import Cloud
from tests.clusters.ec2.cloud.hands import client, get_refusal


def test_price_list(cloud: Cloud) -> None:
    """A complete query gets one price, an incomplete one several, and one for an unknown type none."""

    def products(**fields: str) -> list[str]:
        filters = [{"Type": "TERM_MATCH", "Field": name, "Value": value} for name, value in fields.items()]
        answer: list[str] = client("pricing").get_products(ServiceCode="AmazonEC2", Filters=filters)["PriceList"]
        return answer

    usual = {"operatingSystem": "Linux", "tenancy": "Shared", "preInstalledSw": "NA", "capacitystatus": "Used"}
    (one,) = products(instanceType="g5.xlarge", regionCode="us-east-1", **usual)
    dimensions = next(iter(json.loads(one)["terms"]["OnDemand"].values()))["priceDimensions"]
    assert float(next(iter(dimensions.values()))["pricePerUnit"]["USD"]) == pytest.approx(1.006)
    assert len(products(instanceType="g5.xlarge", regionCode="us-east-1")) > 1
    assert products(instanceType="p2.xlarge", regionCode="us-east-1", **usual) == []


def test_spot_prices(cloud: Cloud) -> None:
    """Spot prices are listed by zone, the newest first, and only for types that have one."""
    history = client().describe_spot_price_history(InstanceTypes=["g5.xlarge"], ProductDescriptions=["Linux/UNIX"])
    entries = history["SpotPriceHistory"]
    assert {"us-east-1a", "us-east-1b"} <= {each["AvailabilityZone"] for each in entries}
    assert [each["Timestamp"] for each in entries] == sorted((each["Timestamp"] for each in entries), reverse=True)
    assert client().describe_spot_price_history(InstanceTypes=["p2.xlarge"])["SpotPriceHistory"] == []


@pytest.mark.parametrize("region", ["us-east-1", "eu-central-1"])
def test_images_by_parameter(cloud: Cloud, region: str) -> None:
    """The parameters that name Amazon's deep learning images lead to an image that can be launched."""
    name = "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id"
    image = client("ssm", region_name=region).get_parameter(Name=name)["Parameter"]["Value"]
    assert image == cloud.image
    found = client(region_name=region).describe_images(ImageIds=[image])["Images"]
    assert [(each["Architecture"], each["RootDeviceName"]) for each in found] == [("x86_64", "/dev/sda1")]
    assert get_refusal(lambda: client("ssm").get_parameter(Name="/aws/service/none"))[0] == "ParameterNotFound"


def test_types_are_described(cloud: Cloud) -> None:
    """A type's GPUs are described by the API, and retired types are unknown."""
    (kind,) = client().describe_instance_types(InstanceTypes=["g5.12xlarge"])["InstanceTypes"]
    assert (kind["GpuInfo"]["Gpus"][0]["Name"], kind["GpuInfo"]["Gpus"][0]["Count"]) == ("A10G", 4)
    assert get_refusal(lambda: client().describe_instance_types(InstanceTypes=["p2.xlarge"]))[0] == "InvalidInstanceType"
