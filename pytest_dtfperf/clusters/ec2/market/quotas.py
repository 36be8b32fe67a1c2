"""How many vCPUs an account may run at once. EC2 counts them per group of families, and says no in words that name neither.

The quotas' codes and names: docs.aws.amazon.com/ec2/latest/instancetypes/ec2-instance-quotas.html (2026-11).
"""

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from botocore.exceptions import BotoCoreError, ClientError

from pytest_dtfperf.clusters.ec2.market.offers import Offer

if TYPE_CHECKING:
    from pytest_dtfperf.clusters.ec2.amazon.account import Account


@dataclass(frozen=True)
class Quota:
    """A number of vCPUs that all running instances of some families share."""

    code: str
    name: str


# Which families, by the letters that their names begin with -> on demand, spot.
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
    (r"p\d", _P, None),  # no page says yet which one counts the spot instances of later families
    (r"(a|c|d|h|i|im|is|m|r|t|z)\d", _STANDARD, _STANDARD_SPOT),
)


def find_quota(instance_type: str, *, spot: bool) -> Quota | None:
    """The quota that counts a type's vCPUs, where it is known."""
    for families, on_demand, on_spot in _QUOTAS:
        if re.match(families, instance_type):
            return on_spot if spot else on_demand
    return None


def get_quota_vcpus(account: "Account", quota: Quota) -> float | None:
    """How many vCPUs the account may have there, in its region; None if it is not told."""
    try:
        answer = account.quotas.get_service_quota(ServiceCode="ec2", QuotaCode=quota.code)
    except (BotoCoreError, ClientError):  # it makes a message better, and is worth no message of its own
        return None
    return answer["Quota"]["Value"]


def explain_quota(account: "Account", offer: Offer, count: int, *, spot: bool) -> str:
    """What stands behind VcpuLimitExceeded and its like, and what can be done."""
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
