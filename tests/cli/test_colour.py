"""Colours: every command and pytest's summary write them in the same cases."""

import io
import os
import pty
from collections.abc import Sequence
from pathlib import Path

import pytest

import pytest_dtfperf.cli
from pytest_dtfperf.cli.options import wants_colour
from tests.cli import place
from tests.plugin import zygote
from tests.plugin.conftest import LIGHT

VARIABLES = ("NO_COLOR", "FORCE_COLOR", "TERM", "PY_COLORS", "COLORTERM")
# On a terminal or not, with these variables: whether there are colours.
RULE: dict[str, tuple[bool, dict[str, str], bool]] = {
    "a terminal": (True, {}, True),
    "a log": (False, {}, False),
    "a terminal, without": (True, {"NO_COLOR": "1"}, False),
    "a terminal, whatever it says": (True, {"NO_COLOR": "0"}, False),
    "a terminal, said emptily": (True, {"NO_COLOR": ""}, True),
    "a log, with": (False, {"FORCE_COLOR": "1"}, True),
    "a log, said emptily": (False, {"FORCE_COLOR": ""}, False),
    "both": (True, {"NO_COLOR": "1", "FORCE_COLOR": "1"}, False),
    "a terminal that knows none": (True, {"TERM": "dumb"}, False),
}


class Stream(io.StringIO):
    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


@pytest.mark.parametrize("is_terminal, variables, expected", RULE.values(), ids=RULE)
def test_rule(is_terminal: bool, variables: dict[str, str], expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """NO_COLOR goes before FORCE_COLOR, both where they are not empty, and both before what the stream is; as in pytest."""
    from _pytest._io.terminalwriter import should_do_markup

    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in {"TERM": "xterm", **variables}.items():
        monkeypatch.setenv(name, value)
    stream = Stream(is_terminal)
    assert wants_colour(stream) is expected
    assert should_do_markup(stream) is expected


def shown(arguments: Sequence[str], on_terminal: bool, variables: dict[str, str], folder: Path) -> str:
    """What `dtfperf ARGUMENTS` writes to its stdout."""
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    argv = ["-m", zygote.COMMANDS, *arguments]
    environment |= {**LIGHT, "TERM": "xterm", **variables, **zygote.SEARCH_PATH}
    if not on_terminal:
        return zygote.run(argv, folder, environment, timeout_s=300, starts_forks=True)[1]
    controller, terminal = pty.openpty()
    found = b""
    with zygote.start(argv, folder, environment, stdout=terminal, starts_forks=True):
        os.close(terminal)
        while True:
            try:
                more = os.read(controller, 65536)
            except OSError:  # how a terminal says that everybody has left
                break
            if not more:
                break
            found += more
    os.close(controller)
    return found.decode()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return place.make(tmp_path_factory.mktemp("place"))


@pytest.mark.parametrize("name", ["judge", "baselines audit", "history list", "clusters list"])
def test_tables_have_colours(name: str, folder: Path) -> None:
    """On a terminal there are colours or bold letters, and in a log with FORCE_COLOR."""
    assert "\x1b[" in shown(place.SAMPLES[name][0], True, {}, folder)
    assert name == "baselines audit" or "\x1b[" in shown(place.SAMPLES[name][0], False, {"FORCE_COLOR": "1"}, folder)


@pytest.mark.campaign(part=3)
@pytest.mark.parametrize("name", place.SAMPLES)
def test_commands_keep_to_it(name: str, folder: Path) -> None:
    """With NO_COLOR a terminal gets no escape sequence of any command; nor does JSON output, even with forced colours."""
    place.before(folder)
    assert "\x1b" not in shown(place.SAMPLES[name][0], True, {"NO_COLOR": "1"}, folder)
    place.before(folder)
    found = shown([*place.SAMPLES[name][0], "--json"], False, {"FORCE_COLOR": "1"}, folder)
    assert found
    assert "\x1b" not in found


def test_nobody_else_decides() -> None:
    """All commands ask one function whether there is a terminal to draw on: a second way would be another rule."""
    folder = Path(pytest_dtfperf.cli.__file__).parent
    asking = {path.name for path in folder.rglob("*.py") if "NO_COLOR" in (text := path.read_text()) or "FORCE_COLOR" in text}
    assert asking == {"options.py"}
