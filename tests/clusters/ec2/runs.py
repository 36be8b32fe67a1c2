"""Runs for tests: a cluster at the pretend Amazon, and a plan that was made a moment ago."""

import functools
import time
from dataclasses import replace
from typing import Any

import boto3

from pytest_dtfperf.clusters.ec2.account import Account
from pytest_dtfperf.clusters.ec2.cluster import Ec2
from pytest_dtfperf.clusters.ec2.plan import LaunchPlan, Zone
from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.clusters.protocol import Bill, Resources
from pytest_dtfperf.node.owner import Owner
from tests.clusters.ec2.cloud.cloud import Cloud

USER = "AIDAPRETENDTESTER"  # the tests' user id in policies
KIND = "g4dn.xlarge"  # one GPU
SETTLE_S = 0.5  # the pretend Amazon shows new instances at once, unless a test changes it

PLAN = LaunchPlan(
    run="s-123456",
    nonce="1234567890abcdef",
    session="s",
    cluster="test",
    shape="0123456789abcdef",
    owner=Owner("here", "b007", "4026531836", 17, 4711),
    launched_by=USER,
    account="123456789012",
    region="us-east-1",
    vpc="vpc-1",
    zones=(Zone("us-east-1a", "subnet-a"), Zone("us-east-1b", "subnet-b")),
    instance_type=KIND,
    count=2,
    ami="ami-0123456789abcdef0",
    root_device="/dev/sda1",
    volume_gib=100,
    spot=False,
    placement=True,
    efa=0,
    public=True,
    caller_cidr="203.0.113.7/32",
    user="ubuntu",
    port=22,
    keep=False,
    made=1_800_000_000,
    expires=1_800_014_400,
)


def plan(**other: Any) -> LaunchPlan:
    """Return the plan above with these changes."""
    return replace(PLAN, **other)


def make_new_plan(cloud: Cloud, **other: Any) -> LaunchPlan:
    """Return a plan of this process for the pretend cloud, made at this moment."""
    now = int(time.time())
    return plan(
        **{
            "owner": Owner.read_own(),
            "vpc": cloud.vpc,
            "zones": tuple(Zone(zone, subnet) for zone, subnet in cloud.subnets.items()),
            "ami": cloud.image,
            "made": now,
            "expires": now + 3600,
            **other,
        }
    )


def config(cloud: Cloud, **backend_keys: Any) -> ClusterConfig:
    """Return a cluster of two instances with a GPU each, without a question about costs."""
    usual = {
        "region": cloud.region,
        "instance_type": KIND,
        "count": 2,
        "subnets": list(cloud.subnets.values()),
        "placement": "cluster",
        "caller_cidr": f"{cloud.caller}/32",
        "max_usd": 100.0,
    }
    return ClusterConfig(name="test", backend="ec2", backend_keys={**usual, **backend_keys})


def backend(cloud: Cloud, settle_s: float = SETTLE_S, **backend_keys: Any) -> Ec2:
    """Return the backend of that cluster; keys that are None are omitted."""
    made = config(cloud, **backend_keys)
    return Ec2(
        replace(made, backend_keys={key: value for key, value in made.backend_keys.items() if value is not None}),
        settle_s=settle_s,
        check_ip=cloud.check_ip,
    )


def account(cloud: Cloud) -> Account:
    """Open an account like `Account.open_region`, without reading the descriptions of all services again."""
    return Account(_session(), cloud.region, cloud.account, f"arn:aws:iam::{cloud.account}:user/tester", USER)


@functools.cache
def _session() -> boto3.Session:
    return boto3.Session()


class Heard:
    """The messages and costs that a session receives."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.costs: list[Bill] = []

    def resources(self, devices: int = 2, session: str = "20260131T021503Z-9f3c1a") -> Resources:
        return Resources(devices=devices, session=session, on_status=self.words.append, spent=self.costs.append)
