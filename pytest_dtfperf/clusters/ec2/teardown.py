"""The deletion of everything that a run has in the account, repeated until Amazon shows that nothing is left.

A run's resources are found by the tag that each has from the start, and by the run's ledger.
"""

import math
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from botocore import exceptions
from botocore.exceptions import ClientError

from pytest_dtfperf.clusters.ec2 import instances, refusals
from pytest_dtfperf.clusters.ec2.account import NO_ANSWER, Account, call_unless, iterate_attempts
from pytest_dtfperf.clusters.ec2.instances import Instance
from pytest_dtfperf.clusters.ec2.ledger import Ledger, LedgerRecord
from pytest_dtfperf.clusters.ec2.plan import RUN
from pytest_dtfperf.errors import AllocationError

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import FilterTypeDef


_IN_USE = ("DependencyViolation", "InvalidPlacementGroup.InUse")


@dataclass(frozen=True)
class Belongings:
    """The resources of a run that still exist."""

    instances: Mapping[str, Instance]  # not ended
    unseen: Sequence[str]  # received instances that Amazon does not show: it may not know them everywhere yet
    spot_requests: Sequence[str]
    security_groups: Sequence[str]  # ids
    placement_groups: Sequence[str]  # names
    key_pairs: Sequence[str]

    def __bool__(self) -> bool:
        return any((self.instances, self.spot_requests, self.security_groups, self.placement_groups, self.key_pairs))

    def commands(self, region: str) -> list[str]:
        """Return the commands with which a user deletes them."""
        steps: list[tuple[str, ...]] = []
        if ids := [*self.instances, *self.unseen]:
            steps.append(("terminate-instances", "--instance-ids", *ids))
            steps.append(("wait", "instance-terminated", "--instance-ids", *ids))
        if self.spot_requests:
            steps.append(("cancel-spot-instance-requests", "--spot-instance-request-ids", *self.spot_requests))
        steps += [("delete-security-group", "--group-id", each) for each in self.security_groups]
        steps += [("delete-placement-group", "--group-name", each) for each in self.placement_groups]
        steps += [("delete-key-pair", "--key-name", each) for each in self.key_pairs]
        return [shlex.join(("aws", "ec2", *step, "--region", region)) for step in steps]


def find_belongings(account: Account, run: str, record: LedgerRecord | None, *, settle_s: float) -> Belongings:
    """Return the resources that Amazon shows now."""
    ec2 = account.ec2
    shown = instances.describe_run(ec2, run)
    unseen: list[str] = []
    if record is not None:
        shown |= instances.describe_tokens(ec2, record.tokens)
        missing = [each for each in record.instances if each not in shown]
        shown |= instances.describe_by_id(ec2, missing)
        young = time.time() - settle_s
        unseen = [each for each in missing if each not in shown and record.instances[each] > young]
    of_run: list[FilterTypeDef] = [{"Name": f"tag:{RUN}", "Values": [run]}]
    return Belongings(
        instances={each.id: each for each in shown.values() if not each.has_ended},
        unseen=unseen,
        spot_requests=_open_spot_requests(account, of_run) if record is None or record.plan.spot else [],
        security_groups=[each["GroupId"] for each in ec2.describe_security_groups(Filters=of_run)["SecurityGroups"]],
        placement_groups=[
            each["GroupName"]
            for each in ec2.describe_placement_groups(Filters=of_run)["PlacementGroups"]
            if each.get("State") not in ("deleting", "deleted")
        ],
        key_pairs=[each["KeyName"] for each in ec2.describe_key_pairs(Filters=of_run)["KeyPairs"]],
    )


def delete_belongings(account: Account, left: Belongings) -> None:
    """Request the deletion of all resources. Those in use are refused, and deleted by a later call."""
    ec2 = account.ec2
    terminate_instances(account, [each.id for each in left.instances.values() if not each.is_leaving])
    for each in left.unseen:
        terminate_instances(account, [each])
    if left.spot_requests:
        call_unless(
            ("InvalidSpotInstanceRequestID.NotFound",),
            lambda: ec2.cancel_spot_instance_requests(SpotInstanceRequestIds=list(left.spot_requests)),
        )
    for name in left.key_pairs:
        call_unless(("InvalidKeyPair.NotFound",), lambda name=name: ec2.delete_key_pair(KeyName=name))  # type: ignore[misc]
    if left.instances or left.unseen:
        return  # the instances are in the groups
    for group in left.security_groups:
        call_unless(("InvalidGroup.NotFound", *_IN_USE), lambda group=group: ec2.delete_security_group(GroupId=group))  # type: ignore[misc]
    for name in left.placement_groups:
        call_unless(
            ("InvalidPlacementGroup.Unknown", *_IN_USE),
            lambda name=name: ec2.delete_placement_group(GroupName=name),  # type: ignore[misc]
        )


def terminate_instances(account: Account, ids: Sequence[str]) -> None:
    """Terminate the known instances. One by one after a failure: an unknown or protected one refuses the whole call."""
    if not ids:
        return
    try:
        account.ec2.terminate_instances(InstanceIds=list(ids))
    except ClientError as error:
        if len(ids) == 1:
            if refusals.get_code(error) != "InvalidInstanceID.NotFound":
                raise
            return
        refused = None
        for each in ids:
            try:
                terminate_instances(account, [each])
            except ClientError as one:
                refused = one
        if refused:
            raise refused from error


def _open_spot_requests(account: Account, of_run: Sequence["FilterTypeDef"]) -> list[str]:
    """Return open spot requests: one-time requests close with their instances, but one without an instance stays open."""
    alive: FilterTypeDef = {"Name": "state", "Values": ["open", "active"]}
    try:
        found = account.ec2.describe_spot_instance_requests(Filters=[*of_run, alive])["SpotInstanceRequests"]
    except ClientError as error:
        if refusals.get_code(error) in refusals.UNAUTHORISED:  # a user without spot instances may lack the right to list them
            return []
        raise
    return [each["SpotInstanceRequestId"] for each in found if "SpotInstanceRequestId" in each]


SETTLE_S = 60.0  # until Amazon shows what it has accepted: usually seconds, but without a guarantee
WITHIN_S = 900.0  # machines with eight GPUs take minutes to shut down


def tear_down(
    account: Account,
    run: str,
    ledger: Ledger | None,
    *,
    settle_s: float = SETTLE_S,
    within_s: float = WITHIN_S,
    on_status: Callable[[str], object] = lambda status: None,
) -> None:
    """Delete everything that a run has. Raises `AllocationError` with the commands for the user if that fails."""
    record = ledger.read_record() if ledger else None
    if ledger:
        if record is None or record.is_closed:  # nothing was requested, or nothing is left
            return
        with suppress(AllocationError):  # a full disk must not keep anything running
            ledger.note("ending")
    left, why = None, ""
    is_reported = False
    for _ in iterate_attempts(within_s):
        try:
            left = find_belongings(account, run, record, settle_s=settle_s)
            unsettled_s = _compute_unsettled_s(record, settle_s)
            if not left and not left.unseen and unsettled_s <= 0:
                if ledger and record:
                    with suppress(AllocationError):  # otherwise the next session checks that nothing is left
                        ledger.close()
                return
            delete_belongings(account, left)
            why = ""
        except NO_ANSWER as error:
            why = account.explain(error)
            continue
        except (exceptions.ClientError, exceptions.BotoCoreError) as error:
            why = account.explain(error)
            if isinstance(error, exceptions.ClientError) and _may_pass(error):
                continue
            break
        if not left and unsettled_s > 0 and not is_reported:
            is_reported = True
            on_status(f"waiting {math.ceil(unsettled_s)} s for an answer that was lost: instances may still appear")
    raise AllocationError(_format_warning(account, run, left, why))


def _compute_unsettled_s(record: LedgerRecord | None, settle_s: float) -> float:
    """Return how long an empty list proves nothing, because a request has no known answer."""
    if record is None or record.unanswered_since is None:
        return 0.0
    return record.unanswered_since + settle_s - time.time()


def _may_pass(error: exceptions.ClientError) -> bool:
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 400)
    return refusals.classify_refusal(refusals.get_code(error), status) is refusals.Refusal.TRANSIENT


def _format_warning(account: Account, run: str, left: Belongings | None, why: str) -> str:
    because = f": {why}" if why else ""
    head = f"INSTANCES MAY STILL RUN AND COST MONEY. The end of run {run} in {account} could not be proven{because}."
    if left:
        steps = "\n".join(f"    {command}" for command in left.commands(account.region))
        return f"{head} Type this, or `dtfperf ec2 reap` later:\n{steps}"
    return (
        f"{head} Look for what is left, or type `dtfperf ec2 reap` later:\n"
        f"    aws ec2 describe-instances --region {account.region} --filters Name=tag:{RUN},Values={run}"
    )
