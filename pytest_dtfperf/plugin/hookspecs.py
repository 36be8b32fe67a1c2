"""The hooks of this plugin, for a conftest.py or another plugin; each takes any of the arguments.

`pytest_dtfperf_measured` and `pytest_dtfperf_judged` are called in the test's process, with pytest-xdist that of a worker;
`pytest_dtfperf_report_section` in the process that writes to the terminal. An exception fails its test;
one of a section affects only that section.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_dtfperf.baselines.judgement import Judgement
    from pytest_dtfperf.records.record import Record


def pytest_dtfperf_measured(item: pytest.Item, measured: "Record") -> None:
    """Act on a measurement that `train` returns to a test: called once for each spec.

    It is called also if this session has measured the spec before. The measurement is recorded, and not judged yet.
    """


def pytest_dtfperf_judged(item: pytest.Item, measured: "Record", judgement: "Judgement") -> None:
    """Act on the verdict of a check of the fixture `baseline`, which is recorded and has not failed the test yet.

    `measured` has all runs, including those of the check.
    """


def pytest_dtfperf_report_section(config: pytest.Config, records: "Sequence[Record]") -> "tuple[str, Sequence[str]] | None":
    """Return a section of the terminal's summary and of report.html: its title and its lines, or None for no section.

    `records` are all measurements of the session with their verdicts. Called once, when the session has ended, if something was
    measured.
    """
