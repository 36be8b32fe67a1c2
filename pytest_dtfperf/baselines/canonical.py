"""One way to write JSON, so that a file rewritten without change is the same file, and a change is a readable diff."""

import json
import os
from pathlib import Path
from typing import Any

LINE_LENGTH = 128
SIGNIFICANT_DIGITS = 6  # of a measured rate: well below what any two runs differ by, and short enough to read


def significant(value: float) -> float:
    """Round to six significant digits."""
    return float(f"{value:.{SIGNIFICANT_DIGITS}g}")


def canonical(data: Any) -> str:
    """Sorted keys, two spaces, and on one line whatever fits there. Ends with a newline. Refuses NaN and infinities."""
    return _write(data, indent=0, used=0) + "\n"


def _write(data: Any, indent: int, used: int) -> str:
    """`used` is what stands on the line already: the indentation and a key."""
    flat = json.dumps(data, sort_keys=True, ensure_ascii=False, allow_nan=False)
    if used + len(flat) < LINE_LENGTH or not data or not isinstance(data, dict | list | tuple):
        return flat
    inner = " " * (indent + 2)
    if isinstance(data, dict):
        keys = {key: f"{inner}{json.dumps(key, ensure_ascii=False)}: " for key in sorted(data)}
        lines = [lead + _write(data[key], indent + 2, len(lead)) for key, lead in keys.items()]
        opening, closing = "{}"
    else:
        lines = [inner + _write(item, indent + 2, indent + 2) for item in data]
        opening, closing = "[]"
    return f"{opening}\n" + ",\n".join(lines) + f"\n{' ' * indent}{closing}"


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that whoever reads or dies meanwhile finds the old one or the new one, whole.

    The caller holds the lock of the folder, so one name for the unfinished file is enough, and a killed writer's remains
    are overwritten by the next.
    """
    unfinished = path.with_name(f".{path.name}.unfinished")
    with unfinished.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)  # the new name, too, outlives a power cut
    finally:
        os.close(descriptor)
