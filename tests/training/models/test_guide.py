"""docs/models.md agrees with the code."""

from pathlib import Path

import pytest

from pytest_dtfperf.spec import MODELS
from pytest_dtfperf.training.models import make_default_network
from pytest_dtfperf.training.models.outline import compute_outline, multiply_adds

GUIDE = Path(__file__).parents[3] / "docs" / "models.md"


def row(model: str) -> str:
    """A model's line in the guide's table, up to its source."""
    network, defaults = make_default_network(model), MODELS[model]
    found, forward = compute_outline(network), multiply_adds(model)
    height, width, channels = network.image_shape
    arithmetic = f"{forward / 1e6:,.2f} M" if forward < 1e8 else f"{forward / 1e9:.2f} G"
    cells = (
        f"`{model}`",
        f"{height} x {width} x {channels}",
        str(network.classes),
        str(defaults.batch_size),
        f"{defaults.optimizer}, {defaults.learning_rate:g}",
        f"{found.trained_parameters:,}",
        f"{found.parameters - found.trained_parameters:,}",
        arithmetic,
    )
    return "| " + " | ".join(cells) + " |"


@pytest.mark.parametrize("model", MODELS)
def test_guide_has_the_properties_of_each_model(model: str) -> None:
    """Sizes, defaults, parameters and arithmetic in the guide are those of the table and the outline."""
    assert row(model) in GUIDE.read_text()


def test_guide_has_the_existing_models_only() -> None:
    """The guide's table has one line per row of the table of models."""
    table = GUIDE.read_text().partition("| Model | Images |")[2].partition("\n\n")[0]
    assert [line.split("`")[1] for line in table.splitlines()[2:]] == list(MODELS)


@pytest.mark.parametrize(
    "page, words", [("README.md", "[{} models](docs/models.md)"), ("CHANGELOG.md", "\n* {} models, from ")]
)
def test_number_of_models_is_right(page: str, words: str) -> None:
    """The number of models on a page is that of the table."""
    assert words.format(len(MODELS)) in GUIDE.parents[1].joinpath(page).read_text()
