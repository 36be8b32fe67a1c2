"""Describe Horovod's processes. Needs no TensorFlow."""

from collections.abc import Mapping, Sequence
from typing import Any


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
