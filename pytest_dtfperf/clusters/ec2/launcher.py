"""The launch of a plan: all of its instances or none, in the first zone that has room for all.

The ledger records what was made. The caller deletes it.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from botocore.exceptions import ClientError

from pytest_dtfperf.clusters.ec2 import contact, instance_types, instances, plan, refusals
from pytest_dtfperf.clusters.ec2.account import NO_ANSWER, Account, call_once_known, call_unless, iterate_attempts
from pytest_dtfperf.clusters.ec2.instance_types import Offer
from pytest_dtfperf.clusters.ec2.instances import Instance
from pytest_dtfperf.clusters.ec2.ledger import Ledger
from pytest_dtfperf.clusters.ec2.plan import LaunchPlan, Zone
from pytest_dtfperf.clusters.ec2.refusals import Refusal
from pytest_dtfperf.clusters.ec2.teardown import terminate_instances
from pytest_dtfperf.errors import AllocationError

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import IpPermissionTypeDef

ANSWER_S = 180.0  # for RunInstances, repetitions included: few calls are allowed, and other callers use them, too
RUNNING_S = 600.0  # from the answer until all run: machines with eight GPUs take minutes
_DUPLICATE = "InvalidPermission.Duplicate"


class NoRoom(Exception):
    """A zone has no capacity for all instances."""


class UsedUp(Exception):
    """A token belongs to ended instances: its request was carried out, but its answer was lost."""


@dataclass(frozen=True)
class Launch:
    """The launch of one run."""

    account: Account
    plan: LaunchPlan
    ledger: Ledger
    offer: Offer
    on_status: Callable[[str], object]

    def __call__(self) -> list[Instance]:
        """Launch, and return the running instances in launch order. Raises `AllocationError` or botocore's errors."""
        self._import_key()
        group = self._security_group()
        user_data = self._user_data()
        reasons: list[str] = []
        zones = deque(self.plan.zones)
        tried_again: set[Zone] = set()
        attempt = 0
        while zones:
            zone = zones.popleft()
            try:
                return self._attempt(attempt, zone, group, user_data)
            except NoRoom as full:
                reasons.append(f"{zone.name}: {full}")
                self.on_status(f"no room in {zone.name}")
            except UsedUp as ended:
                reasons.append(f"{zone.name}: {ended}")
                if zone not in tried_again:  # the zone may have capacity, and another token is unused
                    tried_again.add(zone)
                    zones.appendleft(zone)
            attempt += 1
        raise AllocationError(self._nowhere(reasons))

    def _attempt(self, attempt: int, zone: Zone, group: str, user_data: str) -> list[Instance]:
        """Launch all instances in this zone, or none."""
        if self.plan.placement:
            self._placement_group(self.plan.group(attempt))
        self.on_status(f"launching {self.plan.count} x {self.plan.instance_type} in {zone.name}")
        wanted = plan.make_launch_request(self.plan, attempt, zone, security_group=group, user_data=user_data)
        ids = self._run(zone, wanted["ClientToken"], lambda: self.account.launcher.run_instances(**wanted)["Instances"])
        try:
            return self._wait_until_running(ids)
        except NoRoom:  # for some of them: the others are then useless
            terminate_instances(self.account, ids)
            raise

    # Resources of the instances

    def _import_key(self) -> None:
        name = self.plan.name
        self.ledger.intend("key-pair", name=name)
        call_unless(
            ("InvalidKeyPair.Duplicate",),  # created by an earlier request, of which the answer was lost
            lambda: self.account.ec2.import_key_pair(
                KeyName=name,
                PublicKeyMaterial=(self.ledger.folder / f"{contact.LOGIN_KEY}.pub").read_bytes(),
                TagSpecifications=plan.make_tag_specifications(self.plan, "key-pair"),
            ),
        )
        self.ledger.got("key-pair", name=name)

    def _security_group(self) -> str:
        ec2, name, vpc = self.account.ec2, self.plan.name, self.plan.vpc
        self.ledger.intend("security-group", name=name)
        made = call_unless(
            ("InvalidGroup.Duplicate",),
            lambda: ec2.create_security_group(
                GroupName=name,
                Description=f"dtfperf run {self.plan.run}",
                VpcId=vpc,
                TagSpecifications=plan.make_tag_specifications(self.plan, "security-group"),
            )["GroupId"],
        )
        group = made or self._group_of_that_name()
        self.ledger.got("security-group", name=name, id=group)
        allow_ingress(self.account, group, plan.make_permissions(self.plan, group))
        if self.plan.efa:
            out = [plan.make_group_permission(group)]
            call_unless(
                (_DUPLICATE,),
                lambda: call_once_known(
                    lambda: ec2.authorize_security_group_egress(GroupId=group, IpPermissions=out), "InvalidGroup.NotFound"
                ),
            )
        return group

    def _group_of_that_name(self) -> str:
        """Return the id of the security group that an earlier request created, of which the answer was lost."""
        for _ in iterate_attempts(30):
            found = self.account.ec2.describe_security_groups(
                Filters=[{"Name": "group-name", "Values": [self.plan.name]}, {"Name": "vpc-id", "Values": [self.plan.vpc]}]
            )["SecurityGroups"]
            if found:
                return found[0]["GroupId"]
        raise AllocationError(f"Amazon refuses a second security group {self.plan.name}, but does not show the first")

    def _placement_group(self, name: str) -> None:
        self.ledger.intend("placement-group", name=name)
        call_unless(
            ("InvalidPlacementGroup.Duplicate",),
            lambda: self.account.ec2.create_placement_group(
                GroupName=name, Strategy="cluster", TagSpecifications=plan.make_tag_specifications(self.plan, "placement-group")
            ),
        )
        self.ledger.got("placement-group", name=name)

    def _user_data(self) -> str:
        folder = self.ledger.folder
        private, public = ((folder / name).read_text() for name in (contact.HOST_KEY, f"{contact.HOST_KEY}.pub"))
        return contact.make_cloud_config(private, public, self.plan.minutes)

    # The instances

    def _run(self, zone: Zone, token: str, call: Callable[[], Sequence[Any]]) -> list[str]:
        """Request the instances, and return their ids. A request is repeated with the same token, so it launches once."""
        trouble = ""
        for _ in iterate_attempts(ANSWER_S, first_s=0.25, most_s=20.0):
            self.ledger.intend("instances", token=token, subnet=zone.subnet)
            try:
                answer = call()
            except NO_ANSWER as error:
                trouble = self.account.explain(error)
                continue
            except ClientError as error:
                trouble = self.account.explain(error)
                kind = refusals.classify_refusal(refusals.get_code(error), error.response["ResponseMetadata"]["HTTPStatusCode"])
                if kind is Refusal.TRANSIENT:
                    continue
                self.ledger.note_refused("instances", token=token, why=refusals.get_code(error))
                self._give_up(kind, error)
            ids = [each["InstanceId"] for each in sorted(answer, key=lambda each: each.get("AmiLaunchIndex", 0))]
            self.ledger.got("instances", token=token, ids=ids)
            return ids
        raise AllocationError(f"no answer to RunInstances within {ANSWER_S:g} s: {trouble}")

    def _give_up(self, kind: Refusal, error: ClientError) -> NoReturn:
        code = refusals.get_code(error)
        if kind is Refusal.NO_CAPACITY:
            raise NoRoom(refusals.format_error(error)) from error
        if kind is Refusal.USED_UP:
            raise UsedUp("its instances had ended before anybody heard of them") from error
        if code in refusals.QUOTA:
            message = instance_types.explain_quota(self.account, self.offer, self.plan.count, spot=self.plan.spot)
            raise AllocationError(f"{message} (Amazon's code: {code})") from error
        raise error

    def _wait_until_running(self, ids: Sequence[str]) -> list[Instance]:
        seen: dict[str, Instance] = {}
        for _ in iterate_attempts(RUNNING_S):
            seen |= instances.describe_by_id(self.account.ec2, ids)
            self._refuse_ended(seen)
            if len(seen) == len(ids) and all(self._is_there(each) for each in seen.values()):
                return sorted(seen.values(), key=lambda each: each.index)
        missing = ", ".join(f"{each} ({seen[each].state if each in seen else 'not shown'})" for each in ids)
        raise AllocationError(
            f"not running, or without the addresses they are to have, within {RUNNING_S:g} s: {missing}."
            + (" Do their subnets give public addresses a way out?" if self.plan.public else "")
        )

    def _is_there(self, instance: Instance) -> bool:
        return bool(instance.state == "running" and instance.private and (instance.public or not self.plan.public))

    def _refuse_ended(self, seen: Mapping[str, Instance]) -> None:
        for each in seen.values():
            if each.runs_no_more:
                if refusals.lacks_capacity(each.reason) or refusals.was_reclaimed(each.reason):
                    raise NoRoom(f"{each.id} was accepted, then ended: {each.reason}")
                raise AllocationError(
                    f"instance {each.id} is {each.state} before it ran: {each.reason or 'no reason is given'}"
                )

    def _nowhere(self, reasons: Sequence[str]) -> str:
        plan = self.plan
        where = "\n".join(f"    {reason}" for reason in reasons)
        ways = ["try later", "name subnets of other zones", "another region or instance_type"]
        if plan.placement and plan.count > 1:
            ways.append('leave out placement = "cluster", which wants all of them close together')
        return (
            f"no zone of {plan.region} has room for {plan.count} x {plan.instance_type}"
            f"{' as spot instances' if plan.spot else ''} at once: {', or '.join(ways)}.\n{where}"
        )


def allow_ingress(account: Account, group: str, doors: Sequence["IpPermissionTypeDef"]) -> None:
    """Add ingress rules; existing rules stay."""
    for door in doors:  # one by one, because a duplicate refuses the whole request
        call_unless(
            (_DUPLICATE,),
            lambda door=door: call_once_known(  # type: ignore[misc]
                lambda: account.ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[door]),
                "InvalidGroup.NotFound",
            ),
        )
