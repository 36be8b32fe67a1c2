"""`dtfperf ec2` without an AWS account. tests/clusters/ec2/test_commands.py has a simulated one."""

from pathlib import Path

import pytest

from tests.plugin import zygote

REPOSITORY = Path(__file__).parents[2]
COMMANDS = ("up", "status", "ssh", "down", "reap", "cost")
CLUSTERS = """
[g5]
backend = "ec2"
instance_type = "g5.xlarge"
count = 2
"""


def run_ec2(folder: Path, *arguments: str, path: str = "") -> tuple[int, str, str]:
    """Return exit code, stdout and stderr of `dtfperf ec2 ...`."""
    where = {"PYTHONPATH": f"{path}:{REPOSITORY}"} if path else {}
    ended = zygote.dtfperf("ec2", *arguments, cwd=folder, COLUMNS="120", **where)
    return ended.returncode, ended.stdout, ended.stderr


def test_help_has_all_commands(tmp_path: Path) -> None:
    """`dtfperf ec2 --help` has a line for each command."""
    code, out, _ = run_ec2(tmp_path, "--help")

    assert code == 0
    for command in COMMANDS:
        assert f"    {command} " in out


@pytest.mark.parametrize(
    "arguments, words",
    [
        ([], "COMMAND"),
        (["up"], "--cluster"),
        (["cost"], "--cluster"),
        (["cost", "--cluster=g5", "--gpus=many"], "--gpus"),
        (["cost", "--cluster=g6"], "unknown cluster 'g6'. Known: g5, local."),
        (["down", "--every"], "--every"),
    ],
)
def test_wrong_arguments_are_exit_code_2(tmp_path: Path, arguments: list[str], words: str) -> None:
    """Wrong arguments are exit code 2, and the last line of stderr is the error."""
    (tmp_path / "clusters.toml").write_text(CLUSTERS)

    code, out, err = run_ec2(tmp_path, *arguments)

    assert (code, out) == (2, "")
    assert words in err.splitlines()[-1]


@pytest.mark.parametrize("arguments", [["status"], ["reap"], ["cost", "--cluster=g5"]])
def test_missing_boto3_names_the_extra(tmp_path: Path, arguments: list[str]) -> None:
    """Without boto3, one line shows how to install it."""
    (tmp_path / "clusters.toml").write_text(CLUSTERS)
    (tmp_path / "sitecustomize.py").write_text("import sys\n\nsys.modules['boto3'] = None\n")

    code, out, err = run_ec2(tmp_path, *arguments, path=str(tmp_path))

    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert 'pip install "pytest-dtfperf[ec2]"' in err
