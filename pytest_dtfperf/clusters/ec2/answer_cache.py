"""Answers of Amazon that stay true for hours or days, kept on disk so that not every session waits for them again.

One JSON file per answer, with the time at which it was given. A damaged file, a full disk or a folder without write permission
is no error: the question is asked again.
"""

import hashlib
import json
import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from pytest_dtfperf.node.files import read_file, replacing


def cached(name: str, max_age_s: float, make: Callable[[], Any], *, folder: Path | None = None) -> Any:
    """What `make` said under that name at most so long ago, else what it says now. Must be JSON; what it raises passes."""
    path = (folder or cache_folder() / "remembered") / _file_name(name)
    kept = _read(path, name)
    if kept is not None and 0 <= time.time() - kept["at"] <= max_age_s:  # one from the future was given by a wrong clock
        return kept["value"]
    value = make()
    with suppress(OSError):
        _write(path, {"name": name, "at": time.time(), "value": value})
    return value


def cache_folder() -> Path:
    """This user's own folder for what can be had again."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    return Path(given if os.path.isabs(given) else Path.home() / ".cache", "dtfperf")


def _file_name(name: str) -> str:
    """Readable, and different for different names."""
    return f"{re.sub(r'[^A-Za-z0-9_.-]', '_', name)[:80]}-{hashlib.sha256(name.encode()).hexdigest()[:12]}.json"


def _read(path: Path, name: str) -> dict[str, Any] | None:
    try:
        kept = json.loads(read_file(path))
    except (OSError, ValueError):
        return None
    whole = isinstance(kept, dict) and kept.get("name") == name and isinstance(kept.get("at"), int | float) and "value" in kept
    return kept if whole else None


def _write(path: Path, kept: dict[str, Any]) -> None:
    text = json.dumps(kept)  # before anything is made: what is no JSON is a mistake of the caller
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write(text.encode())
