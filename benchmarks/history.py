"""How what a history is asked for grows with it: processors' seconds and the most memory of each command, as its users call it.

    python -m benchmarks.history [MEASUREMENTS]     # 10,000; and a tenth of these, to compare with. 100,000: half an hour

A session has 24 measurements of two runs each, on one of three systems. Time grows as the history does where ten
times the history take ten times the seconds beyond those of a command that does nothing.
"""

import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.report.site.samples import make_trainings, write_night, write_nights

EACH, SYSTEMS = 24, 3


# The program that starts a command, so that what is read afterwards is of this command alone.
MEASURE = """
import resource, subprocess, sys
code = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(code, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)
"""


@dataclass(frozen=True)
class Cost:
    cpu_s: float
    peak_mib: float


def cost(*words: str, results: Path) -> Cost:
    """Of one call of dtfperf."""
    command = [sys.executable, "-m", "pytest_dtfperf.cli", *words, "--results", str(results)]
    done = subprocess.run([sys.executable, "-c", MEASURE, *command], stdout=subprocess.PIPE, text=True, check=True)
    code, cpu_s, peak_mib = done.stdout.split()
    if code != "0":
        raise SystemExit(f"dtfperf {' '.join(words)} has ended with {code}")
    return Cost(float(cpu_s), float(peak_mib))


def costs(measurements: int, folder: Path) -> dict[str, Cost]:
    """Of each question, over a history of so many."""
    results, site, table = folder / "results", folder / "site", folder / "runs.csv"
    nights = max(2, measurements // (EACH * SYSTEMS))
    write_nights(results, nights, systems=SYSTEMS, each=EACH)
    calls: dict[str, Sequence[str]] = {
        "import": ["history", "import", str(results)],
        "first search for changes": ["history", "changes"],
        "import again, with one session more": ["history", "import", str(results)],
        "search after it": ["history", "changes"],
        "trend of one training": ["history", "trend", "model=alexnet", "gpus=1", "--last=60"],
        "list": ["history", "list"],
        "CSV of all runs": ["history", "export", "--format=csv", f"--out={table}"],
        "site": ["site", f"--out={site}"],
        "site again": ["site", f"--out={site}"],
    }
    found = {}
    for name, words in calls.items():
        if name == "import again, with one session more":
            write_night(results, nights, make_trainings(1, EACH))
        found[name] = cost(*words, results=results)
        print(f"  {name}: {found[name].cpu_s:.1f} s, {found[name].peak_mib:.0f} MiB", flush=True)
    return found


def main(measurements: int = 10_000) -> None:
    with tempfile.TemporaryDirectory() as folder:
        found: list[Mapping[str, Cost]] = []
        for number in (measurements // 10, measurements):
            print(f"{number:,} measurements", flush=True)
            found.append(costs(number, Path(folder) / str(number)))
    nothing = cost("--version", results=Path())
    print(f"dtfperf --version: {nothing.cpu_s:.1f} s, {nothing.peak_mib:.0f} MiB")
    small, large = found
    for name in large:
        times = (large[name].cpu_s - nothing.cpu_s) / max(0.01, small[name].cpu_s - nothing.cpu_s)
        memory = large[name].peak_mib / small[name].peak_mib
        print(f"{name}: {times:.1f} times the seconds, {memory:.1f} times the memory")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
