"""A pytest plugin of ci/check's: writes down how each test ended, as it ends, into the file that CHECK_OUTCOMES names.

One JSON object a line and phase: name, file, phase, outcome, seconds, CPU seconds, and the text of a failure. CPU seconds are
those of the process that runs the test and of all its children that it has waited for: not of daemons that outlive it.
"""

import json
import os
import resource
from collections.abc import Generator
from pathlib import Path

import pytest


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


elsewhere_s = [0.0]


def used_elsewhere(seconds: float) -> None:
    """A test has had a process work for it that is not its child, or goes on."""
    elsewhere_s[0] += seconds


def cpu_s() -> float:
    return elsewhere_s[0] + sum(
        usage.ru_utime + usage.ru_stime
        for usage in (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    )


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
