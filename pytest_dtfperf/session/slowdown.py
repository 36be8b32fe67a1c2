"""A slow-down that is injected on purpose, to see that the alarm works.

    DTFPERF_SLOWDOWN="worker:1=0.2" pytest perf_tests      worker 1 sleeps for 0.2 s within every step

It is recorded with the measurement, which can never become a baseline.
"""

import math
import re
from collections.abc import Mapping

from pytest_dtfperf.errors import SpecError, UsageError
from pytest_dtfperf.spec import Spec

VARIABLE = "DTFPERF_SLOWDOWN"
BEFORE = "DTFPERF_PLANT"  # its name in earlier versions, which is read still
_ENTRY = re.compile(r"(worker:(?:0|[1-9]\d*))=(\d+\.?\d*|\.\d+)", re.ASCII)


def given(environment: Mapping[str, str]) -> str:
    """What the variable says, by today's name or the one of earlier versions; empty where neither is set."""
    return environment.get(VARIABLE) or environment.get(BEFORE, "")


def read(environment: Mapping[str, str]) -> dict[str, float]:
    """Task -> seconds it sleeps in every step. Raises `UsageError`."""
    found: dict[str, float] = {}
    for entry in filter(None, given(environment).replace(" ", "").split(",")):
        match = _ENTRY.fullmatch(entry)
        if not match or not math.isfinite(float(match[2])):
            raise UsageError(f"{VARIABLE} takes tasks and seconds per step, as in worker:1=0.2, not {entry!r}")
        if match[1] in found:
            raise UsageError(f"{VARIABLE} has {match[1]} twice: {found[match[1]]:g} s and {match[2]} s")
        found[match[1]] = float(match[2])
    return found


def check(spec: Spec, injected_slowdowns: Mapping[str, float]) -> None:
    """Raises `SpecError` where there is nothing that would sleep."""
    if spec.command and injected_slowdowns:
        raise SpecError(f"{VARIABLE} makes our own training sleep; {spec.label} is an external command, which does not")
