"""Tests of dataclasses in JSON."""

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from functools import partial
from types import FrameType
from typing import Any, Literal

import jsonschema
import pytest

from pytest_dtfperf.baselines.json_schema import json_schema
from pytest_dtfperf.codec import JsonData, ValidationError, describe
from pytest_dtfperf.datamodel.measurement import Run
from tests.records.samples import run


@dataclass(frozen=True)
class Inner(JsonData):
    """One thing."""

    x: int = 0


@dataclass(frozen=True)
class Outer(JsonData):
    """Every kind of field that there is."""

    one: Inner
    none: Inner | None = None
    several: Sequence[Inner] = ()
    fixed: tuple[Inner, ...] = ()
    named: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    words: tuple[str, ...] | str | None = None
    anything: Mapping[str, Any] = field(default_factory=dict)


def test_codec_survives_json() -> None:
    """Nested values are equal after JSON, and their fields are in the declared order."""
    outer = Outer(Inner(1), Inner(2), [Inner(3)], (Inner(4),), {"a": ("b",)}, ("c", "d"), {"e": [1, {"f": None}]})
    data = json.loads(json.dumps(outer.to_json()))
    assert Outer.from_json(data) == outer
    assert list(data) == ["one", "none", "several", "fixed", "named", "words", "anything"]


class Colour(StrEnum):
    """An enumeration."""

    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Counts(JsonData):
    """Mappings with an enumeration as key, as value, and as both."""

    numbers: Mapping[Colour, int]
    favourites: Mapping[str, Colour]
    opposites: Mapping[Colour, Colour]


def test_codec_reads_keys_and_values_by_their_types() -> None:
    """A key or value that is declared as an enumeration is read as its member, and one that is declared as text stays text."""
    data = {"numbers": {"red": 2}, "favourites": {"blue": "red"}, "opposites": {"red": "blue"}}
    read = Counts.from_json(data)
    assert [type(key) for each in (read.numbers, read.favourites, read.opposites) for key in each] == [Colour, str, Colour]
    assert (read.favourites["blue"], read.opposites[Colour.RED]) == (Colour.RED, Colour.BLUE)
    assert read.to_json() == data


def test_codec_reads_missing_keys_as_defaults() -> None:
    """Missing keys get their defaults, and a text is not read as a list of letters."""
    assert Outer.from_json({"one": {}, "words": "cd"}) == Outer(Inner(), words="cd")


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "missing": ({}, "must be an object with the key 'one', not "),
    "unknown within": ({"one": {"y": 1}}, "one: must be one of the keys x, not 'y'"),
    "unknown": ({"one": {}, "two": 2}, "must be one of the keys one, none, several, fixed, named, words, anything, not 'two'"),
    "another type": ({"one": {"x": True}}, "one.x: must be a whole number, not True"),
    "within a list": ({"one": {}, "several": [{}, {"x": "1"}]}, "several.1.x: must be a whole number, not '1'"),
    "no list": ({"one": {}, "several": {}}, "several: must be a list, not {}"),
    "none of its types": ({"one": {}, "words": 1}, "words: must be a list or text or null, not 1"),
}


@pytest.mark.parametrize("data, message", WRONG.values(), ids=WRONG)
def test_codec_refuses_wrong_keys_and_types(data: dict[str, Any], message: str) -> None:
    """Unknown and missing keys and wrong types are refused with the path and the allowed values."""
    with pytest.raises(ValidationError) as caught:
        Outer.from_json(data)
    assert str(caught.value).startswith(message)


@dataclass(frozen=True, kw_only=True)
class Limited(JsonData):
    """Fields with metadata."""

    count: int = field(default=1, metadata=describe("How many", at_least=1, at_most=9))
    step_s: Sequence[float] = field(default=(), metadata=describe("Steps", unit="s", above=0))
    loss: float = field(default=0.5, metadata=describe("Loss", is_finite=False))
    note: str = field(default="", metadata=describe("A note", pattern="[a-z]*", omit_empty=True))
    rates: Sequence[float] = field(default=(1.0,), metadata=describe(min_size=1, omit_empty=True))
    title: str = field(default="A", metadata=describe(min_size=1, omit_empty=True))
    spans: Mapping[str, int] = field(default_factory=dict, metadata=describe(max_size=1, omit_empty=True))
    ends: Sequence[int] = field(default=(), metadata=describe(min_size=2, max_size=2, omit_empty=True))
    kind: Literal["own"] = field(default="own", metadata=describe(omit_empty=True))
    memory: int = field(default=0, metadata=describe(is_stored=False))


@pytest.mark.parametrize(
    "data, message",
    [
        ({"count": 0}, "count: must be a whole number >= 1 <= 9, not 0"),
        ({"count": 10}, "count: must be a whole number >= 1 <= 9, not 10"),
        ({"step_s": [1.0, 0.0]}, "step_s.1: must be a finite number > 0, not 0.0"),
        ({"step_s": [1.0, float("nan")]}, "step_s.1: must be a finite number > 0, not nan"),
        ({"note": "A"}, "note: must be text of the form [a-z]*, not 'A'"),
        ({"rates": []}, "rates: must be a list of at least 1, not []"),
        ({"title": ""}, "title: must be text of at least 1 characters, not ''"),
        ({"ends": [1]}, "ends: must be a list of at least 2, not [1]"),
        ({"ends": [1, 2, 3]}, "ends: must be a list of at most 2, not [1, 2, 3]"),
        ({"spans": {"a": 1, "b": 2}}, "spans: must be an object of at most 1 keys, not {'a': 1, 'b': 2}"),
        ({"kind": "other"}, "kind: must be one of 'own', not 'other'"),
    ],
)
def test_codec_refuses_values_out_of_range(data: dict[str, Any], message: str) -> None:
    """A range applies to each number of a field, and an infinite number is allowed only where the field declares it."""
    with pytest.raises(ValidationError) as caught:
        Limited.from_json(data)
    assert str(caught.value) == message
    assert Limited.from_json({"loss": float("inf")}).loss == float("inf")


def test_codec_refuses_integers_beyond_floats() -> None:
    """A whole number beyond the range of floats is refused, both by a field of whole numbers and by one of any numbers."""
    for name in ("count", "step_s.0"):
        with pytest.raises(ValidationError, match=rf"^{re.escape(name)}: must be .* number .*, not 1000"):
            Limited.from_json({"count": 10**400} if name == "count" else {"step_s": [10**400]})


def count_calls(function: Callable[[], object]) -> int:
    """Return the number of Python functions that are called."""
    calls = 0

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return calls


@dataclass(frozen=True)
class OfTasks(JsonData):
    """Numbers of each task, and of each step of a task."""

    cpu_s: Mapping[str, float] = field(metadata=describe(at_least=0))
    threads: Mapping[str, int]
    step_s: Sequence[float] = field(metadata=describe(above=0))


@pytest.mark.parametrize("method", ["from_json", "to_json"])
def test_numbers_of_tasks_and_steps_are_not_checked_and_written_one_by_one(method: str) -> None:
    """A mapping or a list of a thousand numbers takes as many calls as one of ten."""
    counts = []
    for size in (10, 1000):
        names = [f"worker:{number}" for number in range(size)]
        data = {"cpu_s": dict.fromkeys(names, 0.5), "threads": dict.fromkeys(names, 4), "step_s": [0.1] * size}
        made = OfTasks.from_json(data)
        assert made.to_json() == data
        counts.append(count_calls(made.to_json if method == "to_json" else partial(OfTasks.from_json, data)))
    assert counts[0] == counts[1]


def test_number_out_of_range_among_those_of_tasks_is_named() -> None:
    """The error has the key of the first number that is not allowed."""
    data = {"cpu_s": {"worker:0": 1.0, "worker:1": -1.0}, "threads": {}, "step_s": []}
    with pytest.raises(ValidationError, match=r"^cpu_s\.worker:1: must be a finite number >= 0, not -1\.0$"):
        OfTasks.from_json(data)


def test_json_schema_has_the_declared_fields() -> None:
    """The schema has types, ranges, units and descriptions of the fields, and no field that is not stored."""
    assert json_schema(Limited) == {
        "type": "object",
        "additionalProperties": False,
        "required": ["count", "step_s", "loss"],
        "properties": {
            "count": {"description": "How many", "type": "integer", "minimum": 1, "maximum": 9},
            "step_s": {
                "description": "Steps (s)",
                "type": "array",
                "items": {"type": "number", "exclusiveMinimum": 0},
            },
            "loss": {"description": "Loss", "type": "number"},
            "note": {"description": "A note", "type": "string", "pattern": "^([a-z]*)$"},
            "rates": {"type": "array", "minItems": 1, "items": {"type": "number"}},
            "title": {"type": "string", "minLength": 1},
            "spans": {"type": "object", "additionalProperties": {"type": "integer"}, "maxProperties": 1},
            "ends": {"type": "array", "minItems": 2, "maxItems": 2, "items": {"type": "integer"}},
            "kind": {"const": "own"},
        },
    }
    assert json_schema(Outer)["properties"]["words"] == {"type": ["array", "string", "null"], "items": {"type": "string"}}


@dataclass(frozen=True, kw_only=True)
class RunWithFaults(Run):
    """A run with one field more."""

    faults: Mapping[str, int] = field(
        default_factory=dict, metadata=describe("Task to its page faults", at_least=0, omit_empty=True)
    )


def test_new_field_of_a_run_takes_one_declaration() -> None:
    """A declared field is written, read, validated, and in the schema with its description."""
    values = {each.name: getattr(run(10.0), each.name) for each in fields(Run)}
    faulty = RunWithFaults(**values, faults={"worker:0": 3})
    data = json.loads(json.dumps(faulty.to_json()))
    assert data["faults"] == {"worker:0": 3}
    assert RunWithFaults.from_json(data).faults == {"worker:0": 3}
    with pytest.raises(ValidationError, match=r"^faults\.worker:0: must be a whole number >= 0, not -1$"):
        RunWithFaults.from_json(data | {"faults": {"worker:0": -1}})
    schema = json_schema(RunWithFaults)
    assert set(json_schema(Run)["properties"]) | {"faults"} == set(schema["properties"])
    jsonschema.validate(data["faults"], schema["properties"]["faults"])
    assert schema["properties"]["faults"]["description"] == "Task to its page faults"


@dataclass(frozen=True, kw_only=True)
class Sparse(JsonData):
    """Data with keys that may be missing."""

    size: int | None = field(default=None, metadata=describe(omit_empty=True))
    name: str = field(default="", metadata=describe(max_size=3, omit_empty=True))
    names: Sequence[str] = field(default=(), metadata=describe(omit_empty=True))


@pytest.mark.parametrize("data", [{}, {"size": 0}, {"names": ["a"]}, {"name": "abc"}], ids=str)
def test_codec_writes_sparse_data_in_one_form(data: dict[str, Any]) -> None:
    """A missing key stays missing, an optional zero stays zero, and a null that is read is not written."""
    assert Sparse.from_json(data).to_json() == data
    assert Sparse.from_json(data | {"size": None}).to_json() == {key: data[key] for key in data if key != "size"}
    jsonschema.validate(data, json_schema(Sparse))


def test_codec_refuses_a_text_that_is_longer_than_its_field_allows() -> None:
    """A text above its largest number of characters breaks both the check and the schema."""
    with pytest.raises(ValidationError, match=r"^name: must be text of at most 3 characters, not 'abcd'$"):
        Sparse.from_json({"name": "abcd"})
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"name": "abcd"}, json_schema(Sparse))
