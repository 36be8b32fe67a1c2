"""What the studies over links of a known rate share: what such links allow, how a rate is written, and the day of a result."""

from datetime import UTC, datetime

from benchmarks.injected import Rig
from pytest_dtfperf.explain.probes import Link, Probes
from pytest_dtfperf.limits.limit import limit
from pytest_dtfperf.spec import Spec
from tests.machines.machine import bit_per_s

PAYLOAD = 1448 / 1514  # of an Ethernet frame with TCP: tbf counts all of it


def allowed_s(rig: Rig, spec: Spec, rate: str) -> float:
    """A step takes at least so long, by its busiest link: every machine's is held to the rate."""
    per_s = bit_per_s(rate) / 8 * PAYLOAD
    links = {way: Link(per_s=per_s, spread=0.0, repeats=1) for way in ("*>any", "any>*")}
    found = limit(spec, rig.launcher.layout(spec), Probes(links=links))
    assert found.binding, found.unknown
    return found.binding.step_s


def in_words(rate: str) -> str:
    """`200mbit` is `0.2 Gbit/s`."""
    return f"{bit_per_s(rate) / 1e9:g} Gbit/s"


def today() -> str:
    """`2026-11-25`, UTC."""
    return datetime.now(UTC).date().isoformat()
