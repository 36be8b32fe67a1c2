"""The pretend cloud as a test meets it."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from moto.ec2.models import ec2_backends

from tests.clusters.ec2.cloud import catalogue, ending, guard, quotas, world
from tests.clusters.ec2.cloud.faults import Faults
from tests.clusters.ec2.cloud.policy import Policy
from tests.clusters.ec2.cloud.server import CHECK_IP, Server
from tests.clusters.ec2.cloud.wire import Call

REGIONS = ("us-east-1", "us-west-2", "eu-central-1")


@dataclass(frozen=True)
class CloudResources:
    """Everything in the account that costs money or was made by a user. False when there is nothing."""

    instances: tuple[str, ...] = ()
    security_groups: tuple[str, ...] = ()
    placement_groups: tuple[str, ...] = ()
    key_pairs: tuple[str, ...] = ()
    volumes: tuple[str, ...] = ()
    interfaces: tuple[str, ...] = ()
    spot_requests: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return any(getattr(self, field.name) for field in fields(self))


NOTHING = CloudResources()


class Cloud:
    """An account at a pretend Amazon, empty but for a VPC with a subnet in each of two zones, and the default VPC."""

    image, plain_image, arm_image = catalogue.IMAGE, catalogue.PLAIN_IMAGE, catalogue.ARM_IMAGE
    caller = "192.0.2.1"  # this machine's address, as Amazon sees it
    account, region = guard.ACCOUNT, guard.REGION

    def __init__(self, server: Server, url: str, *, network: str = "10.77.0") -> None:
        """`network` is the first three bytes of the subnets' addresses: half of it in zone a, half in zone b."""
        self.url = url
        self.check_ip = url + CHECK_IP  # answers with `caller`
        self._server = server
        server.caller = self.caller
        self.world = world.World()
        server.reset(self.world, *REGIONS)
        backend = ec2_backends[guard.ACCOUNT][self.region]
        vpc = backend.create_vpc(f"{network}.0/24")
        self.vpc: str = vpc.id
        self.subnets: dict[str, str] = {}
        for zone, part in (("a", f"{network}.0/25"), ("b", f"{network}.128/25")):
            subnet = backend.create_subnet(vpc.id, part, availability_zone=f"{self.region}{zone}")
            subnet.map_public_ip_on_launch = True
            self.subnets[f"{self.region}{zone}"] = subnet.id

    @property
    def environment(self) -> Mapping[str, str]:
        """Return the environment that a child needs; the test's own process has it."""
        return guard.environment(self.url)

    @property
    def faults(self) -> Faults:
        return self._server.faults

    @property
    def calls(self) -> list[Call]:
        """All requests so far, in the order they came."""
        return self._server.calls

    def names(self) -> list[str]:
        return [call.action for call in self.calls]

    def list_calls(self, action: str) -> list[Call]:
        return [call for call in self.calls if call.action == action]

    def list_resources(self) -> CloudResources:
        """Return everything that exists now, in all regions, without a call to the API."""
        self.world.catch_up()
        backends = [ec2_backends[guard.ACCOUNT][region] for region in REGIONS]
        spots = [r for r in self.world.spot_requests.values() if r["State"] in ("open", "active")]
        alive = [i for i in self.world.instances() if i.state != "terminated"]
        interfaces = [eni for b in backends for eni in b.enis.values()]
        groups = [g for b in backends for vpc in b.groups.values() for g in vpc.values()]
        return CloudResources(
            instances=tuple(i.id for i in alive),
            security_groups=tuple(g.name for g in groups if g.name != "default"),
            placement_groups=tuple(g["GroupName"] for g in self.world.placement_groups.values()),
            key_pairs=tuple(name for b in backends for name in b.key_pairs),
            volumes=tuple(volume for b in backends for volume in b.volumes),
            interfaces=tuple(eni.id for eni in interfaces),
            spot_requests=tuple(r["SpotInstanceRequestId"] for r in spots),
        )

    def states(self) -> dict[str, str]:
        """Return the state of each instance, by its id, of all that were launched."""
        self.world.catch_up()
        return {i.id: i.state for i in self.world.instances()}

    def instance(self, instance_id: str) -> Any:
        """Return moto's instance, with data that DescribeInstances does not have, such as its user data."""
        return self.world.instance(instance_id)

    def limit(self, kind: str, vcpus: float, *, spot: bool = False) -> str:
        """Set the quota that an instance type falls under. The quota's code."""
        code = quotas.code_of(kind, spot)
        quotas.limits[code] = vcpus
        return code

    def interrupt_spot(self, instance_id: str) -> None:
        """Take a spot instance back, without further notice."""
        with self.world.lock:
            ending.interrupt(self.world.instance(instance_id))

    def power_off(self, instance_id: str) -> None:
        """Let an instance shut itself down, as `shutdown` on it would."""
        with self.world.lock:
            ending.power_off(self.world.instance(instance_id))

    def set_clock_ahead(self, seconds: float) -> None:
        """Let all answers have another time than this machine's."""
        self._server.ahead_s = seconds

    def user(self, policy: Mapping[str, Any]) -> Mapping[str, str]:
        """Return credentials, as environment variables, of a user with this policy. `refused` lists refused actions."""
        key_id = f"AKIAPRETENDUSER{len(self._server.policies):05}"
        self._server.policies[key_id] = Policy(policy)
        return {"AWS_ACCESS_KEY_ID": key_id, "AWS_SECRET_ACCESS_KEY": "pretend-secret"}

    @property
    def refused(self) -> list[str]:
        return self._server.refused
