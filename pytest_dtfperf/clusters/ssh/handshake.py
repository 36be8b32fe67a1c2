"""What is said to every host of a cluster until it is ready. It is made once for all of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from pytest_dtfperf.clusters import named
from pytest_dtfperf.clusters.keys.ssh import PARALLEL
from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.clusters.ssh import bootstrap, setup
from pytest_dtfperf.clusters.ssh.bundle import Bundle, pack

IDLE_S = 1800.0  # for which a supervisor waits for its first order: the slowest of the other hosts may still be prepared
_EARLIER_S = 5.0  # people are told who is late by this side, which knows more


@dataclass(frozen=True)
class Handshake:
    """A script for the shell, a header and a bundle for Python, and for how long all of it may take."""

    script: bytes
    header: Mapping[str, Any]
    bundle: Bundle
    setup: Sequence[str]
    python: str
    connect_s: float
    limit_s: float
    parallel: int

    @classmethod
    def of(cls, config: ClusterConfig, *, survey: bool = False, limit_s: float | None = None) -> Self:
        """`survey`: each host says what the controller must know of it. `limit_s`: how long it may take, if not as usual."""
        limit_s = limit_s or setup.limit_s(config)
        lines, python, bundle = setup.lines(config), named.python(config), pack()
        header: dict[str, Any] = {"bundle": bundle.name, "bytes": len(bundle.data), "patience_s": IDLE_S, "survey": survey}
        if wanted := setup.environment(config):
            header["environment"] = wanted
        return cls(
            script=bootstrap.script(lines, python, limit_s=limit_s + _EARLIER_S),
            header=header,
            bundle=bundle,
            setup=lines,
            python=python,
            connect_s=min(limit_s, setup.connect_s(config)),
            limit_s=limit_s,
            parallel=config.backend_keys.get("parallel", PARALLEL),
        )
