"""Sessions in processes of their own, for tests to kill: `with Sessions() as all, all.begin(Order(...)) as session:`."""

import base64
import json
import os
import pickle
import resource
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pytest_dtfperf.clusters.ec2.ledger import get_state_folder
from pytest_dtfperf.testing.backends import wait_until
from tests.clusters.ec2.cloud import guard
from tests.clusters.ec2.driver import Order, Watch

WATCHDOG = "pytest_dtfperf.clusters.ec2.watchdog"
# What a session's environment takes from the test's.
NAMES = ("AWS_", "XDG_", "DTFPERF_")


@dataclass
class Session:
    """One that was begun."""

    pid: int
    heard: list[dict[str, Any]] = field(default_factory=list)

    @property
    def output(self) -> list[str]:
        return [saying["what"] for saying in self.heard]

    @property
    def code(self) -> int | None:
        """Return the exit code, negative for a signal, or None while it runs."""
        return next((int(saying["code"]) for saying in self.heard if saying["what"] == "ended"), None)

    @property
    def words(self) -> str:
        """Return the message of its failure."""
        return "".join(str(saying["words"]) for saying in self.heard if saying["what"] == "failed")


class Sessions:
    """The process that forks them."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from tests.clusters.ec2.driver import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **guard.environment()},
            start_new_session=True,
            bufsize=0,
        )
        self._sessions: list[Session] = []
        self._mutant: str | None = None
        self._rest = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    @contextmanager
    def begin(self, order: Order) -> Iterator[Session]:
        """Run a session with this process's environment. It and its watchdog are killed when the block ends."""
        with self._begin(replace(order, environment=_environment(), mutant=self._mutant)) as session:
            yield session

    def watch(self, ledger: Path, settle_s: float, words: bytes) -> int:
        """Run a watchdog on this process's disk after a session sent `words` and disconnected. Return its exit code."""
        file_bytes = resource.getrlimit(resource.RLIMIT_FSIZE)
        with self._begin(Watch(ledger, settle_s, words, _environment(), file_bytes)) as watchdog:
            self.wait_until_ended(watchdog)
        assert watchdog.code is not None
        return watchdog.code

    @contextmanager
    def _begin(self, order: Order | Watch) -> Iterator[Session]:
        line = base64.b64encode(pickle.dumps(order))
        assert self._process.stdin
        self._process.stdin.write(line + b"\n")
        before = len(self._sessions)
        self.wait(lambda: len(self._sessions) > before, "a session begins")
        session = self._sessions[-1]
        try:
            yield session
        finally:
            self.kill(session)

    @contextmanager
    def with_mutant(self, name: str) -> Iterator[None]:
        """Sessions that are begun in the block have a defect."""
        self._mutant = name
        try:
            yield
        finally:
            self._mutant = None

    def wait(self, true: Any, what: str) -> None:
        """Wait until the condition is true, while reading the sessions' events."""

        def check() -> Any:
            self._listen()
            return true()

        wait_until(what, check)

    def wait_until_output(self, session: Session, what: str) -> None:
        self.wait(lambda: what in session.output or session.code is not None, f"the session prints {what!r}")
        assert what in session.output, f"it ended before it printed {what!r}: {session.heard}"

    def wait_until_ended(self, session: Session) -> None:
        self.wait(lambda: session.code is not None, "the session ends")

    def kill(self, session: Session, *, with_watchdog: bool = True) -> None:
        """Kill a session as an outage does. Without `with_watchdog` only the session, so that its watchdog sees it die."""
        if with_watchdog:
            kill_watchdogs()
        if session.code is None:
            with suppress(ProcessLookupError):
                os.kill(session.pid, signal.SIGKILL)
            self.wait_until_ended(session)

    def _listen(self) -> None:
        assert self._process.stdout
        while select.select([self._process.stdout], [], [], 0)[0]:
            data = os.read(self._process.stdout.fileno(), 65536)
            if not data:
                raise AssertionError("the process that forks sessions has ended")
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                self._hear(json.loads(line))

    def _hear(self, saying: dict[str, Any]) -> None:
        if saying["what"] == "forked":
            self._sessions.append(Session(saying["pid"]))
            return
        about = saying.get("pid") or saying["by"]
        for session in self._sessions:
            if session.pid == about:
                session.heard.append(saying)


def _environment() -> Mapping[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith(NAMES)}


def kill_watchdogs() -> None:
    for pid in watchdogs():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def watchdogs() -> list[int]:
    """The processes that watch over the ends of this test's sessions: its ledgers are its own."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdecimal():
                command = (entry / "cmdline").read_bytes().decode(errors="replace")
                if WATCHDOG in command and str(get_state_folder()) in command:
                    found.append(int(entry.name))
    return found
