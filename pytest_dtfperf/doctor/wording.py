"""How the doctor words what it tells: hosts, pairs of them, and numbers with their units. Pure."""

from collections.abc import Sequence

from pytest_dtfperf.doctor.diagnosis import HostSeen
from pytest_dtfperf.formats import counted

_NAMED = 6  # of more hosts or pairs that are alike, the number says enough


def sentence(words: str) -> str:
    """With its end, if it has none; what a question asks has one."""
    return words if words.endswith((".", "?", "!")) else f"{words}."


def bits(bits_per_s: float) -> str:
    """`94.1 Mbit/s`, `9.41 Gbit/s`."""
    for unit, least in (("Gbit/s", 1e9), ("Mbit/s", 1e6)):
        if bits_per_s >= least:
            return f"{bits_per_s / least:.3g} {unit}" if bits_per_s < 1000 * least else f"{bits_per_s / least:.0f} {unit}"
    return f"{bits_per_s / 1e3:.3g} kbit/s"


def size(count: int) -> str:
    """`1.5 GiB`, `120 MiB`."""
    gib = count / (1 << 30)
    return f"{gib:.3g} GiB" if 1 <= gib < 1000 else f"{gib:.0f} GiB" if gib >= 1 else f"{count / (1 << 20):.0f} MiB"


def listed(groups: dict[str, list[HostSeen]]) -> str:
    return "; ".join(f"{value} on {names_of(hosts)}" for value, hosts in groups.items())


def names_of(hosts: Sequence[HostSeen]) -> str:
    return ", ".join(host.name for host in hosts) if len(hosts) <= _NAMED else f"{len(hosts)} hosts ({hosts[0].name}, ...)"


def pairs(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def indented(lines: str) -> str:
    return "".join(f"\n    {line.strip()}" for line in lines.splitlines())


def gpus(count: int) -> str:
    return counted(count, "GPU")


def are(count: int) -> str:
    return {0: "is none", 1: "is 1"}.get(count, f"are {count}")
