"""Tests of the part of a campaign that `make test` runs."""

import re
from collections import Counter
from itertools import product
from pathlib import Path

import pytest

from tests.campaign import draw_cases, draw_most, select_evenly
from tests.plugin.conftest import WITHOUT
from tests.plugin.zygote import python

CASES = [{"mode": mode, "layout": layout, "option": option} for mode, layout, option in product("abcdef", range(5), "xy")]


@pytest.mark.parametrize("seed", [*map(str, range(20))])
def test_drawn_cases_have_every_value(seed: str) -> None:
    """With each seed each mode, layout and option is drawn, in as many cases as the longest of these has values."""
    kept = [CASES[index] for index in draw_cases(CASES, seed)]
    for name in ("mode", "layout", "option"):
        assert {case[name] for case in kept} == {case[name] for case in CASES}
    assert len(kept) == max(6, 5, 2)


def test_seed_draws_the_same_cases_again() -> None:
    """A seed draws the same cases each time, another seed draws others, and each case is drawn by some seed."""
    assert draw_cases(CASES, "1") == draw_cases(CASES, "1")
    assert len({frozenset(draw_cases(CASES, str(seed))) for seed in range(20)}) > 1
    assert set().union(*(draw_cases(CASES, str(seed)) for seed in range(200))) == {*range(len(CASES))}


def test_single_case_is_kept() -> None:
    """A campaign of one case keeps it, with and without parameters, and one of no cases keeps none."""
    assert draw_cases([{"mode": "a"}], "1") == draw_cases([{}], "1") == {0}
    assert draw_cases([], "1") == set()


@pytest.mark.parametrize(("cases", "kept"), [(10, {3, 4}), (9, {3}), (2, {1}), (1, {1}), (0, {0})])
def test_third_of_equal_cases_is_drawn(cases: int, kept: set[int]) -> None:
    """Of equal cases a third and at least one is drawn, the same with the same seed, and each case by some seed."""
    drawn_by = [select_evenly(cases, 3, str(seed)) for seed in range(50)]
    assert select_evenly(cases, 3, "1") == select_evenly(cases, 3, "1")
    assert {len(indices) for indices in drawn_by} == kept
    assert set().union(*drawn_by) == {*range(cases)}


TESTS = """
import pytest

@pytest.mark.campaign(part=3)
@pytest.mark.parametrize("alike", range(9))
def test_alike(alike): ...

@pytest.mark.campaign
@pytest.mark.parametrize("mode", "abc")
@pytest.mark.parametrize("layout", "xyz")
def test_product(mode, layout): ...

@pytest.mark.campaign(only=True)
@pytest.mark.parametrize("timed", range(2))
def test_timed(timed): ...

@pytest.mark.parametrize("all_run", range(4))
def test_other(all_run): ...
"""


def collect(folder: Path, source: str, *options: str) -> list[str]:
    """Return the names of the tests of this source that `make test` collects with these options."""
    (folder / "test_these.py").write_text(source)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n    campaign(part, only): so much of it\n")
    argv = (*WITHOUT, "-p", "tests.conftest", "--collect-only", "-q", *options)
    ended = python("-m", "pytest", *argv, cwd=folder, DTFPERF_CAMPAIGN="", DTFPERF_AGAIN="")
    names = re.findall(r"^test_these\.py::(\w+)", ended.stdout, re.MULTILINE)
    assert names, ended.stdout + ended.stderr
    return names


def test_marker_limits_the_collected_cases(tmp_path: Path) -> None:
    """`make test` collects a third of equal cases, as many of a product as show each value, none of those that assert measured
    times, and all tests without the marker."""
    assert Counter(collect(tmp_path, TESTS)) == {"test_alike": 3, "test_product": 3, "test_other": 4}


PROPERTY = """
from hypothesis import given
from hypothesis.strategies import integers

@given(integers())
def test_property(number): ...

def test_other(): ...
"""


def test_property_is_a_campaign(tmp_path: Path) -> None:
    """A property is one of the tests that `make campaign` selects, so that it tries more examples there."""
    assert collect(tmp_path, PROPERTY) == ["test_property", "test_other"]
    assert collect(tmp_path, PROPERTY, "-m", "campaign") == ["test_property"]


def test_repetition_leaves_out_nine_tenths() -> None:
    """Nine tenths of the tests are left out, the same with the same seed, and a single test is kept."""
    cases = [*range(30)]
    assert len(draw_most(cases, "1")) == 27
    assert draw_most(cases, "1") == draw_most(cases, "1") != draw_most(cases, "2")
    assert draw_most([1], "1") == []
