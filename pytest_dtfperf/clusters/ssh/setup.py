"""How a host is prepared for training, as clusters.toml says it: by shell lines, or with an environment that uv makes there."""

import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from pytest_dtfperf.clusters import named
from pytest_dtfperf.clusters.keys.ssh import CONNECT_S, UV
from pytest_dtfperf.clusters.named import ClusterConfig

UV_S = 1800.0  # TensorFlow with CUDA is 3 GB to fetch and to unpack, where a host has it all to do


def lines(config: ClusterConfig) -> Sequence[str]:
    """The shell lines."""
    given = config.backend_keys.get("setup", ())
    return () if given == UV else given


def environment(config: ClusterConfig) -> dict[str, Any] | None:
    """What `node/environment.py` is told to make; None: the host has what it takes."""
    return _wanted() if config.backend_keys.get("setup") == UV else None


def program(config: ClusterConfig, argv: Sequence[str]) -> list[str]:
    """`argv` as hosts are told it: what was made with the cluster's Python is run by the Python of the environment it is in."""
    if environment(config) is not None and argv[0] == named.python(config):
        return ["python3", *argv[1:]]
    return list(argv)


def connect_s(config: ClusterConfig) -> float:
    """How long a host that is well may take to answer."""
    given: float = config.backend_keys.get("connect_s", CONNECT_S)
    return given


def limit_s(config: ClusterConfig) -> float:
    """How long it may take until it is prepared, from the beginning."""
    return connect_s(config) if environment(config) is None else max(connect_s(config), UV_S)


@cache
def _wanted() -> dict[str, Any]:
    here = Path(__file__).parent
    requirements = {kind: (here / f"requirements-{kind}.txt").read_text(encoding="utf-8") for kind in ("cpu", "cuda")}
    uv = (here / "requirements-uv.txt").read_text(encoding="utf-8")  # the one that wrote uv.lock, from which the others come
    return {
        "uv": {"version": uv.partition("==")[2].split()[0], "requirements": uv},
        "kinds": {
            kind: {"name": f"uv-{kind}-{hashlib.sha256(text.encode()).hexdigest()[:16]}", "requirements": text}
            for kind, text in requirements.items()
        },
    }
