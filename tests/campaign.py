"""Which part of a campaign `make test` runs: so few of a test's cases that each value of each parameter is among them.

A test that is marked `campaign` has cases for all combinations. DTFPERF_CAMPAIGN=1, as `make campaign` has it, runs all of
them; else DTFPERF_SEED draws.
"""

import random
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import pytest

Values = Mapping[str, Hashable]


def drawn(cases: Sequence[Values], seed: str) -> set[int]:
    """The places of cases that have among them every value of every parameter, drawn one by one."""
    kept: set[int] = set()
    seen: set[tuple[str, Hashable]] = set()
    for index in random.Random(seed).sample(range(len(cases)), len(cases)):
        values = set(cases[index].items())
        if not values <= seen:
            kept.add(index)
            seen |= values
    return kept


def left_out(items: Sequence[pytest.Item], seed: str) -> list[pytest.Item]:
    """Those of campaigns that are not drawn. What is named alone is."""
    found: list[pytest.Item] = []
    campaigns: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("campaign"):
            campaigns.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for name, cases in campaigns.items():
        kept = drawn([values_of(item) for item in cases], f"{seed} {name}")
        found += [item for index, item in enumerate(cases) if index not in kept]
    return found


def values_of(item: pytest.Item) -> Values:
    parameters: Mapping[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
    return {name: repr(value) for name, value in parameters.items()}
