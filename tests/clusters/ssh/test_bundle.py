"""The bundle of code that is copied to hosts."""

import io
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import pytest_dtfperf
from pytest_dtfperf.clusters.ssh import bootstrap

PACKAGE = Path(pytest_dtfperf.__file__).parent


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Return a copy of the package in another folder and with other dates."""
    copy = tmp_path / "pytest_dtfperf"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"), copy_function=shutil.copyfile)
    return copy


def test_bundle_depends_on_the_code_only(copy: Path) -> None:
    """Dates, the order of files and compiled files do not change a bundle."""
    packed = bootstrap.make_bundle_of(copy)
    for path in sorted(copy.rglob("*.py"), reverse=True):
        os.utime(path, (0, 0))
    (copy / "node" / "__pycache__").mkdir()
    (copy / "node" / "__pycache__" / "agent.py").write_text("")
    assert bootstrap.make_bundle_of(copy) == packed


def test_other_code_has_another_name(copy: Path) -> None:
    """A bundle's name depends on its content."""
    before = bootstrap.make_bundle_of(copy)
    with (copy / "node" / "agent.py").open("a") as file:
        file.write("\n")
    assert bootstrap.make_bundle_of(copy).name != before.name


def test_bundle_has_only_code_of_hosts() -> None:
    """A bundle contains agents and training, and nothing that a host does not need."""
    with zipfile.ZipFile(io.BytesIO(bootstrap.make_bundle().data)) as packed:
        names = packed.namelist()
    assert {"pytest_dtfperf/node/agent.py", "pytest_dtfperf/training/task.py", "pytest_dtfperf/spec/spec.py"} <= set(names)
    below = [name.removeprefix("pytest_dtfperf/") for name in names]
    assert {
        next((part for part in bootstrap.BUNDLE_CONTENT if f"{name}/".startswith(f"{part}/")), None) for name in below
    } == set(bootstrap.BUNDLE_CONTENT)
    assert sorted(name for name in below if name.startswith("staging/")) == ["staging/__init__.py", "staging/on_host.py"]
    assert names == list(dict.fromkeys(names))


def test_bundle_is_enough_for_an_agent(tmp_path: Path) -> None:
    """All modules of node/ can be imported with only the bundle and Python."""
    with zipfile.ZipFile(io.BytesIO(bootstrap.make_bundle().data)) as packed:
        packed.extractall(tmp_path)
    modules = [f"pytest_dtfperf.node.{path.stem}" for path in sorted((tmp_path / "pytest_dtfperf" / "node").glob("*.py"))]
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import {', '.join(modules)}"
    subprocess.run([sys.executable, "-I", "-S", "-c", program], check=True, cwd=tmp_path)
