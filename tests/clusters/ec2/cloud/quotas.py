"""Quotas: how many virtual CPUs an account may run at once, by family, on demand and spot."""

from typing import Any

from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models.instance_types import INSTANCE_TYPES
from moto.ec2.responses._base_response import EC2BaseResponse

from tests.clusters.ec2.cloud import world

# Family -> (on demand, spot), and the names that Service Quotas gives them.
CODES = {
    "P": ("L-417A185B", "L-7212CCBC"),
    "G": ("L-DB2E81BA", "L-3819A6DF"),
    "Standard": ("L-1216C47A", "L-34B43A08"),
}
NAMES = {
    "L-417A185B": "Running On-Demand P instances",
    "L-7212CCBC": "All P4, P3 and P2 Spot Instance Requests",
    "L-DB2E81BA": "Running On-Demand G and VT instances",
    "L-3819A6DF": "All G and VT Spot Instance Requests",
    "L-1216C47A": "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances",
    "L-34B43A08": "All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests",
}
PLENTY = 10_000.0
limits: dict[str, float] = {}  # code -> virtual CPUs; what is not named is PLENTY


def code_of(kind: str, spot: bool) -> str:
    family = {"p": "P", "g": "G", "v": "G"}.get(kind[0], "Standard")
    return CODES[family][spot]


def answer(code: str) -> dict[str, Any] | None:
    """The answer of GetServiceQuota, None for a code that does not exist."""
    if code not in NAMES:
        return None
    quota = {"ServiceCode": "ec2", "ServiceName": "Amazon Elastic Compute Cloud (Amazon EC2)", "QuotaCode": code}
    return {"Quota": {**quota, "QuotaName": NAMES[code], "Value": limits.get(code, PLENTY), "Unit": "None", "Adjustable": True}}


def check(request: EC2BaseResponse, kind: str, count: int) -> None:
    """Refuse what goes beyond the quota, as RunInstances does."""
    spot = (request._get_param("InstanceMarketOptions") or {}).get("MarketType") == "spot"
    code = code_of(kind, spot)
    alive = [i for i in world.get_world().instances() if i.state in ("pending", "running")]
    running = sum(_vcpus(i.instance_type) for i in alive if code_of(i.instance_type, i.lifecycle == "spot") == code)
    limit = limits.get(code, PLENTY)
    if running + count * _vcpus(kind) <= limit:
        return
    if spot:
        raise EC2ClientError("MaxSpotInstanceCountExceeded", "Max spot instance count exceeded")
    message = (
        f"You have requested more vCPU capacity than your current vCPU limit of {limit:.0f} allows for the instance bucket "
        "that the specified instance type belongs to. Please visit http://aws.amazon.com/contact-us/ec2-request to request an "
        "adjustment to this limit."
    )
    raise EC2ClientError("VcpuLimitExceeded", message)


def _vcpus(kind: str) -> int:
    return int(INSTANCE_TYPES[kind]["VCpuInfo"]["DefaultVCpus"])
