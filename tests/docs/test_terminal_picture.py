"""Pictures of a terminal are made by a command, and docs/session.svg has what that command prints today."""

import importlib
import re
import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree as ET

import pytest

from tests.docs.pages import REPOSITORY, source
from tests.docs.project import make
from tests.docs.test_snippets import shape

PICTURE = REPOSITORY / "docs" / "session.svg"
COMMAND = ["dtfperf", "run", "mnist", "gpus=1", "mnist", "gpus=2"]


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the module, from the folder that docs/conf.py adds to the path."""
    monkeypatch.syspath_prepend(str(REPOSITORY / "docs" / "_extensions"))
    return importlib.import_module("terminal_picture")


def read_lines(svg: str) -> list[str]:
    """Return the lines of text of a picture, with single spaces."""
    found: dict[int, str] = {}
    for element in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text"):
        if number := re.search(r"-line-(\d+)\)", element.get("clip-path", "")):
            found[int(number[1])] = found.get(int(number[1]), "") + f"{element.text or ''} "
    return [" ".join(found[number].split()) for number in sorted(found)]


def test_a_picture_has_the_command_and_its_output(tool: ModuleType) -> None:
    """The command runs on a terminal, and the picture has its lines without the folders of this machine."""
    code = "import sys; print(sys.stdout.isatty(), '\\x1b[31mred\\x1b[0m'); print('in /home/me/perf_results/x <&>')"
    command = [sys.executable, "-c", code]
    svg = tool.draw_terminal(["show", "it"], tool.run_command(command))
    assert read_lines(svg) == ["$ show it", "True red", "in perf_results/x <&>"]
    assert "@font-face" not in svg


def test_a_command_that_fails_makes_no_picture(tool: ModuleType) -> None:
    """Its exit code is an error."""
    with pytest.raises(Exception, match="exit status 3"):
        tool.run_command([sys.executable, "-c", "raise SystemExit(3)"])


def test_the_picture_of_a_session_is_up_to_date(tmp_path: Path) -> None:
    """Each word of docs/session.svg is one that its command prints, apart from numbers, and from limits, which toys lack."""
    assert f"python docs/_extensions/terminal_picture.py session.svg {' '.join(COMMAND)}" in source("docs/session.md")
    first, *lines = read_lines(PICTURE.read_text())
    assert first == f"$ {' '.join(COMMAND)}"
    assert len(lines) > 15
    ended = make(tmp_path / "project").dtfperf(*COMMAND[1:])
    printed = {shape(word) for word in (ended.out + ended.err).replace("b10", "b64").split()}
    assert {shape(word) for line in lines for word in line.split()} - printed <= {"of", "limit", "cores"}
