"""CONTRIBUTING.md has the layers of the package, those within the EC2 backend, and the modules that are copied to hosts."""

import re
import tomllib

from pytest_dtfperf.clusters.ssh.bootstrap import BUNDLE_CONTENT
from tests.docs.pages import REPOSITORY, source

HOUSE = source("CONTRIBUTING.md").partition("\n## Where things are\n")[2].partition("\n## ")[0]


def find_names(words: str) -> set[str]:
    """Return the names in code style of a text, as Python names."""
    return {name.rstrip("/").removesuffix(".py") for name in re.findall(r"`([^`]+)`", words)}


def layers(contract: str) -> list[set[str]]:
    """Return the layers of a contract of lint-imports, the highest first."""
    contracts = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (found,) = (each["layers"] for each in contracts if each["name"] == contract)
    return [{name.strip().removeprefix("pytest_dtfperf.") for name in layer.split("|")} for layer in found]


def test_layers() -> None:
    """The table has each layer, in the order that imports are held to."""
    cells = [line.split("|")[1] for line in HOUSE.splitlines() if line.startswith("| `")]
    listed = [find_names(words) for cell in cells for words in cell.split(", then ")]
    assert listed == layers("layers of the package")


def test_layers_of_ec2() -> None:
    """The layers of the EC2 backend are listed from the lowest on."""
    sentence = HOUSE.partition("Inside of `clusters/ec2/`")[2].partition(".\n")[0]
    listed = [find_names(words) for words in sentence.split("then ")]
    assert listed[::-1] == layers("layers of clusters/ec2")


def test_contributing_names_the_modules_of_the_bundle() -> None:
    """CONTRIBUTING names the modules that are copied to hosts, and no others."""
    (sentence,) = re.findall(r"(?ms)^`training/`, .*? are copied to hosts, with .*?:", HOUSE)
    assert find_names(sentence) == {name.removesuffix(".py") for name in BUNDLE_CONTENT if not name.endswith("__init__.py")}
