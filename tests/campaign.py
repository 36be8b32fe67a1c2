"""Which part of a campaign `make test` runs: so few of a test's cases that each value of each parameter is among them.

A test that is marked `campaign` has cases for all combinations. DTFPERF_CAMPAIGN=1, as `make campaign` has it, runs all of
them; else DTFPERF_SEED draws. Where a test's one parameter lists cases that are alike, `campaign(part=3)` runs every third.
`campaign(only=True)` is for tests that assert measured times, rates or shares, which other load on the machine changes: `make
test` runs none of them.
"""

import os
import random
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, TypeVar

import pytest

WHOLE = bool(os.environ.get("DTFPERF_CAMPAIGN"))  # of all campaigns, also of those whose cases are none of pytest's
SEED = os.environ.get("DTFPERF_SEED", "1")
AGAIN = bool(os.environ.get("DTFPERF_AGAIN"))  # what another version of pytest has done already, or will do

# Of tests/plugin: how sessions are displayed, judged and recorded, alone, beside others, and beside files of any names.
ALIKE = (
    "test_ab.py", "test_display.py", "test_dry_run.py", "test_missing.py", "test_search_path.py", "test_together.py",
    "test_verdicts.py",
)  # fmt: skip

T = TypeVar("T")
Values = Mapping[str, Hashable]


def drawn(cases: Sequence[Values], seed: str) -> set[int]:
    """The places of cases that have among them every value of every parameter: at least of one case.

    The next one is drawn from those with most values that no other has shown yet.
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


def every(cases: int, part: int, seed: str) -> set[int]:
    """The places of so few of these cases, at least of one: spread evenly, for neighbours in a list are the most alike."""
    return {*range(random.Random(seed).randrange(max(1, min(part, cases))), cases, part)}


def left_out(items: Sequence[pytest.Item], seed: str) -> list[pytest.Item]:
    """Those of campaigns that are not drawn. What is named alone is."""
    found: list[pytest.Item] = []
    campaigns: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("campaign"):
            campaigns.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for name, cases in campaigns.items():
        kept: set[int]
        if asked_of(cases[0], "only"):
            kept = set()
        elif part := asked_of(cases[0], "part"):
            kept = every(len(cases), part, f"{seed} {name}")
        else:
            kept = drawn([values_of(item) for item in cases], f"{seed} {name}")
        found += [item for index, item in enumerate(cases) if index not in kept]
    return found


def not_again(items: Sequence[pytest.Item], seed: str) -> list[pytest.Item]:
    """Those that another version of pytest need not repeat: two thirds, drawn, of what goes through the same hooks."""
    by_file: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.path.name in ALIKE:
            by_file.setdefault(item.path.name, []).append(item)
    return [item for file, cases in by_file.items() for item in two_thirds(cases, f"{seed} {file}")]


def two_thirds(cases: Sequence[T], seed: str) -> list[T]:
    return random.Random(seed).sample(cases, len(cases) * 2 // 3)


def asked_of(item: pytest.Item, name: str) -> int:
    """Return what the campaign's marker gives for `part` (one case in so many is run) or `only`; 0 where it gives nothing."""
    marker = item.get_closest_marker("campaign")
    value: int = marker.kwargs.get(name, 0) if marker else 0
    return value


def values_of(item: pytest.Item) -> Values:
    parameters: Mapping[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
    return {name: repr(value) for name, value in parameters.items()}
