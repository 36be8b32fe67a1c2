"""Numbers as people read them: the same in verdicts' reasons, in tables, in Markdown and in figures."""

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


def counted(number: int, noun: str, ending: str = "s") -> str:
    """`1 run`, `2 runs`."""
    return f"{number} {noun}{ending if number != 1 else ''}"


def duration(seconds: float) -> str:
    """`35 s`, `12 min`, `3 h 05 min`: as fine as somebody who waits wants it."""
    return f"{int(seconds)} s" if seconds < 120 else in_minutes(int(seconds) // 60)


def in_minutes(minutes: int) -> str:
    """`12 min`, `3 h 05 min`."""
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


def minute(started: str) -> str:
    """Of a time in ISO 8601: `2026-01-31 02:15`."""
    return started[:16].replace("T", " ")


def with_prefix(value: float, unit: str) -> str:
    """Three digits and a prefix of a thousand's power: `34.3 GFLOP`, `1.02 TFLOP/s`."""
    rounded = float(f"{value:.3g}")  # first, or 999.9 would have four digits
    power = next((power for power in range(5, 0, -1) if rounded >= 1000**power), 0)
    digits = rounded / 1000**power
    return f"{digits:.{2 if digits < 10 else 1 if digits < 100 else 0}f} {' kMGTP'[power].strip()}{unit}"
