"""The networks that can reach the servers of a training, and whether that is allowed: docs/security.md.

TensorFlow's servers obey every connection. On this machine they have an isolated network if possible
(node/isolation.py); on hosts where the agent is root a firewall there lets in only the allocated hosts; elsewhere the network
itself must be a private one, as far as its addresses show.
"""

import ipaddress
import os
import socket
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Self

from pytest_dtfperf.clusters.named import BACKENDS, ClusterConfig
from pytest_dtfperf.clusters.placement import HostView
from pytest_dtfperf.errors import AllocationError, show_value
from pytest_dtfperf.messages.agent import InterfaceEntry
from pytest_dtfperf.spec import Spec
from pytest_dtfperf.spec.checks import ZMQ_PRODUCER

# A list of its own, because the result of ipaddress.is_private differs between Python's versions.
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
WAYS_OUT = (
    'Name a private network of the hosts (`private_address`), train as root where nftables is, or set network = "trusted" in '
    "clusters.toml if something else keeps strangers away. docs/security.md has the whole of it."
)


@dataclass(frozen=True)
class NetworkInterface:
    """One network interface of a host."""

    name: str
    addresses: tuple[str, ...] = ()
    kind: str = "Ethernet"
    gbps: float | None = None  # None: the kernel does not know it

    @classmethod
    def from_message(cls, message: InterfaceEntry) -> Self:
        """Return the interface that a host reports."""
        return cls(message.name, tuple(message.addresses), message.kind, message.gbps)

    @property
    def speed(self) -> str | None:
        """`InfiniBand 100 Gb/s`, as in a fingerprint."""
        return f"{self.kind} {self.gbps:g} Gb/s" if self.gbps else None

    def __str__(self) -> str:
        described = [*(self.addresses[:1] or ["without an address"]), self.speed or f"{self.kind} of unknown speed"]
        return f"{self.name} ({', '.join(described)})"


def choose_interface(host: str, wanted: str, interfaces: Sequence[NetworkInterface]) -> tuple[NetworkInterface, str]:
    """Return the interface of a host that tasks use, and its address.

    Args:
        wanted: the name of an interface, or a network: the first address in it is chosen.

    Raises:
        AllocationError: the host has no such interface, or it has no address.
    """
    network = ipaddress.ip_network(wanted) if "/" in wanted else None
    pairs = [(each, address) for each in interfaces for address in each.addresses]
    for each, address in pairs:
        if (each.name == wanted) if network is None else (ipaddress.ip_address(address) in network):
            return each, address
    if network is None and any(each.name == wanted for each in interfaces):
        problem = f"interface {show_value(wanted)} of host {host} has no address"
    elif network is None:
        problem = f"host {host} has no interface {show_value(wanted)}"
    else:
        problem = f"host {host} has no address in {wanted}"
    raise AllocationError(
        f"{problem}. It has {', '.join(map(str, interfaces)) or 'only the loopback interface'}. "
        "Correct `interface` in clusters.toml"
    )


class Protection(StrEnum):
    """The protection of the tasks' ports on one host against other hosts."""

    ISOLATED = "isolated"  # a network of the session's own
    FIREWALL = "firewall"  # a table of nftables, which admits only the allocated hosts
    GROUP = "security group"  # Amazon's, which admits only the session's instances
    PRIVATE = "private network"  # none, but the internet does not route the address
    TRUSTED = "trusted"  # the cluster file states that the network is protected
    HOST = "as the host"  # the cluster file sets this machine's own network for tasks
    NONE = "none"


def get_protection(
    backend: str,
    network: str | None,
    *,
    address: str,
    addresses: Sequence[str],
    unguarded: str | None,
    unisolated: str | None = None,
) -> Protection:
    """Return the protection of a host.

    Args:
        network: what the cluster file sets.
        address: where tasks reach the host; `addresses` are those of all its interfaces.
        unguarded: why the host can have no firewall; None: it can.
        unisolated: why the host can have no network for tasks alone; None: it can.
    """
    row = BACKENDS[backend]
    if network is not None:
        return Protection.HOST if row.is_local else Protection.TRUSTED
    if row.is_local and unisolated is None:
        return Protection.ISOLATED
    if unguarded is None:
        return Protection.FIREWALL
    if row.is_local or find_public_addresses(address, addresses):
        return Protection.NONE
    return Protection.GROUP if row.is_firewalled else Protection.PRIVATE


def is_private(address: str) -> bool:
    """Return whether the internet does not route an address. Raises `ValueError` for what is no address."""
    found = ipaddress.ip_address(address.partition("%")[0])
    found = getattr(found, "ipv4_mapped", None) or found
    return any(found in network for network in PRIVATE)


def may_be_isolated(spec: Spec) -> bool:
    """Return whether a training's tasks need no outside network: this package's do not, an external command may."""
    producer = ZMQ_PRODUCER in os.environ or any(each.startswith(f"{ZMQ_PRODUCER}=") for each in spec.environment)
    return not spec.command and not (spec.data == "zmq" and producer)


def find_peers(config: ClusterConfig, hosts: Iterable[HostView]) -> list[str] | None:
    """Return the addresses that firewalls admit; None: all. Hosts on one machine need none."""
    if "network" in config.backend_keys:
        return None
    if BACKENDS[config.backend].is_local:
        return []
    return sorted({address for host in hosts for address in (*_resolve_address(host.address), *host.addresses)})


def check(config: ClusterConfig, hosts: Iterable[HostView]) -> None:
    """Raise `AllocationError` if servers would listen on public addresses."""
    if BACKENDS[config.backend].is_local:  # the first line of a session has shown it
        return
    for host in hosts:
        network = config.backend_keys.get("network")
        seen = get_protection(config.backend, network, address=host.address, addresses=host.addresses, unguarded=host.unguarded)
        if seen is Protection.NONE:
            raise AllocationError(f"{format_refusal(host.name, host.address, host.addresses, host.unguarded)}. {WAYS_OUT}")


def format_refusal(name: str, address: str, addresses: Sequence[str], unguarded: str | None) -> str:
    """Return why servers may not listen on a host."""
    public = find_public_addresses(address, addresses)[0]
    return (
        f"{name} has the public address {public}, and TensorFlow's servers execute the requests of all clients: there is no "
        f"firewall around them ({unguarded})"
    )


def find_public_addresses(address: str, others: Sequence[str]) -> list[str]:
    """Return the addresses of a host that are not private; for an unknown name, those that the host reports."""
    return [each for each in _resolve_address(address) or others if not is_private(each)]


@cache  # an unknown name takes seconds, every time
def _resolve_address(address: str) -> tuple[str, ...]:
    """Return the address itself, or those of a name; none if it is unknown here."""
    with suppress(OSError):
        found = socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)
        return tuple(dict.fromkeys(str(where[0]) for *_, where in found))
    return ()
