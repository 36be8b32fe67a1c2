"""This machine as a cluster of one host, or of several that are only called so: each with its part of the cores."""

import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress

from pytest_dtfperf.clusters.named import ClusterConfig, require_hosts
from pytest_dtfperf.clusters.pipes import write_all
from pytest_dtfperf.clusters.protocol import Allocation, Host, Resources
from pytest_dtfperf.errors import AllocationError, HostLost

ADDRESS = "127.0.0.1"
LEAVE_S = 2.0  # an agent whose line is closed kills what is below it at once; one that needs longer does not run
SWEEP_S = 20.0  # looking through /proc takes a tenth of a second; only a process that cannot be killed takes longer
_WRITE_S = 5.0  # an agent reads within milliseconds; one that leaves its pipe full for so long does not run
_LAST_WORDS_BYTES = 4096


class Local:
    """A cluster that is always there."""

    def __init__(self, config: ClusterConfig) -> None:
        self._config = config

    @contextmanager
    def allocate(self, resources: Resources) -> Iterator[Allocation]:
        wanted = require_hosts(self._config, resources, "hosts or devices_per_host")
        _sweep("--abandoned")
        name = socket.gethostname()
        yield LocalAllocation([Host(f"{name}-{i}" if wanted > 1 else name, ADDRESS) for i in range(wanted)])


class LocalAllocation:
    """This machine, once or more often."""

    def __init__(self, hosts: Sequence[Host]) -> None:
        self.hosts = hosts

    def start(self, argv: Sequence[str]) -> "LocalChannel":
        return LocalChannel(argv, len(self.hosts))


class LocalChannel:
    """Agents that are children of this process, each at the end of two pipes."""

    def __init__(self, argv: Sequence[str], hosts: int) -> None:
        self._session = uuid.uuid4().hex
        self._sending = threading.Lock()  # orders and pings come from two threads; a line must stay whole
        self._arrived: deque[tuple[int, bytes | None]] = deque()
        self._selector = selectors.DefaultSelector()
        self._agents: list[_Agent] = []
        try:
            for host, cores in enumerate(_shares(sorted(os.sched_getaffinity(0)), hosts)):
                agent = _Agent(host, argv, cores, {"DTFPERF_SESSION": self._session, "DTFPERF_OWNER": _this_process()})
                self._agents.append(agent)
                self._selector.register(agent.stdout, selectors.EVENT_READ, agent)
        except OSError as exc:
            self.close()
            raise AllocationError(f"cannot start {argv[0]}: {exc}") from exc

    def send(self, line: bytes) -> None:
        with self._sending:
            listening = [agent.write(line + b"\n") for agent in self._agents]
        if not any(listening):
            raise HostLost("no agent is left on this machine")

    def receive(self, timeout_s: float) -> tuple[int, bytes | None] | None:
        if not self._arrived:
            self._listen(timeout_s)
        return self._arrived.popleft() if self._arrived else None

    def close(self) -> None:
        with self._sending:
            for agent in self._agents:
                agent.hang_up()
        deadline = time.monotonic() + LEAVE_S
        clean = [agent.end(max(0.0, deadline - time.monotonic())) for agent in self._agents]
        if not all(clean):  # an agent that leaves by itself leaves nothing behind
            _sweep(self._session)
        self._selector.close()

    def _listen(self, timeout_s: float) -> None:
        deaf = [key.data for key in self._selector.get_map().values() if key.data.deaf]
        for key, _ in [] if deaf else self._selector.select(timeout_s):
            agent: _Agent = key.data
            if data := agent.read():
                self._arrived += [(agent.host, line) for line in data]
            elif data is None:
                deaf.append(agent)
        for agent in deaf:
            self._selector.unregister(agent.stdout)
            self._arrived += [(agent.host, line) for line in agent.last_words()]
            self._arrived.append((agent.host, None))


class _Agent:
    """One process, its pipes, and what it said on stderr."""

    def __init__(self, host: int, argv: Sequence[str], cores: Sequence[int], env: Mapping[str, str]) -> None:
        self.host = host
        self.deaf = False  # it takes no more orders
        self._rest = b""
        with ExitStack() as unless_started, _on_cores(cores):
            self._stderr = unless_started.enter_context(tempfile.TemporaryFile(prefix="dtfperf-"))
            # A session of its own: Ctrl-C in the terminal is for pytest, which then ends its agents in order.
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                env={**os.environ, **env, "DTFPERF_HOST_INDEX": str(host)},
                start_new_session=True,
                bufsize=0,
            )
            unless_started.pop_all()  # from here on, `end` closes it
        assert self._process.stdin
        assert self._process.stdout
        self.stdin, self.stdout = self._process.stdin, self._process.stdout
        os.set_blocking(self.stdin.fileno(), False)
        os.set_blocking(self.stdout.fileno(), False)

    def write(self, data: bytes) -> bool:
        """Whether it took the line."""
        self.deaf = self.deaf or not write_all(self.stdin.fileno(), data, _WRITE_S)
        return not self.deaf

    def read(self) -> list[bytes] | None:
        """Whole lines; None when there will be no more."""
        data = os.read(self.stdout.fileno(), 1 << 16)
        if not data:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        return lines

    def last_words(self) -> list[bytes]:
        """What it said to people, and how it ended, as far as it has."""
        size = self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, size - _LAST_WORDS_BYTES))
        return [*self._stderr.read().splitlines(), self._how_it_ended().encode()]

    def _how_it_ended(self) -> str:
        try:
            code = self._process.wait(LEAVE_S)
        except subprocess.TimeoutExpired:
            return "(the agent is still there, but does not listen)"
        return (
            f"(the agent was killed by {signal.Signals(-code).name})" if code < 0 else f"(the agent left with exit code {code})"
        )

    def hang_up(self) -> None:
        """End its lease."""
        self.deaf = True
        self.stdin.close()

    def end(self, patience_s: float) -> bool:
        """Wait for it to leave, and kill it if it does not. Whether it left in order."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(patience_s)
        self._process.kill()  # nothing happens to one that has left
        self._process.wait()
        self.stdout.close()
        self._stderr.close()
        return self._process.returncode == 0


def _shares(cores: Sequence[int], hosts: int) -> list[list[int]]:
    """Each host's part of this machine: with fewer cores than hosts, some share one."""
    size = max(1, len(cores) // hosts)
    return [list(cores) if hosts == 1 else [cores[(i * size + k) % len(cores)] for k in range(size)] for i in range(hosts)]


@contextmanager
def _on_cores(cores: Sequence[int]) -> Iterator[None]:
    """What this thread starts meanwhile starts on these cores."""
    mine = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, mine)


def _this_process() -> str:
    """Who owns what is started here: process id, start time in clock ticks, and the namespace in which the id means that."""
    with open("/proc/self/stat", "rb") as file:
        started = file.read().rpartition(b")")[2].split()[19].decode()
    return f"{os.getpid()} {started} {os.readlink('/proc/self/ns/pid')}"


def _sweep(*what: str) -> None:
    """End what dead sessions left on this machine. A sweep that itself fails must not keep anybody from going on."""
    command = [sys.executable, "-m", "pytest_dtfperf.node.sweep", *what]
    with suppress(subprocess.TimeoutExpired, OSError):
        subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, timeout=SWEEP_S, check=False)
