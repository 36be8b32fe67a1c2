"""All agents of an allocation: started, heard of, kept alive, spoken to in orders and listened to in events."""

import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from pytest_dtfperf.clusters.named import ClusterConfig, python
from pytest_dtfperf.clusters.protocol import Allocation, Lost, Reason
from pytest_dtfperf.errors import AllocationError, HostLost
from pytest_dtfperf.launch.placement import HostView
from pytest_dtfperf.launch.watch import loss
from pytest_dtfperf.messages.agent import AGENT
from pytest_dtfperf.messages.hearing import Hearing
from pytest_dtfperf.messages.kinds import MessageError
from pytest_dtfperf.node import wire
from pytest_dtfperf.node.module_command import module_command

PING_S = 1.0

Event = Mapping[str, Any]


class Agents:
    """One agent per host.

    Their heartbeat comes from a thread for as long as this process runs, in a run or between two: between two tests a person
    may look around in a debugger for minutes. The thread stops with the process, so that a stopped pytest loses its hosts.
    """

    def __init__(self, allocation: Allocation, config: ClusterConfig) -> None:
        argv = module_command(python(config), "pytest_dtfperf.node.agent", "--entry", config.entry)
        argv += ["--heartbeat-timeout-s", str(config.heartbeat_timeout_s), "--start", config.start]
        argv += ["--device", config.device] if config.device else []
        self._names = [host.name for host in allocation.hosts]
        self._hearing = Hearing(AGENT, len(self._names))
        self._given_up: set[int] = set()  # hosts that have sent what no host of ours sends
        self._over = threading.Event()
        self._channel = allocation.start(argv)
        self._pulse = threading.Thread(target=self._send_heartbeats, name="dtfperf-heartbeat", daemon=True)
        self._pulse.start()
        try:
            hellos = self._hello(config.limits.hello_s)
        except BaseException:  # Ctrl-C too: nobody else knows of the agents yet
            self.close()
            raise
        self.fingerprints = [
            {part: {**seen, **host.fingerprint.get(part, {})} for part, seen in hello["fingerprint"].items()}
            for host, hello in zip(allocation.hosts, hellos, strict=True)
        ]
        self.hosts = [
            HostView(
                host.name,
                host.address,
                tuple(hello["cpus"]),
                tuple(hello["gpus"]),
                host.switch,
                tuple(hello["addresses"]),
                hello["unguarded"],
            )
            for host, hello in zip(allocation.hosts, hellos, strict=True)
        ]

    def order(self, order: str, **data: Any) -> None:
        """To every agent. Raises `HostLost` when none is left."""
        self._channel.send(wire.encode({"order": order, **data}))

    def expect(self, run: str, tasks: Mapping[str, int], tunnel: int | None = None) -> None:
        """A new run, of these tasks on these hosts and of a tunnel to one: nothing else is an event from now on."""
        self._hearing.expect(run, tasks, tunnel)

    def next_event(self, timeout_s: float) -> Event | None:
        """What an agent says next. That a host is lost becomes an event too: "lost", with `how` it was and its last `words`. Of
        such a host nothing is heard any more.
        """
        deadline = time.monotonic() + timeout_s
        while (arrived := self._channel.receive(max(0.0, deadline - time.monotonic()))) is not None:
            host, line = arrived
            if host in self._given_up:
                if time.monotonic() < deadline:
                    continue
                return None  # it may go on for ever
            if isinstance(line, Lost):
                return {"event": "lost", "host": host, "how": line, "words": self._hearing.words(host)}
            try:
                if (event := self._hearing.hear(host, line)) is not None:
                    return event
            except MessageError as exc:
                return self.give_up(host, str(exc))
        return None

    def give_up(self, host: int, why: str) -> Event:
        """Hear nothing more of a host that has sent what no host of ours sends. Its loss."""
        self._given_up.add(host)
        return {"event": "lost", "host": host, "how": Lost(Reason.LIED, why), "words": ()}

    def why_silent(self, host: int) -> Event | None:
        """The loss of a host of which nothing is heard for too long, where the cluster knows of it."""
        how = self._channel.why_silent(host)
        return {"event": "lost", "host": host, "how": how, "words": self._hearing.words(host)} if how else None

    def are_well(self) -> bool:
        """Whether all are still there, asked between two runs: a pytest that was stopped for a while has lost them."""
        while event := self.next_event(0.0):
            if event["event"] == "lost":
                return False
        return not self._given_up

    def close(self) -> None:
        self._over.set()
        self._channel.close()
        self._pulse.join()

    def _send_heartbeats(self) -> None:
        with suppress(HostLost):  # whoever listens learns it too
            while not self._over.wait(PING_S):
                self.order("ping")

    def _hello(self, within_s: float) -> list[Event]:
        hellos: dict[int, Event] = {}
        deadline = time.monotonic() + within_s
        while len(hellos) < len(self._names):
            event = self.next_event(max(0.0, deadline - time.monotonic()))
            if event is None:
                missing = [name for host, name in enumerate(self._names) if host not in hellos]
                raise AllocationError(f"no word within {within_s:g} s from the agent on {', '.join(missing)}")
            if event["event"] == "lost":
                raise AllocationError(loss(self._names[event["host"]], "did not start", event["how"], event["words"]))
            if event["event"] == "hello":
                hellos[event["host"]] = event
        return [hellos[host] for host in range(len(self._names))]
