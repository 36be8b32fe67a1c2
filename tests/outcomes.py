"""A pytest plugin for ci/check, which appends the outcome of each phase of a test to the file in CHECK_OUTCOMES.

Each line is a JSON object: name, file, phase, outcome, seconds, CPU seconds, and the text of a failure. CPU seconds are those
of the process that runs the test, of its children that have ended, and the parts of shared processes that worked for it. Those
of daemons that outlive the test are missing.
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
    """Adds the CPU seconds since the last phase to the report of each phase."""

    def __init__(self) -> None:
        self._read_s = get_cpu_s()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        before_s, self._read_s = self._read_s, get_cpu_s()
        vars(report)["cpu_s"] = self._read_s - before_s  # xdist's workers send it with the report
        return report


def add_shared_child(pid: int) -> None:
    """Count the CPU seconds of a child that works for many tests in the test that it works for, not when it ends."""
    _servers.add(pid)


def add_seconds_of_server(memory: mmap.mmap) -> None:
    """Count the CPU seconds that a process shared with others writes there: those in which it has worked for this process."""
    _used.append(memory)


def get_cpu_s() -> float:
    """Return the CPU seconds of this process, of its children that have ended, and of shared processes."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    served_s: float = sum(map(_read_cpu_s, _servers)) + sum(struct.unpack("d", memory)[0] for memory in _used)
    return time.process_time() + ended.ru_utime + ended.ru_stime + served_s


def _read_cpu_s(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # it has ended
        return 0.0
    return sum(map(int, fields[11:15])) / TICKS_PER_S  # utime and stime, of itself and of its children that have ended


class Outcomes:
    """Appends each outcome at once, so that all are kept if pytest itself fails."""

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
    if path and not hasattr(config, "workerinput"):  # the controller writes for xdist's workers
        config.pluginmanager.register(Outcomes(Path(path)), "dtfperf-outcomes")
