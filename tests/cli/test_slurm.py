"""`dtfperf slurm` without Slurm. tests/clusters/slurm/test_reap.py has a real one."""

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from tests.cli.table import read_refusal
from tests.plugin import zygote
from tests.plugin.conftest import LIGHT

REPOSITORY = Path(__file__).parents[2]


def run_dtfperf(folder: Path, *arguments: str, path: str = os.defpath) -> tuple[int, str, str]:
    """Return exit code, stdout and stderr."""
    environment = {**os.environ, **zygote.SEARCH_PATH, **LIGHT, "PATH": path, "COLUMNS": "120"}
    return zygote.run(["-m", zygote.COMMANDS, *arguments], folder, environment, timeout_s=300, starts_forks=True)


def test_version_has_name_and_number(tmp_path: Path) -> None:
    """--version prints the package and its version."""
    assert run_dtfperf(tmp_path, "--version") == (0, f"pytest-dtfperf {metadata.version('pytest-dtfperf')}\n", "")


def test_dtfperf_is_installed_as_a_command() -> None:
    """The project's scripts have `dtfperf`, which is this program."""
    assert 'dtfperf = "pytest_dtfperf.cli:main"' in (REPOSITORY / "pyproject.toml").read_text()


def test_help_has_effect_and_exit_codes(tmp_path: Path) -> None:
    """The help of `slurm reap` has its effect, its options and its exit codes."""
    code, out, _ = run_dtfperf(tmp_path, "slurm", "reap", "--help")
    assert code == 0
    for words in (
        "cancel those with a pytest that has ended",
        "Only the machine of a pytest",
        "Exit codes: 0",
        "--all",
        "--dry-run",
    ):
        assert words in " ".join(out.split())


@pytest.mark.parametrize(
    "arguments, words",
    [
        ([], "COMMAND"),
        (["slurm"], "COMMAND"),
        (["slurm", "reap", "--every"], "--every"),
        (["slurm", "reap", "--cluster=local"], "cluster 'local' is one of backend 'local'"),
        (["slurm", "reap", "--cluster=daint"], "unknown cluster 'daint'"),
        (["slurm", "reap", "--cluster=daint", "--clusters-file=none.toml"], "there is no cluster file none.toml"),
    ],
)
def test_wrong_arguments_are_exit_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    """Wrong arguments are exit code 2 and one line on stderr."""
    monkeypatch.chdir(tmp_path)
    assert words in read_refusal(capfd, *arguments)


def test_machine_without_slurm_is_one_line(tmp_path: Path) -> None:
    """On a machine without Slurm there is one line, and exit code 1."""
    code, out, err = run_dtfperf(tmp_path, "slurm", "reap", path=str(tmp_path))
    assert (code, out) == (1, "")
    assert err == "dtfperf: squeue is not installed here: this machine is no login node of a Slurm cluster\n"


def test_help_imports_no_large_package(tmp_path: Path) -> None:
    """--help imports neither TensorFlow, pytest, nor libraries for numbers and figures."""
    heavy = {"tensorflow", "pytest", "rich", "numpy", "pandas", "matplotlib", "jsonschema", "filelock"}
    code = f"""
import sys
from pytest_dtfperf import cli
try:
    cli.main(["--help"])
except SystemExit:
    print(sorted({heavy!r} & set(sys.modules)), file=sys.stderr)
"""
    ended = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert ended.stderr == "[]\n"
