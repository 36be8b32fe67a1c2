import json
import math
import random
from typing import Any

import pytest

from pytest_dtfperf.baselines.files import canonical, published_folder
from pytest_dtfperf.formats import significant

LONG = "x" * 70
SHAPES: dict[str, tuple[Any, str]] = {
    "keys sorted": ({"b": 1, "a": 2}, '{"a": 2, "b": 1}\n'),
    "empty": ({"a": {}, "b": []}, '{"a": {}, "b": []}\n'),
    "long object": ({"b": LONG, "a": LONG}, f'{{\n  "a": "{LONG}",\n  "b": "{LONG}"\n}}\n'),
    "long list": ([LONG, [1, 2], LONG], f'[\n  "{LONG}",\n  [1, 2],\n  "{LONG}"\n]\n'),
    "one long text": ({"a": LONG * 2}, f'{{\n  "a": "{LONG * 2}"\n}}\n'),
    "beyond ASCII": ("25 °C", '"25 °C"\n'),
}


@pytest.mark.parametrize("data, text", SHAPES.values(), ids=SHAPES)
def test_shape(data: Any, text: str) -> None:
    """Keys are sorted, short values are on one line, and the file ends with a newline."""
    assert canonical(data) == text


ROUNDED = {123456.7: 123457.0, 1077.59125: 1077.59, 0.00012345678: 0.000123457, 99.99999999: 100.0, 5.0: 5.0}


@pytest.mark.parametrize("value, rounded", ROUNDED.items())
def test_six_significant_digits(value: float, rounded: float) -> None:
    """Rates are rounded by their size, not by their decimals."""
    assert significant(value) == rounded
    assert significant(rounded) == rounded


def test_any_data_comes_back_and_is_written_the_same_again() -> None:
    """Reading and writing again gives the same bytes, for whatever JSON can hold."""
    draw = random.Random(2)
    for _ in range(100):
        data = anything(draw, depth=4)
        text = canonical(data)
        assert json.loads(text) == data
        assert canonical(json.loads(text)) == text


def anything(draw: random.Random, depth: int) -> Any:
    leaves: list[Any] = [None, True, draw.randint(-9, 10**12), draw.uniform(-1, 1e6), "é" * draw.randint(0, 40)]
    if depth == 0:
        return draw.choice(leaves)
    size = draw.randint(0, 6)
    branches: list[Any] = [
        [anything(draw, depth - 1) for _ in range(size)],
        {f"key {i} {draw.random()}": anything(draw, depth - 1) for i in range(size)},
    ]
    return draw.choice(branches + leaves)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_never_written(value: float) -> None:
    """A file that another program could not read is not written."""
    with pytest.raises(ValueError, match="Out of range float values"):
        canonical({"rate": value})


def test_published_files_are_canonical() -> None:
    """Every shipped file is written as the store would write it, so that an update of it is a small diff."""
    for path in published_folder().glob("*.json"):
        text = path.read_text(encoding="utf-8")
        assert canonical(json.loads(text)) == text, path.name
