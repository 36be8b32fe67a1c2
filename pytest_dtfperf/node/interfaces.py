"""The network interfaces of this host: their addresses, and the fastest link that is up."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from contextlib import suppress


def own() -> list[str]:
    """Return all of them, but those of the loopback interface and those that mean nothing beyond one cable."""
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
# What travels over a port for remote memory access, by its link layer; another one (as of Amazon's EFA) is just called so.
_KINDS = {"InfiniBand": "InfiniBand", "Ethernet": "RoCE"}
_DEFAULT = "00000000"


def fastest(infiniband: str = INFINIBAND, network: str = NETWORK, routes: str = ROUTES) -> str | None:
    """`InfiniBand 100 Gb/s`; without such a port, the interface of the default route: `Ethernet 25 Gb/s`."""
    ports = sorted(_ports(infiniband))
    if ports:
        gbps, kind = ports[-1]
        return f"{kind} {gbps:g} Gb/s"
    mbps = _speed_mbps(network, routes)
    return f"Ethernet {mbps / 1000:g} Gb/s" if mbps else None


def _ports(folder: str) -> Iterator[tuple[float, str]]:
    """Rate and kind of each port that is up."""
    for device in _list(folder):
        for port in _list(f"{folder}/{device}/ports"):
            state, rate, layer = (
                _read_file(f"{folder}/{device}/ports/{port}/{file}") for file in ("state", "rate", "link_layer")
            )
            speed = re.match(r"[\d.]+(?= Gb/sec)", rate)  # `100 Gb/sec (4X EDR)`
            if state.endswith("ACTIVE") and speed:  # `4: ACTIVE`
                yield float(speed[0]), _KINDS.get(layer, "RDMA")


def _speed_mbps(network: str, routes: str) -> int | None:
    """Virtual interfaces have none: -1, or no number at all."""
    interface = next(
        (fields[0] for line in _read_file(routes).splitlines() if (fields := line.split())[1:2] == [_DEFAULT]), None
    )
    given = _read_file(f"{network}/{interface}/speed") if interface else ""
    return int(given) if given.isdigit() and int(given) > 0 else None


def _list(folder: str) -> list[str]:
    return sorted(os.listdir(folder)) if os.path.isdir(folder) else []


def _read_file(path: str) -> str:
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:  # not there; or, of a speed, an interface that is down
        return ""
