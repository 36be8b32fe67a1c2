"""The launch of a plan: all of its instances or none, in the first zone that has room for all.

Before a launch, the image, the subnets, and the address from which this machine logs in are found. The ledger records what was
made. The caller deletes it.
"""

import ipaddress
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from botocore.exceptions import ClientError

from pytest_dtfperf.clusters.ec2 import contact, instance_types, instances, plan, refusals
from pytest_dtfperf.clusters.ec2.account import NO_ANSWER, Account, call_once_known, call_unless, iterate_attempts
from pytest_dtfperf.clusters.ec2.instance_types import Offer
from pytest_dtfperf.clusters.ec2.instances import Instance
from pytest_dtfperf.clusters.ec2.keys import DEFAULT_VOLUME_GIB
from pytest_dtfperf.clusters.ec2.ledger import Ledger
from pytest_dtfperf.clusters.ec2.plan import LaunchPlan, Zone
from pytest_dtfperf.clusters.ec2.refusals import Refusal
from pytest_dtfperf.clusters.ec2.teardown import terminate_instances
from pytest_dtfperf.errors import AllocationError, ClusterFileError

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import FilterTypeDef, SubnetTypeDef

CHECK_IP = "https://checkip.amazonaws.com"  # returns the caller's address
_CHECK_IP_S = 10.0
# Ubuntu 24.04, which has Python 3.12: with NVIDIA's driver (docs.aws.amazon.com/dlami), or without.
_WITH_DRIVER = "/aws/service/deeplearning/ami/{}/base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id"
_WITHOUT = "/aws/service/canonical/ubuntu/server/24.04/stable/current/{}/hvm/ebs-gp3/ami-id"
_CANONICALS = {"x86_64": "amd64", "arm64": "arm64"}


@dataclass(frozen=True)
class Image:
    """An image for instances."""

    id: str
    root_device: str
    least_gib: int  # least size of the instances' volume


def find_image(account: Account, backend_keys: Mapping[str, Any], offer: Offer, where: str) -> Image:
    """Return the image of the cluster file, or Amazon's latest for such instances. Raises `ClusterFileError`."""
    parameter = backend_keys.get("ami_parameter") or get_default_image_parameter(offer)
    ami = backend_keys.get("ami") or _read_parameter(account, parameter, where)
    try:
        found = account.ec2.describe_images(ImageIds=[ami])["Images"]
    except ClientError as error:
        if not refusals.get_code(error).startswith("InvalidAMIID"):
            raise
        found = []
    if not found:
        raise ClusterFileError(
            f"{where}: there is no image {ami} in {account.region}, or not for this account. Images belong to one region: name "
            "one of it with ami, or leave ami out"
        )
    shown = found[0]
    architecture = shown.get("Architecture", "x86_64")
    if offer.architectures and architecture not in offer.architectures:
        raise ClusterFileError(
            f"{where}: image {ami} is made for {architecture}, but {offer.instance_type} is {' or '.join(offer.architectures)}"
        )
    root = shown.get("RootDeviceName", "/dev/sda1")
    sizes = [
        mapping["Ebs"].get("VolumeSize", 0)
        for mapping in shown.get("BlockDeviceMappings", [])
        if mapping.get("DeviceName") == root and "Ebs" in mapping
    ]
    return Image(ami, root, max(sizes, default=0))


def compute_volume_gib(backend_keys: Mapping[str, Any], image: Image) -> int:
    """Return the volume size of the cluster file, or enough for the image and TensorFlow."""
    given: int | None = backend_keys.get("volume_gib")
    return given or max(DEFAULT_VOLUME_GIB, image.least_gib)


def get_default_image_parameter(offer: Offer) -> str:
    """Return the public parameter of the default image."""
    architecture = "arm64" if "x86_64" not in offer.architectures and "arm64" in offer.architectures else "x86_64"
    return _WITH_DRIVER.format(architecture) if offer.gpus else _WITHOUT.format(_CANONICALS[architecture])


def find_zones(account: Account, backend_keys: Mapping[str, Any], where: str) -> tuple[str, tuple[Zone, ...]]:
    """Return the VPC, and a subnet in each zone to try. Raises `ClusterFileError`."""
    named: Sequence[str] = backend_keys.get("subnets", ())
    if named:
        found = account.ec2.describe_subnets(SubnetIds=list(named))["Subnets"]
        found.sort(key=lambda subnet: named.index(subnet["SubnetId"]))
    else:
        found = _list_subnets(account, backend_keys.get("vpc"))
        if backend_keys.get("address") != "private":  # private instances have a route out by other means
            found = [subnet for subnet in found if subnet.get("MapPublicIpOnLaunch")] or found
    if not found:
        vpc = backend_keys.get("vpc")
        raise ClusterFileError(
            f"{where}: {f'VPC {vpc}' if vpc else f'the default VPC of {account.region}'} has no subnets"
            f"{'' if vpc else ', or there is none'}. Name some with subnets = [...] in clusters.toml"
            f"{'' if vpc else ', or make one: aws ec2 create-default-vpc --region ' + account.region}"
        )
    vpcs = sorted({subnet["VpcId"] for subnet in found})
    if len(vpcs) > 1:
        raise ClusterFileError(f"{where}: its subnets belong to {len(vpcs)} VPCs ({', '.join(vpcs)}), but must be of one")
    return vpcs[0], tuple(Zone(subnet["AvailabilityZone"], subnet["SubnetId"]) for subnet in found)


def find_caller_cidr(backend_keys: Mapping[str, Any], check_ip: str = CHECK_IP) -> str:
    """Return the network that may log in: the cluster file's, or only this machine's address as Amazon sees it."""
    if given := backend_keys.get("caller_cidr"):
        return str(ipaddress.IPv4Network(given))  # Amazon requires the prefix length, even of a single address
    try:
        with urllib.request.urlopen(check_ip, timeout=_CHECK_IP_S) as answer:
            address = ipaddress.IPv4Address(answer.read(64).decode("ascii", "replace").strip())
    except (OSError, ValueError) as error:
        raise AllocationError(
            f"cannot find out from which address Amazon is reached ({check_ip}: {error}). "
            'Set it in clusters.toml: caller_cidr = "203.0.113.7/32"'
        ) from error
    return f"{address}/32"


def _read_parameter(account: Account, name: str, where: str) -> str:
    try:
        return account.ssm.get_parameter(Name=name)["Parameter"]["Value"]
    except ClientError as error:
        if refusals.get_code(error) not in ("ParameterNotFound", "ValidationException"):
            raise
        raise ClusterFileError(
            f"{where}: Systems Manager knows no parameter {name!r} in {account.region}. Name an image with ami, or another "
            "parameter with ami_parameter"
        ) from error


def _list_subnets(account: Account, vpc: str | None) -> list["SubnetTypeDef"]:
    which: FilterTypeDef = {"Name": "vpc-id", "Values": [vpc]} if vpc else {"Name": "default-for-az", "Values": ["true"]}
    pages = account.ec2.get_paginator("describe_subnets").paginate(Filters=[which])
    found = [subnet for page in pages for subnet in page["Subnets"]]
    return sorted(found, key=lambda subnet: (subnet["AvailabilityZone"], subnet["SubnetId"]))


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
    may_lack_hosts: bool = False  # whether instances may end before they run, other than for lack of capacity

    def __call__(self) -> list[Instance]:
        """Launch, and return the instances in launch order, when they run. Raises `AllocationError` or botocore's errors."""
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
        raise AllocationError(self._describe_no_room(reasons))

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
        self.ledger.note_intent("key-pair", name=name)
        call_unless(
            ("InvalidKeyPair.Duplicate",),  # created by an earlier request, of which the answer was lost
            lambda: self.account.ec2.import_key_pair(
                KeyName=name,
                PublicKeyMaterial=(self.ledger.folder / f"{contact.LOGIN_KEY}.pub").read_bytes(),
                TagSpecifications=plan.make_tag_specifications(self.plan, "key-pair"),
            ),
        )
        self.ledger.note_result("key-pair", name=name)

    def _security_group(self) -> str:
        ec2, name, vpc = self.account.ec2, self.plan.name, self.plan.vpc
        self.ledger.note_intent("security-group", name=name)
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
        self.ledger.note_result("security-group", name=name, id=group)
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
        self.ledger.note_intent("placement-group", name=name)
        call_unless(
            ("InvalidPlacementGroup.Duplicate",),
            lambda: self.account.ec2.create_placement_group(
                GroupName=name, Strategy="cluster", TagSpecifications=plan.make_tag_specifications(self.plan, "placement-group")
            ),
        )
        self.ledger.note_result("placement-group", name=name)

    def _user_data(self) -> str:
        folder = self.ledger.folder
        private, public = ((folder / name).read_text() for name in (contact.HOST_KEY, f"{contact.HOST_KEY}.pub"))
        return contact.make_cloud_config(private, public, self.plan.minutes)

    # The instances

    def _run(self, zone: Zone, token: str, call: Callable[[], Sequence[Any]]) -> list[str]:
        """Request the instances, and return their ids. A request is repeated with the same token, so it launches once."""
        trouble = ""
        for _ in iterate_attempts(ANSWER_S, first_s=0.25, most_s=20.0):
            self.ledger.note_intent("instances", token=token, subnet=zone.subnet)
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
            self.ledger.note_result("instances", token=token, ids=ids)
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
            if len(seen) == len(ids) and all(self._is_there(each) or each.runs_no_more for each in seen.values()):
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
                if not self.may_lack_hosts:
                    raise AllocationError(
                        f"instance {each.id} is {each.state} before it ran: {each.reason or 'no reason is given'}"
                    )

    def _describe_no_room(self, reasons: Sequence[str]) -> str:
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
