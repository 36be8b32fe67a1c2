"""The network interfaces of this host: their addresses and speeds, and the fastest active link."""

from __future__ import annotations

import os
import re
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress

from pytest_dtfperf.node.host_state import read_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_SIOCGIFCONF = 0x8912  # linux/sockios.h: all IPv4 addresses, each with its interface
_IFREQ_BYTES, _NAME_BYTES = 40, 16  # struct ifreq of linux/if.h on 64 bits: the name, then a sockaddr_in
_MOST_IFREQS = 1024
_LOOPBACK, _OF_INFINIBAND = "772", "32"  # include/uapi/linux/if_arp.h: in the file `type` of an interface


def list_addresses() -> list[str]:
    """Return this host's addresses, except loopback and link-local ones."""
    found = []
    with suppress(OSError), open("/proc/net/fib_trie") as file:  # |-- 10.0.0.1 / next line: /32 host LOCAL
        candidate = ""
        for line in file:
            fields = line.split()
            if len(fields) == 2 and fields[0] in ("|--", "+--"):
                candidate = fields[1]
            elif fields[:3] == ["/32", "host", "LOCAL"]:
                found.append(candidate)
    with suppress(OSError), open("/proc/net/if_inet6") as file:
        found += [socket.inet_ntop(socket.AF_INET6, bytes.fromhex(line.split()[0])) for line in file]
    return [each for each in dict.fromkeys(found) if not each.startswith(("127.", "fe80:")) and each != "::1"]


INFINIBAND, NETWORK, ROUTES = "/sys/class/infiniband", "/sys/class/net", "/proc/net/route"
# The protocol of an RDMA port by its link layer. Others, such as Amazon's EFA, are called RDMA.
_KINDS = {"InfiniBand": "InfiniBand", "Ethernet": "RoCE"}
_DEFAULT = "00000000"


def list_interfaces(network: str = NETWORK) -> list[dict[str, Any]]:
    """Return the name, addresses, kind and speed of each interface of this host except the loopback interface.

    `kind` is "InfiniBand" for IPoIB, "RoCE" for Ethernet on a card with RDMA, else "Ethernet". `gbps` is None if the kernel
    does not know it, as for interfaces that are down and most virtual ones.
    """
    addresses = {**{name: [] for name in _list(network)}, **map_addresses()}
    return [
        {"name": name, "addresses": found, "kind": _get_kind(f"{network}/{name}"), "gbps": _get_speed(f"{network}/{name}")}
        for name, found in addresses.items()
        if name != "lo" and read_file(f"{network}/{name}/type") != _LOOPBACK
    ]


def map_addresses() -> dict[str, list[str]]:
    """Return the addresses of each interface, except link-local ones."""
    import array
    import fcntl

    found: dict[str, list[str]] = {}
    buffer = array.array("B", bytes(_IFREQ_BYTES * _MOST_IFREQS))
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("iL", len(buffer), buffer.buffer_info()[0])
        (used,) = struct.unpack_from("i", fcntl.ioctl(any_socket.fileno(), _SIOCGIFCONF, request))
        for start in range(0, used, _IFREQ_BYTES):
            name = bytes(buffer[start : start + _NAME_BYTES]).partition(b"\0")[0].decode()
            where = start + _NAME_BYTES + 4
            found.setdefault(name.partition(":")[0], []).append(socket.inet_ntoa(bytes(buffer[where : where + 4])))
    with suppress(OSError), open("/proc/net/if_inet6") as file:
        for fields in map(str.split, file):
            address = socket.inet_ntop(socket.AF_INET6, bytes.fromhex(fields[0]))
            if not address.startswith("fe80:"):
                found.setdefault(fields[5], []).append(address)
    return found


def find_interface(address: str) -> str | None:
    """Return the name of the interface with this IPv4 address or host name; None if there is none."""
    try:
        wanted = socket.gethostbyname(address)
    except OSError:  # an IPv6 address, or an unknown name
        return None
    return next((name for name, found in map_addresses().items() if wanted in found), None)


def _get_kind(folder: str) -> str:
    if read_file(f"{folder}/type") == _OF_INFINIBAND:
        return "InfiniBand"
    return "RoCE" if os.path.isdir(f"{folder}/device/infiniband") else "Ethernet"


def _get_speed(folder: str) -> float | None:
    given = read_file(f"{folder}/speed") or ""  # an interface that is down has no readable speed
    return int(given) / 1000 if given.isdigit() and int(given) > 0 else None


def find_fastest(infiniband: str = INFINIBAND, network: str = NETWORK, routes: str = ROUTES) -> str | None:
    """Return the fastest InfiniBand port, `InfiniBand 100 Gb/s`, or else the default route's interface, `Ethernet 25 Gb/s`."""
    ports = sorted(_iterate_active_ports(infiniband))
    if ports:
        gbps, kind = ports[-1]
        return f"{kind} {gbps:g} Gb/s"
    speed = _get_default_speed(network, routes)
    return f"Ethernet {speed:g} Gb/s" if speed else None


def _iterate_active_ports(folder: str) -> Iterator[tuple[float, str]]:
    """Yield the rate in Gb/s and the kind of each active port."""
    for device in _list(folder):
        for port in _list(f"{folder}/{device}/ports"):
            state, rate, layer = (
                read_file(f"{folder}/{device}/ports/{port}/{file}") or "" for file in ("state", "rate", "link_layer")
            )
            speed = re.match(r"[\d.]+(?= Gb/sec)", rate)  # `100 Gb/sec (4X EDR)`
            if state.endswith("ACTIVE") and speed:  # `4: ACTIVE`
                yield float(speed[0]), _KINDS.get(layer, "RDMA")


def _get_default_speed(network: str, routes: str) -> float | None:
    interface = next(
        (fields[0] for line in (read_file(routes) or "").splitlines() if (fields := line.split())[1:2] == [_DEFAULT]), None
    )
    return _get_speed(f"{network}/{interface}") if interface else None


def _list(folder: str) -> list[str]:
    return sorted(os.listdir(folder)) if os.path.isdir(folder) else []
