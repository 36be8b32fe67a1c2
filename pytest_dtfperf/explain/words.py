"""Times, rates and tasks as explanations have them."""

import re
from collections.abc import Mapping, Sequence


def ms(seconds: float, like: float | None = None) -> str:
    """Three digits, thousands apart: `1,273`, `21.5`, `0.42`. `like`: as many after the point as those seconds have."""
    largest = abs(1000 * (seconds if like is None else like))
    decimals = 0 if largest >= 99.5 else 1 if largest >= 9.95 else 2
    return f"{1000 * seconds:z,.{decimals}f}"  # z: nothing is -0


def signed_ms(seconds: float, like: float | None = None) -> str:
    """The same with its sign: `+1.2`."""
    text = ms(seconds, like)
    return text if text.startswith("-") else f"+{text}"


def gbit_per_s(bytes_per_s: float) -> str:
    return f"{8 * bytes_per_s / 1e9:.3g}"


def percent_longer(before: float, after: float) -> str:
    return f"{100 * (after / before - 1):.0f} %" if before else "much"


def ends_of(location: str | None) -> Sequence[str]:
    """Both ends of a link, the one task or host, or none."""
    return [end for end in re.split("<?>", location) if end] if location else []


def with_host(task: str, hosts: Mapping[str, str]) -> str:
    """`ps:1 (node07)`."""
    return f"{task} ({hosts[task]})" if hosts.get(task, task) != task else task
