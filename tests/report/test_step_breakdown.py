"""Step breakdowns in a terminal."""

from dataclasses import replace

import pytest

from pytest_dtfperf.datamodel.step_times import MAX_LINKS
from pytest_dtfperf.report.explanations import describe_breakdown
from tests.report.page.samples import breakdown


@pytest.mark.parametrize(
    "links, words",
    {
        12: "",
        13: "and 1 link more, less busy than these",
        14: "and 2 links more, less busy than these",
        MAX_LINKS: f"and at least {MAX_LINKS - 12} links more, less busy than these",
    }.items(),
)
def test_links_that_are_left_out_are_counted(links: int, words: str) -> None:
    """The busiest links are shown, and the others are counted; a full breakdown has at least that many."""
    many = breakdown(20)
    text = describe_breakdown(replace(many, links=many.links[:links]), width=200, colour=False)
    assert [line for line in text.splitlines() if "less busy" in line] == ([words] if words else [])
