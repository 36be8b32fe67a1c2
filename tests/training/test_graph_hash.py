"""The hash of what a graph computes: what it does not see, and what it does."""

import json
from typing import Any

import pytest

from tests.training.programs import told

Graphs = dict[str, Any]  # name -> {"hash": ..., "operations": ...}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Graphs:
    found: Graphs = json.loads(told(tmp_path_factory.mktemp("graphs") / "log", "-m", "tests.training.graphs"))
    return found


SAME = [
    ("mnist", "mnist again"),
    ("mnist", "mnist, another seed"),
    ("mnist", "mnist, another learning rate"),
    ("small", "small, other names"),
    ("small", "small, within another scope"),
    ("small", "small, built in another order"),
    ("small", "small, another seed"),
    ("on a CPU", "on the second CPU"),
    ("on a CPU", "on a CPU, placed"),
    ("a function", "a function, other names"),
    ("a collective", "a later collective"),
]
OTHER = [
    ("mnist", "mnist, momentum"),
    ("mnist", "mnist, bf16"),
    ("mnist", "mnist, NCHW"),
    ("mnist", "mnist, another batch size"),
    ("mnist", "mnist, on servers"),
    ("mnist, on servers", "mnist, on servers, not packed"),
    ("mnist, on servers", "mnist, on servers, the other worker"),
    ("small", "small, another stride"),
    ("small", "small, another padding"),
    ("small", "small, another kernel"),
    ("on a CPU", "on a GPU"),
    ("on a CPU", "on a server"),
    ("a function", "a function, another stride"),
    ("a function", "a function that calls three times"),
]


@pytest.mark.parametrize("one, other", SAME)
def test_what_computes_the_same_has_the_same_hash(made: Graphs, one: str, other: str) -> None:
    """Names, the order of building, seeds, a device's number and values that are only calculated with make no other program."""
    assert made[one] == made[other]


@pytest.mark.parametrize("one, other", OTHER)
def test_what_computes_otherwise_has_another_hash(made: Graphs, one: str, other: str) -> None:
    """Kernels, shapes, paddings, precision, the optimizer, packing, placement and modes each make another program."""
    assert made[one]["hash"] != made[other]["hash"]


def test_another_process_finds_the_same(made: Graphs, anew: dict[str, Any]) -> None:
    """Python's own hashes, which differ from process to process, decide nothing."""
    assert anew["graphs"] == made


def test_operations_are_counted(made: Graphs) -> None:
    """Of what a step needs alone, each kind; those in a function as often as it is called."""
    assert made["small"]["operations"]["Conv2D"] == 1
    assert "Conv2D" not in made["small, another kernel"]["operations"]
    assert made["small, another kernel"]["operations"]["MatMul"] == 1
    assert [made[name]["operations"]["Exp"] for name in ("a function", "a function that calls three times")] == [2, 6]
    assert made["mnist"]["operations"]["ResourceApplyGradientDescent"] > 0
    assert "TruncatedNormal" not in made["mnist"]["operations"]  # first values are no part of a step
