"""What a shell completes: asked as bash asks, and set up in a real bash."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_dtfperf.cli import main

DTFPERF = Path(sys.executable).with_name("dtfperf")


def completed(folder: Path, line: str) -> list[str]:
    """What is offered where the cursor stands at the end of the line."""
    answer = folder / "answer"
    asked = {
        "_ARGCOMPLETE": "1", "_ARGCOMPLETE_STDOUT_FILENAME": str(answer), "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_SHELL": "bash", "COMP_LINE": line, "COMP_POINT": str(len(line)), "COMP_TYPE": "9",
    }  # fmt: skip
    subprocess.run([DTFPERF], cwd=folder, env={**os.environ, **asked}, check=True, timeout=60)
    return [word.strip() for word in answer.read_text().split("\n")]


def test_commands_options_and_clusters_are_completed(tmp_path: Path) -> None:
    """Commands by their beginning, options of a command, and clusters by the file that the command would read."""
    (tmp_path / "clusters.toml").write_text('[daint]\nbackend = "local"\n[dom]\nbackend = "local"\n')
    assert completed(tmp_path, "dtfperf do") == ["doctor"]
    assert completed(tmp_path, "dtfperf history cha") == ["changes"]
    assert "--fail" in completed(tmp_path, "dtfperf history changes --")
    assert completed(tmp_path, "dtfperf doctor --cluster d") == ["daint", "dom"]
    (tmp_path / "clusters.toml").write_text("[daint")
    assert completed(tmp_path, "dtfperf doctor --cluster d") == [""]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_is_set_up(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What is printed is for this shell; a real bash takes it, and knows then how dtfperf is completed."""
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "dtfperf" in script
    if shell == "bash":
        told = subprocess.run(["bash", "-c", f"{script}\ncomplete -p dtfperf"], capture_output=True, text=True, check=True)
        assert "_python_argcomplete" in told.stdout
