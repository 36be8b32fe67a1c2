"""What Amazon's refusals mean."""

import pytest
from botocore.exceptions import ClientError

from pytest_dtfperf.clusters.ec2.amazon import refusals
from pytest_dtfperf.clusters.ec2.amazon.refusals import Refusal


def refusal(code: str, message: str = "no", operation: str = "RunInstances", status: int = 400) -> ClientError:
    return ClientError(
        {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": status}},  # type: ignore[typeddict-item]
        operation,
    )


@pytest.mark.parametrize(
    "code, status, kind",
    [
        ("InsufficientInstanceCapacity", 500, Refusal.NO_CAPACITY),
        ("InsufficientReservedInstanceCapacity", 500, Refusal.NO_CAPACITY),
        ("Unsupported", 400, Refusal.NO_CAPACITY),
        ("SpotMaxPriceTooLow", 400, Refusal.NO_CAPACITY),
        ("InsufficientFreeAddressesInSubnet", 400, Refusal.NO_CAPACITY),
        ("RequestLimitExceeded", 503, Refusal.TRANSIENT),
        ("InternalError", 500, Refusal.TRANSIENT),
        ("SomethingNew", 500, Refusal.TRANSIENT),
        ("InvalidGroup.NotFound", 400, Refusal.TRANSIENT),
        ("IdempotentInstanceTerminated", 400, Refusal.USED_UP),
        ("VcpuLimitExceeded", 400, Refusal.FINAL),
        ("MaxSpotInstanceCountExceeded", 400, Refusal.FINAL),
        ("UnauthorizedOperation", 403, Refusal.FINAL),
        ("InvalidAMIID.NotFound", 400, Refusal.FINAL),
        ("IdempotentParameterMismatch", 400, Refusal.FINAL),
    ],
)
def test_what_to_do(code: str, status: int, kind: Refusal) -> None:
    """Missing capacity looks like a broken server and must not be repeated; quotas and rights do not change by waiting."""
    assert refusals.kind_of(code, status) is kind


@pytest.mark.parametrize(
    "reason, lacks, reclaimed",
    [
        ("Server.InsufficientInstanceCapacity: Insufficient capacity to satisfy instance request", True, False),
        ("Server.SpotInstanceTermination: Instance terminated due to Spot interruption", False, True),
        ("Client.UserInitiatedShutdown: User initiated shutdown", False, False),
        ("", False, False),
    ],
)
def test_why_an_instance_has_ended(reason: str, lacks: bool, reclaimed: bool) -> None:
    """Of instances that were accepted, too, Amazon may find that there is no room; and spot instances it takes back."""
    assert (refusals.lacks_capacity(reason), refusals.was_reclaimed(reason)) == (lacks, reclaimed)


@pytest.mark.parametrize(
    "error, words",
    [
        (
            refusal("UnauthorizedOperation", "You are not authorized. Encoded authorization failure message: a1b2"),
            "me may not call ec2:RunInstances: add it to the policy (docs/ec2-policy.json has all that are needed). Amazon",
        ),
        (
            refusal("UnauthorizedOperation", "User: me is not authorized to perform: ec2:CreateTags on resource: x"),
            "me may not call ec2:CreateTags",
        ),
        (refusal("AccessDeniedException", "no", "GetParameter"), "me may not call ssm:GetParameter"),
        (refusal("ExpiredToken"), "the AWS credentials have expired (ExpiredToken)"),
        (refusal("RequestExpired"), "the AWS credentials have expired"),
        (refusal("AuthFailure", "AWS was not able"), "Amazon does not accept the AWS credentials (AuthFailure: AWS was not"),
        (refusal("OptInRequired", "You are not subscribed to this service"), "this account may not use EC2 in r1"),
        (refusal("OptInRequired", "accept terms in the AWS Marketplace"), "Accept the image's terms"),
        (refusal("InvalidAMIID.NotFound", "The image id '[ami-1]' does not exist"), "Images belong to one region"),
        (refusal("SomethingNew", "it is\n  new"), "Amazon refuses RunInstances in r1: it is new (SomethingNew)"),
    ],
)  # fmt: skip
def test_in_words(error: ClientError, words: str) -> None:
    """One line says what was refused, why, and how to go on; a missing right is named."""
    output = refusals.in_words(error, who="me", region="r1")
    assert words in output
    assert "\n" not in output
    assert "a1b2" not in output


def test_state_reason() -> None:
    """Code and message in one text; Amazon's messages often begin with the code already."""
    reason = {"Code": "Server.X", "Message": "Server.X: because"}
    assert refusals.state_reason({"StateReason": reason}) == "Server.X: because"
    assert refusals.state_reason({"StateReason": {"Code": "C", "Message": "m"}}) == "C: m"
    assert refusals.state_reason({"StateReason": {"Code": "", "Message": ""}}) == ""
    assert refusals.state_reason({}) == ""
