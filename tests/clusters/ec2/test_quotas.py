"""The quotas of vCPUs, and the message of an exceeded one."""

import pytest
from moto.ec2.models.instance_types import INSTANCE_TYPES

from pytest_dtfperf.clusters.ec2 import instance_types
from tests.clusters.ec2.stubbed import StubbedAccount


@pytest.mark.parametrize(
    "instance_type, on_demand, spot",
    [
        ("g4dn.xlarge", "L-DB2E81BA", "L-3819A6DF"),
        ("g6e.48xlarge", "L-DB2E81BA", "L-3819A6DF"),
        ("gr6.4xlarge", "L-DB2E81BA", "L-3819A6DF"),
        ("vt1.3xlarge", "L-DB2E81BA", "L-3819A6DF"),
        ("p3dn.24xlarge", "L-417A185B", "L-7212CCBC"),
        ("p4de.24xlarge", "L-417A185B", "L-7212CCBC"),
        ("p5en.48xlarge", "L-417A185B", "L-C4BD4855"),
        ("p6-b200.48xlarge", "L-417A185B", None),
        ("t3.micro", "L-1216C47A", "L-34B43A08"),
        ("c7i-flex.large", "L-1216C47A", "L-34B43A08"),
        ("im4gn.large", "L-1216C47A", "L-34B43A08"),
        ("mac2.metal", None, None),
        ("dl2q.24xlarge", None, None),
        ("trn1.2xlarge", None, None),
        ("hpc6a.48xlarge", None, None),
        ("inf2.xlarge", None, None),
        ("u-6tb1.56xlarge", None, None),
    ],
)
def test_quota_of_a_type(instance_type: str, on_demand: str | None, spot: str | None) -> None:
    """Each family is counted by the quota that Amazon's page gives for it; for one that is none of ours to know, by none."""
    found = [instance_types.find_quota(instance_type, spot=spot) for spot in (False, True)]

    assert [quota and quota.code for quota in found] == [on_demand, spot]


def test_every_gpu_type_has_a_quota() -> None:
    """No GPU type that can be had on demand is without the quota to ask for."""
    gpu_types = [name for name, info in INSTANCE_TYPES.items() if info.get("GpuInfo")]

    assert len(gpu_types) > 50
    assert [name for name in gpu_types if instance_types.find_quota(name, spot=False) is None] == []


def test_quota_message_has_numbers() -> None:
    """The message has the needed vCPUs, the quota with its code, and the command that requests more."""
    account = StubbedAccount()
    account.answer("quotas", "get_service_quota", {"Quota": {"Value": 8.0}}, ServiceCode="ec2", QuotaCode="L-DB2E81BA")

    words = instance_types.explain_quota(
        account.account, instance_types.parse_offer(INSTANCE_TYPES["g5.xlarge"]), 4, spot=False
    )

    assert words == (
        "4 x g5.xlarge need 16 vCPUs (4 each). In eu-west-1 this account's quota 'Running On-Demand G and VT instances' "
        "(L-DB2E81BA) is 8 vCPUs; all running instances of these families share it, and new accounts begin with few or none. "
        "Ask for fewer devices, end what else runs, or ask for more: aws service-quotas request-service-quota-increase "
        "--region eu-west-1 --service-code ec2 --quota-code L-DB2E81BA --desired-value 16"
    )
    account.assert_all_asked()


def test_quota_message_without_the_right_to_read_it() -> None:
    """The message has the quota's name and code without the right to read its value."""
    account = StubbedAccount()
    account.refuse("quotas", "get_service_quota", "AccessDeniedException")

    words = instance_types.explain_quota(
        account.account, instance_types.parse_offer(INSTANCE_TYPES["p4d.24xlarge"]), 1, spot=True
    )

    assert "1 x p4d.24xlarge need 96 vCPUs (96 each)" in words
    assert "'All P4, P3 and P2 Spot Instance Requests' (L-7212CCBC) is too small for that" in words


def test_quota_message_of_an_unknown_family() -> None:
    """The message names the page of all quotas if a family's quota is unknown."""
    words = instance_types.explain_quota(
        StubbedAccount().account, instance_types.parse_offer(INSTANCE_TYPES["trn1.2xlarge"]), 2, spot=False
    )

    assert words == (
        "2 x trn1.2xlarge need 16 vCPUs (8 each), which is more than this account may still run in eu-west-1. Ask for fewer "
        "devices, end what else runs, or ask for more at "
        "https://eu-west-1.console.aws.amazon.com/servicequotas/home/services/ec2/quotas"
    )
