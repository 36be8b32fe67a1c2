"""Completions of shells: by bash's protocol, and in real shells."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_dtfperf.cli import main
from tests.plugin import zygote

DTFPERF = Path(sys.executable).with_name("dtfperf")
SESSION = "20260131T021503Z-9f3c1a"
PATIENCE_S = 60.0


def complete(folder: Path, line: str) -> list[str]:
    """Return the completions at the end of the line."""
    answer = folder / "answer"
    asked = {
        "_ARGCOMPLETE": "1", "_ARGCOMPLETE_STDOUT_FILENAME": str(answer), "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_SHELL": "bash", "COMP_LINE": line, "COMP_POINT": str(len(line)), "COMP_TYPE": "9",
    }  # fmt: skip
    assert zygote.dtfperf(cwd=folder, **asked).returncode == 0
    return [word.strip() for word in answer.read_text().split("\n")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with two clusters and a session."""
    (tmp_path / "clusters.toml").write_text('[daint]\nbackend = "local"\n[dom]\nbackend = "local"\n')
    (tmp_path / "perf_results" / SESSION).mkdir(parents=True)
    return tmp_path


def test_commands_options_and_clusters_are_completed(folder: Path) -> None:
    """Commands, options and clusters of the cluster file are completed; a damaged cluster file gives none."""
    assert complete(folder, "dtfperf do") == ["doctor"]
    assert complete(folder, "dtfperf history cha") == ["changes"]
    assert "--fail" in complete(folder, "dtfperf history changes --")
    assert complete(folder, "dtfperf doctor --cluster d") == ["daint", "dom"]
    (folder / "clusters.toml").write_text("[daint")
    assert complete(folder, "dtfperf doctor --cluster d") == [""]


def test_models_modes_and_sessions_are_completed(folder: Path) -> None:
    """Models, fields, modes behind variable_update=, and existing sessions are completed."""
    assert complete(folder, "dtfperf run incep") == ["inception3", "inception4"]
    assert complete(folder, "dtfperf run mnist variable_u") == ["variable_update="]
    assert "distributed_replicated" in complete(folder, "dtfperf run mnist variable_update=distributed_r")[0]
    assert complete(folder, "dtfperf history trend num_p") == ["num_ps="]
    assert complete(folder, "dtfperf judge perf") == [f"perf_results/{SESSION}"]
    assert complete(folder, "dtfperf history show 2026") == [SESSION]
    assert complete(folder, "dtfperf history compare last l") == ["last"]


def test_bash_completes_dtfperf(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A real bash accepts the printed script, and has the right completions."""
    completed = complete_in_bash(print_script("bash", capsys), folder, "dtfperf", "history", "cha")
    assert completed.split() == ["changes"]
    completed = complete_in_bash(print_script("bash", capsys), folder, "dtfperf", "doctor", "--cluster", "d")
    assert completed.split() == ["daint", "dom"]


@pytest.mark.parametrize("typed, becomes", [
    ("dtfperf history cha", "dtfperf history changes "),
    ("dtfperf doctor --cluster da", "dtfperf doctor --cluster daint "),
    ("dtfperf run mnist variable_u", "dtfperf run mnist variable_update="),
])  # fmt: skip
def test_zsh_completes_dtfperf(folder: Path, capsys: pytest.CaptureFixture[str], typed: str, becomes: str) -> None:
    """A tab in a real zsh at a terminal completes the typed text."""
    if not shutil.which("zsh"):
        pytest.skip("zsh is not installed")
    (folder / ".zshrc").write_text(
        f"""
autoload -Uz compinit && compinit -u -d {folder}/dump
{print_script("zsh", capsys)}
ready() {{ : > {folder}/ready }}
show() {{ print -rn -- "$BUFFER" > {folder}/shown.new; mv {folder}/shown.new {folder}/shown }}
zle -N zle-line-init ready
zle -N show
bindkey '^I' complete-word '^T' show
"""
    )
    keys = f"""
zmodload zsh/zpty
zpty shell zsh -d -i
until [[ -e {folder}/ready ]]; do sleep 0.02; done
zpty -w -n shell "{typed}"$'\\t\\C-t'
until [[ -e {folder}/shown ]]; do sleep 0.02; done
zpty -d shell
"""
    variables = {**make_environment(), "ZDOTDIR": str(folder), "TERM": "xterm"}
    subprocess.run(["zsh", "-f", "-c", keys], cwd=folder, env=variables, check=True, timeout=PATIENCE_S)
    assert (folder / "shown").read_text() == becomes


def test_fish_completes_dtfperf(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A real fish accepts the printed script, and has the right completions."""
    if not shutil.which("fish"):
        pytest.skip("fish is not installed")
    for line, offered in (("dtfperf history cha", {"changes"}), ("dtfperf doctor --cluster d", {"daint", "dom"})):
        script = f"{print_script('fish', capsys)}\ncomplete --do-complete '{line}'"
        process = subprocess.run(
            ["fish", "--no-config", "-c", script],
            cwd=folder,
            env=make_environment(),
            capture_output=True,
            text=True,
            check=True,
        )
        assert {row.split("\t")[0].strip() for row in process.stdout.splitlines()} == offered


def print_script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


def make_environment() -> dict[str, str]:
    return {**os.environ, "PATH": f"{DTFPERF.parent}:{os.environ['PATH']}"}


def complete_in_bash(script: str, folder: Path, *words: str) -> str:
    """Return bash's completions for the last of these arguments."""
    line = " ".join(words)
    asked = f"""
COMP_WORDS=({line}) COMP_CWORD={len(words) - 1} COMP_LINE="{line}" COMP_POINT={len(line)} COMP_TYPE=9
$(complete -p dtfperf | sed 's/.*-F \\([^ ]*\\).*/\\1/') dtfperf {words[-1]} {words[-2]}
echo "${{COMPREPLY[@]}}"
"""
    process = subprocess.run(
        ["bash", "--norc", "-c", script + asked], cwd=folder, env=make_environment(), capture_output=True, text=True, check=True
    )
    return process.stdout
