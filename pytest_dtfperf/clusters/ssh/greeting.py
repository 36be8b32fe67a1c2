"""What is said to every host of a cluster until it is ready. It is made once for all of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from pytest_dtfperf.clusters import named
from pytest_dtfperf.clusters.keys.ssh import PARALLEL
from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.clusters.ssh import prelude, setup
from pytest_dtfperf.clusters.ssh.parcel import Parcel, pack

IDLE_S = 1800.0  # for which a warden waits for its first order: the slowest of the other hosts may still be prepared
_EARLIER_S = 5.0  # people are told who is late by this side, which knows more


@dataclass(frozen=True)
class Greeting:
    """A script for the shell, a header and a parcel for Python, and for how long all of it may take."""

    script: bytes
    header: Mapping[str, Any]
    parcel: Parcel
    setup: Sequence[str]
    python: str
    connect_s: float
    limit_s: float
    parallel: int

    @classmethod
    def of(cls, config: ClusterConfig, *, survey: bool = False, limit_s: float | None = None) -> Self:
        """`survey`: each host says what the controller must know of it. `limit_s`: how long it may take, if not as usual."""
        limit_s = limit_s or setup.limit_s(config)
        lines, python, parcel = setup.lines(config), named.python(config), pack()
        header: dict[str, Any] = {"parcel": parcel.name, "bytes": len(parcel.data), "patience_s": IDLE_S, "survey": survey}
        if wanted := setup.environment(config):
            header["environment"] = wanted
        return cls(
            script=prelude.script(lines, python, limit_s=limit_s + _EARLIER_S),
            header=header,
            parcel=parcel,
            setup=lines,
            python=python,
            connect_s=min(limit_s, setup.connect_s(config)),
            limit_s=limit_s,
            parallel=config.place.get("parallel", PARALLEL),
        )
