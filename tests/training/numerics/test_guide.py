"""docs/training.md agrees with the code."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from pytest_dtfperf.spec import Spec

GUIDE = (Path(__file__).parents[3] / "docs" / "training.md").read_text()
OPTIONS = [field.name for field in fields(Spec)]
TOLD = OPTIONS[OPTIONS.index("data_format") : OPTIONS.index("command")]  # from there on, another page does
SPEC = Spec(model="trivial", batch_size=32)


@pytest.mark.parametrize("option", TOLD)
def test_guide_has_every_option(option: str) -> None:
    """The guide names each option, and a number behind it is its default."""
    assert re.search(rf"`{option}\b", GUIDE), f"docs/training.md does not tell of {option}"
    for number in re.findall(rf"`{option}` \(?([0-9.e-]+)\b", GUIDE):
        assert float(number.rstrip(".")) == (getattr(SPEC, option) or 128.0)  # the loss scale's stands in training/


@pytest.mark.parametrize("schedule", re.findall(r"[0-9.]+(?:;[0-9.]+)+", GUIDE))
def test_schedules_can_be_read(schedule: str) -> None:
    """Every schedule on the page is valid."""
    assert SPEC.replace(piecewise_learning_rate_schedule=schedule).piecewise_learning_rate_schedule == schedule


DIFFERENT = GUIDE.partition("## Defaults that are not")[2].partition("\n\n## ")[0]


@pytest.mark.parametrize("option, here", re.findall(r"^\| `(\w+)`[^|]*\|[^|]*\| `?(\w+)`? \|", DIFFERENT, re.MULTILINE))
def test_different_defaults_are_those_of_the_spec(option: str, here: str) -> None:
    """The defaults in the table of differences are those of the spec."""
    assert str(getattr(SPEC, option)).lower() == here
