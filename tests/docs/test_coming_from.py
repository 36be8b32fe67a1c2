"""docs/coming-from.md names fields, options, keys and commands that exist."""

import re
from dataclasses import fields

import pytest
from pytest_benchmark import plugin

from pytest_dtfperf.clusters.named import BACKENDS, KEYS
from pytest_dtfperf.plugin.options import OPTIONS
from pytest_dtfperf.spec import VARIABLE_UPDATES, Spec
from tests.docs.pages import source

PAGE = "docs/coming-from.md"
OF_PYTEST = {"--collect-only", "--junit-xml", "--reruns"}  # the last one: of pytest-rerunfailures


def list_rows(heading: str) -> list[list[str]]:
    """Return the rows of the table below a heading, without its first two lines."""
    section = source(PAGE).split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in lines[2:]]


def test_fields_of_tf_cnn_benchmarks() -> None:
    """Each name in the second column is a field of a spec."""
    known = {each.name for each in fields(Spec)}
    named = [name for _, here, *_ in list_rows("tf_cnn_benchmarks") for name in re.findall(r"`([^`]+)`", here)]
    assert len(named) > 20
    assert set(named) - known == set()


def test_options() -> None:
    """Each option in the second column is one of ours, or one of pytest's own."""
    ours = {f"--{option.name}" for option in OPTIONS}
    cells = [cell for heading in ("ReFrame", "pytest-benchmark") for _, cell, *_ in list_rows(heading)]
    named = {option for cell in cells for option in re.findall(r"`(--[a-z][a-z-]*)", cell)}
    assert named - ours - OF_PYTEST == set()


def test_keys_of_clusters() -> None:
    """The keys for ReFrame's settings are keys of clusters.toml."""
    known = {*KEYS, *(key for name in BACKENDS for key in BACKENDS[name].keys)}
    (access,) = (here for there, here in list_rows("ReFrame") if there == "`access`")
    (limits,) = (here for there, here in list_rows("ReFrame") if there.startswith("`max_jobs`"))
    assert set(re.findall(r"`(\w+)`", access.replace("`sbatch`", "") + limits)) <= known


def test_options_of_pytest_benchmark() -> None:
    """Each option of pytest-benchmark in the first column exists in the installed version."""
    parser = pytest.Parser(_ispytest=True)
    plugin.pytest_addoption(parser)
    known = {option for group in [parser._anonymous, *parser._groups] for each in group.options for option in each.names()}
    named = {option for there, _ in list_rows("pytest-benchmark") for option in re.findall(r"--benchmark-[a-z-]+", there)}
    assert len(named) > 10
    assert named <= known


def test_modes() -> None:
    """Each mode in the row of the variable updates exists."""
    (row,) = (row for row in list_rows("tf_cnn_benchmarks") if row[0] == "`--variable_update`")
    assert set(re.findall(r"`(\w+)`", row[2])) <= set(VARIABLE_UPDATES)
