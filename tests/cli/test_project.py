"""What the project's configuration of pytest says holds for `dtfperf`, too."""

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


def as_pytest_has_it(folder: Path, name: str) -> Path:
    """The path that pytest itself finds there."""
    (folder / "probe.py").write_text(
        "def pytest_configure(config):\n"
        "    import pathlib\n"
        f"    print('FOUND', config.inipath.parent / config.getini('{name}') if config.getini('{name}') else None)\n",
        encoding="utf-8",
    )
    out = zygote.python("-m", "pytest", *WITHOUT, "-p", "probe", "--collect-only", "-q", cwd=folder).stdout
    return Path(next(line.removeprefix("FOUND ") for line in out.splitlines() if line.startswith("FOUND ")))


@pytest.mark.parametrize("file", WAYS)
def test_each_file_of_pytest_is_obeyed(file: str, tmp_path: Path) -> None:
    """A relative path begins where the file is, also from a folder below."""
    write(tmp_path, file, "accepted")
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    assert find_configured_path("dtfperf_baselines", below) == tmp_path / "accepted"
    assert find_configured_path("dtfperf_clusters_file", below) is None


def test_pyprojects_own_table_is_obeyed(tmp_path: Path) -> None:
    """pytest 9 reads [tool.pytest], too."""
    (tmp_path / "pyproject.toml").write_text('[tool.pytest]\ndtfperf_baselines = "/accepted"\n', encoding="utf-8")
    assert find_configured_path("dtfperf_baselines", tmp_path) == Path("/accepted")


@pytest.mark.parametrize(
    ("nearer", "farther"), [("pytest.ini", "pyproject.toml"), ("pyproject.toml", "tox.ini"), ("tox.ini", "setup.cfg")]
)
def test_the_file_that_pytest_takes_is_the_one(nearer: str, farther: str, tmp_path: Path) -> None:
    """Where two speak to pytest, this package and pytest obey the same."""
    write(tmp_path, nearer, "one")
    write(tmp_path, farther, "other")
    assert (
        find_configured_path("dtfperf_baselines", tmp_path)
        == as_pytest_has_it(tmp_path, "dtfperf_baselines")
        == tmp_path / "one"
    )


def test_a_file_that_does_not_speak_to_pytest_is_passed_over(tmp_path: Path) -> None:
    """A pyproject.toml of a package within the project names nothing."""
    write(tmp_path, "tox.ini", "accepted")
    within = tmp_path / "package"
    within.mkdir()
    (within / "pyproject.toml").write_text('[project]\nname = "package"\n', encoding="utf-8")
    assert find_configured_path("dtfperf_baselines", within) == tmp_path / "accepted"


def test_an_empty_pytest_ini_is_the_one(tmp_path: Path) -> None:
    """As for pytest, it ends the search."""
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
def test_what_cannot_be_read_is_named(file: str, text: str, tmp_path: Path) -> None:
    """One message with the file, no traceback."""
    (tmp_path / file).write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=file):
        find_configured_path("dtfperf_baselines", tmp_path)


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return zygote.dtfperf(*arguments, cwd=folder)


def test_the_commands_obey(tmp_path: Path) -> None:
    """The clusters file and the baselines that the project names are those of `dtfperf`; an option still wins."""
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\ndtfperf_clusters_file = sites/ours.toml\ndtfperf_baselines = accepted\n", encoding="utf-8"
    )
    (tmp_path / "sites").mkdir()
    (tmp_path / "sites" / "ours.toml").write_text('[lab]\nbackend = "local"\n', encoding="utf-8")
    missed = run(tmp_path, "doctor", "--cluster=elsewhere")
    assert missed.returncode == 2
    assert "sites/ours.toml" in missed.stderr
    assert "lab" in missed.stderr
    removed = run(tmp_path, "baselines", "remove", "model=*", "--yes")
    assert str(tmp_path / "accepted") in removed.stderr
    removed = run(tmp_path, "baselines", "remove", "model=*", "--yes", "--baselines=other")
    assert "baselines other" in removed.stderr
