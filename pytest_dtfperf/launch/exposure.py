"""Who can reach the servers of a training, and whether that may be. docs/security.md tells users of it.

TensorFlow's servers do what they are asked by whoever connects. On this machine they have a network of their own where that can
be (node/isolation.py); on hosts where the agent is root a firewall lets in none but the lent ones (node/guard.py); elsewhere
the network itself must be a private one, as far as its addresses tell.
"""

import ipaddress
import os
import socket
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache

from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.errors import AllocationError
from pytest_dtfperf.launch.placement import HostView
from pytest_dtfperf.spec import Spec

# Written out and not asked of `ipaddress`: what its is_private means has changed with Python's versions.
PRIVATE = tuple(
    map(
        ipaddress.ip_network,
        (
            "10.0.0.0/8",  # RFC 1918
            "172.16.0.0/12",
            "192.168.0.0/16",
            "100.64.0.0/10",  # RFC 6598, shared by the customers of one carrier; EC2 and overlay networks use it as private
            "127.0.0.0/8",  # loopback
            "169.254.0.0/16",  # link-local
            "198.18.0.0/15",  # RFC 2544, for benchmarks of networks; EC2 has subnets in 198.19.0.0/16
            "::1/128",  # loopback
            "fc00::/7",  # RFC 4193, unique local
            "fe80::/10",  # link-local
        ),
    )
)
ZMQ_PRODUCER = "DTFPERF_ZMQ_PRODUCER"  # as in training/inputs/from_zmq.py
TRUSTED = "trusted"  # network = "trusted": whoever reaches the hosts may


def is_private(address: str) -> bool:
    """Whether an address is one that the internet does not route. Raises `ValueError` for what is none."""
    found = ipaddress.ip_address(address.partition("%")[0])
    found = getattr(found, "ipv4_mapped", None) or found
    return any(found in network for network in PRIVATE)


def may_be_isolated(spec: Spec) -> bool:
    """Whether a training's tasks can do without the world: all of our own code can, and nobody knows that of another's."""
    producer = ZMQ_PRODUCER in os.environ or any(each.startswith(f"{ZMQ_PRODUCER}=") for each in spec.environment)
    return not spec.command and not (spec.data == "zmq" and producer)


def peers(config: ClusterConfig, hosts: Iterable[HostView]) -> list[str] | None:
    """The addresses that guards let in; None where nobody is to be kept out. Hosts that are all one need no address."""
    if "network" in config.place:
        return None
    if config.backend == "local":
        return []
    return sorted({address for host in hosts for address in (*_resolved(host.address), *host.addresses)})


def check(config: ClusterConfig, hosts: Iterable[HostView]) -> None:
    """Raise `AllocationError` if servers would listen where anybody may reach them."""
    if "network" in config.place or config.backend == "local":
        return
    for host in hosts:
        if host.unguarded is not None and (public := public_addresses(host.address, host.addresses)):
            raise AllocationError(
                f"{host.name} has the public address {public[0]}, and TensorFlow's servers would obey whoever reaches it: "
                f"there is no firewall around them ({host.unguarded}). Name a private network of the hosts "
                '(`private_address`), train as root where nftables is, or say network = "trusted" in clusters.toml if '
                "something else keeps strangers away. docs/security.md has the whole of it."
            )


def public_addresses(address: str, others: Sequence[str]) -> list[str]:
    """Those behind a host's address that are not private. Of a name that is not known here, the host's own are looked at."""
    return [each for each in _resolved(address) or others if not is_private(each)]


@cache  # a name that nobody knows takes seconds, every time
def _resolved(address: str) -> tuple[str, ...]:
    """The address itself, or those of a name; none where it is not known here."""
    with suppress(OSError):
        found = socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)
        return tuple(dict.fromkeys(str(where[0]) for *_, where in found))
    return ()
