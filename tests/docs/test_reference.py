"""The reference pages are complete, and describe every entry."""

import re
import tomllib
from dataclasses import fields

import pytest

from pytest_dtfperf.baselines.files import FileContent, load_schema
from pytest_dtfperf.baselines.references import references
from pytest_dtfperf.baselines.verdict import Verdict
from pytest_dtfperf.clusters.environment import SHARED, TRAINING
from pytest_dtfperf.clusters.named import BACKENDS, KEYS, Limits
from pytest_dtfperf.plugin.options import OPTIONS
from pytest_dtfperf.plugin.parametrise import Marker
from pytest_dtfperf.records.record import Record
from pytest_dtfperf.records.stored import SessionInfo
from pytest_dtfperf.spec import INPUTS, VARIABLE_UPDATES, Spec
from pytest_dtfperf.spec.tables import MODE_OPTIONS
from tests.docs.commands import options_of
from tests.docs.made import make_pages
from tests.docs.pages import source


def rows(page: str, heading: str = "") -> dict[str, list[str]]:
    """Return the other cells by the first cell, for the tables below a heading."""
    text = make_pages()[f"docs/reference/{page}.md"]
    if heading:
        text = re.split(rf"(?m)^#+ {re.escape(heading)}$", text)[1]
        text = re.split(r"(?m)^#+ ", text)[0]
    lines = (re.split(r" (?<!\\)\| ", line.strip("| ")) for line in text.splitlines() if line.startswith("| `"))
    return {first.strip("`"): rest for first, *rest in lines}


def test_options() -> None:
    """Each option of pytest has a row with its values, its help and its ini key."""
    found = rows("options")
    for option in OPTIONS:
        given = f"--{option.name}{'[=' if option.bare else ' '}{option.metavar}{']' if option.bare else ''}".replace("|", "\\|")
        meaning, key = found[given]
        assert meaning.replace("\\|", "|").replace("&lt;", "<") == option.help
        assert key == f"`dtfperf_{option.name.replace('-', '_')}`"


def test_the_marker() -> None:
    """Each argument of the marker has a description."""
    found = rows("options", "The marker")
    assert list(found) == [each.name for each in fields(Marker)]
    assert all(meaning for _, meaning in found.values())


@pytest.mark.parametrize(
    "content, heading, part",
    [
        (SessionInfo, "session.json", None),
        (Record, "measurements.jsonl", None),
        (Record, "A run", "run"),
        ("baseline", "baselines/SYSTEM.json", None),
        ("baseline", "An entry", "entry"),
        ("baseline", "Provenance", "provenance"),
    ],
)
def test_files(content: FileContent, heading: str, part: str | None) -> None:
    """Each key of a file's schema has a row with its type and description."""
    schema = load_schema(content)
    found = rows("files", heading)
    assert (schema["$defs"][part] if part else schema)["properties"].keys() <= found.keys()
    assert [key for key, (kind, meaning) in found.items() if not (kind and meaning.strip())] == []


def test_a_spec() -> None:
    """Each field of a spec has a row with its default."""
    found = rows("files", "A spec")
    assert list(found) == [each.name for each in fields(Spec)]
    assert found["warmup_steps"][0] == "`10`"
    assert found["command_dir"][0] == "none"
    assert all(meaning for _, meaning in found.values())


def test_keys_of_clusters() -> None:
    """Each key of clusters, limits and backends has a row with its type."""
    assert {name: cells[0] for name, cells in rows("clusters", "Every cluster").items()} == {
        name: kind.allowed for name, kind in KEYS.items()
    }
    assert list(rows("clusters", "limits")) == [each.name for each in fields(Limits)]
    for name, backend in BACKENDS.items():
        found = rows("clusters", name)
        assert {key: cells[0] for key, cells in found.items()} == {key: kind.allowed for key, kind in backend.keys.items()}


def test_modes_and_inputs() -> None:
    """Each mode, each option of some modes, and each input has a row."""
    found = rows("modes")
    assert {*VARIABLE_UPDATES, *MODE_OPTIONS, *INPUTS} == set(found)
    assert found["parameter_server"][:2] == ["parameter servers and workers", "synchronous or asynchronous"]
    assert found["wire_precision"] == [
        "`parameter_server`, `distributed_replicated`, `distributed_all_reduce`, `collective_all_reduce`"
    ]
    assert "`mnist`" in rows("modes", "Inputs")["mnist"][2]


IN_WORDS = dict(enumerate(("seven", "eight", "nine", "ten", "eleven", "twelve"), start=7))


def test_the_readme_counts_right() -> None:
    """README.md has the numbers of modes, inputs and published results of the code."""
    text = source("README.md")
    assert f"{IN_WORDS[len(VARIABLE_UPDATES)]} [ways of sharing variables]" in text
    assert f"{IN_WORDS[len(INPUTS)]} [inputs]" in text
    assert f"{len(references())} [published results]" in text


def test_install_page_has_every_extra() -> None:
    """docs/install.md has a row for each extra of the package."""
    extras = tomllib.loads(source("pyproject.toml"))["project"]["optional-dependencies"]
    assert set(re.findall(r"(?m)^\| `(\w+)` \|", source("docs/install.md"))) == set(extras)


@pytest.mark.parametrize("command", ["launch", "nightly", "notebook"])
def test_pages_of_commands(command: str) -> None:
    """The table of a command's page has each option that the command has, and no other."""
    cells = re.findall(r"(?m)^\| (`--.*?) \|", source(f"docs/{command}.md"))
    _, known = options_of([command])
    assert {name for cell in cells for name in re.findall(r"--[a-z-]+", cell)} == known - {"-h", "--help"}


FAMILIES = {  # of variables, by their names in docs/clusters.md
    "conda's": ("CONDA_",),
    "Python's": ("PYTHON",),
    "CUDA's": ("CUDA_",),
    "environment modules, Lmod": ("MODULE", "LOADEDMODULES", "LMOD_", "__LMOD_", "_LMFILES_", "_ModuleTable", "BASH_"),
    "UCX": ("UCX_",),
    "libfabric": ("FI_",),
    "libibverbs": ("IBV_",),
    "MPI": ("MPICH_", "OMPI_MCA_"),
    "Horovod": ("HOROVOD_",),
    "MKL": ("MKL_",),
    "OpenBLAS": ("OPENBLAS_",),
}


def test_variables_that_reach_hosts() -> None:
    """docs/clusters.md has each variable that reaches hosts, by its name or by that of its family."""
    section = source("docs/clusters.md").partition("## What hosts see of your environment\n")[2].partition("\n## ")[0]
    documented = tuple(beginning for words, beginnings in FAMILIES.items() if words in section for beginning in beginnings)
    assert [name for name in (*TRAINING, *SHARED) if f"`{name}`" not in section and not name.startswith(documented)] == []


def test_every_verdict_has_something_to_do() -> None:
    """docs/read-a-verdict.md has a row for each verdict."""
    first_cells = re.findall(r"(?m)^\| ([A-Z_, ]+) \|", source("docs/read-a-verdict.md"))
    assert {name for cell in first_cells for name in cell.split(", ")} == {str(verdict) for verdict in Verdict}
