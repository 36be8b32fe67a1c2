"""The properties of instance types."""

from typing import Any

import pytest
from moto.ec2.models.instance_types import INSTANCE_TYPES

from pytest_dtfperf.clusters.ec2 import instance_types
from pytest_dtfperf.clusters.ec2.instance_types import Offer
from pytest_dtfperf.errors import AllocationError, ClusterFileError
from tests.clusters.ec2.stubbed import StubbedAccount


@pytest.mark.parametrize(
    "name, gpus, model, vcpus, baseline_gbps, bursts, efa",
    [
        ("t3.micro", 0, None, 2, 0.064, True, 0),
        ("g4dn.xlarge", 1, "T4", 4, 5.0, True, 0),
        ("g5.12xlarge", 4, "A10G", 48, 40.0, False, 1),
        ("g6f.large", 1, "L4", 2, None, None, 0),
        ("p4d.24xlarge", 8, "A100", 96, 100.0, False, 4),
        ("p5.48xlarge", 8, "H100", 192, None, None, 32),
    ],
)  # fmt: skip
def test_offer_is_read(
    name: str, gpus: int, model: str | None, vcpus: int, baseline_gbps: float | None,
    bursts: bool | None, efa: int,
) -> None:  # fmt: skip
    """GPUs (a part of one counts as one), vCPUs and EFA; of several network cards, the first one's speed."""
    found = instance_types.parse_offer(INSTANCE_TYPES[name])

    assert (found.instance_type, found.gpus, found.gpu_model) == (name, gpus, model)
    assert (found.vcpus, found.efa_interfaces) == (vcpus, efa)
    if baseline_gbps is not None:
        assert (found.baseline_gbps, found.bursts) == (baseline_gbps, bursts)


def test_every_known_type_is_read() -> None:
    """None of more than a thousand types lacks what is read, and those with a GPU model have GPUs."""
    found = [instance_types.parse_offer(info) for info in INSTANCE_TYPES.values()]

    assert len(found) > 1000
    assert all((each.gpus > 0) == (each.gpu_model is not None) for each in found)
    assert all(each.vcpus > 0 and each.usage_classes and each.architectures for each in found)


def test_minimal_entry_is_read() -> None:
    """A property that EC2 leaves out is unknown or zero."""
    found = instance_types.parse_offer({"InstanceType": "z9.large", "VCpuInfo": {"DefaultVCpus": 2}})  # type: ignore[typeddict-item]

    assert (found.gpus, found.gpu_model, found.baseline_gbps, found.bursts, found.efa_interfaces) == (0, None, None, False, 0)
    assert str(found) == "z9.large (no GPU, 2 vCPUs, unknown)"


def test_offer_has_a_short_description() -> None:
    """An offer's text has the type, GPUs, vCPUs and network."""
    assert str(instance_types.parse_offer(INSTANCE_TYPES["g5.12xlarge"])) == "g5.12xlarge (4 x A10G, 48 vCPUs, 40 Gbit/s)"


def test_second_query_is_answered_from_the_disk() -> None:
    """The second query is answered from the disk, and so is the number of GPUs in any region."""
    account = StubbedAccount()
    account.answer(
        "ec2", "describe_instance_types", {"InstanceTypes": [_make_entry("g5.12xlarge")]}, InstanceTypes=["g5.12xlarge"]
    )

    assert instance_types.get_known_gpus({"instance_type": "g5.12xlarge"}) is None
    found = [instance_types.get_offer(account.account, "g5.12xlarge") for _ in range(2)]

    account.assert_all_asked()
    assert found == [instance_types.parse_offer(INSTANCE_TYPES["g5.12xlarge"])] * 2
    assert instance_types.get_known_gpus({"instance_type": "g5.12xlarge", "region": "elsewhere"}) == 4


def test_missing_gpus_are_known() -> None:
    """A type without GPUs has zero GPUs, and an unknown type None."""
    account = StubbedAccount()
    account.answer("ec2", "describe_instance_types", {"InstanceTypes": [_make_entry("t3.micro")]})
    instance_types.get_offer(account.account, "t3.micro")

    assert instance_types.get_known_gpus({"instance_type": "t3.micro"}) == 0
    assert instance_types.get_known_gpus({}) is None


@pytest.mark.parametrize("code", ["InvalidInstanceType", "InvalidParameterValue"])
def test_unknown_type(code: str) -> None:
    """An unknown type is refused with the region, similar types and a command that lists all, and is not cached."""
    account = StubbedAccount()
    account.refuse("ec2", "describe_instance_types", code)
    offered = ["t3.micro", "g5.xlarge", "g5.8xlarge", "g6.xlarge", "p4d.24xlarge", "m5.xlarge"]
    account.answer(
        "ec2",
        "describe_instance_type_offerings",
        {"InstanceTypeOfferings": [{"InstanceType": name, "Location": "eu-west-1"} for name in offered]},
        LocationType="region",
    )

    with pytest.raises(ClusterFileError) as error:
        instance_types.get_offer(account.account, "p2.xlarge")

    assert str(error.value) == (
        "region eu-west-1 offers no instance type 'p2.xlarge'. Nearest there: g6.xlarge, g5.xlarge, p4d.24xlarge, g5.8xlarge. "
        "All: aws ec2 describe-instance-types --region eu-west-1"
    )
    assert instance_types.get_known_gpus({"instance_type": "p2.xlarge"}) is None


def test_refused_query() -> None:
    """A refused query is reported as such, and not as an unknown type."""
    account = StubbedAccount()
    account.refuse(
        "ec2", "describe_instance_types", "UnauthorizedOperation", "You are not authorized to perform this operation."
    )

    with pytest.raises(AllocationError, match=r"what g5.xlarge is could not be found out: .*ec2:DescribeInstanceTypes"):
        instance_types.get_offer(account.account, "g5.xlarge")


@pytest.mark.parametrize(
    "asked, first",
    [
        pytest.param("g5.xlage", "g5.xlarge", id="a letter lost"),
        pytest.param("p2.xlarge", "g6.xlarge", id="gone: a GPU type of that size"),
        pytest.param("p3.16xlarge", "g5.16xlarge", id="gone: a GPU type of that size"),
        pytest.param("m5.hugh", "m5.xlarge", id="a size that is none"),
        pytest.param("c5", "c5.large", id="a family without a size"),
    ],
)
def test_nearest(asked: str, first: str) -> None:
    """The intended type is among the first suggestions."""
    near = instance_types.find_nearest(asked, INSTANCE_TYPES)

    assert first in near
    assert len(near) <= 6


def test_nearest_without_types() -> None:
    """A region without types has no suggestions, and an empty name has one."""
    assert instance_types.find_nearest("p2.xlarge", []) == []
    assert instance_types.find_nearest("", ["g5.xlarge"]) == ["g5.xlarge"]


@pytest.mark.parametrize(
    "name, backend_keys, words",
    [
        ("g5.12xlarge", {"spot": True, "placement": "cluster", "efa": True}, None),
        ("t3.micro", {}, None),
        (
            "t3.micro",
            {"placement": "cluster"},
            "t3.micro cannot have placement = 'cluster': leave it out, or take a larger type",
        ),
        ("g4dn.xlarge", {"efa": True}, "g4dn.xlarge has no EFA: leave efa out, or take a larger type"),
    ],
)
def test_unsupported_keys_are_reported(name: str, backend_keys: dict[str, Any], words: str | None) -> None:
    """A key that the type does not support is reported before a launch."""
    assert instance_types.find_problem(instance_types.parse_offer(INSTANCE_TYPES[name]), backend_keys) == words


@pytest.mark.parametrize(
    "usage, spot, words",
    [
        (["on-demand"], True, "z is not offered as spot instance: leave spot out, but as: on-demand"),
        (
            ["capacity-block"],
            False,
            "z is not offered on demand: capacity blocks must be bought before, but as: capacity-block",
        ),
    ],
)
def test_unsupported_usage_is_reported(usage: list[str], spot: bool, words: str) -> None:
    """A type that does not exist on demand, or as spot instance, is reported."""
    only = Offer("z", 0, None, 2, None, None, "low", 0, [], usage, ["x86_64"])
    assert instance_types.find_problem(only, {"spot": spot}) == words


def _make_entry(name: str) -> Any:
    """An entry as EC2 sends it: without keys that have no value."""
    return {key: value for key, value in INSTANCE_TYPES[name].items() if value is not None}
