"""Notes about each measurement in the summary."""

from collections.abc import Sequence

import pytest

from pytest_dtfperf.baselines.judgement import Judgement
from pytest_dtfperf.records.record import Record


def pytest_dtfperf_judged(item: pytest.Item, measured: Record, judgement: Judgement) -> None:
    item.user_properties.append(("workbench", f"{measured.spec.model} {judgement.verdict}"))


def pytest_dtfperf_report_section(records: Sequence[Record]) -> tuple[str, list[str]]:
    return "workbench", [f"{record.spec.model} over {len(record.measurement.hosts)} desks" for record in records]
