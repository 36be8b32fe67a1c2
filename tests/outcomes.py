"""A pytest plugin of ci/check's: writes down how each test ended, as it ends, into the file that CHECK_OUTCOMES names.

One JSON object a line and phase: name, file, phase, outcome, seconds, CPU seconds, and the text of a failure. CPU seconds are
those of the process that runs the test, of all its children that it has waited for, and of what processes that serve several
like it have used for it: not of daemons that outlive it.
"""

import json
import mmap
import os
import resource
import struct
import time
from collections.abc import Generator
from pathlib import Path

import pytest

TICKS_PER_S = os.sysconf("SC_CLK_TCK")

_servers: set[int] = set()
_used: list[mmap.mmap] = []


class Meter:
    """Notes in each phase's report what this process and its children have used since the last one."""

    def __init__(self) -> None:
        self._read_s = cpu_s()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        before_s, self._read_s = self._read_s, cpu_s()
        vars(report)["cpu_s"] = self._read_s - before_s  # travels with the report from xdist's workers
        return report


def serves(pid: int) -> None:
    """A child works for many tests: what it uses counts for the test that it was used in, not for the one that it ends with."""
    _servers.add(pid)


def is_used(memory: mmap.mmap) -> None:
    """A process serves many like this one, and writes there how many seconds it has used for this one."""
    _used.append(memory)


def cpu_s() -> float:
    """Of this process, of the children that it has waited for, and of those that serve."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    served_s: float = sum(map(_cpu_s_of, _servers)) + sum(struct.unpack("d", memory)[0] for memory in _used)
    return time.process_time() + ended.ru_utime + ended.ru_stime + served_s


def _cpu_s_of(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # it has been waited for
        return 0.0
    return sum(map(int, fields[11:15])) / TICKS_PER_S  # utime and stime, its own and of the children that it has waited for


class Outcomes:
    """Appends; what was written stays when pytest itself breaks."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._write(report, report.when, report.duration)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._write(report, "collect", 0.0)

    def _write(self, report: pytest.TestReport | pytest.CollectReport, phase: str, seconds: float) -> None:
        text = report.longreprtext if report.failed else ""
        line = {
            "name": report.nodeid,
            "file": report.nodeid.partition("::")[0],
            "phase": phase,
            "outcome": report.outcome,
            "seconds": round(seconds, 3),
            "cpu_s": round(vars(report).get("cpu_s", 0.0), 3),
            "text": text,
        }
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def pytest_configure(config: pytest.Config) -> None:
    path = os.environ.get("CHECK_OUTCOMES")
    if path:
        config.pluginmanager.register(Meter(), "dtfperf-meter")
    if path and not hasattr(config, "workerinput"):  # xdist's workers tell the one that they work for
        config.pluginmanager.register(Outcomes(Path(path)), "dtfperf-outcomes")
