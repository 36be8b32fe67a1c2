"""What a host's first words mean: how tasks reach it, and what is left there of controllers that are no more."""

import hashlib
import ipaddress
import os
import re
import socket
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from pytest_dtfperf.clusters.owner import Owner
from pytest_dtfperf.clusters.ssh import keys
from pytest_dtfperf.clusters.ssh.endpoint import Endpoint
from pytest_dtfperf.errors import AllocationError

_CONTROLLER = re.compile(r"(?P<where>\S+) (?P<pid>\d+) (?P<started>\d+)")


def address(endpoint: Endpoint, survey: Mapping[str, Any], place: Mapping[str, Any]) -> str:
    """By which the tasks reach a host: as the cluster file says, or else as this controller has reached it.

    A host that is reached through a gateway that changes addresses says the one that it has itself.
    """
    if endpoint.address:
        return endpoint.address
    network = keys.network(place.get("private_address"))
    if network is None:
        reached_at: str = survey["reached_at"] or survey["hostname"]
        return reached_at
    own: Sequence[str] = survey["addresses"]
    for candidate in own:
        if ipaddress.ip_address(candidate) in network:
            return candidate
    raise AllocationError(
        f'host {endpoint.name} has no address in private_address = "{network}", only '
        f"{', '.join(own) or 'that of its loopback'}. "
        "Correct the network in clusters.toml, or say each host's address in a table"
    )


def controller() -> str:
    """This process, in words that are written on all that it starts on hosts: where it runs, its id, when it began."""
    me = Owner.me()
    return f"{_here()} {me.pid} {me.started}"


def abandoned(left: Mapping[str, Sequence[str]]) -> list[str]:
    """The sessions of controllers that ran here, and do no more. Of controllers elsewhere nothing can be said."""
    return [session for said, sessions in left.items() if _is_gone(said) for session in sessions]


def _is_gone(said: str) -> bool:
    ours = _CONTROLLER.fullmatch(said)
    if ours is None or ours["where"] != _here():
        return False
    return not Owner(socket.gethostname(), int(ours["pid"]), int(ours["started"])).is_alive()


@cache
def _here() -> str:
    """Where process ids mean what they mean here: machines, or containers on them, may share their names."""
    parts = [socket.gethostname(), os.readlink("/proc/self/ns/pid")]
    for file in (Path("/etc/machine-id"), Path("/proc/sys/kernel/random/boot_id")):
        if file.exists():  # containers often have no id of their own
            parts.append(file.read_text())
            break
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
