"""What a run is going to ask Amazon for: all of it decided, and on disk, before anything is asked for. Pure.

A request that is repeated after a crash must be the same to the byte, or its token is refused. So whatever goes into one is
made here once: names, times, the order of zones, and a number nobody else has drawn.
"""

import hashlib
import json
import math
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Self

from pytest_dtfperf.node.owner import Owner

PREFIX = "dtfperf-"  # of every name we give


@dataclass(frozen=True)
class Zone:
    """Where instances may stand: one subnet, which is in one availability zone."""

    name: str
    subnet: str


@dataclass(frozen=True, kw_only=True)
class LaunchPlan:
    """One run of instances, from launch to termination."""

    run: str  # its id
    nonce: str  # drawn for this run: makes its tokens nobody else's
    session: str
    cluster: str
    shape: str  # what makes two runs interchangeable, as a digest
    owner: Owner  # the process that launches
    launched_by: str = ""  # whose credentials it has, as policies know them (aws:userid)
    account: str
    region: str
    vpc: str
    zones: tuple[Zone, ...]  # tried in this order
    instance_type: str
    count: int
    ami: str
    root_device: str
    volume_gib: int
    spot: bool
    placement: bool  # all close together, in a group of their own
    efa: int  # network interfaces with EFA; 0: an ordinary one
    public: bool  # whether they have public addresses, by which they are logged in to
    caller_cidr: str
    user: str
    port: int
    keep: bool
    made: int  # seconds since 1970
    expires: int
    tags: Mapping[str, str] = field(default_factory=dict)  # what the cluster file adds

    @property
    def name(self) -> str:
        """Of the key pair and the security group, and of the instances."""
        return PREFIX + self.run

    def group(self, attempt: int) -> str:
        """The placement group of one attempt: a group stays in the zone of its first instance."""
        return f"{self.name}-{attempt}"

    def token(self, attempt: int, zone: Zone) -> str:
        """By which Amazon knows a repeated request. Of one attempt: it is worthless once its instances are terminated."""
        return hashlib.sha256(f"{self.run}/{self.nonce}/{attempt}/{zone.subnet}".encode()).hexdigest()[:60]

    @property
    def minutes(self) -> int:
        """How long an instance may live."""
        return max(1, math.ceil((self.expires - self.made) / 60))

    def to_json(self) -> dict[str, Any]:
        """What `from_json` reads."""
        return {**asdict(self), "owner": self.owner.text}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """What `to_json` gave, also if a later version has added to it."""
        known = {name: data[name] for name in cls.__dataclass_fields__ if name in data}
        return cls(
            **{**known, "owner": Owner.read_or_unknown(data["owner"]), "zones": tuple(Zone(**zone) for zone in data["zones"])}
        )


def make_plan(*, session: str, max_hours: float, now: float, **decided: Any) -> LaunchPlan:
    """A new run's, from now on: by Amazon's clock, for others read there when its time is over."""
    now, nonce = int(now), secrets.token_hex(8)
    return LaunchPlan(
        run=f"{session}-{nonce[:6]}", nonce=nonce, session=session, made=now, expires=now + round(max_hours * 3600), **decided
    )


def compute_shape(backend_keys: Mapping[str, Any], account: str, region: str) -> str:
    """Of runs that may stand in for each other: asked for in the same words, but for how many, how long and for how much."""
    words = {key: value for key, value in backend_keys.items() if key not in _NOT_OF_THE_INSTANCES}
    text = json.dumps([words, account, region], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


_NOT_OF_THE_INSTANCES = (
    "count", "keep", "max_hours", "max_usd", "usd_per_hour", "caller_cidr", "setup", "connect_s", "boot_s",
)  # fmt: skip


def format_timestamp(seconds: float) -> str:
    """As it stands in tags: 2026-01-31T02:15:03Z."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_timestamp(text: str) -> float | None:
    """Seconds since 1970; None for what is no time."""
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None
