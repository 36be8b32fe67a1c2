"""Asking at the terminal, with a real one: a pseudo-terminal that is the controlling one of a process of its own."""

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import pytest

PATIENCE_S = 180.0  # for a pytest to start on a machine that is busy with other things
# Makes the terminal its own before it becomes Python: only then is there a /dev/tty. All streams are taken, as by pytest.
SIT_DOWN = """
import fcntl, os, sys, termios
os.setsid()
fcntl.ioctl(os.open(sys.argv[1], os.O_RDWR), termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""
ASK = "import sys; from pytest_dtfperf.clusters.ec2 import costs; print(costs.ask_at_terminal('Launch?', float(sys.argv[1])))"
IN_BACKGROUND = """
import subprocess, sys
child = subprocess.Popen([sys.executable, '-c', sys.argv[1], '300'], process_group=0)
print(child.wait())
"""


class Desk:
    """Somebody's terminal, and a Python at it."""

    def __init__(self, *argv: str, env: Mapping[str, str] | None = None) -> None:
        self._keyboard, self._screen = pty.openpty()  # the screen stays open: a terminal that nobody has open is hung up
        self.process = subprocess.Popen(
            [sys.executable, "-c", SIT_DOWN, os.ttyname(self._screen), *argv],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **(env or {})},
        )  # fmt: skip
        self.shown = ""

    def wait_for(self, words: str) -> None:
        """Until they stand on the screen."""
        deadline = time.monotonic() + PATIENCE_S
        while words not in self.shown:
            assert select.select([self._keyboard], [], [], deadline - time.monotonic())[0], f"not shown: {words}"
            self.shown += os.read(self._keyboard, 1024).decode()

    def type(self, text: str) -> None:
        os.write(self._keyboard, text.encode())

    def hang_up(self) -> None:
        for end in (self._keyboard, self._screen):
            with suppress(OSError):  # done before
                os.close(end)
        self._keyboard = self._screen = -1

    def printed(self) -> str:
        out, err = self.process.communicate(timeout=PATIENCE_S)
        assert err == b""
        return out.decode().strip()

    def close(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()
        self.process.communicate()
        self.hang_up()


@pytest.fixture
def desk() -> Iterator[type[Desk]]:
    """Makes desks that are cleared after the test."""
    made: list[Desk] = []

    class Kept(Desk):
        def __init__(self, *argv: str, env: Mapping[str, str] | None = None) -> None:
            super().__init__(*argv, env={"PYTEST_XDIST_WORKER": ""} | dict(env or {}))
            made.append(self)

    yield Kept
    for each in made:
        each.close()


@pytest.fixture(autouse=True)
def _no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)


@pytest.mark.parametrize(
    "typed, answer", [("y\n", "True"), (" YES \n", "True"), ("n\n", "False"), ("\n", "False"), ("why?\n", "False")]
)
def test_an_answer(desk: type[Desk], typed: str, answer: str) -> None:
    """The question is on the screen, whatever the streams are connected to; only y and yes are a yes."""
    somebody = desk("-c", ASK, "300")
    somebody.wait_for("Launch? [y/N] ")
    somebody.type(typed)

    assert somebody.printed() == answer


def test_asks_while_pytest_captures(desk: type[Desk], tmp_path: Path) -> None:
    """A test of a pytest that captures everything asks, is answered, and what was asked is in no report."""
    (tmp_path / "test_it.py").write_text(
        "from pytest_dtfperf.clusters.ec2 import costs\n\n\ndef test():\n    assert costs.ask_at_terminal('Launch?') is True\n"
    )
    argv = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-rA", "--rootdir", str(tmp_path), str(tmp_path / "test_it.py")]
    somebody = desk(*argv, env={"PYTEST_ADDOPTS": ""})
    somebody.wait_for("Launch? [y/N] ")
    somebody.type("y\n")

    printed = somebody.printed()

    assert "1 passed" in printed
    assert "Launch?" not in printed


def test_nobody_answers(desk: type[Desk]) -> None:
    """A terminal at which nobody sits holds nothing up for ever."""
    somebody = desk("-c", ASK, "0.1")

    assert somebody.printed() == "None"


def test_the_terminal_is_hung_up(desk: type[Desk]) -> None:
    """Whose terminal goes away has not agreed: the process is ended by the kernel, or hears no answer."""
    somebody = desk("-c", f"import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN); {ASK}", "300")
    somebody.wait_for("Launch? [y/N] ")
    somebody.hang_up()

    assert somebody.printed() in ("None", "False")


def test_end_of_input_is_no_yes(desk: type[Desk]) -> None:
    """Control-D is no answer, and no yes."""
    somebody = desk("-c", ASK, "300")
    somebody.wait_for("Launch? [y/N] ")
    somebody.type("\x04")

    assert somebody.printed() == "False"


def test_no_terminal(tmp_path: Path) -> None:
    """In CI, where a process has no terminal, there is nobody to ask."""
    answer = subprocess.run(
        [sys.executable, "-c", ASK, "300"], start_new_session=True, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=PATIENCE_S, check=True,
    )  # fmt: skip

    assert answer.stdout == "None\n"


def test_in_the_background(desk: type[Desk]) -> None:
    """A pytest in a shell's background is not stopped by the kernel for reading from a terminal that is not its turn."""
    somebody = desk("-c", IN_BACKGROUND, ASK)

    assert somebody.printed() == "None\n0"
    assert "Launch?" not in somebody.shown


def test_a_worker_of_xdist_does_not_ask(desk: type[Desk]) -> None:
    """Of several workers none asks: each would read the others' answers."""
    somebody = desk("-c", ASK, "300", env={"PYTEST_XDIST_WORKER": "gw0"})

    assert somebody.printed() == "None"
