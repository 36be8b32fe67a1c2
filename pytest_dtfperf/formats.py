"""Numbers, and text from elsewhere, as they are shown to people: in reasons, tables, Markdown and figures. Pure.

Text from a host, a batch system or a file may hold escape sequences, bidirectional controls, NUL or lone surrogates. None of
them is printable by Unicode's definition, and all are shown as Python writes them. A stream whose encoding lacks a character
(latin-1, ASCII) gets a substitute, where it has `errors=DEGRADE`.
"""

import codecs
import re

NONE = "-"  # stands where there is no number


def rate(images_per_sec: float) -> str:
    """Three digits or more: `9.81`, `264.6`, `1830`."""
    decimals = 2 if images_per_sec < 100 else 1 if images_per_sec < 1000 else 0
    return f"{images_per_sec:.{decimals}f}"


def percent(fraction: float) -> str:
    return f"{100 * fraction:.1f} %"


def change(fraction: float) -> str:
    """With its sign: `-4.1 %`."""
    return f"{100 * fraction:+.1f} %"


def in_ms(seconds: float) -> str:
    """Of a step's parts: `12.34`."""
    return f"{1000 * seconds:.2f}"


def change_in_ms(seconds: float) -> str:
    """With its sign: `+1.20`."""
    return f"{1000 * seconds:+.2f}"


def format_count(number: int, noun: str, ending: str = "s") -> str:
    """`1 run`, `2 runs`."""
    return f"{number} {noun}{ending if number != 1 else ''}"


def duration(seconds: float) -> str:
    """`35 s`, `12 min`, `3 h 05 min`: as fine as somebody who waits wants it."""
    return f"{int(seconds)} s" if seconds < 120 else in_minutes(int(seconds) // 60)


def in_minutes(minutes: int) -> str:
    """`12 min`, `3 h 05 min`."""
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


TIME_BUDGET_FORM = "a time, as 6min, 1h30min or 90s, or none"
_TIME_BUDGET = re.compile(r"(?:(\d{1,4})h)?(?:(\d{1,5})min)?(?:(\d{1,6})s)?", re.ASCII)
_UNITS_S = {"h": 3600, "min": 60, "s": 1}


def parse_time_budget(text: str) -> float | None:
    """Return the seconds of a text such as `6min`, `1h30min` or `90s`; None for `none`, which sets no limit.

    Raises:
        ValueError: it is no such text, or no time at all.
    """
    if text == "none":
        return None
    found = _TIME_BUDGET.fullmatch(text)
    parts = found.groups() if found else ()
    seconds = sum(int(part or 0) * unit_s for part, unit_s in zip(parts, _UNITS_S.values(), strict=False))
    if not seconds:
        raise ValueError(f"not {TIME_BUDGET_FORM}: {text!r}")
    return float(seconds)


def format_time_budget(seconds: float) -> str:
    """Return seconds as `parse_time_budget` reads them."""
    left, found = int(seconds), ""
    for name, unit_s in _UNITS_S.items():
        count, left = divmod(left, unit_s)
        found += f"{count}{name}" if count else ""
    return found or "0s"


def minute(started: str) -> str:
    """Of a time in ISO 8601: `2026-01-31 02:15`."""
    return started[:16].replace("T", " ")


def with_prefix(value: float, unit: str) -> str:
    """Three digits and a prefix of a thousand's power: `34.3 GFLOP`, `1.02 TFLOP/s`."""
    rounded = float(f"{value:.3g}")  # first, or 999.9 would have four digits
    power = next((power for power in range(5, 0, -1) if rounded >= 1000**power), 0)
    digits = rounded / 1000**power
    return f"{digits:.{2 if digits < 10 else 1 if digits < 100 else 0}f} {' kMGTP'[power].strip()}{unit}"


DEGRADE = "dtfperf.degrade"  # name of the error handler, as `open` and `reconfigure` take it

# One for one, so that columns stay beneath each other.
_LACKING = "─━╸╺╶╴│┃├└┌┐┘┤┬┴┼▁▂▃▄▅▆▇█\u2018\u2019\u201c\u201d\u2013\u2014•·±\u00b5\u03bc…→←↑↓\u00d7"
_INSTEAD = "------||+++++++++12345678''\"\"--**~uu.><^vx"
_SUBSTITUTES = dict(zip(_LACKING, _INSTEAD, strict=True))

_LONGEST = 2000  # characters of a line that people are shown


def printable(text: str) -> str:
    """One line, in which whatever is no sign that can be seen, tabs and ends of lines included, is written out: `\\x1b`."""
    return text if text.isprintable() else "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def printable_lines(text: str) -> str:
    """The same with its lines and tabs. A progress bar, which goes back to the beginning of its line, begins another."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return "\n".join(line if line.isprintable() else "\t".join(map(printable, line.split("\t"))) for line in lines)


def printable_bytes(line: bytes) -> str:
    """A line of bytes as people are shown it: a long one only in its beginning."""
    text = line[: 4 * _LONGEST].decode(errors="replace").rstrip("\r\n").expandtabs()
    return printable(text if len(text) <= _LONGEST and len(line) <= 4 * _LONGEST else f"{text[:_LONGEST]} ...")


def _degrade(error: UnicodeError) -> tuple[str, int]:
    """Return what takes the place of characters that an encoding lacks; of those without a substitute their numbers."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing = error.object[error.start : error.end]
    escaped = (_SUBSTITUTES.get(each) or each.encode("ascii", "backslashreplace").decode("ascii") for each in missing)
    return "".join(escaped), error.end


codecs.register_error(DEGRADE, _degrade)
