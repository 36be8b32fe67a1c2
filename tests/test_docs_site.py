"""Tests of the site of the documentation: it builds without a warning, and has all that is made from the code."""

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_dtfperf.cli.options import make_parser
from pytest_dtfperf.plugin.options import OPTIONS

DOCS = Path(__file__).parents[1] / "docs"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as `make docs` does: whatever Sphinx warns of is an error."""
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-n", "-W", "--keep-going", "-b", "html", str(DOCS), str(out)]
    built = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "COLUMNS": "80"}, check=False)
    assert built.returncode == 0, built.stderr
    return out


def test_site_links_every_page(site: Path) -> None:
    """Each page of docs/ is in the site's navigation, and in llms.txt with a description."""
    pages = {path.relative_to(DOCS).with_suffix("").as_posix() for path in DOCS.rglob("*.md") if "_build" not in path.parts}
    reached = set(re.findall(r'<a class="[^"]*internal" href="([^"#]+)\.html"', (site / "index.html").read_text()))
    assert pages - {"index"} == reached
    listed = (site / "llms.txt").read_text()
    for page in reached:
        assert re.search(rf"^- \[.+\]\({re.escape(page)}\.html\): [^{{}}]+$", listed, re.MULTILINE), page


def test_reference_has_all_options_and_commands(site: Path) -> None:
    """The reference has each option of pytest with its ini key, and the help of each command."""
    options = (site / "reference" / "options.html").read_text()
    for option in OPTIONS:
        assert f"--{option.name}" in options
        assert f"dtfperf_{option.name.replace('-', '_')}" in options
    commands = (site / "reference" / "commands.html").read_text()
    (subcommands,) = (action for action in make_parser()._actions if isinstance(action, argparse._SubParsersAction))
    for command in subcommands.choices:
        assert f"<h2>dtfperf {command}<" in commands
    assert "dtfperf history changes --fail" in commands


def test_fixtures_page_has_their_methods(site: Path) -> None:
    """The page of the fixtures has each fixture and method of the list."""
    page = (site / "fixtures.html").read_text()
    for name in (
        "cluster",
        "train",
        "baseline",
        "Train.in_turn",
        "Baseline.check_efficiency",
        "Session.measure",
        "Spec.replace",
    ):
        assert f'.{name}"' in page
