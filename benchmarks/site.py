"""How long a site takes over a history, from nothing and again: seconds of this process, and how both grow with the history.

    python -m benchmarks.site [MEASUREMENTS]        # 10,000; and a tenth of these, to compare with

A session has 24 measurements of two runs each, on one of three systems. Session folders are there, and every
session has its page.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pytest_dtfperf.report.site.build import build_site
from tests.report.site.samples import enter_history, write_nights

T = TypeVar("T")
EACH, SYSTEMS = 24, 3


def measure_cpu_s(function: Callable[[], T]) -> tuple[T, float]:
    """What it returns, and the processors' seconds that it took."""
    began = time.process_time()
    return function(), time.process_time() - began


def measure_builds(measurements: int, folder: Path) -> tuple[float, float]:
    """Processors' seconds of a site from nothing, and of the same again."""
    nights = max(1, measurements // (EACH * SYSTEMS))
    folders = write_nights(folder / "results", nights, systems=SYSTEMS, each=EACH)
    found, searched_s = measure_cpu_s(lambda: enter_history(folders, folder))
    first, first_s = measure_cpu_s(lambda: build_site(found, folder / "site", results=folder / "results"))
    again, again_s = measure_cpu_s(lambda: build_site(found, folder / "site", results=folder / "results"))
    print(
        f"{len(folders) * EACH} measurements in {len(folders)} sessions: entered and searched in {searched_s:.1f} s; "
        f"{len(first.written)} pages of {first.bytes / 1e6:.1f} MB, the largest {first.largest / 1e3:.0f} kB, "
        f"in {first_s:.1f} s; "
        f"again {again_s:.1f} s, {len(again.written)} written",
        flush=True,
    )
    return first_s, again_s


def main(measurements: int = 10_000) -> None:
    with tempfile.TemporaryDirectory() as folder:
        small = measure_builds(measurements // 10, Path(folder) / "small")
        large = measure_builds(measurements, Path(folder) / "large")
    ratios = [after / before for before, after in zip(small, large, strict=True)]
    print(f"ten times the history: {ratios[0]:.1f} times the seconds from nothing, {ratios[1]:.1f} times again")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
