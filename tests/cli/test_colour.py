"""Colours: every command and pytest's summary use them in the same cases."""

import io
import os
import pty
from collections.abc import Sequence
from pathlib import Path

import pytest

import pytest_dtfperf.cli
from pytest_dtfperf.cli.options import is_colour_wanted
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
def test_wants_colour_follows_pytests_rule(
    is_terminal: bool, variables: dict[str, str], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NO_COLOR has precedence over FORCE_COLOR, and both over the kind of stream, as in pytest."""
    from _pytest._io.terminalwriter import should_do_markup

    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in {"TERM": "xterm", **variables}.items():
        monkeypatch.setenv(name, value)
    stream = Stream(is_terminal)
    assert is_colour_wanted(stream) is expected
    assert should_do_markup(stream) is expected


def run_command(arguments: Sequence[str], on_terminal: bool, variables: dict[str, str], folder: Path) -> str:
    """Return the stdout of `dtfperf ARGUMENTS`."""
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
    return place.make_folder(tmp_path_factory.mktemp("place"))


@pytest.mark.parametrize("name", ["judge", "baselines audit", "history list", "clusters list"])
def test_tables_have_colours(name: str, folder: Path) -> None:
    """Tables have escape sequences on a terminal, and in a log with FORCE_COLOR."""
    assert "\x1b[" in run_command(place.SAMPLES[name][0], True, {}, folder)
    assert name == "baselines audit" or "\x1b[" in run_command(place.SAMPLES[name][0], False, {"FORCE_COLOR": "1"}, folder)


@pytest.mark.campaign(part=3)
@pytest.mark.parametrize("name", place.SAMPLES)
def test_commands_follow_no_color(name: str, folder: Path) -> None:
    """With NO_COLOR no command writes escape sequences to a terminal; JSON never has any."""
    place.reset_folder(folder)
    assert "\x1b" not in run_command(place.SAMPLES[name][0], True, {"NO_COLOR": "1"}, folder)
    place.reset_folder(folder)
    found = run_command([*place.SAMPLES[name][0], "--json"], False, {"FORCE_COLOR": "1"}, folder)
    assert found
    assert "\x1b" not in found


def test_only_one_module_reads_the_variables() -> None:
    """Only options.py reads NO_COLOR and FORCE_COLOR."""
    folder = Path(pytest_dtfperf.cli.__file__).parent
    asking = {path.name for path in folder.rglob("*.py") if "NO_COLOR" in (text := path.read_text()) or "FORCE_COLOR" in text}
    assert asking == {"options.py"}
