"""The formats of numbers, and of foreign text, for display: in reasons, tables, Markdown and figures. Pure.

Text from a host, a batch system or a file may contain escape sequences, bidirectional controls, NUL or lone surrogates. None of
them is printable by Unicode's definition, and all are shown as Python's escapes. A stream with an encoding that lacks a
character (latin-1, ASCII) gets a substitute if it has `errors=DEGRADE`.
"""

import codecs
import json
import math
import re
from collections.abc import Sequence
from typing import Any

SIGNIFICANT_DIGITS = 6  # of a measured rate: much less than the difference of any two runs, and short enough to read
NONE = "-"  # in place of a missing number


def significant(value: float) -> float:
    """Round to six significant digits."""
    return float(f"{value:.{SIGNIFICANT_DIGITS}g}")


def round_fractions(data: Any) -> Any:
    """Round all fractions in JSON data to six significant digits."""
    if isinstance(data, float):
        return significant(data)
    if isinstance(data, dict):
        return {key: round_fractions(value) for key, value in data.items()}
    return [round_fractions(value) for value in data] if isinstance(data, list) else data


def rate(images_per_sec: float) -> str:
    """Format a rate with three digits or more: `9.81`, `264.6`, `1830`."""
    decimals = 2 if images_per_sec < 100 else 1 if images_per_sec < 1000 else 0
    return f"{images_per_sec:.{decimals}f}"


MOST_FRACTION = 100.0  # of which percentages are printed


def percent(fraction: float) -> str:
    """Format `4.1 %`, or of the end of a very wide interval `above 10000 %`."""
    return _describe_extreme(fraction) or f"{100 * fraction:.1f} %"


def change(fraction: float) -> str:
    """Format a fraction with its sign: `-4.1 %`."""
    return _describe_extreme(fraction) or f"{100 * fraction:+.1f} %"


def _describe_extreme(fraction: float) -> str:
    """Return text for a fraction with digits that mean nothing; empty for any other. Two runs may have such an interval."""
    if not abs(fraction) > MOST_FRACTION:  # also NaN
        return ""
    return f"below -{100 * MOST_FRACTION:g} %" if fraction < 0 else f"above {100 * MOST_FRACTION:g} %"


def format_ms(seconds: float) -> str:
    """Format milliseconds of a step's part: `12.34`."""
    return f"{1000 * seconds:.2f}"


def change_in_ms(seconds: float) -> str:
    """Format milliseconds with their sign: `+1.20`."""
    return f"{1000 * seconds:+.2f}"


def format_count(number: int, noun: str, ending: str = "s") -> str:
    """Format `1 run`, `2 runs`."""
    return f"{number} {noun}{ending if number != 1 else ''}"


def join_some(names: Sequence[str], most: int) -> str:
    """Format `a, b and 3 more`, with at most so many names."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def duration(seconds: float) -> str:
    """Format `35 s`, `12 min`, `3 h 05 min`, with a precision for waiting users."""
    return f"{int(seconds)} s" if seconds < 120 else format_minutes(int(seconds) // 60)


def format_minutes(minutes: int) -> str:
    """Format `12 min`, `3 h 05 min`."""
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


TIME_BUDGET_FORM = "a time, as 6min, 1h30min or 90s, or none"
_TIME_BUDGET = re.compile(r"(?:(\d{1,4})h)?(?:(\d{1,5})min)?(?:(\d{1,6})s)?", re.ASCII)
_UNITS_S = {"h": 3600, "min": 60, "s": 1}


def parse_number(text: str) -> float:
    """Return the number, or NaN, which is outside any bounds."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def parse_json_value(text: str) -> Any:
    """Return a JSON value: a number, true, false, null, a list; any other text is a string."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def parse_time_budget(text: str) -> float | None:
    """Return the seconds of a text such as `6min`, `1h30min` or `90s`; None for `none`, which sets no limit.

    Raises:
        ValueError: the text is invalid, or the time is zero.
    """
    if text == "none":
        return None
    found = _TIME_BUDGET.fullmatch(text)
    parts = found.groups() if found else ()
    seconds = sum(int(part or 0) * unit_s for part, unit_s in zip(parts, _UNITS_S.values(), strict=False))
    if not seconds:
        raise ValueError(f"not {TIME_BUDGET_FORM}: {text!r}")
    return float(seconds)


RATE_FORM = "a rate with its unit, as 10gbit or 1.25GB/s"
# In "Gb/s" and "GB/s" only the case distinguishes bits from bytes, so all in lower case is refused.
_LINK = re.compile(r"(\d+\.?\d*|\.\d+)\s*(?:([kmgtKMGT])((?i:bit)|B)(?:/[sS])?|([kMGT])b/s)", re.ASCII)


def parse_link_rate(text: str) -> float:
    """Return the bytes/s of a text such as `10gbit`, `10 Gb/s` or `1.25GB/s`. Raises `ValueError` if it is invalid or zero."""
    match = _LINK.fullmatch(text.strip())
    if not match or float(match[1]) <= 0:
        raise ValueError(f"not {RATE_FORM}: {text!r}")
    return float(match[1]) * 1e3 ** ("kmgt".index((match[2] or match[4]).lower()) + 1) * (1.0 if match[3] == "B" else 1 / 8)


def format_time_budget(seconds: float) -> str:
    """Return seconds as `parse_time_budget` reads them."""
    left, found = int(seconds), ""
    for name, unit_s in _UNITS_S.items():
        count, left = divmod(left, unit_s)
        found += f"{count}{name}" if count else ""
    return found or "0s"


def minute(started: str) -> str:
    """Format a time in ISO 8601: `2026-01-31 02:15`."""
    return started[:16].replace("T", " ")


def with_prefix(value: float, unit: str) -> str:
    """Format three digits and an SI prefix: `34.3 GFLOP`, `1.02 TFLOP/s`."""
    rounded = float(f"{value:.3g}")  # first, or 999.9 would have four digits
    power = next((power for power in range(5, 0, -1) if rounded >= 1000**power), 0)
    digits = rounded / 1000**power
    return f"{digits:.{2 if digits < 10 else 1 if digits < 100 else 0}f} {' kMGTP'[power].strip()}{unit}"


DEGRADE = "dtfperf.degrade"  # name of the error handler for `open` and `reconfigure`

# One for one, so that columns stay aligned.
_LACKING = "─━╸╺╶╴│┃├└┌┐┘┤┬┴┼▁▂▃▄▅▆▇█\u2018\u2019\u201c\u201d\u2013\u2014•·±\u00b5\u03bc…→←↑↓\u00d7"
_INSTEAD = "------||+++++++++12345678''\"\"--**~uu.><^vx"
_SUBSTITUTES = dict(zip(_LACKING, _INSTEAD, strict=True))

_LONGEST = 2000  # displayed characters of a line


def printable(text: str) -> str:
    r"""Return one line in which invisible characters, including tabs and ends of lines, are escaped: `\x1b`."""
    return text if text.isprintable() else "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def printable_lines(text: str) -> str:
    """Escape like `printable`, but keep lines and tabs. A carriage return, as of a progress bar, begins a new line."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return "\n".join(line if line.isprintable() else "\t".join(map(printable, line.split("\t"))) for line in lines)


def printable_bytes(line: bytes) -> str:
    """Return a line of bytes for display; of a long one only the beginning."""
    text = line[: 4 * _LONGEST].decode(errors="replace").rstrip("\r\n").expandtabs()
    return printable(text if len(text) <= _LONGEST and len(line) <= 4 * _LONGEST else f"{text[:_LONGEST]} ...")


def _degrade(error: UnicodeError) -> tuple[str, int]:
    """Return the substitute of characters that an encoding lacks, or their code points."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing = error.object[error.start : error.end]
    escaped = (_SUBSTITUTES.get(each) or each.encode("ascii", "backslashreplace").decode("ascii") for each in missing)
    return "".join(escaped), error.end


codecs.register_error(DEGRADE, _degrade)
