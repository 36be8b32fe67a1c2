"""`dtfperf` uses the project's configuration of pytest."""

import subprocess
from pathlib import Path

import pytest

from pytest_dtfperf.cli.project import find_configured_path
from pytest_dtfperf.errors import UsageError
from tests.plugin import zygote
from tests.plugin.conftest import WITHOUT

WAYS = {
    "pytest.toml": "[pytest]\nNAME = VALUE",
    ".pytest.toml": "[pytest]\nNAME = VALUE",
    "pytest.ini": "[pytest]\nNAME = PLAIN",
    ".pytest.ini": "[pytest]\nNAME = PLAIN",
    "pyproject.toml": "[tool.pytest.ini_options]\nNAME = VALUE",
    "tox.ini": "[pytest]\nNAME = PLAIN",
    "setup.cfg": "[tool:pytest]\nNAME = PLAIN",
}


def write(folder: Path, file: str, value: str, name: str = "dtfperf_baselines") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    text = WAYS[file].replace("NAME", name).replace("VALUE", f'"{value}"').replace("PLAIN", value)
    (folder / file).write_text(text + "\n", encoding="utf-8")


def read_with_pytest(folder: Path, name: str) -> Path:
    """Return the path that pytest itself finds there."""
    (folder / "probe.py").write_text(
        "def pytest_configure(config):\n"
        "    import pathlib\n"
        f"    print('FOUND', config.inipath.parent / config.getini('{name}') if config.getini('{name}') else None)\n",
        encoding="utf-8",
    )
    out = zygote.python("-m", "pytest", *WITHOUT, "-p", "probe", "--collect-only", "-q", cwd=folder).stdout
    return Path(next(line.removeprefix("FOUND ") for line in out.splitlines() if line.startswith("FOUND ")))


@pytest.mark.parametrize("file", WAYS)
def test_each_configuration_file_is_used(file: str, tmp_path: Path) -> None:
    """A relative path begins at the folder of the file, also from a subfolder."""
    write(tmp_path, file, "accepted")
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    assert find_configured_path("dtfperf_baselines", below) == tmp_path / "accepted"
    assert find_configured_path("dtfperf_clusters_file", below) is None


def test_table_of_pytest_9_is_used(tmp_path: Path) -> None:
    """The table [tool.pytest] of pytest 9 is used."""
    (tmp_path / "pyproject.toml").write_text('[tool.pytest]\ndtfperf_baselines = "/accepted"\n', encoding="utf-8")
    assert find_configured_path("dtfperf_baselines", tmp_path) == Path("/accepted")


@pytest.mark.parametrize(
    ("nearer", "farther"), [("pytest.ini", "pyproject.toml"), ("pyproject.toml", "tox.ini"), ("tox.ini", "setup.cfg")]
)
def test_precedence_is_that_of_pytest(nearer: str, farther: str, tmp_path: Path) -> None:
    """If two files configure pytest, this package uses the same one as pytest."""
    write(tmp_path, nearer, "one")
    write(tmp_path, farther, "other")
    assert (
        find_configured_path("dtfperf_baselines", tmp_path)
        == read_with_pytest(tmp_path, "dtfperf_baselines")
        == tmp_path / "one"
    )


def test_file_without_a_pytest_table_is_ignored(tmp_path: Path) -> None:
    """A pyproject.toml of a package within the project is ignored."""
    write(tmp_path, "tox.ini", "accepted")
    within = tmp_path / "package"
    within.mkdir()
    (within / "pyproject.toml").write_text('[project]\nname = "package"\n', encoding="utf-8")
    assert find_configured_path("dtfperf_baselines", within) == tmp_path / "accepted"


def test_empty_pytest_ini_ends_the_search(tmp_path: Path) -> None:
    """An empty pytest.ini ends the search, as for pytest."""
    write(tmp_path, "pyproject.toml", "accepted")
    (tmp_path / "pytest.ini").write_text("", encoding="utf-8")
    assert find_configured_path("dtfperf_baselines", tmp_path) is None


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("pyproject.toml", "[tool.pytest"),
        ("pytest.ini", "[pytest]\nbroken"),
        ("pyproject.toml", "[tool.pytest.ini_options]\ndtfperf_baselines = 3"),
    ],
)
def test_unreadable_configuration_is_named(file: str, text: str, tmp_path: Path) -> None:
    """A file that cannot be read is an error with its name."""
    (tmp_path / file).write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=file):
        find_configured_path("dtfperf_baselines", tmp_path)


def run_dtfperf(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return zygote.dtfperf(*arguments, cwd=folder)


def test_commands_use_the_configuration(tmp_path: Path) -> None:
    """Commands use the clusters file and the baselines of the project, unless an option is given."""
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\ndtfperf_clusters_file = sites/ours.toml\ndtfperf_baselines = accepted\n", encoding="utf-8"
    )
    (tmp_path / "sites").mkdir()
    (tmp_path / "sites" / "ours.toml").write_text('[lab]\nbackend = "local"\n', encoding="utf-8")
    missed = run_dtfperf(tmp_path, "doctor", "--cluster=elsewhere")
    assert missed.returncode == 2
    assert "sites/ours.toml" in missed.stderr
    assert "lab" in missed.stderr
    removed = run_dtfperf(tmp_path, "baselines", "remove", "model=*", "--yes")
    assert str(tmp_path / "accepted") in removed.stderr
    removed = run_dtfperf(tmp_path, "baselines", "remove", "model=*", "--yes", "--baselines=other")
    assert "baselines other" in removed.stderr
