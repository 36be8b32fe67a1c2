"""The question at a real terminal: a pseudo-terminal that is the controlling one of a process of its own."""

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
    """A terminal with a Python process on it."""

    def __init__(self, *argv: str, env: Mapping[str, str] | None = None) -> None:
        self._keyboard, self._screen = (
            pty.openpty()
        )  # the screen stays open, because the kernel hangs up a terminal without a reader
        self.process = subprocess.Popen(
            [sys.executable, "-c", SIT_DOWN, os.ttyname(self._screen), *argv],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **(env or {})},
        )  # fmt: skip
        self.shown = ""

    def wait_for(self, words: str) -> None:
        """Wait until the text is on the screen."""
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

    def read_output(self) -> str:
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
def test_answers(desk: type[Desk], typed: str, answer: str) -> None:
    """The question is on the screen, independent of the streams; only y and yes agree."""
    somebody = desk("-c", ASK, "300")
    somebody.wait_for("Launch? [y/N] ")
    somebody.type(typed)

    assert somebody.read_output() == answer


def test_question_is_asked_while_pytest_captures(desk: type[Desk], tmp_path: Path) -> None:
    """The question of a captured test is shown and answered, and is in no report."""
    (tmp_path / "test_it.py").write_text(
        "from pytest_dtfperf.clusters.ec2 import costs\n\n\ndef test():\n    assert costs.ask_at_terminal('Launch?') is True\n"
    )
    argv = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-rA", "--rootdir", str(tmp_path), str(tmp_path / "test_it.py")]
    somebody = desk(*argv, env={"PYTEST_ADDOPTS": ""})
    somebody.wait_for("Launch? [y/N] ")
    somebody.type("y\n")

    printed = somebody.read_output()

    assert "1 passed" in printed
    assert "Launch?" not in printed


def test_missing_answer_times_out(desk: type[Desk]) -> None:
    """A question without an answer ends after its time limit."""
    somebody = desk("-c", ASK, "0.1")

    assert somebody.read_output() == "None"


def test_hung_up_terminal_is_no_agreement(desk: type[Desk]) -> None:
    """A terminal that is closed during the question is no agreement."""
    somebody = desk("-c", f"import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN); {ASK}", "300")
    somebody.wait_for("Launch? [y/N] ")
    somebody.hang_up()

    assert somebody.read_output() in ("None", "False")


def test_end_of_input_is_no_yes(desk: type[Desk]) -> None:
    """Control-D is no agreement."""
    somebody = desk("-c", ASK, "300")
    somebody.wait_for("Launch? [y/N] ")
    somebody.type("\x04")

    assert somebody.read_output() == "False"


def test_missing_terminal(tmp_path: Path) -> None:
    """A process without a terminal, as in CI, asks no question."""
    answer = subprocess.run(
        [sys.executable, "-c", ASK, "300"], start_new_session=True, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=PATIENCE_S, check=True,
    )  # fmt: skip

    assert answer.stdout == "None\n"


def test_background_process_is_not_stopped(desk: type[Desk]) -> None:
    """A pytest in the background of a shell is not stopped by the kernel for reading from the terminal."""
    somebody = desk("-c", IN_BACKGROUND, ASK)

    assert somebody.read_output() == "None\n0"
    assert "Launch?" not in somebody.shown


def test_xdist_worker_does_not_ask(desk: type[Desk]) -> None:
    """A worker of xdist does not ask, because several would read each other's answers."""
    somebody = desk("-c", ASK, "300", env={"PYTEST_XDIST_WORKER": "gw0"})

    assert somebody.read_output() == "None"
