"""The meaning of Amazon's refusals."""

import time
from email.utils import formatdate

import pytest
from botocore.exceptions import ClientError

from pytest_dtfperf.clusters.ec2 import refusals
from pytest_dtfperf.clusters.ec2.refusals import Refusal


def refusal(
    code: str, message: str = "no", operation: str = "RunInstances", status: int = 400, ahead_s: float | None = None
) -> ClientError:
    """Return an error as boto3 raises it; with `ahead_s`, of an Amazon with a clock that far behind this machine's."""
    metadata: dict[str, object] = {"HTTPStatusCode": status}
    if ahead_s is not None:
        metadata["HTTPHeaders"] = {"date": formatdate(time.time() - ahead_s, usegmt=True)}
    return ClientError(
        {"Error": {"Code": code, "Message": message}, "ResponseMetadata": metadata},  # type: ignore[typeddict-item]
        operation,
    )


NOT_AUTHORISED = "You are not authorized to perform this operation. User: me is not authorized to perform: ec2:RunInstances on "


@pytest.mark.parametrize(
    "message, words",
    [
        (
            "instance/* with an explicit deny in a service control policy. Encoded authorization failure message: g4oZ",
            "a service control policy denies it explicitly, and adding rights does not help. Ask the administrators of the org",
        ),
        (
            "resource: x with an explicit deny in a service control policy: arn:aws:organizations::1:policy/o-b2/p-v4",
            "denies it explicitly (arn:aws:organizations::1:policy/o-b2/p-v4), and adding",
        ),
        ("x with an explicit deny in a permissions boundary", "a permissions boundary denies it explicitly, and adding rights"),
        ("x with an explicit deny in a session policy", "does not help. Ask the issuer of these credentials"),
        ("x with an explicit deny in an identity-based policy", "an identity-based policy denies it explicitly, and adding"),
        ("x with an explicit deny in a VPC endpoint policy", "a VPC endpoint policy denies it explicitly"),
        ("x with an explicit deny", "a policy denies it explicitly"),
        (
            "x because no permissions boundary allows the ec2:RunInstances action",
            "no permissions boundary allows it, and adding",
        ),
        ("x because no service control policy allows the ec2:RunInstances action", "no service control policy allows it, and"),
    ],
)
@pytest.mark.parametrize("code", ["UnauthorizedOperation", "AccessDenied"])
def test_explicit_denial_names_the_policy(code: str, message: str, words: str) -> None:
    """The message of an explicit denial names the policy and its administrators, and does not advise to add rights."""
    output = refusals.format_refusal(refusal(code, NOT_AUTHORISED + message), principal="me", region="r1")
    assert output.startswith("me may not call ec2:RunInstances: ")
    assert words in output
    assert "add it to the policy" not in output
    assert "g4oZ" not in output


def test_missing_right_is_to_be_added() -> None:
    """The message of a missing right advises to add it, and shows how to decode Amazon's message."""
    allowed = "x because no identity-based policy allows the ec2:RunInstances action"
    assert "add it to the policy" in refusals.format_refusal(refusal("UnauthorizedOperation", NOT_AUTHORISED + allowed))
    encoded = "You are not authorized to perform this operation. Encoded authorization failure message: a1b2"
    output = refusals.format_refusal(refusal("UnauthorizedOperation", encoded))
    assert "add it to the policy" in output
    assert "If it is there already, another policy denies it: `aws sts decode-authorization-message` shows which" in output


@pytest.mark.parametrize("code", ["AuthFailure", "InvalidClientTokenId", "UnrecognizedClientException"])
@pytest.mark.parametrize(
    "region, named",
    [("af-south-1", True), ("eu-south-2", True), ("us-east-1", False), ("us-gov-west-1", False), ("cn-north-1", False)],
)
def test_region_that_may_not_be_enabled(code: str, region: str, named: bool) -> None:
    """Refused credentials in a region that accounts have to enable are reported with the region."""
    output = refusals.format_refusal(
        refusal(code, "AWS was not able to validate the provided access credentials"), region=region
    )
    assert f"Amazon does not accept the AWS credentials{f' in {region}' if named else ''} (" in output
    assert (f"`aws account get-region-opt-status --region-name {region}`" in output) == named


@pytest.mark.parametrize(
    "code, status, kind",
    [
        ("InsufficientInstanceCapacity", 500, Refusal.NO_CAPACITY),
        ("InsufficientReservedInstanceCapacity", 500, Refusal.NO_CAPACITY),
        ("Unsupported", 400, Refusal.NO_CAPACITY),
        ("SpotMaxPriceTooLow", 400, Refusal.NO_CAPACITY),
        ("InsufficientFreeAddressesInSubnet", 400, Refusal.NO_CAPACITY),
        ("ReservationCapacityExceeded", 400, Refusal.NO_CAPACITY),
        ("InsufficientVolumeCapacity", 500, Refusal.NO_CAPACITY),
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
def test_refusals_are_classified(code: str, status: int, kind: Refusal) -> None:
    """Missing capacity must not be repeated though it is a server error; quotas and rights are final."""
    assert refusals.classify_refusal(code, status) is kind


@pytest.mark.parametrize(
    "reason, lacks, reclaimed",
    [
        ("Server.InsufficientInstanceCapacity: Insufficient capacity to satisfy instance request", True, False),
        ("Server.SpotInstanceTermination: Instance terminated due to Spot interruption", False, True),
        ("Client.UserInitiatedShutdown: User initiated shutdown", False, False),
        ("", False, False),
    ],
)
def test_reasons_of_ended_instances(reason: str, lacks: bool, reclaimed: bool) -> None:
    """Missing capacity and spot interruptions are recognised by the reason of an instance's end."""
    assert (refusals.lacks_capacity(reason), refusals.was_reclaimed(reason)) == (lacks, reclaimed)


@pytest.mark.parametrize(
    "error, words",
    [
        (
            refusal("UnauthorizedOperation", "You are not authorized. Encoded authorization failure message: a1b2"),
            "me may not call ec2:RunInstances: add it to the policy (docs/ec2-policy.json has all that are needed). If it is",
        ),
        (
            refusal("UnauthorizedOperation", "User: me is not authorized to perform: ec2:CreateTags on resource: x"),
            "me may not call ec2:CreateTags",
        ),
        (refusal("AccessDeniedException", "no", "GetParameter"), "me may not call ssm:GetParameter"),
        (refusal("ExpiredToken"), "the AWS credentials have expired (ExpiredToken)"),
        (refusal("RequestExpired", "Request has expired."), "(RequestExpired): this machine's clock differs from Amazon's."),
        (
            refusal("SignatureDoesNotMatch", "Signature expired: 20191029T154623Z is now earlier than 20191029T163344Z "
                    "(20191029T164844Z - 15 min.)", "GetCallerIdentity"),
            "the signature of GetCallerIdentity (SignatureDoesNotMatch): this machine's clock is 62 minutes behind Amazon's.",
        ),
        (
            refusal("InvalidSignatureException", "Signature not yet current: 20201002T065532Z is still later than "
                    "20201002T062118Z (20201002T061618Z + 5 min.)"),
            "this machine's clock is 39 minutes ahead of Amazon's.",
        ),
        (refusal("SignatureDoesNotMatch", "The request signature we calculated"), "does not accept the AWS credentials"),
        (refusal("AuthFailure", "AWS was not able"), "Amazon does not accept the AWS credentials (AuthFailure: AWS was not"),
        (refusal("OptInRequired", "You are not subscribed to this service"), "this account may not use EC2 in r1"),
        (refusal("OptInRequired", "accept terms in the AWS Marketplace"), "Accept the image's terms"),
        (refusal("InvalidAMIID.NotFound", "The image id '[ami-1]' does not exist"), "Images belong to one region"),
        (refusal("SomethingNew", "it is\n  new"), "Amazon refuses RunInstances in r1: it is new (SomethingNew)"),
    ],
)  # fmt: skip
def test_refusals_are_explained_in_one_line(error: ClientError, words: str) -> None:
    """A refusal is explained in one line with its cause and remedy; a missing right is named."""
    output = refusals.format_refusal(error, principal="me", region="r1")
    assert words in output
    assert "\n" not in output
    assert "a1b2" not in output


def test_a_clock_is_compared_with_the_answers_date() -> None:
    """Credentials that are refused where this machine's clock is far from the answer's date are not what is wrong."""
    for ahead_s, words in ((86400.0, "minutes ahead of Amazon's"), (-86400.0, "minutes behind Amazon's"), (0.0, None)):
        output = refusals.format_refusal(refusal("AuthFailure", "AWS was not able", ahead_s=ahead_s))
        assert (words or "Amazon does not accept the AWS credentials (AuthFailure") in output


def test_state_reason() -> None:
    """Code and message in one text; Amazon's messages often begin with the code already."""
    reason = {"Code": "Server.X", "Message": "Server.X: because"}
    assert refusals.format_state_reason({"StateReason": reason}) == "Server.X: because"
    assert refusals.format_state_reason({"StateReason": {"Code": "C", "Message": "m"}}) == "C: m"
    assert refusals.format_state_reason({"StateReason": {"Code": "", "Message": ""}}) == ""
    assert refusals.format_state_reason({}) == ""
