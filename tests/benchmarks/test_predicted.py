"""Tests of the comparison of predictions with stored rates, and of its tables in the docs."""

import re

import pytest

from benchmarks.predicted import PAYLOAD, CellError, load_cells, make_tables
from tests.docs.pages import REPOSITORY


@pytest.fixture(scope="module")
def cells() -> list[CellError]:
    return load_cells()


@pytest.fixture(scope="module")
def tables(cells: list[CellError]) -> list[str]:
    return make_tables(cells)


def test_page_has_each_table_line(tables: list[str]) -> None:
    """Each row and sentence that the benchmark prints is in docs/predict.md."""
    page = (REPOSITORY / "docs" / "predict.md").read_text()
    for line in filter(None, tables):
        assert line in page


def test_intervals_cover_published_rates(tables: list[str]) -> None:
    """At least 85 % of the published rates that were not fitted are within their intervals of 90 %."""
    (found,) = (match for line in tables if (match := re.match(r"All: (\d+) rates: .* (\d+) within their intervals", line)))
    rates, covered = map(int, found.groups())
    assert rates > 80
    assert covered >= 0.85 * rates


def test_prediction_of_slow_links_has_a_small_error(cells: list[CellError]) -> None:
    """Of the steps over links of 1 Gbit/s or less half are predicted within 10 %."""
    found = [each for each in cells if each.result.cell.rate != "10gbit"]
    assert len(found) > 100
    assert sorted(abs(each.error) for each in found)[len(found) // 2] < 0.1
    assert 0.9 < PAYLOAD < 1
