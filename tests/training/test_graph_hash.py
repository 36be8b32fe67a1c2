"""The hash of a graph's computation: the changes that affect it, and those that do not."""

import json
from typing import Any

import pytest

from tests.training.programs import run_program

Graphs = dict[str, Any]  # name -> {"hash": ..., "operations": ...}


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> Graphs:
    found: Graphs = json.loads(run_program(tmp_path_factory.mktemp("graphs") / "log", "-m", "tests.training.graphs"))
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
def test_equal_computations_have_equal_hashes(graphs: Graphs, one: str, other: str) -> None:
    """Names, the order of building, seeds, device numbers and constant inputs do not change the hash."""
    assert graphs[one] == graphs[other]


@pytest.mark.parametrize("one, other", OTHER)
def test_different_computations_have_different_hashes(graphs: Graphs, one: str, other: str) -> None:
    """Kernels, shapes, padding, precision, the optimizer, packing, placement and modes change the hash."""
    assert graphs[one]["hash"] != graphs[other]["hash"]


def test_another_process_finds_the_same(graphs: Graphs, state_after_import: dict[str, Any]) -> None:
    """Python's own hashes, which differ from process to process, decide nothing."""
    assert state_after_import["graphs"] == graphs


def test_operations_are_counted(graphs: Graphs) -> None:
    """Operations of a step are counted by kind; those in a function as often as it is called."""
    assert graphs["small"]["operations"]["Conv2D"] == 1
    assert "Conv2D" not in graphs["small, another kernel"]["operations"]
    assert graphs["small, another kernel"]["operations"]["MatMul"] == 1
    assert [graphs[name]["operations"]["Exp"] for name in ("a function", "a function that calls three times")] == [2, 6]
    assert graphs["mnist"]["operations"]["ResourceApplyGradientDescent"] > 0
    assert "TruncatedNormal" not in graphs["mnist"]["operations"]  # first values are no part of a step
