"""The keys of a cluster of EC2 instances. Pure."""

import ipaddress
import re
from collections.abc import Iterator, Mapping
from typing import Any

from pytest_dtfperf.clusters.file import COUNT, FLAG, NAMES, SECONDS, TEXT, Validator, one_of
from pytest_dtfperf.clusters.ssh.keys import PORT, SETUP
from pytest_dtfperf.errors import show_value

DEFAULT_USER = "ubuntu"  # of the default images
DEFAULT_MAX_HOURS = 4.0
DEFAULT_VOLUME_GIB = 100  # a Deep Learning AMI alone takes 60 or more
MOST_HOURS = 31 * 24.0
WIDEST = 8  # bits of a network that may log in: 10.0.0.0/8 is a company's network; a shorter prefix covers much of the internet
OURS = "dtfperf:"  # prefix of this package's tags

HOURS = Validator(
    f"a number of hours above 0, {MOST_HOURS:g} at most", lambda value: SECONDS.accepts(value) and bool(value <= MOST_HOURS)
)
CIDR = Validator('a network like "203.0.113.7/32"', lambda value: isinstance(value, str) and _parse_network(value) is not None)
TAGS = Validator(
    'a table of texts, like { project = "resnet" }',
    lambda value: isinstance(value, dict) and all(isinstance(each, str) for each in value.values()),
)

KEYS: Mapping[str, Validator] = {
    "region": TEXT,  # default: what boto3 finds in AWS_REGION or the profile
    "instance_type": TEXT,
    "count": COUNT,  # at most
    "ami": TEXT,
    "ami_parameter": TEXT,  # the name of a parameter of Systems Manager that holds an image's id
    "subnets": NAMES,  # tried in this order; default: those of `vpc`, else the default one of every zone
    "vpc": TEXT,
    "spot": FLAG,
    "placement": one_of("cluster"),
    "efa": FLAG,
    "volume_gib": COUNT,
    "max_hours": HOURS,
    "max_usd": SECONDS,
    "usd_per_hour": SECONDS,  # of one instance, for types that are not in Amazon's price list
    "caller_cidr": CIDR,  # network that may log in; default: this machine's address as Amazon sees it
    "address": one_of("public", "private"),
    "tags": TAGS,
    "keep": FLAG,
    "user": TEXT,
    "port": PORT,
    "setup": SETUP,
    "connect_s": SECONDS,
    "boot_s": SECONDS,
    "network": one_of("trusted"),  # otherwise hosts with public addresses are refused where the firewall is not managed here
}


def get_lifetime_s(backend_keys: Mapping[str, Any]) -> float:
    """Return the longest lifetime of the instances in seconds."""
    return float(backend_keys.get("max_hours", DEFAULT_MAX_HOURS)) * 3600


def validate(table: Mapping[str, Any]) -> str | None:
    """Return the first conflict between keys that are valid on their own; None if there is none."""
    return next(_find_problems(table), None)


def _find_problems(table: Mapping[str, Any]) -> Iterator[str]:
    if "instance_type" not in table:
        yield 'must set the type of its instances: instance_type = "g5.xlarge"'
    if "ami" in table and not re.fullmatch(r"ami-[0-9a-f]{8}([0-9a-f]{9})?", table["ami"]):
        yield (
            f"ami must be an image's id like ami-0123456789abcdef0, not {show_value(table['ami'])}; a name "
            "goes into ami_parameter"
        )
    for one, other in (("ami", "ami_parameter"), ("subnets", "vpc")):
        if one in table and other in table:
            yield f"has {one} and {other}: only one of them is allowed"
    if table.get("spot") and table.get("keep"):
        yield "has spot and keep: instances that Amazon may take back at any time are not kept for another session"
    if table.get("address") == "private" and "caller_cidr" not in table:
        yield (
            'has address = "private", so caller_cidr must be the network within reach of it from which you log in: '
            'caller_cidr = "10.0.0.7/32"'
        )
    network = _parse_network(table["caller_cidr"]) if "caller_cidr" in table else None
    if network and network.prefixlen < WIDEST:
        yield (
            f"caller_cidr = {table['caller_cidr']!r} would admit half the internet to the instances: set your own address, "
            'like "203.0.113.7/32", or leave it out'
        )
    for key in table.get("tags", {}):
        if key.startswith((OURS, "aws:")) or key == "Name" or not 1 <= len(key) <= 128:
            yield f'tags must not have {key!r}: "Name", "{OURS}..." and "aws:..." are taken, and 128 letters are the most'


def _parse_network(text: str) -> ipaddress.IPv4Network | None:
    try:
        return ipaddress.IPv4Network(text)
    except ValueError:
        return None
