"""Describe Horovod's processes and the interfaces that they use. Needs no TensorFlow."""

import fcntl
import socket
import struct
from collections.abc import Mapping, Sequence
from typing import Any

SIOCGIFADDR = 0x8915  # linux/sockios.h: an interface's address
_NAME_BYTES = 16  # IFNAMSIZ


def compute_slots(hosts: Sequence[str]) -> list[Mapping[str, Any]]:
    """Return each worker's slot in Horovod's terms.

    A slot has the rank in all, on its host, and among equal local ranks on other hosts.
    """
    local = [hosts[:rank].count(host) for rank, host in enumerate(hosts)]
    return [
        {
            "hostname": host,
            "rank": rank,
            "local_rank": local[rank],
            "cross_rank": local[:rank].count(local[rank]),
            "size": len(hosts),
            "local_size": hosts.count(host),
            "cross_size": local.count(local[rank]),
        }
        for rank, host in enumerate(hosts)
    ]


def find_interface(address: str) -> str | None:
    """Return the network interface with this IPv4 address or host name; None if there is none."""
    try:
        wanted = socket.inet_aton(socket.gethostbyname(address))
    except OSError:  # an IPv6 address, or an unknown name: Horovod chooses the interface
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            asked = struct.pack(f"{_NAME_BYTES}s16x", name.encode())
            try:
                answer = fcntl.ioctl(any_socket, SIOCGIFADDR, asked)
            except OSError:  # it has no address
                continue
            if answer[_NAME_BYTES + 4 : _NAME_BYTES + 8] == wanted:
                return name
    return None
