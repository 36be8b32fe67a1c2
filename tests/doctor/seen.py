"""Diagnoses for tests, made by hand."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pytest_dtfperf.doctor.diagnosis import (
    ClockOffset,
    Diagnosis,
    Disk,
    HostDiagnosis,
    HostFacts,
    HostLink,
    PortAttempt,
    TensorFlowTrial,
)
from pytest_dtfperf.launch.exposure import NetworkInterface

GIB = 1 << 30
FACTS = HostFacts(
    hostname="node",
    addresses=("127.0.0.1", "10.0.0.1"),
    interfaces=(NetworkInterface("eth0", tuple(f"10.0.0.{i}" for i in range(20)), gbps=10.0),),
    python="3.11.9",
    executable="/usr/bin/python3",
    tensorflow="2.21.0",
    cores=8,
    machine_cores=8,
    load=0.1,
    memory_bytes=64 * GIB,
    gpus=(),
    gpus_error=None,
    disks=(Disk(what="cache", folder="/home/me/.cache", free_bytes=50 * GIB, total_bytes=100 * GIB),),
    unisolated="namespaces are not allowed to this user",
    unguarded="only root may set up nftables",
)
MBIT = 1_000_000


def make_healthy(hosts: int = 3, gpus: int = 0, each: Mapping[int, Mapping[str, Any]] | None = None) -> Diagnosis:
    """Make a diagnosis of equal hosts with full speed between them. `each` changes facts of some hosts."""
    rows = [
        HostDiagnosis(
            name=f"node{i}",
            address=f"10.0.0.{i}",
            facts=replace(FACTS, **{"gpus": ("A100",) * gpus, **(each or {}).get(i, {})}),
            trial=TensorFlowTrial("2.21.0", gpus, 3.0),
            offset=ClockOffset(0.001, 0.0002),
            ports=(40000 + i,),
            sees=frozenset(range(hosts)),
        )
        for i in range(hosts)
    ]
    seen = Diagnosis(cluster="alps", hosts=rows, rounds=6)
    pairs = [(i, k) for i in range(hosts) for k in range(hosts) if i != k]
    seen.reached = [PortAttempt(i, k, 40000 + k) for i, k in pairs]
    seen.links = [make_link(i, k) for i, k in pairs]
    return seen


def make_link(source: int, target: int, mbit_per_s: float = 9400) -> HostLink:
    return HostLink(source, target, round_trip_s=5e-5, echoes=100, bytes=round(mbit_per_s * MBIT / 8), counted_s=1.0)
