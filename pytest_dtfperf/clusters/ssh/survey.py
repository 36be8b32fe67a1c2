"""What a host's first words mean: how tasks reach it, and what is left there of controllers that are no more."""

import ipaddress
from collections.abc import Mapping, Sequence
from typing import Any

from pytest_dtfperf.clusters.keys import ssh as keys
from pytest_dtfperf.clusters.ssh.endpoint import Endpoint
from pytest_dtfperf.errors import AllocationError
from pytest_dtfperf.node.owner import Fate, Owner


def address(endpoint: Endpoint, survey: Mapping[str, Any], backend_keys: Mapping[str, Any]) -> str:
    """By which the tasks reach a host: as the cluster file says, or else as this controller has reached it.

    A host that is reached through a gateway that changes addresses says the one that it has itself.
    """
    if endpoint.address:
        return endpoint.address
    network = keys.network(backend_keys.get("private_address"))
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
    """This process, as it is named on all that it starts on hosts."""
    return Owner.me().text


def abandoned(left: Mapping[str, Sequence[str]]) -> list[str]:
    """The sessions of controllers that are surely gone. Of those that cannot be seen from here nothing can be said."""
    owners = [(Owner.read(text), sessions) for text, sessions in left.items()]
    return [session for owner, sessions in owners if owner and owner.fate is Fate.GONE for session in sessions]
