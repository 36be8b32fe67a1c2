"""The hooks of this plugin: for a conftest.py or another plugin, with those of the arguments that it wants.

`pytest_dtfperf_measured` and `pytest_dtfperf_judged` are called where a test runs, with pytest-xdist in a worker's process;
`pytest_dtfperf_report_section` in the process that talks to the user. An exception fails the test that it was raised in; one
of a section costs that section alone.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_dtfperf.baselines.verdict import Judgement
    from pytest_dtfperf.records.record import Record


def pytest_dtfperf_measured(item: pytest.Item, measured: "Record") -> None:
    """`train` hands a measurement to a test: once for each spec that it asked for.

    Also where this session had measured it before. It is recorded, and not judged yet.
    """


def pytest_dtfperf_judged(item: pytest.Item, measured: "Record", judgement: "Judgement") -> None:
    """A check of the fixture `baseline` has come to a verdict, which is written down and has not failed the test yet.

    `measured` has all runs, those included that the check asked for.
    """


def pytest_dtfperf_report_section(config: pytest.Config, records: "Sequence[Record]") -> "tuple[str, Sequence[str]] | None":
    """A section of the terminal's summary and of report.html, after ours: its title and its lines, or None for no section.

    `records`: all measurements of the session with their verdicts. Called once, when the session has ended; not where nothing
    was measured.
    """
