"""Dataclasses as JSON has them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from pytest_dtfperf.plain import Plain


@dataclass(frozen=True)
class Inner(Plain):
    """One thing."""

    x: int = 0


@dataclass(frozen=True)
class Outer(Plain):
    """Every kind of field that there is."""

    one: Inner
    none: Inner | None = None
    several: Sequence[Inner] = ()
    fixed: tuple[Inner, ...] = ()
    named: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    words: tuple[str, ...] | str | None = None
    anything: Mapping[str, Any] = field(default_factory=dict)


def test_there_and_back() -> None:
    """Whatever is within whatever comes back as it was, its fields in their order."""
    outer = Outer(Inner(1), Inner(2), [Inner(3)], (Inner(4),), {"a": ("b",)}, ("c", "d"), {"e": [1, {"f": None}]})
    data = json.loads(json.dumps(outer.to_json()))
    assert Outer.from_json(data) == outer
    assert list(data) == ["one", "none", "several", "fixed", "named", "words", "anything"]


def test_what_is_not_there_is_as_usual() -> None:
    """An older version's has fewer names, and text is no list of letters."""
    assert Outer.from_json({"one": {}, "words": "cd"}) == Outer(Inner(), words="cd")


@pytest.mark.parametrize("data", [{}, {"one": {"y": 1}}, {"one": {}, "two": 2}], ids=["missing", "unknown within", "unknown"])
def test_wrong_names_are_refused(data: dict[str, Any]) -> None:
    """What lacks a name that must be there, or has one that nobody knows, is a `TypeError` that says which."""
    with pytest.raises(TypeError, match=r"'(one|y|two)'"):
        Outer.from_json(data)
