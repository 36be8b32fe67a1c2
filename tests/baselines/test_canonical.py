import json
import math
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
def test_canonical_text_of_each_shape(data: Any, text: str) -> None:
    """Keys are sorted, short values are on one line, and the file ends with a newline."""
    assert canonical(data) == text


ROUNDED = {123456.7: 123457.0, 1077.59125: 1077.59, 0.00012345678: 0.000123457, 99.99999999: 100.0, 5.0: 5.0}


@pytest.mark.parametrize("value, rounded", ROUNDED.items())
def test_rates_have_six_significant_digits(value: float, rounded: float) -> None:
    """Rates are rounded to six significant digits."""
    assert significant(value) == rounded
    assert significant(rounded) == rounded


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nan_and_infinity_are_refused(value: float) -> None:
    """Values that JSON cannot express are refused."""
    with pytest.raises(ValueError, match="Out of range float values"):
        canonical({"rate": value})


def test_published_files_are_canonical() -> None:
    """Every shipped file has the canonical form."""
    for path in published_folder().glob("*.json"):
        text = path.read_text(encoding="utf-8")
        assert canonical(json.loads(text)) == text, path.name
