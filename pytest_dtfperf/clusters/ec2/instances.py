"""Instances as DescribeInstances shows them: by id, by a run's tag, or by the token of their request."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from botocore.exceptions import ClientError

from pytest_dtfperf.clusters.ec2 import refusals
from pytest_dtfperf.clusters.ec2.plan import MANAGED, RUN

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_ec2.type_defs import FilterTypeDef, InstanceTypeDef

ENDED = "terminated"
_LEAVING = ("shutting-down", ENDED)
_NO_LONGER_RUNNING = (*_LEAVING, "stopping", "stopped")
_AT_ONCE = 100  # ids per request


@dataclass(frozen=True)
class Instance:
    """One instance at the time of the request."""

    id: str
    index: int  # within its launch
    state: str
    private: str | None
    public: str | None
    zone: str
    kind: str  # instance type
    reason: str  # for the end of the instance; empty while it runs
    launched: float  # seconds since 1970
    tags: dict[str, str]

    @property
    def is_leaving(self) -> bool:
        """Whether the instance is terminating or has ended, so that nothing needs to be done."""
        return self.state in _LEAVING

    @property
    def has_ended(self) -> bool:
        return self.state == ENDED

    @property
    def runs_no_more(self) -> bool:
        """Whether the instance has stopped running for good, for any reason."""
        return self.state in _NO_LONGER_RUNNING

    @classmethod
    def from_response(cls, shown: "InstanceTypeDef") -> Self:
        """Parse one record of DescribeInstances; that of a new instance may lack almost any field."""
        launched = shown.get("LaunchTime")
        return cls(
            id=shown["InstanceId"],
            index=shown.get("AmiLaunchIndex", 0),
            state=shown.get("State", {}).get("Name", "pending"),
            private=shown.get("PrivateIpAddress") or None,
            public=shown.get("PublicIpAddress") or None,
            zone=shown.get("Placement", {}).get("AvailabilityZone", ""),
            kind=shown.get("InstanceType", ""),
            reason=refusals.format_state_reason(_remove_type(shown)),
            launched=launched.timestamp() if launched else 0.0,
            tags={tag.get("Key", ""): tag.get("Value", "") for tag in shown.get("Tags", [])},
        )


def describe_by_id(ec2: "EC2Client", ids: Sequence[str]) -> dict[str, Instance]:
    """Return those of the instances that Amazon shows: it may not know new ones yet, and forgets old ones."""
    found: dict[str, Instance] = {}
    for start in range(0, len(ids), _AT_ONCE):
        some = ids[start : start + _AT_ONCE]
        try:
            found |= _describe(ec2, InstanceIds=list(some))
        except ClientError as error:
            if refusals.get_code(error) != "InvalidInstanceID.NotFound":
                raise
            if len(some) > 1:  # one unknown id makes the whole request fail
                for each in some:
                    found |= describe_by_id(ec2, [each])
    return found


def describe_run(ec2: "EC2Client", run: str) -> dict[str, Instance]:
    """Return all instances with a run's tag, including those that have ended as long as Amazon shows them."""
    return _describe(ec2, Filters=[{"Name": f"tag:{RUN}", "Values": [run]}])


def describe_tokens(ec2: "EC2Client", tokens: Iterable[str]) -> dict[str, Instance]:
    """Return all instances that were requested with one of these tokens."""
    tokens = list(tokens)
    return _describe(ec2, Filters=[{"Name": "client-token", "Values": tokens}]) if tokens else {}


def describe_all(ec2: "EC2Client") -> dict[str, Instance]:
    """Return all instances in this account that were launched by any session and have not ended."""
    ours: FilterTypeDef = {"Name": f"tag:{MANAGED}", "Values": ["1"]}
    there: FilterTypeDef = {
        "Name": "instance-state-name",
        "Values": ["pending", "running", "stopping", "stopped", "shutting-down"],
    }
    return _describe(ec2, Filters=[ours, there])


def _describe(ec2: "EC2Client", **which: Any) -> dict[str, Instance]:
    pages = ec2.get_paginator("describe_instances").paginate(**which)
    shown = (each for page in pages for reservation in page["Reservations"] for each in reservation.get("Instances", []))
    return {each["InstanceId"]: Instance.from_response(each) for each in shown}


def _remove_type(shown: "InstanceTypeDef") -> dict[str, Any]:
    return {"StateReason": shown.get("StateReason")}
