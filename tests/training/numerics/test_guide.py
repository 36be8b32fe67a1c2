"""What docs/training.md says is so."""

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
def test_every_option_is_told(option: str) -> None:
    """By its name, and with a number behind it, by its default."""
    assert re.search(rf"`{option}\b", GUIDE), f"docs/training.md does not tell of {option}"
    for number in re.findall(rf"`{option}` \(?([0-9.e-]+)\b", GUIDE):
        assert float(number.rstrip(".")) == (getattr(SPEC, option) or 128.0)  # the loss scale's stands in training/


@pytest.mark.parametrize("schedule", re.findall(r"[0-9.]+(?:;[0-9.]+)+", GUIDE))
def test_schedules_can_be_read(schedule: str) -> None:
    """Every schedule on the page is one."""
    assert SPEC.but(piecewise_learning_rate_schedule=schedule).piecewise_learning_rate_schedule == schedule


DIFFERENT = GUIDE.partition("## Defaults that are not")[2].partition("\n\n## ")[0]


@pytest.mark.parametrize("option, here", re.findall(r"^\| `(\w+)`[^|]*\|[^|]*\| `?(\w+)`? \|", DIFFERENT, re.MULTILINE))
def test_defaults_that_differ_are_the_spec_s(option: str, here: str) -> None:
    """Where the page says what an option is unless told otherwise, it is so."""
    assert str(getattr(SPEC, option)).lower() == here
