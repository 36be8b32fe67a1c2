"""DescribeInstances, which does not show new instances at once, and other descriptions of instances."""

import copy
import time
from typing import Any

from moto.core.responses import ActionResult
from moto.core.types import Base64EncodedString
from moto.core.utils import utcnow
from moto.ec2 import utils
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models.instances import Instance, Reservation
from moto.ec2.responses.instances import InstanceResponse

from tests.clusters.ec2.cloud import world

# Filters that moto lacks.
utils.filter_dict_attribute_mapping.update(
    {
        "client-token": "client_token",
        "placement-group-name": "placement.group_name",
        "instance-lifecycle": "lifecycle",
        "reservation-id": "reservation_id",
        "spot-instance-request-id": "spot_instance_request_id",
    }
)
PRIVATE = ("private_ip_address", "private_dns_name", "public_ip_address", "public_dns_name")


class Describing(InstanceResponse):
    def describe_instances(self) -> Any:
        here, asked = world.get_world(), set(self._get_param("InstanceIds", []))
        hidden_s = here.visible_after_s
        if here.blind_calls > 0:
            here.blind_calls -= 1
            hidden_s = float("inf")
        here.described.update(here.born.keys())
        unseen = {
            i for i, born in here.born.items() if time.monotonic() - born < hidden_s or here.described[i] <= here.hidden_calls
        }
        if asked & unseen:
            raise EC2ClientError(
                "InvalidInstanceID.NotFound", f"The instance IDs '{', '.join(sorted(asked & unseen))}' do not exist"
            )
        answer: Any = super().describe_instances()
        found: list[Reservation] = answer._result["Reservations"]
        for reservation in found:
            reservation.instances = [_hide_addresses(i) for i in reservation.instances if i.id not in unseen]
        answer._result["Reservations"] = [reservation for reservation in found if reservation.instances]
        return answer

    def get_console_output(self) -> ActionResult:
        instance_id = self._get_param("InstanceId")
        self.ec2_backend.get_instance(instance_id)
        output = Base64EncodedString.from_raw_string(world.get_world().console.get(instance_id, ""))
        return ActionResult({"InstanceId": instance_id, "Timestamp": utcnow(), "Output": output})


class _Seen:
    """An instance as it is described: without addresses when it is too young for them, or over."""

    def __init__(self, instance: Instance, hidden: tuple[str, ...]) -> None:
        self._instance, self._hidden = instance, hidden

    def __getattr__(self, name: str) -> object:
        if name in self._hidden:
            return None
        if name == "network_interfaces" and self._hidden:
            return []
        return getattr(self._instance, name)


def _hide_addresses(instance: Instance) -> Instance:
    here = world.get_world()
    young = time.monotonic() - here.born.get(instance.id, 0.0) < here.addressed_after_s
    if young or instance.state == "terminated":
        return _Seen(instance, PRIVATE)  # type: ignore[return-value] # the serialiser takes whatever has the attributes
    return copy.copy(instance)
