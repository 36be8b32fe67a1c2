"""The bootstrap script, run by real shells over a connection that the test controls."""

import json
import os
import select
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_dtfperf.clusters.ssh import bootstrap
from pytest_dtfperf.node import boot
from pytest_dtfperf.testing.backends import PATIENCE_S

SHELLS = [each for each in ("sh", "dash", "bash", "zsh", "csh", "tcsh", "fish", "ksh") if shutil.which(each)]
# Prints its arguments and variables, instead of running the program.
SHOW = """#!/bin/sh
printf 'dtfperf: {"at": "shown", "arguments": %d, "said": "%s", "boot": %d}\\n' $# "$SAID" ${#DTFPERF_BOOT}
cat >/dev/null
"""


class Shell:
    """A shell that was started with the bootstrap script, as by sshd."""

    def __init__(self, setup: Sequence[str], python: str, home: Path, *, shell: str = "sh", limit_s: float = 60.0) -> None:
        script = bootstrap.make_script(setup, python, limit_s=limit_s)
        self.process = subprocess.Popen(
            [shell, "-c", bootstrap.make_shell_command(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={"PATH": os.environ["PATH"], "HOME": str(home)},
            start_new_session=True,
            bufsize=0,
        )
        assert self.process.stdin
        self.process.stdin.write(script)

    def next(self) -> Mapping[str, Any] | None:
        """Return its next line; None after its end."""
        assert self.process.stdout
        while True:
            assert select.select([self.process.stdout], [], [], PATIENCE_S)[0]
            line = self.process.stdout.readline().decode()
            if not line:
                return None
            if line.startswith(bootstrap.MARK):
                words: Mapping[str, Any] = json.loads(line.removeprefix(bootstrap.MARK))
                return words

    def end(self) -> str:
        """Return its stderr, after its end."""
        _, output = self.process.communicate(timeout=PATIENCE_S)
        return str(output.decode())


@pytest.fixture
def show(tmp_path: Path) -> str:
    program = tmp_path / "a folder's" / "python3"
    program.parent.mkdir()
    program.write_text(SHOW)
    program.chmod(0o755)
    return str(program)


def test_both_sides_have_the_same_mark() -> None:
    """Both sides use the same mark for messages of the remote side."""
    assert bootstrap.MARK == boot.MARK


def test_command_is_read_alike_by_all_shells() -> None:
    """The command has no character that csh or fish interpret otherwise, and no content of the cluster file."""
    command = bootstrap.make_shell_command(bootstrap.make_script(["export TOKEN=secret"], "python3", limit_s=1))
    assert command.count("'") == 2
    assert not set(command) & set("!\\\n`#~")
    assert "secret" not in command
    assert len(command) < 100


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("setup", [[], ["SAID='it''s so'; export SAID", "true"]], ids=["without set-up", "with set-up"])
def test_becomes_python(shell: str, setup: Sequence[str], show: str, tmp_path: Path) -> None:
    """The interpreter starts after the set-up lines, from any path, with their settings and its program."""
    each = Shell(setup, show, tmp_path, shell=shell)
    assert [each.next() for _ in setup] == [{"at": "setup", "line": 1}, {"at": "setup", "line": 2}][: len(setup)]
    assert each.next() == {"at": "python"}
    shown = each.next()
    assert shown
    assert shown["said"] == ("its so" if setup else "")
    assert shown["boot"] > 1000
    each.end()


def test_home_is_the_hosts_home(show: str, tmp_path: Path) -> None:
    """An interpreter given as `~/...` is in the user's home there."""
    each = Shell([], "~/a folder's/python3", tmp_path)
    assert each.next() == {"at": "python"}
    assert each.next()
    each.end()


def test_setup_lines_cannot_use_the_connection(show: str, tmp_path: Path) -> None:
    """Output of set-up lines goes to stderr, and set-up lines can read no input: neither can disturb the connection."""
    each = Shell(["echo printed", "cat"], show, tmp_path)
    assert [each.next() for _ in range(3)] == [{"at": "setup", "line": 1}, {"at": "setup", "line": 2}, {"at": "python"}]
    assert each.next()
    assert "printed" in each.end()


def test_setup_beyond_its_time_limit_ends_silently(show: str, tmp_path: Path) -> None:
    """A set-up beyond its time limit is ended, without a message of bash."""
    for line, messages in (("true", 4), ("false", 3)):
        each = Shell(['kill() { command kill "$@"; sleep 0.2; }', line], show, tmp_path)
        assert all(each.next() for _ in range(messages))
        assert each.end() == ""


@pytest.mark.parametrize("line", ["(exit 3)", "exit_with() { return 3; }; exit_with", "sh -c 'exit 3'", "exit 3"])
def test_failing_line(line: str, show: str, tmp_path: Path) -> None:
    """A failed line is reported with its number and code, and no further line is run."""
    each = Shell(["true", line, "echo not reached"], show, tmp_path)
    assert [each.next() for _ in range(2)] == [{"at": "setup", "line": 1}, {"at": "setup", "line": 2}]
    assert each.next() == {"failed": "setup", "line": 2, "code": 3}
    assert each.next() is None
    assert "not reached" not in each.end()


def test_no_such_python(tmp_path: Path) -> None:
    """A missing interpreter is reported before anything is run."""
    each = Shell([], "/no/such/python", tmp_path)
    assert each.next() == {"failed": "python"}
    assert each.next() is None
    each.end()


def test_end_of_the_connection_ends_a_setup_line(show: str, tmp_path: Path) -> None:
    """A set-up line ends when its controller disconnects."""
    each = Shell(["sleep 3600"], show, tmp_path)
    assert each.next() == {"at": "setup", "line": 1}
    each.end()
    assert each.process.returncode == -9


def test_time_limit_ends_a_setup_line(show: str, tmp_path: Path) -> None:
    """A set-up line ends at its time limit, also without the controller."""
    each = Shell(["sleep 3600"], show, tmp_path, limit_s=1)
    assert each.next() == {"at": "setup", "line": 1}
    assert each.next() is None
    each.end()
    assert each.process.returncode == -9


def test_half_a_script_does_nothing(tmp_path: Path) -> None:
    """A script is not run if the connection ends while it is sent."""
    script = bootstrap.make_script([f"touch {tmp_path}/done"], "python3", limit_s=60)
    for length in range(0, len(script) - 1, 97):
        done = subprocess.run(
            ["sh", "-c", bootstrap.make_shell_command(script)], input=script[:length], capture_output=True, check=False
        )
        assert bootstrap.MARK.encode() not in done.stdout
    assert not (tmp_path / "done").exists()


def test_old_python_reports_its_version(tmp_path: Path) -> None:
    """A Python that is too old reports its version instead of a syntax error."""
    older = "import sys; sys.version_info = (2, 7, 18, 'final', 0); exec(sys.argv[1])"
    program = tmp_path / "python2"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{older}" "$3"\n')
    program.chmod(0o755)
    each = Shell([], str(program), tmp_path)
    assert each.next() == {"at": "python"}
    assert each.next() == {"failed": "version", "version": "2.7.18"}
    each.end()
