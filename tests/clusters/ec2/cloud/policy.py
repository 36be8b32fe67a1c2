"""Which calls an IAM policy allows: wildcards, the kinds of EC2's resources, and the conditions of our policy.

Resources of other services are not distinguished: a statement applies to all of them.
"""

import fnmatch
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from moto.ec2.models import ec2_backends

from tests.clusters.ec2.cloud import world
from tests.clusters.ec2.cloud.guard import ACCOUNT
from tests.clusters.ec2.cloud.wire import Call

PREFIXES = {"servicequotas": "servicequotas", "monitoring": "cloudwatch"}
S3_ACTIONS = (  # method, path is of an object, a word of the query -> action
    ("GET", True, "", "s3:GetObject"),
    ("HEAD", True, "", "s3:GetObject"),
    ("PUT", True, "", "s3:PutObject"),
    ("POST", True, "", "s3:PutObject"),
    ("DELETE", True, "uploadId", "s3:AbortMultipartUpload"),
    ("DELETE", True, "", "s3:DeleteObject"),
    ("GET", False, "uploads", "s3:ListBucketMultipartUploads"),
    ("GET", False, "location", "s3:GetBucketLocation"),
    ("GET", False, "encryption", "s3:GetEncryptionConfiguration"),
    ("GET", False, "publicAccessBlock", "s3:GetBucketPublicAccessBlock"),
    ("GET", False, "policyStatus", "s3:GetBucketPolicyStatus"),
    ("GET", False, "acl", "s3:GetBucketAcl"),
    ("GET", False, "versioning", "s3:GetBucketVersioning"),
    ("GET", False, "", "s3:ListBucket"),
    ("HEAD", False, "", "s3:ListBucket"),
    ("PUT", False, "", "s3:CreateBucket"),
    ("POST", False, "delete", "s3:DeleteObject"),
)
USER = re.compile(r"\$\{aws:userid\}")  # the variable that a condition may hold
ALWAYS = ("sts:GetCallerIdentity",)
NONE = "*"
# docs.aws.amazon.com/service-authorization, list_amazonec2.html; those of RunInstances and CreateTags depend on the call.
KINDS: Mapping[str, Sequence[str]] = {
    "CreateSecurityGroup": ("security-group", "vpc"),
    "DeleteSecurityGroup": ("security-group",),
    "AuthorizeSecurityGroupIngress": ("security-group",),
    "AuthorizeSecurityGroupEgress": ("security-group",),
    "CreatePlacementGroup": ("placement-group",),
    "DeletePlacementGroup": ("placement-group",),
    "ImportKeyPair": ("key-pair",),
    "CreateKeyPair": ("key-pair",),
    "DeleteKeyPair": ("key-pair",),
    "TerminateInstances": ("instance",),
    "CancelSpotInstanceRequests": ("spot-instances-request",),
}


class Policy:
    """One policy document."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        statements = document["Statement"]
        self._statements: Sequence[Mapping[str, Any]] = statements if isinstance(statements, list) else [statements]

    def find_refused_action(self, call: Call) -> str | None:
        """Return the first action of the call that is not allowed on all of its resources."""
        return next((action for action in actions(call) if not self._allows(action, call)), None)

    def _allows(self, action: str, call: Call) -> bool:
        return action in ALWAYS or all(self._allows_on(kind, action, call) for kind in kinds(action, call))

    def _allows_on(self, kind: str, action: str, call: Call) -> bool:
        met = [
            statement["Effect"]
            for statement in self._statements
            if _speaks_of(statement, action, _arn(kind, call)) and _conditions_hold(statement, action, call, kind)
        ]
        return "Allow" in met and "Deny" not in met


def actions(call: Call) -> list[str]:
    """Return the actions that IAM checks for a call. Tags at creation also need CreateTags."""
    if call.service == "s3":
        return [_s3_action(call)]
    needed = [f"{PREFIXES.get(call.service, call.service)}:{call.action}"]
    if call.service == "ec2" and call.action != "CreateTags" and call.values("TagSpecification"):
        needed.append("ec2:CreateTags")
    return needed


def kinds(action: str, call: Call) -> list[str]:
    """Return the kinds of resources that must all be allowed for an action of EC2. "*" is no particular one."""
    service, _, name = action.partition(":")
    if service != "ec2" or name.startswith("Describe"):
        return [NONE]
    if name == "CreateTags":
        made = [value for key, value in call.parameters.items() if re.fullmatch(r"TagSpecification\.\d+\.ResourceType", key)]
        return made or ["any"]
    if name == "RunInstances":
        optional = {
            "key-pair": "KeyName",
            "placement-group": "Placement.GroupName",
            "spot-instances-request": "InstanceMarketOptions.MarketType",
        }
        asked = [kind for kind, parameter in optional.items() if parameter in call.parameters]
        return [
            "instance",
            "volume",
            "network-interface",
            "image",
            "subnet",
            *(["security-group"] if _groups(call) else []),
            *asked,
        ]
    return list(KINDS.get(name, ("any",)))


def _groups(call: Call) -> list[str]:
    return [v for k, v in call.parameters.items() if re.fullmatch(r"(NetworkInterface\.\d+\.)?SecurityGroupId\.\d+|GroupId", k)]


def _arn(kind: str, call: Call) -> str:
    if kind == NONE:
        return NONE
    return f"arn:aws:ec2:{call.region}:{'' if kind == 'image' else ACCOUNT}:{kind}/some"


def _s3_action(call: Call) -> str:
    method, _, path = call.action.partition(" ")
    is_object = "/" in path.strip("/")
    words = call.parameters
    for row_method, row_object, word, action in S3_ACTIONS:
        if (row_method, row_object) == (method, is_object) and (not word or word in words):
            return action
    return f"s3:{method}"


def _speaks_of(statement: Mapping[str, Any], action: str, arn: str) -> bool:
    named = any(fnmatch.fnmatchcase(action.lower(), pattern.lower()) for pattern in _list(statement["Action"]))
    if not action.startswith("ec2:"):
        return named
    return named and any(fnmatch.fnmatchcase(arn, pattern) for pattern in _list(statement["Resource"]))


def _list(given: str | Sequence[str]) -> Sequence[str]:
    return [given] if isinstance(given, str) else given


def _conditions_hold(statement: Mapping[str, Any], action: str, call: Call, kind: str) -> bool:
    for operator, conditions in statement.get("Condition", {}).items():
        for key, wanted in conditions.items():
            if not _applies(operator, _filled_in(_list(wanted), call), _context(key, action, call, kind)):
                return False
    return True


def user_id(key_id: str) -> str:
    """Return the user id of an access key, as in GetCallerIdentity and aws:userid."""
    return f"AIDA{key_id.removeprefix('AKIA')}"


def _filled_in(wanted: Sequence[str], call: Call) -> list[str]:
    return [USER.sub(user_id(call.key_id), each) for each in wanted]


def _applies(operator: str, patterns: Sequence[str], found: Sequence[str] | None) -> bool:
    """`found` is one value per resource; all of them must do. None: the request has no such key."""
    if operator == "Null":
        return (found is None) == (str(patterns[0]).lower() == "true")
    if operator.endswith("IfExists") and found is None:
        return True
    if operator.startswith("StringNot"):
        return not _applies(operator.replace("Not", ""), patterns, found)
    match = fnmatch.fnmatchcase if operator.startswith("StringLike") else str.__eq__
    assert operator.startswith(("StringEquals", "StringLike", "Bool")), f"a condition this stand-in does not know: {operator}"
    return bool(found) and all(any(match(str(v), str(p)) for p in patterns) for v in found or ())


def _context(key: str, action: str, call: Call, kind: str) -> list[str] | None:
    name, _, tag = key.partition("/")
    match name.lower():
        case "aws:requestedregion" | "ec2:region":
            return [call.region]
        case "ec2:createaction":
            return [call.action] if action == "ec2:CreateTags" and call.action != "CreateTags" else None
        case "aws:requesttag":
            return _get_requested_tag(call, tag, kind)
        case "aws:resourcetag" | "ec2:resourcetag":
            return _resource_tags(call, tag, kind)
        case "aws:securetransport":
            return ["true"]
    raise AssertionError(f"a condition this stand-in does not know: {key}")


def _get_requested_tag(call: Call, tag: str, kind: str) -> list[str] | None:
    """Return the tag's value that the call gives to new resources of that kind."""
    form = call.parameters
    given = [number for number in range(1, 10) if form.get(f"TagSpecification.{number}.ResourceType") == kind]
    prefixes = [f"TagSpecification.{number}." for number in given] if call.action != "CreateTags" else [""]
    keys = [
        k
        for k, v in form.items()
        if v == tag and any(re.fullmatch(re.escape(prefix) + r"Tag\.\d+\.Key", k) for prefix in prefixes)
    ]
    return [form[k.removesuffix("Key") + "Value"] for k in keys] or None


def _resource_tags(call: Call, tag: str, kind: str) -> list[str] | None:
    """Return the tag's values of all resources of that kind in the call, or none if one of them lacks it."""
    named = list(_iterate_named_tags(call, kind))
    return [tags[tag] for tags in named] if named and all(tag in tags for tags in named) else None


def _iterate_named_tags(call: Call, kind: str) -> Iterator[Mapping[str, str]]:
    """Yield the tags of each resource of that kind that the call names."""
    backend = ec2_backends[ACCOUNT][call.region]
    match kind:
        case "key-pair":
            for key in backend.key_pairs.values():
                if key.key_name == call.parameters.get("KeyName"):
                    yield {t["key"]: t["value"] for t in key.get_tags()}
        case "placement-group":
            name = call.parameters.get("GroupName") or call.parameters.get("Placement.GroupName")
            if group := world.get_world().placement_groups.get(f"{call.region}/{name}"):
                yield {t["Key"]: t["Value"] for t in group["Tags"]}
        case "spot-instances-request":
            requests = world.get_world().spot_requests
            for each in call.values("SpotInstanceRequestId"):
                if each in requests:
                    yield {t["Key"]: t["Value"] for t in requests[each]["Tags"]}
        case _:
            ids = _groups(call) if kind == "security-group" else [*call.values("InstanceId"), *call.values("ResourceId")]
            for each in ids:
                yield {t["key"]: t["value"] for t in backend.describe_tags(filters={"resource-id": [each]})}
