"""Simulated tails, kept on disk: half a second of simulation for each correlation is wanted once, and not every night."""

import hashlib
import inspect
import json
import os
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from pytest_dtfperf.node.boot import cache_folder
from pytest_dtfperf.node.files import read_file, replacing
from pytest_dtfperf.stats import scan
from pytest_dtfperf.stats.scan import Tail, simulated


@lru_cache(maxsize=64)
def kept_tail(nights: int, correlation: float) -> Tail:
    """From this user's cache; what is damaged there, or cannot be written, is simulated anew."""
    path = Path(cache_folder(), "tails", f"{_version()}-{nights}-{correlation:.1f}.json")
    with suppress(OSError, ValueError, KeyError, TypeError):
        return Tail(float(json.loads(read_file(path))["anchor"]))
    tail = simulated(nights, correlation)
    with suppress(OSError):
        os.makedirs(path.parent, mode=0o700, exist_ok=True)
        with replacing(path) as file:
            file.write(json.dumps({"anchor": tail.anchor}).encode())
    return tail


@lru_cache(maxsize=1)
def _version() -> str:
    """Of the simulation: another one has other tails."""
    return hashlib.sha256(inspect.getsource(scan).encode()).hexdigest()[:12]
