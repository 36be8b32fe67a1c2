"""An agent in the hand of a test: orders in, events out, its processes in view."""

import os
import select
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from pytest_dtfperf.node import processes, sweep, wire
from pytest_dtfperf.testing.backends import PATIENCE_S, wait_until

TOY = "tests.node.toy_task:run"


class HandheldAgent:
    """A real agent process with its lines connected to the test."""

    def __init__(self, *options: str, entry: str = TOY, env: Mapping[str, str] | None = None) -> None:
        self.session = f"test-{uuid.uuid4().hex}"
        command = [sys.executable, "-m", "pytest_dtfperf.node.agent", "--entry", entry, *options]
        environment = {**os.environ, "DTFPERF_HOST_INDEX": "0", "DTFPERF_SESSION": self.session, **(env or {})}
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment, start_new_session=True, bufsize=0
        )
        self._lines = wire.Lines()
        self._events: list[dict[str, Any]] = []
        self.heard: list[str] = []  # the names of all events, in the order they came

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.process.kill()
        self.process.wait()
        for line in (self.process.stdin, self.process.stdout, self.process.stderr):
            if line:
                line.close()
        wait_until("everything of the session is gone", lambda: self._sweep() == [])

    def _sweep(self) -> list[int]:
        for pid in sweep.find_left_processes([self.session]):
            processes.kill(pid)
        return sweep.find_left_processes([self.session])

    def list_processes(self) -> list[int]:
        """Return the processes of this session except for the agent."""
        return [pid for pid in sweep.find_left_processes([self.session]) if pid != self.process.pid]

    def order(self, order: str, **data: Any) -> None:
        assert self.process.stdin
        self.process.stdin.write(wire.encode({"order": order, **data}) + b"\n")

    def start(self, *tasks: str, run: str = "r", cold: bool = False, cpus: list[int] | None = None, **script: Any) -> None:
        """Start tasks that all follow one script."""
        orders = []
        for task in tasks:
            job, _, index = task.partition(":")
            part = {"job": job, "index": int(index)}
            orders.append({"host": 0, "task": task, "order": part, "env": {"TOY": task}, "cpus": cpus or []})
        self.order("start", run=run, cold=cold, common={"script": script}, tasks=orders)

    def notify(self, word: str, *tasks: str, run: str = "r") -> None:
        self.order("notify", run=run, tasks=tasks, word=word)

    def reserve(self, run: str = "r", host: int = 0, **wanted: Any) -> None:
        """Order a host to reserve ports; this agent's host is 0."""
        self.order("reserve", run=run, hosts={str(host): wanted})

    def expect(self, event: str, patience_s: float = PATIENCE_S, **data: Any) -> dict[str, Any]:
        """Return the first event of that name with these fields; the others are kept for later calls. Pings while it waits."""
        deadline = time.monotonic() + patience_s
        while True:
            for seen in self._events:
                if seen["event"] == event and data.items() <= seen.items():
                    self._events.remove(seen)
                    return seen
            assert time.monotonic() < deadline, f"no event {event!r} with {data}"
            if not self._read():
                self.order("ping")

    def words(self) -> str:
        """Return the agent's output for people, once it is gone."""
        assert self.process.stderr
        self.process.wait(PATIENCE_S)
        return self.process.stderr.read().decode()

    def _read(self) -> bool:
        assert self.process.stdout
        if not select.select([self.process.stdout], [], [], 0.5)[0]:
            return False
        data = os.read(self.process.stdout.fileno(), 1 << 16)
        assert data, f"the agent is gone: {self.words()}"
        events = [wire.decode(line) for line in self._lines.feed(data)]
        self._events += events
        self.heard += [event["event"] for event in events]
        return True
