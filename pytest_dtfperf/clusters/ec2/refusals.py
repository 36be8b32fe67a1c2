"""The meaning of Amazon's refusals: whether to wait, to try elsewhere or to give up, and the message. Pure.

Codes: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import Enum
from typing import TYPE_CHECKING, Any

from pytest_dtfperf.formats import format_count

if TYPE_CHECKING:
    from botocore.exceptions import ClientError


class Refusal(Enum):
    """The reaction to a refusal."""

    TRANSIENT = "the same request may succeed in a moment"
    NO_CAPACITY = "another zone may have what this one lacks"
    USED_UP = "the request's token belongs to instances that are terminated"
    FINAL = "nothing will change by itself"


# Missing capacity has three forms: these codes, `lacks_capacity` of an accepted instance, and spot requests.
CAPACITY = frozenset({
    "InsufficientInstanceCapacity", "InsufficientHostCapacity", "InsufficientReservedInstanceCapacity", "InsufficientCapacity",
    "InsufficientCapacityOnHost", "InsufficientAddressCapacity", "InsufficientFreeAddressesInSubnet", "UnfulfillableCapacity",
    "InsufficientVolumeCapacity", "InsufficientInterfaceCapacity",
    "ReservationCapacityExceeded",  # the capacity reservation, which is of one zone, has no more
    "Unsupported",  # this type is not offered in this zone
    "SpotMaxPriceTooLow",
})  # fmt: skip
_THROTTLED = frozenset(
    {"RequestLimitExceeded", "Throttling", "ThrottlingException", "RequestThrottled", "BandwidthLimitExceeded"}
)
_BROKEN = frozenset({"InternalError", "InternalFailure", "ServiceUnavailable", "Unavailable", "Server.InternalError"})
# A new resource may not be known everywhere yet.
_NOT_YET_KNOWN = frozenset({"InvalidGroup.NotFound", "InvalidKeyPair.NotFound", "InvalidPlacementGroup.Unknown"})
QUOTA = frozenset({"VcpuLimitExceeded", "InstanceLimitExceeded", "MaxSpotInstanceCountExceeded"})
UNAUTHORISED = frozenset({"UnauthorizedOperation", "AccessDenied", "AccessDeniedException"})
EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException"})
_LATE = frozenset({"RequestExpired", "RequestTimeTooSkewed", "RequestInTheFuture"})
INVALID = frozenset({
    "InvalidClientTokenId", "UnrecognizedClientException", "AuthFailure", "SignatureDoesNotMatch", "IncompleteSignature",
    "InvalidSignatureException", "MissingAuthenticationToken",
})  # fmt: skip


# The regions that are enabled in every account. All regions since March 2019 have to be enabled first.
_ENABLED = frozenset({
    "us-east-1", "us-east-2", "us-west-1", "us-west-2", "ca-central-1", "sa-east-1", "eu-central-1", "eu-west-1", "eu-west-2",
    "eu-west-3", "eu-north-1", "ap-south-1", "ap-northeast-1", "ap-northeast-2", "ap-northeast-3", "ap-southeast-1",
    "ap-southeast-2",
})  # fmt: skip
_OTHER_PARTITIONS = re.compile(r"(cn|us-gov|us-iso[a-z]*|eu-isoe|eusc)-.*")
_REGION = re.compile(r"[a-z]{2}(-[a-z]+)+-[0-9]+")
_SKEW_S = 240.0  # Amazon tolerates 5 minutes, less the time of an answer
_STAMP = r"([0-9]{8}T[0-9]{6})Z"
_STAMPS = re.compile(rf"{_STAMP} is (?:now earlier|still later) than {_STAMP} \({_STAMP}")
_DENIED = re.compile(
    r"with an explicit deny(?: in an? (?P<kind>[A-Za-z -]*?(?:policy|boundary))(?P<named>: ?arn:[^\s.]+)?)?(?=[\s.:]|$)"
    r"|because no (?P<none>(?:service control|resource control|session|VPC endpoint) policy|permissions boundary) allows"
)
_WHOSE = {  # The administrators of each kind of policy.
    "service control policy": "the administrators of the organisation",
    "resource control policy": "the administrators of the organisation",
    "permissions boundary": "the administrators of the account",
    "session policy": "the issuer of these credentials",
}


def get_code(error: "ClientError") -> str:
    """Return Amazon's code of the error."""
    return str(error.response.get("Error", {}).get("Code", ""))


def format_error(error: "ClientError") -> str:
    """Return code and message in one line."""
    output = re.sub(r"\s+", " ", str(error.response.get("Error", {}).get("Message", ""))).strip()
    return f"{get_code(error)}: {output}" if output else get_code(error)


def classify_refusal(code: str, status: int) -> Refusal:
    """Return the reaction to a refused RunInstances. Missing capacity has status 500, so the code is checked first."""
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
    """Return whether an accepted instance was terminated for lack of capacity."""
    return "InsufficientInstanceCapacity" in state_reason or "InsufficientCapacity" in state_reason


def was_reclaimed(state_reason: str) -> bool:
    """Return whether Amazon has reclaimed a spot instance."""
    return "SpotInstance" in state_reason


def format_refusal(error: "ClientError", *, principal: str = "these credentials", region: str = "this region") -> str:
    """Return one message about a refusal that nothing here can resolve."""
    code, action = get_code(error), error.operation_name
    output = re.sub(r"\s+", " ", str(error.response.get("Error", {}).get("Message", ""))).strip()
    if code in UNAUTHORISED:
        missing = find_missing_action(error)
        # Amazon appends an encoded message of about a thousand letters.
        plain, encoded, _ = output.partition("Encoded authorization failure message")
        amazon_message = f"Amazon's message: {plain.strip() or code}"
        if denied := explain_denial(output):
            return f"{principal} may not call {missing}: {denied}. {amazon_message}"
        unsure = (
            " If it is there already, another policy denies it: `aws sts decode-authorization-message` shows which, of "
            "Amazon's whole message in CloudTrail."
            if encoded
            else ""
        )
        policy = "add it to the policy (docs/ec2-policy.json has all that are needed)"
        return f"{principal} may not call {missing}: {policy}.{unsure} {amazon_message}"
    if clock := explain_wrong_clock(error):
        return clock
    if code in EXPIRED:
        how = "renew them (`aws sso login`, or new keys); or is this machine's clock wrong?"
        return f"the AWS credentials have expired ({code}): {how}"
    if code in INVALID and needs_opt_in(region):
        return (
            f"Amazon does not accept the AWS credentials in {region} ({code}: {output}): this region has to be enabled for an "
            f"account first (`aws account get-region-opt-status --region-name {region}`). Enable it, or name another region; "
            "if it is enabled, are the credentials complete and still valid?"
        )
    if code in INVALID:
        return (
            f"Amazon does not accept the AWS credentials ({code}: {output}): are they complete, still valid, and for {region}?"
        )
    if code == "OptInRequired" and "Marketplace" not in output:
        return f"this account may not use EC2 in {region} ({output}): enable the region {region} for it, or name another"
    if hint := _HINTS.get(code):
        return f"Amazon refuses {action} in {region}: {output} ({code}). {hint}"
    return f"Amazon refuses {action} in {region}: {output} ({code})"


def explain_denial(message: str) -> str | None:
    """Return which policy denies a call, and its administrator, if Amazon names it: more rights do not help. None otherwise."""
    found = _DENIED.search(message)
    if not found:
        return None
    kind = found["kind"] or found["none"] or "policy"
    named = (found["named"] or "").removeprefix(":").strip()
    what = f"no {kind} allows it" if found["none"] else f"{'an' if kind.startswith('i') else 'a'} {kind} denies it explicitly"
    return f"{what}{f' ({named})' if named else ''}, and adding rights does not help. Ask {_WHOSE.get(kind, 'its author')}"


def explain_wrong_clock(error: "ClientError") -> str | None:
    """Return the error of this machine's clock if a request was refused for it; None otherwise."""
    code, message = get_code(error), str(error.response.get("Error", {}).get("Message", ""))
    ahead_s = _compute_ahead_s(error, message)
    is_late = code in _LATE or "Signature expired" in message or "Signature not yet current" in message
    if not is_late and (code not in INVALID or abs(ahead_s or 0.0) < _SKEW_S):
        return None
    off = "differs from Amazon's"
    if ahead_s:
        off = f"is {format_count(round(abs(ahead_s) / 60), 'minute')} {'ahead of' if ahead_s > 0 else 'behind'} Amazon's"
    why = f"this machine's clock {off}. Set it (timedatectl, chrony)"
    return f"Amazon refuses the signature of {error.operation_name} ({code}): {why}"


def _compute_ahead_s(error: "ClientError", message: str) -> float | None:
    """Return how far this machine's clock is ahead, from the message or from the date of the answer."""
    if stamps := _STAMPS.search(message):
        ours, _, theirs = (datetime.strptime(each, "%Y%m%dT%H%M%S").replace(tzinfo=UTC) for each in stamps.groups())
        return (ours - theirs).total_seconds()
    try:
        stated = parsedate_to_datetime(error.response["ResponseMetadata"]["HTTPHeaders"]["date"])
    except (KeyError, ValueError):
        return None
    return (datetime.now(UTC) - stated).total_seconds()


def needs_opt_in(region: str) -> bool:
    """Return whether a region has to be enabled for an account before it can be used."""
    return bool(_REGION.fullmatch(region)) and region not in _ENABLED and not _OTHER_PARTITIONS.fullmatch(region)


def find_missing_action(error: "ClientError") -> str:
    """Return the action that a policy does not allow: the call, or one that it implies if Amazon names it."""
    output = str(error.response.get("Error", {}).get("Message", ""))
    named = re.search(r"not authorized to perform:? ([a-z0-9-]+:[A-Za-z]+)", output)
    return named[1] if named else f"{get_service(error)}:{error.operation_name}"


def get_service(error: "ClientError") -> str:
    """Return the service's name in policies."""
    return {
        "GetParameter": "ssm",
        "GetCallerIdentity": "sts",
        "GetProducts": "pricing",
        "GetServiceQuota": "servicequotas",
    }.get(error.operation_name, "ec2")


def format_state_reason(instance: Mapping[str, Any]) -> str:
    """Return why an instance of DescribeInstances has stopped, as "code: message"; empty while it runs."""
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
