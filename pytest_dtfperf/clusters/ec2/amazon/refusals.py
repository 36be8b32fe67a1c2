"""What Amazon's refusals mean: whether to wait, to try elsewhere or to give up, and in which words. Pure.

Codes: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html
"""

import re
from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from botocore.exceptions import ClientError


class Refusal(Enum):
    """What to do about it."""

    TRANSIENT = "the same request may succeed in a moment"
    NO_CAPACITY = "another zone may have what this one lacks"
    USED_UP = "the request's token belongs to instances that are terminated"
    FINAL = "nothing will change by itself"


# The first face of missing capacity; the second is `lacks_capacity` of an instance that was accepted; the third is spot's.
CAPACITY = frozenset({
    "InsufficientInstanceCapacity", "InsufficientHostCapacity", "InsufficientReservedInstanceCapacity", "InsufficientCapacity",
    "InsufficientCapacityOnHost", "InsufficientAddressCapacity", "InsufficientFreeAddressesInSubnet", "UnfulfillableCapacity",
    "Unsupported",  # this type, in this zone
    "SpotMaxPriceTooLow",
})  # fmt: skip
_THROTTLED = frozenset(
    {"RequestLimitExceeded", "Throttling", "ThrottlingException", "RequestThrottled", "BandwidthLimitExceeded"}
)
_BROKEN = frozenset({"InternalError", "InternalFailure", "ServiceUnavailable", "Unavailable", "Server.InternalError"})
# What has just been made may not be known everywhere yet.
_NOT_YET_KNOWN = frozenset({"InvalidGroup.NotFound", "InvalidKeyPair.NotFound", "InvalidPlacementGroup.Unknown"})
QUOTA = frozenset({"VcpuLimitExceeded", "InstanceLimitExceeded", "MaxSpotInstanceCountExceeded"})
UNAUTHORISED = frozenset({"UnauthorizedOperation", "AccessDenied", "AccessDeniedException"})
EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "RequestExpired"})
INVALID = frozenset({
    "InvalidClientTokenId", "UnrecognizedClientException", "AuthFailure", "SignatureDoesNotMatch", "IncompleteSignature",
    "InvalidSignatureException", "MissingAuthenticationToken",
})  # fmt: skip


def code_of(error: "ClientError") -> str:
    """Amazon's name for it."""
    return str(error.response.get("Error", {}).get("Code", ""))


def message_of(error: "ClientError") -> str:
    """Its name and what it says, in one line."""
    output = re.sub(r"\s+", " ", str(error.response.get("Error", {}).get("Message", ""))).strip()
    return f"{code_of(error)}: {output}" if output else code_of(error)


def kind_of(code: str, status: int = 400) -> Refusal:
    """What to do about a refused RunInstances. Missing capacity comes as status 500, so the code is looked at first."""
    if code in CAPACITY:
        return Refusal.NO_CAPACITY
    if code == "IdempotentInstanceTerminated":
        return Refusal.USED_UP
    if code in QUOTA:
        return Refusal.FINAL
    if code in _THROTTLED | _BROKEN | _NOT_YET_KNOWN or status >= 500:
        return Refusal.TRANSIENT
    return Refusal.FINAL


def lacks_capacity(state_reason: str) -> bool:
    """Whether an instance was terminated for want of room: it had been accepted, and then there was none."""
    return "InsufficientInstanceCapacity" in state_reason or "InsufficientCapacity" in state_reason


def was_reclaimed(state_reason: str) -> bool:
    """Whether Amazon has taken a spot instance back."""
    return "SpotInstance" in state_reason


def in_words(error: "ClientError", *, who: str = "these credentials", region: str = "this region") -> str:
    """One message about a refusal that nothing can be done about here."""
    code, action = code_of(error), error.operation_name
    output = re.sub(r"\s+", " ", str(error.response.get("Error", {}).get("Message", ""))).strip()
    if code in UNAUTHORISED:
        missing = missing_action(error)
        # Amazon appends a message that only it can decode, of a thousand letters.
        return (
            f"{who} may not call {missing}: add it to the policy (docs/ec2-policy.json has all that are needed). "
            f"Amazon says: {output.partition('Encoded authorization failure message')[0].strip() or code}"
        )
    if code in EXPIRED:
        how = "renew them (`aws sso login`, or new keys); or is this machine's clock wrong?"
        return f"the AWS credentials have expired ({code}): {how}"
    if code in INVALID:
        return (
            f"Amazon does not accept the AWS credentials ({code}: {output}): are they complete, still valid, and for {region}?"
        )
    if code == "OptInRequired" and "Marketplace" not in output:
        return f"this account may not use EC2 in {region} ({output}): enable the region for it, or name another"
    if hint := _HINTS.get(code):
        return f"Amazon refuses {action} in {region}: {output} ({code}). {hint}"
    return f"Amazon refuses {action} in {region}: {output} ({code})"


def missing_action(error: "ClientError") -> str:
    """The action that a policy does not allow: the call itself, or one that it implies, as far as Amazon says so."""
    output = str(error.response.get("Error", {}).get("Message", ""))
    named = re.search(r"not authorized to perform:? ([a-z0-9-]+:[A-Za-z]+)", output)
    return named[1] if named else f"{service_of(error)}:{error.operation_name}"


def service_of(error: "ClientError") -> str:
    """As policies call it."""
    return {
        "GetParameter": "ssm",
        "GetCallerIdentity": "sts",
        "GetProducts": "pricing",
        "GetServiceQuota": "servicequotas",
    }.get(error.operation_name, "ec2")


def state_reason(instance: Mapping[str, Any]) -> str:
    """Why an instance of DescribeInstances is no longer running, as "code: message"; empty while it is."""
    reason = instance.get("StateReason") or {}
    code, message = str(reason.get("Code", "")), str(reason.get("Message", ""))
    return message if message.startswith(code) else f"{code}: {message}".strip(": ")


_HINTS = {
    "InvalidAMIID.NotFound": "Images belong to one region: is ami one of this region's?",
    "InvalidAMIID.Malformed": "An image's id looks like ami-0123456789abcdef0.",
    "InvalidAMIID.Unavailable": "The image has been withdrawn: name another with ami.",
    "InvalidSubnetID.NotFound": "Check subnets in clusters.toml; they belong to one region and account.",
    "InvalidVpcID.NotFound": "Check vpc in clusters.toml; it belongs to one region and account.",
    "InvalidInstanceType": "Check instance_type in clusters.toml.",
    "OptInRequired": "Accept the image's terms in the AWS Marketplace, or name another image.",
    "PendingVerification": "Amazon is verifying the account for this region; it writes a mail when it has.",
    "Blocked": "Amazon has blocked the account: its support knows why.",
    "VPCIdNotSpecified": "There is no default VPC here: name subnets or vpc in clusters.toml.",
}
