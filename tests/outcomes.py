"""A pytest plugin of ci/check's: writes down how each test ended, as it ends, into the file that CHECK_OUTCOMES names.

One JSON object a line and phase: name, file, phase, outcome, seconds, and the text of a failure.
"""

import json
import os
from pathlib import Path

import pytest


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
            "text": text,
        }
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def pytest_configure(config: pytest.Config) -> None:
    path = os.environ.get("CHECK_OUTCOMES")
    if path and not hasattr(config, "workerinput"):  # xdist's workers tell the one that they work for
        config.pluginmanager.register(Outcomes(Path(path)), "dtfperf-outcomes")
