"""RunInstances as EC2 does it: all or nothing, once per token, where there is room, and pending at first."""

import hashlib
import json
import time
from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models.instance_types import INSTANCE_TYPE_OFFERINGS, INSTANCE_TYPES
from moto.ec2.models.instances import Instance, Reservation, StateReason
from moto.ec2.responses.instances import InstanceResponse

from tests.clusters.ec2.cloud import quotas, spot, world

USER_DATA_LIMIT = 16 * 1024
WITHDRAWN = "Server.InsufficientInstanceCapacity"
OVERFULL = (
    "We currently do not have sufficient {kind} capacity in the Availability Zone you requested ({zone}). Our system will be "
    "working on provisioning additional capacity. You can currently get {kind} capacity by not specifying an Availability "
    "Zone in your request or choosing another."
)


class Launching(InstanceResponse):
    def run_instances(self) -> ActionResult:
        here, token, request = world.get_world(), self._get_param("ClientToken"), self._signature()
        if token and (earlier := here.tokens.get(token)):
            return ActionResult(_repeat_launch(*earlier, request))
        kind, zone = self._get_param("InstanceType", "m1.small"), self._zone()
        self._check(kind, zone)
        self.error_on_dryrun()
        self.params["MinCount"] = self._count(kind, zone)  # moto launches MinCount
        self._set_interfaces()
        answer: Any = super().run_instances()
        reservation: Reservation = answer._result
        if token:
            here.tokens[token] = (request, reservation)
        for instance in reservation.instances:
            self._be_born(instance)
        return ActionResult(reservation)

    def _signature(self) -> str:
        fields = {key: value for key, value in self.params.items() if key not in ("ClientToken", "DryRun")}
        return hashlib.sha256(json.dumps(fields, sort_keys=True, default=str).encode()).hexdigest()

    def _check(self, kind: str, zone: str) -> None:
        if kind not in INSTANCE_TYPES:
            raise EC2ClientError("InvalidParameterValue", f"Invalid value '{kind}' for InstanceType.")
        if not any(o["InstanceType"] == kind for o in _list_offers(self.region, zone)):
            known = ", ".join(sorted({o["Location"] for o in _list_offers(self.region) if o["InstanceType"] == kind}))
            message = f"Your requested instance type ({kind}) is not supported in your requested Availability Zone ({zone})."
            raise EC2ClientError("Unsupported", f"{message} Please retry your request by choosing {known or 'another type'}.")
        key = self._get_param("KeyName")
        if key and key not in self.ec2_backend.key_pairs:
            raise EC2ClientError("InvalidKeyPair.NotFound", f"The key pair '{key}' does not exist")
        if len(self._get_param("UserData") or "") > USER_DATA_LIMIT * 4 / 3:
            raise EC2ClientError("InvalidParameterValue", "User data is limited to 16384 bytes")
        interfaces = self._interfaces()
        if len(interfaces) > 1 and any(i.get("AssociatePublicIpAddress") for i in interfaces):
            message = (
                "The associatePublicIPAddress parameter cannot be specified when launching with multiple network interfaces."
            )
            raise EC2ClientError("InvalidParameterCombination", message)
        if group := self._group_name():
            self._check_group(group, kind, zone)
        quotas.check(self, kind, int(self._get_param("MinCount", 1)))

    def _check_group(self, name: str, kind: str, zone: str) -> None:
        group = world.get_world().placement_groups.get(f"{self.region}/{name}")
        if not group:
            raise EC2ClientError("InvalidPlacementGroup.Unknown", f"The Placement Group '{name}' is unknown.")
        if group["Strategy"] not in INSTANCE_TYPES[kind]["PlacementGroupInfo"]["SupportedStrategies"]:
            message = f"{group['Strategy'].title()} placement groups are not supported by the '{kind}' instance type."
            raise EC2ClientError("InvalidParameterCombination", message)
        members = [i for i in world.get_world().instances() if i.placement.group_name == name and i.state != "terminated"]
        if group["Strategy"] == "cluster" and any(i.placement.zone != zone for i in members):
            message = f"The placement group '{name}' is in use and cannot span Availability Zones."
            raise EC2ClientError("InvalidPlacementGroup.InUse", message)

    def _count(self, kind: str, zone: str) -> int:
        here = world.get_world()
        least, most = int(self._get_param("MinCount", 1)), int(self._get_param("MaxCount", 1))
        if least > most:
            raise EC2ClientError("InvalidParameterValue", f"Minimum count ({least}) is greater than maximum count ({most})")
        free = here.capacity.get((zone, kind), most + here.count_used(zone, kind)) - here.count_used(zone, kind)
        if free < least:
            raise EC2ClientError("InsufficientInstanceCapacity", OVERFULL.format(kind=kind, zone=zone))
        return min(most, free)

    def _set_interfaces(self) -> None:
        """moto keeps one interface per device index, EC2 one per network card; and EC2 deletes them with their instance."""
        for index, interface in enumerate(self._interfaces()):
            interface.setdefault("DeleteOnTermination", "NetworkInterfaceId" not in interface)
            interface["DeviceIndex"] = index

    def _be_born(self, instance: Instance) -> None:
        here, tags = world.get_world(), self._parse_tag_specification()
        world.become(instance, world.PENDING)
        instance.placement.group_name = self._group_name()
        instance.disable_api_termination = bool(self._get_param("DisableApiTermination"))
        interfaces = self._interfaces()
        for index, nic in instance.nics.items():
            nic.interface_type = (interfaces[index].get("InterfaceType") if interfaces else None) or "interface"
            nic.delete_on_termination = True if not interfaces else interfaces[index]["DeleteOnTermination"]
            nic.add_tags(tags.get("network-interface", {}))
        if instance.lifecycle == "spot":
            options = (self._get_param("InstanceMarketOptions") or {}).get("SpotOptions") or {}
            spot.add_request(instance, options, tags.get("spot-instances-request", {}))
        here.born[instance.id] = time.monotonic()
        here.schedule(here.pending_s, lambda: _come_up(instance))

    def _interfaces(self) -> list[dict[str, Any]]:
        interfaces: list[dict[str, Any]] = self._get_param("NetworkInterfaces") or []
        return interfaces

    def _group_name(self) -> str:
        return (self._get_param("Placement") or {}).get("GroupName") or ""

    def _zone(self) -> str:
        subnets = [self._get_param("SubnetId"), *(i.get("SubnetId") for i in self._interfaces())]
        if subnet := next((s for s in subnets if s), None):
            zone: str = self.ec2_backend.get_subnet(subnet).availability_zone
            return zone
        return (self._get_param("Placement") or {}).get("AvailabilityZone") or f"{self.region}a"


def _list_offers(region: str, zone: str | None = None) -> list[dict[str, str]]:
    offers: list[dict[str, str]] = INSTANCE_TYPE_OFFERINGS["availability-zone"].get(region, [])
    return [o for o in offers if zone in (None, o["Location"])]


def _repeat_launch(first: str, reservation: Reservation, request: str) -> Reservation:
    if first != request:
        message = "Arguments on this idempotent request are inconsistent with arguments used in previous request(s)."
        raise EC2ClientError("IdempotentParameterMismatch", message)
    if all(i.state in world.ENDED for i in reservation.instances):
        message = (
            "The client token you have provided is associated with a terminated instance. Please use a different client token."
        )
        raise EC2ClientError("IdempotentInstanceTerminated", message)
    return reservation


def _come_up(instance: Instance) -> None:
    here = world.get_world()
    if instance.state != "pending":
        return
    if here.withdrawn > 0:
        here.withdrawn -= 1
        instance.terminate()
        world.become(instance, world.TERMINATED)
        here.gone[instance.id] = time.monotonic()
        instance.state_reason = StateReason(f"{WITHDRAWN}: Insufficient capacity to satisfy instance request", WITHDRAWN)
    elif here.on_boot:
        here.on_boot(instance)
    else:
        world.become(instance, world.RUNNING)
