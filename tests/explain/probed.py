"""Probes of hosts and links, made by hand."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pytest_dtfperf.datamodel.probes import HostProbe, Link, Probes, Reading

CORE = "core.matmul"
G = 1e9


def make_reading(per_s: float, spread: float = 0.01, **how: Any) -> Reading:
    return Reading(per_s=per_s, spread=spread, repeats=5, how=how)


def make_link(per_s: float, spread: float = 0.01, *, streams: Mapping[str, float] | None = None, **how: Any) -> Link:
    return Link(per_s=per_s, spread=spread, repeats=4, how=how, streams=streams or {})


def make_probes(**hosts: Mapping[str, Reading]) -> Probes:
    return Probes(hosts={name: HostProbe(readings=readings) for name, readings in hosts.items()})


FULL = Probes(
    hosts={
        "a": HostProbe(
            readings={CORE: replace(make_reading(40 * G, threads=1), cpu_share=0.5), "gpu.0.matmul": make_reading(9e12)},
            clock_hz=2.4e9,
            most_clock_hz=3.1e9,
            limits={"cpu_quota_cores": 1.5, "governor": "powersave"},
            others_cores=0.7,
            unknown={"input": "the images are made up"},
        )
    },
    links={"*>a": make_link(1.1 * G, streams={"b": 1.1 * G}, streams_at_once=1, stream_s=0.5)},
    unknown={"b": "no answer within 20 s"},
    seconds=4.5,
)
