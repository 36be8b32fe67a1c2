"""Messages of hosts, line by line: messages that may be used, output to show, or the end of the connection.

The limits for any peer are here: a host is disconnected once it has sent what is no message of ours
by its shape (`messages/`) or by its sense, more of other lines than any host prints by mistake, or messages faster than any
host has reason to.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pytest_dtfperf.errors import quoted_lines
from pytest_dtfperf.formats import printable_bytes
from pytest_dtfperf.messages.kinds import Message, MessageError, Table, fit
from pytest_dtfperf.node import wire

LAST_WORDS = 20  # lines
JUNK_BYTES = 1 << 20  # of lines that are no messages, from one host: a banner has a page, a stuck program's log would have more
# An agent sends a beat a second and four signs of progress for each of its tasks; what it could not send comes at once later.
MESSAGES, MESSAGES_PER_S = 20_000, 1_000.0

# What is sent once in a run, or once of each task of it.
_ONCE = ("reserved", "started", "exit", "state", "log", "ready", "stamps", "trace", "report")


class Hearing:
    """All hosts of one channel. `table` defines what they may send."""

    def __init__(self, table: Table, hosts: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._table = table
        self._hosts = [_Host(clock()) for _ in range(hosts)]
        self._clock = clock
        self._run: str | None = None
        self._tasks: Mapping[str, int] = {}
        self._tunnel: int | None = None  # the host at the other end of one
        self._sent: set[tuple[Any, ...]] = set()

    def expect(self, run: str, tasks: Mapping[str, int], tunnel: int | None = None) -> None:
        """From now on it is this run, of these tasks on these hosts, and of a tunnel to one: what comes of others is late and
        not heard.
        """
        self._run, self._tasks, self._tunnel, self._sent = run, tasks, tunnel, set()

    def hear(self, host: int, line: bytes) -> Message | None:
        """The message that it is; None where it is none that matters. Raises `MessageError`: then the host is not to be heard
        again.
        """
        try:
            decoded = wire.decode(line)
        except wire.WireError:
            self._hosts[host].note(line)
            return None
        if not self._is_carried(host, decoded):
            self._hosts[host].count(self._clock())
        message = fit(self._table, decoded)
        if message["host"] != host:
            raise MessageError(f"spoke for another host, number {message['host']}, and is number {host}")
        if "run" in message:
            if message["run"] != self._run:
                return None  # a late word of an earlier run
            self._check(host, message)
        return message

    def words(self, host: int) -> Sequence[str]:
        """Return the last lines that were no messages, fit to be shown."""
        return list(self._hosts[host].words)

    def _is_carried(self, host: int, message: Message) -> bool:
        """Return whether it is a tunnel's: of those there are no more than its other end lets come."""
        return message.get("event") == "tunnel" and host == self._tunnel and message.get("run") == self._run

    def _check(self, host: int, message: Message) -> None:
        """Check what depends on the run. Raises `MessageError`."""
        event = message["event"]
        if event == "tunnel" and host != self._tunnel:
            raise MessageError("spoke of a tunnel, and has none")
        for task in message.get("tasks", [message["task"]] if "task" in message else []):
            if self._tasks.get(task) != host:
                raise MessageError(f"spoke of the task {task}, which is none of its own")
        if event == "task" and message["kind"] == "report" and f"{message['job']}:{message['index']}" != message["task"]:
            raise MessageError(f"sent a report of {message['job']}:{message['index']} as that of {message['task']}")
        if event == "reserved" and len(message["ports"]) != (wanted := sum(each == host for each in self._tasks.values())):
            raise MessageError(f"reserved {len(message['ports'])} ports, and was asked for {wanted}")
        what = message["kind"] if event == "task" else event
        if what in _ONCE:
            key = (host, what, message.get("task"))
            if key in self._sent:
                raise MessageError(f"said {what!r} twice" + (f" of {key[2]}" if key[2] else ""))
            self._sent.add(key)


class _Host:
    """How much one host has sent."""

    def __init__(self, now: float) -> None:
        self.words: deque[str] = deque(maxlen=LAST_WORDS)
        self._junk = 0
        self._may_send, self._counted = float(MESSAGES), now

    def note(self, line: bytes) -> None:
        self.words.append(printable_bytes(line))
        self._junk += len(line) + 1
        if self._junk > JUNK_BYTES:
            raise MessageError(f"sent more than {JUNK_BYTES >> 20} MiB of lines that are no messages")

    def count(self, now: float) -> None:
        self._may_send = min(float(MESSAGES), self._may_send + MESSAGES_PER_S * (now - self._counted)) - 1
        self._counted = now
        if self._may_send < 0:
            raise MessageError(f"sent {MESSAGES} messages faster than {MESSAGES_PER_S:g} a second")


def given_up(host: str, why: str) -> str:
    """Return why nothing is heard of a host any more that has sent what cannot be used."""
    return f"host {host} was given up, for it {why}. Its agent is of another version, broken, or somebody else's"


def with_last_words(what: str, words: Sequence[str]) -> str:
    """Return what happened to a host, and beneath it its last output."""
    return what + quoted_lines(words)
