"""Which calls an IAM policy allows: actions with wildcards, and the conditions that ours uses; resources are not looked at."""

import fnmatch
import re
from collections.abc import Mapping, Sequence
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
ALWAYS = ("sts:GetCallerIdentity",)


class Policy:
    """One policy document."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        statements = document["Statement"]
        self._statements: Sequence[Mapping[str, Any]] = statements if isinstance(statements, list) else [statements]

    def refused(self, call: Call) -> str | None:
        """The first action that the call needs and that is not allowed."""
        return next((action for action in actions(call) if not self._allows(action, call)), None)

    def _allows(self, action: str, call: Call) -> bool:
        met = [s["Effect"] for s in self._statements if _speaks_of(s, action) and _conditions_hold(s, action, call)]
        return action in ALWAYS or ("Allow" in met and "Deny" not in met)


def actions(call: Call) -> list[str]:
    """What IAM asks about for a call. Tags given at creation need CreateTags besides."""
    if call.service == "s3":
        return [_s3_action(call)]
    needed = [f"{PREFIXES.get(call.service, call.service)}:{call.action}"]
    if call.service == "ec2" and call.action != "CreateTags" and call.values("TagSpecification"):
        needed.append("ec2:CreateTags")
    return needed


def _s3_action(call: Call) -> str:
    method, _, path = call.action.partition(" ")
    is_object = "/" in path.strip("/")
    words = call.parameters
    for row_method, row_object, word, action in S3_ACTIONS:
        if (row_method, row_object) == (method, is_object) and (not word or word in words):
            return action
    return f"s3:{method}"


def _speaks_of(statement: Mapping[str, Any], action: str) -> bool:
    named = statement["Action"] if isinstance(statement["Action"], list) else [statement["Action"]]
    return any(fnmatch.fnmatchcase(action.lower(), pattern.lower()) for pattern in named)


def _conditions_hold(statement: Mapping[str, Any], action: str, call: Call) -> bool:
    for operator, conditions in statement.get("Condition", {}).items():
        for key, wanted in conditions.items():
            patterns = wanted if isinstance(wanted, list) else [wanted]
            if not _holds(operator, patterns, _context(key, action, call)):
                return False
    return True


def _holds(operator: str, patterns: Sequence[str], found: Sequence[str] | None) -> bool:
    """`found` is one value per resource; all of them must do. None: the request has no such key."""
    if operator == "Null":
        return (found is None) == (str(patterns[0]).lower() == "true")
    if operator.endswith("IfExists") and found is None:
        return True
    if operator.startswith("StringNot"):
        return not _holds(operator.replace("Not", ""), patterns, found)
    match = fnmatch.fnmatchcase if operator.startswith("StringLike") else str.__eq__
    assert operator.startswith(("StringEquals", "StringLike", "Bool")), f"a condition this stand-in does not know: {operator}"
    return bool(found) and all(any(match(str(v), str(p)) for p in patterns) for v in found or ())


def _context(key: str, action: str, call: Call) -> list[str] | None:
    name, _, tag = key.partition("/")
    match name.lower():
        case "aws:requestedregion" | "ec2:region":
            return [call.region]
        case "ec2:createaction":
            return [call.action] if action == "ec2:CreateTags" and call.action != "CreateTags" else None
        case "aws:requesttag":
            return _requested(call, tag)
        case "aws:resourcetag" | "ec2:resourcetag":
            return _resource_tags(call, tag)
        case "aws:securetransport":
            return ["true"]
    raise AssertionError(f"a condition this stand-in does not know: {key}")


def _requested(call: Call, tag: str) -> list[str] | None:
    form = call.parameters
    keys = [k for k, v in form.items() if re.fullmatch(r"(TagSpecification\.\d+\.)?Tag\.\d+\.Key", k) and v == tag]
    return [form[k.removesuffix("Key") + "Value"] for k in keys] or None


def _resource_tags(call: Call, tag: str) -> list[str] | None:
    """The tag's value on everything that the call names; nothing where one of them has none."""
    backend = ec2_backends[ACCOUNT][call.region]
    named: list[Mapping[str, str]] = [
        {t["key"]: t["value"] for t in backend.describe_tags(filters={"resource-id": [resource]})}
        for resource in [v for k, v in call.parameters.items() if re.fullmatch(r"(InstanceId|ResourceId)(\.\d+)?|GroupId", k)]
    ]
    requests = world.now().spot_requests
    named += [
        {t["Key"]: t["Value"] for t in requests[each]["Tags"]}
        for each in call.values("SpotInstanceRequestId")
        if each in requests
    ]
    if name := call.parameters.get("KeyName"):
        named += [{t["key"]: t["value"] for t in k.get_tags()} for k in backend.key_pairs.values() if k.key_name == name]
    if "Placement" in call.action:
        group = world.now().placement_groups.get(f"{call.region}/{call.parameters.get('GroupName')}")
        named += [{t["Key"]: t["Value"] for t in group["Tags"]}] if group else []
    return [tags[tag] for tags in named] if named and all(tag in tags for tags in named) else None
