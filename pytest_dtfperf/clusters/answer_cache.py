"""Values that stay true for hours or days, kept on disk so that not every session waits for them again.

One JSON file per value, with the time at which it was written. A damaged file, a full disk or a folder without write permission
is no error: the value is computed again.
"""

import hashlib
import json
import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from pytest_dtfperf.node import boot
from pytest_dtfperf.node.files import read_file, replace_file


def cached(name: str, max_age_s: float, make: Callable[[], Any], *, folder: Path | None = None) -> Any:
    """Return the value of this name if it is at most so old, else that of `make`; its errors pass. Values are JSON."""
    found = load(name, max_age_s, folder=folder)
    if found is not None:
        return found
    value = make()
    store(name, value, folder=folder)
    return value


def load(name: str, max_age_s: float, *, folder: Path | None = None) -> Any:
    """Return the value of this name, or None if there is none that is at most `max_age_s` old."""
    kept = _read_answer(_get_path(name, folder), name)
    if kept is not None and 0 <= time.time() - kept["at"] <= max_age_s:  # a time in the future comes from a wrong clock
        return kept["value"]
    return None


def store(name: str, value: Any, *, folder: Path | None = None) -> None:
    """Keep a value under a name, where the disk lets us."""
    with suppress(OSError):
        _write(_get_path(name, folder), {"name": name, "at": time.time(), "value": value})


def _get_path(name: str, folder: Path | None) -> Path:
    return (folder or Path(boot.get_cache_folder(), "remembered")) / _make_file_name(name)


def _make_file_name(name: str) -> str:
    """Return a readable file name, different for different names."""
    return f"{re.sub(r'[^A-Za-z0-9_.-]', '_', name)[:80]}-{hashlib.sha256(name.encode()).hexdigest()[:12]}.json"


def _read_answer(path: Path, name: str) -> dict[str, Any] | None:
    try:
        kept = json.loads(read_file(path))
    except (OSError, ValueError):
        return None
    whole = isinstance(kept, dict) and kept.get("name") == name and isinstance(kept.get("at"), int | float) and "value" in kept
    return kept if whole else None


def _write(path: Path, kept: dict[str, Any]) -> None:
    text = json.dumps(kept)  # before anything is made: what is no JSON is a mistake of the caller
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with replace_file(path) as file:
        file.write(text.encode())
