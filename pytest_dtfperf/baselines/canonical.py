"""One way to write JSON, so that a file rewritten without change is the same file, and a change is a readable diff."""

import json
from typing import Any

LINE_LENGTH = 128
SIGNIFICANT_DIGITS = 6  # of a measured rate: well below what any two runs differ by, and short enough to read


def significant(value: float) -> float:
    """Round to six significant digits."""
    return float(f"{value:.{SIGNIFICANT_DIGITS}g}")


def rounded(data: Any) -> Any:
    """JSON with all its fractions rounded so."""
    if isinstance(data, float):
        return significant(data)
    if isinstance(data, dict):
        return {key: rounded(value) for key, value in data.items()}
    return [rounded(value) for value in data] if isinstance(data, list) else data


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
