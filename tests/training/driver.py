"""Forks tasks from a process that has imported TensorFlow, as a host's zygote does: a program of its own, for the tests.

Each line on stdin is a run: a list of orders. Each line on stdout is its outcome: what every task sent, and how it ended; or
what went wrong here, in a string: that run has failed, and the next one may come.
A fork takes a tenth of a second where a process that imports TensorFlow takes five.
"""

import faulthandler
import json
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import pytest_dtfperf.training.task
from pytest_dtfperf.node import probes
from pytest_dtfperf.spec import MODELS, VARIABLE_UPDATES, Model, VariableUpdate
from pytest_dtfperf.training.task import run
from tests.training.table import TINY, UNHEARD_OF

DEADLINE_S = (
    600.0  # without a word: the longest run has none for 15 s on two cores, and was seen to need 90 where others had them
)
PATIENCE_S = "PATIENCE_S"  # a variable: how long traced steps are waited for, where that shall be shorter

cast("dict[str, Model]", MODELS).update(TINY)  # in this process alone, as the next
cast("dict[str, VariableUpdate]", VARIABLE_UPDATES).update(UNHEARD_OF)
if PATIENCE_S in os.environ:
    pytest_dtfperf.training.task.PATIENCE_S = float(os.environ[PATIENCE_S])


class Pipes:
    """A task's line to this process."""

    def __init__(self, words: int, events: int) -> None:
        self._words = os.fdopen(words)
        self._events = os.fdopen(events, "w", buffering=1)

    def send(self, kind: str, **data: Any) -> None:
        self._events.write(json.dumps({"kind": kind, **data}) + "\n")

    def wait(self) -> str:
        return self._words.readline().strip()

    def counters(self) -> probes.Counters:
        return probes.read_counters()


class Task:
    """A forked task, seen from outside."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.is_ps = order["job"] == "ps"
        self.events: list[dict[str, Any]] = []
        self.code: int | None = None
        words, self._word_pipe = os.pipe()
        listen, events = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._word_pipe)
            os.close(listen)
            _live(order, Pipes(words, events))
        os.close(words)
        os.close(events)
        self.heard = os.fdopen(listen)

    def send(self, word: str) -> None:
        """Send a word to the task. It is lost if the task has ended."""
        if self.code is None:
            with suppress(BrokenPipeError):
                os.write(self._word_pipe, f"{word}\n".encode())

    def receive(self) -> None:
        """Receive one event, or the task's end."""
        if line := self.heard.readline():
            self.events.append(json.loads(line))
        else:
            self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            self.heard.close()
            os.close(self._word_pipe)

    @property
    def outcome(self) -> dict[str, Any]:
        return {"events": self.events, "code": self.code}


def _live(order: dict[str, Any], pipes: Pipes) -> None:
    code = 1
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(2, 1)
        run(order, pipes)
        code = 0
    except BaseException as exc:  # the process ends here, whatever it was
        traceback.print_exc()
        pipes.send("error", error=type(exc).__name__, message=str(exc))
    finally:
        os._exit(code)


def _run(orders: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Start workers when all tasks are ready, and end them before servers; a failure ends the run of all."""
    tasks = [Task(order) for order in orders]
    servers, workers = [task for task in tasks if task.is_ps], [task for task in tasks if not task.is_ps]
    try:
        _listen(tasks, until=lambda: all(task.events for task in tasks))
        for worker in workers:
            worker.send("go")
        _listen(tasks, until=lambda: all(worker.code == 0 for worker in workers))
        for server in servers:
            server.send("leave")
        _listen(tasks, until=lambda: all(server.code == 0 for server in servers))
    finally:
        for task in (task for task in tasks if task.code is None):
            os.kill(task.pid, signal.SIGKILL)
            while task.code is None:
                task.receive()
    return [task.outcome for task in tasks]


def _listen(tasks: list[Task], until: Callable[[], bool]) -> None:
    """Return when it is so, or when a task has failed."""
    while not until() and not any(task.code for task in tasks):
        living = {task.heard: task for task in tasks if task.code is None}
        heard = select.select(list(living), [], [], DEADLINE_S)[0]
        if not heard:
            raise TimeoutError(f"no task of the run has sent anything for {DEADLINE_S} s")
        for pipe in heard:
            living[pipe].receive()


if __name__ == "__main__":
    faulthandler.enable()  # of a task that is aborted, too, what it did is written
    for line in sys.stdin:
        try:
            answer: Any = _run(json.loads(line))
        except Exception:
            answer = traceback.format_exc()
        print(json.dumps(answer), flush=True)
