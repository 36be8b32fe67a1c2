"""The part of a campaign that `make test` runs."""

from itertools import product

import pytest

from tests.campaign import drawn, two_thirds

CASES = [{"mode": mode, "layout": layout, "option": option} for mode, layout, option in product("abcdef", range(5), "xy")]


@pytest.mark.parametrize("seed", [*map(str, range(20))])
def test_every_value_is_among_the_drawn(seed: str) -> None:
    """Whatever the seed, each mode, layout and option is tried, in no more cases than the longest of these has values."""
    kept = [CASES[index] for index in drawn(CASES, seed)]
    for name in ("mode", "layout", "option"):
        assert {case[name] for case in kept} == {case[name] for case in CASES}
    assert len(kept) == max(6, 5, 2)


def test_a_seed_draws_the_same_again() -> None:
    """xdist's workers must collect the same; another seed draws others, and some seed draws any."""
    assert drawn(CASES, "1") == drawn(CASES, "1")
    assert len({frozenset(drawn(CASES, str(seed))) for seed in range(20)}) > 1
    assert set().union(*(drawn(CASES, str(seed)) for seed in range(200))) == {*range(len(CASES))}


def test_what_has_no_parameters_is_kept() -> None:
    """A campaign of one case is run, and so is one that is named alone."""
    assert drawn([{"mode": "a"}], "1") == drawn([{}], "1") == {0}
    assert drawn([], "1") == set()


def test_another_pytest_repeats_a_third() -> None:
    """Drawn alike by all of xdist's workers, and by another seed others; whoever has a single test keeps it."""
    cases = [*range(30)]
    assert len(two_thirds(cases, "1")) == 20
    assert two_thirds(cases, "1") == two_thirds(cases, "1") != two_thirds(cases, "2")
    assert two_thirds([1], "1") == []
