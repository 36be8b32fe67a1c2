"""What the studies over links of a known rate share: what such links allow, how a rate is written, and what was kept."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from benchmarks.injected import Rig
from pytest_dtfperf.datamodel.probes import Link, Probes
from pytest_dtfperf.limits.limit import find_limit
from pytest_dtfperf.node.probes import read_cpu
from pytest_dtfperf.spec import Spec
from tests.machines.machine import bit_per_s

Line = TypeVar("Line")

PAYLOAD = 1448 / 1514  # of an Ethernet frame with TCP: tbf counts all of it


def allowed_s(rig: Rig, spec: Spec, rate: str) -> float:
    """A step takes at least so long, by its busiest link: every machine's is held to the rate."""
    per_s = bit_per_s(rate) / 8 * PAYLOAD
    links = {way: Link(per_s=per_s, spread=0.0, repeats=1) for way in ("*>any", "any>*")}
    found = find_limit(spec, rig.launcher.layout(spec), Probes(links=links))
    assert found.binding, found.unknown
    return found.binding.step_s


def in_words(rate: str) -> str:
    """`200mbit` is `0.2 Gbit/s`."""
    return f"{bit_per_s(rate) / 1e9:g} Gbit/s"


def load_results(path: Path, from_json: Callable[[str], Line]) -> list[Line]:
    """What a study has measured before, a line each, if anything was."""
    return [from_json(line) for line in path.read_text().splitlines()] if path.exists() else []


def processor() -> str:
    """`AMD EPYC 9R14, family 26, model 2`: what seconds of arithmetic can be compared on."""
    return ", ".join(filter(None, read_cpu()))


def today() -> str:
    """`2026-11-25`, UTC."""
    return datetime.now(UTC).date().isoformat()
