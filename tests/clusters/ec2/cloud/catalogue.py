"""Prices, quotas and images. Numbers for tests, not a price list: an answer must be found by asking for the right thing."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from moto.ec2.models import ec2_backends
from moto.ec2.models.amis import Ami
from moto.ssm.models import Parameter, ssm_backends

from tests.clusters.ec2.cloud.guard import ACCOUNT

PRICES = {  # USD per hour: Linux, shared tenancy, nothing installed
    "t3.micro": 0.0104,
    "c5.large": 0.085,
    "c5.xlarge": 0.17,
    "m5.large": 0.096,
    "g4dn.xlarge": 0.526,
    "g4dn.12xlarge": 3.912,
    "g5.xlarge": 1.006,
    "g5.12xlarge": 5.672,
    "g5.48xlarge": 16.288,
    "g6.xlarge": 0.8048,
    "g6.12xlarge": 4.6016,
    "g6.48xlarge": 13.3504,
    "p3dn.24xlarge": 31.212,
    "p4d.24xlarge": 21.95,
    "p5.48xlarge": 55.04,
}
SPOT_PRICES = {kind: price * 0.4 for kind, price in PRICES.items()}
REGION_FACTORS = {"us-east-1": 1.0, "us-west-2": 1.0, "eu-central-1": 1.25}

# A query that leaves a field open gets these prices, too.
_VARIANTS: tuple[tuple[dict[str, str], float], ...] = (
    ({}, 1.0),
    ({"operatingSystem": "Windows", "licenseModel": "License Included"}, 1.9),
    ({"operatingSystem": "RHEL"}, 1.2),
    ({"tenancy": "Dedicated"}, 1.1),
    ({"preInstalledSw": "SQL Std"}, 3.0),
    ({"capacitystatus": "UnusedCapacityReservation"}, 1.0),
    ({"capacitystatus": "AllocatedCapacityReservation"}, 0.0),
)

IMAGE = "ami-0123456789abcdef0"  # a GPU image, x86_64
PLAIN_IMAGE = "ami-0fedcba9876543210"  # no drivers, x86_64
ARM_IMAGE = "ami-0a0b0c0d0e0f0a0b0"
_DEEP = "/aws/service/deeplearning/ami/{}/{}/latest/ami-id"
PARAMETERS = {
    _DEEP.format("x86_64", "base-oss-nvidia-driver-gpu-ubuntu-22.04"): IMAGE,
    _DEEP.format("x86_64", "base-oss-nvidia-driver-gpu-ubuntu-24.04"): IMAGE,
    _DEEP.format("x86_64", "base-oss-nvidia-driver-gpu-amazon-linux-2023"): IMAGE,
    _DEEP.format("x86_64", "oss-nvidia-driver-gpu-tensorflow-2.18-ubuntu-22.04"): IMAGE,
    _DEEP.format("arm64", "base-oss-nvidia-driver-gpu-ubuntu-22.04"): ARM_IMAGE,
    _DEEP.format("arm64", "base-oss-nvidia-driver-gpu-ubuntu-24.04"): ARM_IMAGE,
    "/aws/service/canonical/ubuntu/server/22.04/stable/current/amd64/hvm/ebs-gp2/ami-id": PLAIN_IMAGE,
    "/aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3/ami-id": PLAIN_IMAGE,
    "/aws/service/canonical/ubuntu/server/24.04/stable/current/arm64/hvm/ebs-gp3/ami-id": ARM_IMAGE,
}


def stock(region: str) -> None:
    """Put images and the parameters that name them into a region. By hand: moto reserves these names."""
    images, parameters = ec2_backends[ACCOUNT][region], ssm_backends[ACCOUNT][region]
    for image, architecture in ((IMAGE, "x86_64"), (PLAIN_IMAGE, "x86_64"), (ARM_IMAGE, "arm64")):
        images.amis[image] = Ami(
            images,
            image,
            name=f"pretend {architecture}",
            owner_id="898082745236",
            owner_alias="amazon",
            public=True,
            virtualization_type="hvm",
            architecture=architecture,
            root_device_type="ebs",
            root_device_name="/dev/sda1",
            region_name=f"{region}a",
        )
    for name, value in PARAMETERS.items():
        moment = datetime.now(UTC)
        parameter = Parameter(ACCOUNT, name, value, "String", None, None, None, moment, 1, "aws:ec2:image")  # type: ignore[abstract]
        parameters._parameters[name] = [parameter]


def products(request: dict[str, Any]) -> dict[str, Any]:
    """The answer of GetProducts."""
    wanted = {f["Field"]: f["Value"] for f in request.get("Filters", [])}
    found = [p for p in _products() if all(p["product"]["attributes"].get(k) == v for k, v in wanted.items())]
    start = int(request.get("NextToken") or 0)
    end = start + int(request.get("MaxResults") or 100)
    answer: dict[str, Any] = {"FormatVersion": "aws_v1", "PriceList": [json.dumps(p) for p in found[start:end]]}
    return {**answer, "NextToken": str(end)} if end < len(found) else answer


def _products() -> Iterator[dict[str, Any]]:
    for region, region_factor in REGION_FACTORS.items():
        for kind, price in PRICES.items():
            for variant, factor in _VARIANTS:
                attributes = {
                    "servicecode": "AmazonEC2",
                    "instanceType": kind,
                    "regionCode": region,
                    "locationType": "AWS Region",
                    "operatingSystem": "Linux",
                    "tenancy": "Shared",
                    "preInstalledSw": "NA",
                    "capacitystatus": "Used",
                    "licenseModel": "No License required",
                    "marketoption": "OnDemand",
                    **variant,
                }
                yield _product(attributes, price * region_factor * factor)


def _product(attributes: dict[str, str], usd: float) -> dict[str, Any]:
    dimension = {"unit": "Hrs", "beginRange": "0", "endRange": "Inf", "pricePerUnit": {"USD": f"{usd:.10f}"}}
    terms = {"OnDemand": {"SKU.JRTCKXETXF": {"priceDimensions": {"SKU.JRTCKXETXF.6YS6EN2CT7": dimension}}}}
    return {
        "product": {"productFamily": "Compute Instance", "attributes": attributes},
        "serviceCode": "AmazonEC2",
        "terms": terms,
    }
