"""Spot requests, as RunInstances makes them, and the history of spot prices."""

from datetime import UTC, datetime, timedelta
from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models.instance_types import INSTANCE_TYPE_OFFERINGS
from moto.ec2.models.instances import Instance
from moto.ec2.responses.spot_instances import SpotInstances

from tests.clusters.ec2.cloud import world
from tests.clusters.ec2.cloud.catalogue import SPOT_PRICES
from tests.clusters.ec2.cloud.filters import passes

FILTERS = {"state": "State", "instance-id": "InstanceId", "spot-instance-request-id": "SpotInstanceRequestId", "type": "Type"}
PRICE_FILTERS = {
    "availability-zone": "AvailabilityZone",
    "instance-type": "InstanceType",
    "product-description": "ProductDescription",
}
ZONE_FACTORS = {"a": 1.0, "b": 1.25, "c": 0.8}  # prices differ from zone to zone


class Spot(SpotInstances):
    def describe_spot_instance_requests(self) -> ActionResult:
        requests = world.get_world().spot_requests
        wanted = self._get_param("SpotInstanceRequestIds", []) or list(requests)
        for request_id in wanted:
            _get_request(request_id)
        filters = self._filters_from_querystring()
        found = [requests[r] for r in wanted if passes(requests[r], filters, FILTERS)]
        return ActionResult({"SpotInstanceRequests": found})

    def cancel_spot_instance_requests(self) -> ActionResult:
        """The instance goes on: it has to be terminated apart from its request."""
        cancelled = []
        for request_id in self._get_param("SpotInstanceRequestIds", []):
            _get_request(request_id)["State"] = "cancelled"
            cancelled.append({"SpotInstanceRequestId": request_id, "State": "cancelled"})
        return ActionResult({"CancelledSpotInstanceRequests": cancelled})

    def describe_spot_price_history(self) -> ActionResult:
        """Newest first, a price every six hours of the last day, all zones."""
        types, filters = self._get_param("InstanceTypes", []), self._filters_from_querystring()
        descriptions = self._get_param("ProductDescriptions", []) or ["Linux/UNIX", "Windows"]
        offers = [
            o for o in INSTANCE_TYPE_OFFERINGS["availability-zone"].get(self.region, []) if o["InstanceType"] in SPOT_PRICES
        ]
        history = [
            {
                "InstanceType": offer["InstanceType"],
                "ProductDescription": description,
                "SpotPrice": f"{_price(offer['InstanceType'], offer['Location'], description) * (1 + age / 10):.6f}",
                "AvailabilityZone": offer["Location"],
                "Timestamp": datetime.now(UTC).replace(tzinfo=None) - timedelta(hours=6 * age),
            }
            for age in range(4)
            for offer in offers
            for description in descriptions
            if not types or offer["InstanceType"] in types
        ]
        return ActionResult({"SpotPriceHistory": [entry for entry in history if passes(entry, filters, PRICE_FILTERS)]})


def _price(kind: str, zone: str, description: str) -> float:
    return SPOT_PRICES[kind] * ZONE_FACTORS.get(zone[-1], 1.0) * (2.0 if description == "Windows" else 1.0)


def _get_request(request_id: str) -> dict[str, Any]:
    requests = world.get_world().spot_requests
    if request_id not in requests:
        message = f"The spot instance request ID '{request_id}' does not exist"
        raise EC2ClientError("InvalidSpotInstanceRequestID.NotFound", message)
    return requests[request_id]


def add_request(instance: Instance, options: dict[str, Any], tags: dict[str, str]) -> None:
    """Add the request of a spot instance."""
    request_id = f"sir-{next(world.get_world().ids):08x}"
    instance.spot_instance_request_id = request_id  # type: ignore[attr-defined] # moto's instances of a fleet have it
    world.get_world().spot_requests[request_id] = {
        "SpotInstanceRequestId": request_id,
        "InstanceId": instance.id,
        "State": "active",
        "Type": options.get("SpotInstanceType", "one-time"),
        "InstanceInterruptionBehavior": options.get("InstanceInterruptionBehavior", "terminate"),
        "Status": {"Code": "fulfilled", "Message": "Your Spot request is fulfilled."},
        "Tags": [{"Key": key, "Value": value} for key, value in tags.items()],
    }


def close_requests(instance: Instance) -> None:
    """Close the one-time requests of an ended instance; open persistent ones again, which would launch another."""
    for request in world.get_world().spot_requests.values():
        if request["InstanceId"] == instance.id and request["State"] == "active":
            request["State"] = "closed" if request["Type"] == "one-time" else "open"
