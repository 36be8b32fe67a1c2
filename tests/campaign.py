"""Choose the part of each campaign that `make test` runs: the fewest cases that have each value of each parameter.

A test that is marked `campaign` has cases for all combinations. With DTFPERF_CAMPAIGN=1 (`make campaign`) all of them run, and
otherwise a part, which is drawn with DTFPERF_SEED. For a list of similar cases, `campaign(part=3)` runs every third one.
Tests with `campaign(only=True)` assert measured times, rates or shares, which other load on the machine changes, or take long
to show on one more system what others show: `make test` runs none of them.
"""

import os
import random
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, TypeVar

import pytest

WHOLE = bool(os.environ.get("DTFPERF_CAMPAIGN"))  # all campaigns, also those with loops in a test
SEED = os.environ.get("DTFPERF_SEED", "1")
AGAIN = bool(os.environ.get("DTFPERF_AGAIN"))  # whether another version of pytest runs the same tests

# Files of tests/plugin whose tests use the same hooks of pytest: how sessions are displayed, judged and recorded. Another
# version of pytest repeats one test of so many.
ALIKE = ("test_display.py", "test_dry_run.py", "test_missing.py", "test_together.py", "test_verdicts.py")
REPEATED_OF = 10

T = TypeVar("T")
Values = Mapping[str, Hashable]


def draw_cases(cases: Sequence[Values], seed: str) -> set[int]:
    """Return the positions of one or more cases that together have each value of each parameter.

    Each next one is drawn from the cases with the most new values.
    """
    draws = random.Random(seed)
    kept: set[int] = set()
    seen: set[tuple[str, Hashable]] = set()
    new = {index: set(case.items()) for index, case in enumerate(cases)}
    while new and (any(new.values()) or not kept):
        most = max(map(len, new.values()))
        index = draws.choice([index for index, values in new.items() if len(values) == most])
        kept.add(index)
        seen |= new.pop(index)
        new = {index: values - seen for index, values in new.items()}
    return kept


def select_evenly(cases: int, part: int, seed: str) -> set[int]:
    """Return the positions of every `part`-th case, at least of one. Neighbours in a list are the most similar."""
    return {*range(random.Random(seed).randrange(max(1, min(part, cases))), cases, part)}


def list_left_out(items: Sequence[pytest.Item], seed: str) -> list[pytest.Item]:
    """Return the tests of campaigns that are not drawn. The only case of a test is always drawn."""
    found: list[pytest.Item] = []
    campaigns: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("campaign"):
            campaigns.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for name, cases in campaigns.items():
        kept: set[int]
        if get_argument(cases[0], "only"):
            kept = set()
        elif part := get_argument(cases[0], "part"):
            kept = select_evenly(len(cases), part, f"{seed} {name}")
        else:
            kept = draw_cases([get_values(item) for item in cases], f"{seed} {name}")
        found += [item for index, item in enumerate(cases) if index not in kept]
    return found


def list_not_repeated(items: Sequence[pytest.Item], seed: str) -> list[pytest.Item]:
    """Return the tests that another version of pytest need not repeat: most of those in `ALIKE`, which are drawn."""
    by_file: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.path.name in ALIKE:
            by_file.setdefault(item.path.name, []).append(item)
    return [item for file, cases in by_file.items() for item in draw_most(cases, f"{seed} {file}")]


def draw_most(cases: Sequence[T], seed: str) -> list[T]:
    """Return all of these but one of `REPEATED_OF`, at least one."""
    return random.Random(seed).sample(cases, len(cases) - -(-len(cases) // REPEATED_OF))


def get_argument(item: pytest.Item, name: str) -> int:
    """Return an argument of the campaign's marker, `part` or `only`; 0 if it is not given."""
    marker = item.get_closest_marker("campaign")
    value: int = marker.kwargs.get(name, 0) if marker else 0
    return value


def get_values(item: pytest.Item) -> Values:
    parameters: Mapping[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
    return {name: repr(value) for name, value in parameters.items()}
