"""State beyond moto's own, and future events: one world per process, as moto has one state."""

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from moto.ec2.models import ec2_backends
from moto.ec2.models.instances import Instance, InstanceState, Reservation

from tests.clusters.ec2.cloud.guard import ACCOUNT

PENDING, RUNNING = ("pending", 0), ("running", 16)
SHUTTING_DOWN, TERMINATED = ("shutting-down", 32), ("terminated", 48)
STOPPED = ("stopped", 80)
ENDED = ("shutting-down", "terminated")

Launched = Callable[[Instance], None]


@dataclass
class World:
    """The first block is for tests to turn."""

    pending_s: float = 0.02  # from the answer to "running", and from "shutting-down" to "terminated"
    visible_after_s: float = 0.0  # until then, DescribeInstances does not know a new instance
    hidden_calls: int = 0  # of a new instance, so many DescribeInstances know nothing, however late they come
    blind_calls: int = 0  # so many of the next DescribeInstances know none of them, nor do groups that they are in use
    addressed_after_s: float = 0.0  # until then, a new instance is described without its addresses
    linger_s: float = 0.05  # an interface outlives its instance by so much, and keeps its security groups in use
    held_calls: int = 0  # so many of the next deletions of a security group find it in use, however late they come
    capacity: dict[tuple[str, str], int] = field(default_factory=dict)  # (zone, type) -> instances; absent: enough
    withdrawn: int = 0  # so many of the next instances are accepted, then terminated for lack of capacity
    spot_quantity: int = 10**6  # spot instances there may be in all

    lock: threading.RLock = field(default_factory=threading.RLock)
    tokens: dict[str, tuple[str, Reservation]] = field(default_factory=dict)  # client token -> (request, its answer)
    placement_groups: dict[str, dict[str, Any]] = field(default_factory=dict)  # "region/name" -> the group
    spot_requests: dict[str, dict[str, Any]] = field(default_factory=dict)
    born: dict[str, float] = field(default_factory=dict)
    described: Counter[str] = field(default_factory=Counter)  # how often, since it was born, seen or not
    gone: dict[str, float] = field(default_factory=dict)  # instance id -> when it was terminated
    console: dict[str, str] = field(default_factory=dict)
    public_network: str = "198.51.100"  # TEST-NET-2, which has no real addresses
    public: Iterator[int] = field(default_factory=lambda: itertools.count(10))
    ids: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    on_boot: Launched | None = None  # makes machines of instances, and then sets the state `running`
    on_power_off: Launched | None = None
    on_new_rules: Callable[[], None] | None = None  # after a security group has changed
    _later: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)

    def instances(self) -> list[Instance]:
        regions = ec2_backends[ACCOUNT].values()
        return [i for backend in regions for r in list(backend.reservations.values()) for i in r.instances]

    def instance(self, instance_id: str) -> Instance:
        return next(i for i in self.instances() if i.id == instance_id)

    def schedule(self, seconds: float, what: Callable[[], None]) -> None:
        """Schedule an event: it happens at the first access to the world after that time, so that no thread waits."""
        self._later.append((time.monotonic() + seconds, next(self.ids), what))

    def catch_up(self) -> None:
        """Let happen what is due."""
        with self.lock:
            while due := sorted(e for e in self._later if e[0] <= time.monotonic()):
                for event in due:
                    self._later.remove(event)
                    event[2]()

    def hurry(self) -> None:
        """Let all scheduled events happen now."""
        with self.lock:
            self._later = [(0.0, number, what) for _, number, what in self._later]
        self.catch_up()

    def count_used(self, zone: str | None, kind: str) -> int:
        alive = [i for i in self.instances() if i.state in ("pending", "running")]
        return sum(1 for i in alive if i.placement.zone == zone and i.instance_type == kind)

    def public_address(self) -> str:
        return f"{self.public_network}.{next(self.public)}"


_world = World()


def get_world() -> World:
    return _world


def begin(world: World) -> None:
    """Make this the world of the process."""
    global _world  # as global as moto's state, which it stands beside
    _world = world


def become(instance: Instance, state: tuple[str, int]) -> None:
    instance._state = InstanceState(*state)
