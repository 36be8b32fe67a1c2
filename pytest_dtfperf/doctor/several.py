"""Hosts lent one by one, each with a process of its own on it, and one channel to all. Those that cannot be had are named."""

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass

from pytest_dtfperf.clusters.protocol import Allocation, Channel, Host, Lost
from pytest_dtfperf.errors import DtfPerfError, HostLost

_LISTEN_S = 0.25  # how late the end may be noticed
_UNHEARD = 10_000  # lines of all hosts that may wait to be heard: whoever says more waits, too
_IDLE_S = 1.0
_LEAVE_S = 30.0  # for connections that are just being made; processes that run leave at once

Lender = Callable[[], AbstractContextManager[Allocation]]


@dataclass(frozen=True)
class LentHosts:
    """Hosts with checkups on them."""

    hosts: Sequence[Host]
    channel: Channel
    missing: Mapping[int, str]  # the hosts that could not be had, and why


@contextmanager
def one_by_one(
    known: Sequence[Host], lenders: Sequence[Lender], argv: Sequence[str], *, at_once: int, idle: bytes
) -> Iterator[LentHosts]:
    """Every lender lends one host. `known` says who they are before they have been asked; see `Several` for the others."""
    several = Several(at_once, idle)
    try:
        for host, lender in enumerate(lenders):
            several.add(host, lender, [*argv, "--host", str(host)])
        hosts, missing = several.wait()
        yield LentHosts([hosts.get(i, each) for i, each in enumerate(known)], several, missing)
    finally:
        several.close()


class Several:
    """A `Channel` over several, each of which reaches one host; a thread leads each from its beginning to its end.

    `idle` is a line for hosts that wait for slower ones, now and then, so that they do not take this for the controller's end.
    """

    def __init__(self, at_once: int, idle: bytes) -> None:
        self._idle = idle
        self._complete = threading.Event()
        self._may_start = threading.Semaphore(at_once)
        self._over = threading.Event()
        self._arrived: queue.Queue[tuple[int, bytes | Lost]] = queue.Queue(_UNHEARD)
        self._threads: list[threading.Thread] = []
        self._started: list[threading.Event] = []
        self._channels: dict[int, Channel] = {}
        self._hosts: dict[int, Host] = {}
        self._missing: dict[int, str] = {}

    def add(self, host: int, lender: Lender, argv: Sequence[str]) -> None:
        started = threading.Event()
        thread = threading.Thread(
            target=self._lead, args=(host, lender, argv, started), name=f"dtfperf-host-{host}", daemon=True
        )
        self._started.append(started)
        self._threads.append(thread)
        thread.start()

    def wait(self) -> tuple[Mapping[int, Host], Mapping[int, str]]:
        """Until each has started or cannot be had: the hosts, and why there are no others."""
        for started in self._started:
            started.wait()
        self._complete.set()
        return self._hosts, self._missing

    def send(self, line: bytes) -> None:
        listening = 0
        for channel in list(self._channels.values()):
            with suppress(HostLost):
                channel.send(line)
                listening += 1
        if not listening:
            raise HostLost("no host is left that listens")

    def receive(self, timeout_s: float) -> tuple[int, bytes | Lost] | None:
        with suppress(queue.Empty):
            return self._arrived.get(timeout=timeout_s) if timeout_s > 0 else self._arrived.get_nowait()
        return None

    def why_silent(self, host: int) -> Lost | None:
        channel = self._channels.get(host)
        return channel.why_silent(0) if channel else None

    def close(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(_LEAVE_S)

    def _lead(self, host: int, lender: Lender, argv: Sequence[str], started: threading.Event) -> None:
        with ExitStack() as lent:
            try:
                with self._may_start:
                    if self._over.is_set():
                        return
                    allocation = lent.enter_context(lender())
                    channel = allocation.start(argv)
                lent.callback(channel.close)
                self._hosts[host], self._channels[host] = allocation.hosts[0], channel
            except (DtfPerfError, OSError) as error:
                self._missing[host] = str(error)
                return
            finally:
                started.set()
            self._listen(host, channel)
            del self._channels[host]

    def _listen(self, host: int, channel: Channel) -> None:
        told = 0.0
        while not self._over.is_set():
            if not self._complete.is_set() and time.monotonic() - told > _IDLE_S:
                told = time.monotonic()
                with suppress(HostLost):  # it is heard below
                    channel.send(self._idle)
            if (arrived := channel.receive(_LISTEN_S)) is not None:
                self._put((host, arrived[1]))
                if isinstance(arrived[1], Lost):
                    return

    def _put(self, arrived: tuple[int, bytes | Lost]) -> None:
        while not self._over.is_set():
            with suppress(queue.Full):
                self._arrived.put(arrived, timeout=_LISTEN_S)
                return
