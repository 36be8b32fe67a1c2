"""What the doctor asks the hosts, and how long it waits for each answer. One that falls silent is set aside."""

import secrets
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

from pytest_dtfperf.clusters import capacity
from pytest_dtfperf.clusters.named import ClusterConfig, Limits
from pytest_dtfperf.clusters.protocol import Channel, Lost
from pytest_dtfperf.doctor.allocation import lent_hosts
from pytest_dtfperf.doctor.diagnosis import Diagnosis, Facts, HostLink, HostSeen, Offset, Reach, TensorFlowTrial, far_below
from pytest_dtfperf.doctor.findings import Expected
from pytest_dtfperf.errors import AllocationError, HostLost
from pytest_dtfperf.formats import format_count, printable
from pytest_dtfperf.launch.exposure import choose_interface
from pytest_dtfperf.launch.link_rounds import FEW, Pair, rounds, split
from pytest_dtfperf.launch.placement import FIRST_FIXED_PORT
from pytest_dtfperf.messages.received import MessageError, MessageReceiver
from pytest_dtfperf.messages.tables import CHECKUP
from pytest_dtfperf.node import wire

CLOCK_ROUNDS = 10
STREAM_S = 1.0
PING_S = 1.0
_CLOCK_S = 10.0  # for a word there and back
_FACTS_S = 60.0  # nvidia-smi may take 20 s
_FILES_S = 30.0  # a file server that is slow is not one that is dead
_LINK_S = 45.0  # beyond the stream itself: every step of it has a limit of its own below this
_REACH_S = 60.0
_REACH_PER_PORT_S = 0.25  # 64 are tried at once, each for up to 15 s
_TRIAL_GRACE_S = 15.0  # the host itself ends a trial that takes too long, and reports it
_LAST_LINES = 5
_LAST_WORDS_S = 10.0
_POLL_S = 0.1
_BUSY_S = 1.0  # after so much that was heard at once, the time is looked at
_QUESTIONS = {
    "hello": "its first word",
    "clock": "its clock",
    "facts": "what it is",
    "write": "a file in the folder",
    "list_files": "the files in the folder",
    "remove": "a file in the folder",
    "listen": "ports to listen on",
    "reach": "connections to the others",
    "trial": "the import of TensorFlow",
    "measure": "a link",
}

Event = Mapping[str, Any]


class Examination:
    """The checks of all hosts, run by `carry_out`. The channel's creator closes it.

    `ports` are those that every host should listen on, 0 for one that is free; `folder` the one they look at for each other.
    """

    def __init__(
        self,
        channel: Channel,
        seen: Diagnosis,
        limits: Limits,
        *,
        ports: Sequence[int],
        on_status: Callable[[str], object],
    ) -> None:
        self.seen = seen
        self._channel = channel
        self._limits = limits
        self._ports = ports
        self._on_status = on_status
        self._token = secrets.token_hex(8)
        self._heard: dict[int, float] = {}
        self._receiver = MessageReceiver(CHECKUP, len(seen.hosts))
        self._given_up: set[int] = set()

    def carry_out(self) -> None:
        """Run all checks that can be run. Returns also when no host is left: `seen` has the reason of each."""
        over = threading.Event()
        pulse = threading.Thread(target=self._send_heartbeats, args=(over,), name="dtfperf-heartbeat", daemon=True)
        pulse.start()
        try:
            self._hello()
            self._clocks()
            self._facts()
            self._files()
            self._reach()
            self._trials()
            self._links()
        except HostLost:  # the last one: each has its own reason by now
            self._answers("its end", _LAST_WORDS_S, set(self.seen.present))
        finally:
            over.set()
            pulse.join()

    # One question each

    def _hello(self) -> None:
        self._on_status(f"waiting for {format_count(len(self.seen.present), 'host')}")
        self._answers("hello", self._limits.hello_s, set(self.seen.present))

    def _clocks(self) -> None:
        """Measure clock offsets as NTP does: of several round trips the shortest is the most exact."""
        self._on_status("comparing clocks")
        for number in range(CLOCK_ROUNDS):
            left_s = time.time()
            for host, answer in self._ask("clock", _CLOCK_S, {"round": number}).items():
                new = _offset(left_s, answer["arrived_s"], answer["left_s"], answer["here_s"])
                best = self.seen.hosts[host].offset
                if best is None or new.uncertainty_s < best.uncertainty_s:
                    self.seen.hosts[host].offset = new

    def _facts(self) -> None:
        self._on_status("looking around on every host")
        for host, answer in self._ask("facts", _FACTS_S).items():
            if self._is_answer(host, "look around", answer):
                self.seen.hosts[host].facts = facts = Facts.from_event(answer)
                if self.seen.interface:
                    with suppress(AllocationError):  # a finding
                        _, self.seen.hosts[host].address = choose_interface("", self.seen.interface, facts.interfaces)

    def _files(self) -> None:
        """Have every host leave a file, look for all of them, and remove its own."""
        self._on_status(f"looking for each other's files in {self.seen.folder}")
        where = {"folder": self.seen.folder, "token": self._token}
        written = [
            host
            for host, answer in self._ask("write", _FILES_S, where).items()
            if self._is_answer(host, f"write to {self.seen.folder}", answer)
        ]
        for host, answer in self._ask("list_files", _FILES_S, {"hosts": written, **where}).items():
            if not self._is_answer(host, f"look into {self.seen.folder}", answer):
                continue
            if strange := set(answer["sees"]) - set(written):
                self._give_up(host, f"sees a file of host number {min(strange)}, which has written none")
            else:
                self.seen.hosts[host].sees = frozenset(answer["sees"])
        self._ask("remove", _FILES_S)  # should this not be reached, every host does it before it leaves

    def _reach(self) -> None:
        """Have all hosts listen, then each try every port of every other."""
        self._on_status("connecting every host with every other")
        addresses = {str(host): self.seen.hosts[host].address for host in self.seen.present}
        wanted = {"token": self._token, "ports": self._ports, "addresses": addresses}
        for host, answer in self._ask("listen", _FACTS_S, wanted).items():
            if self._is_answer(host, "listen on ports", answer):
                row = self.seen.hosts[host]
                row.ports, row.taken, row.has_address = tuple(answer["ports"]), tuple(answer["taken"]), answer["has_address"]
        targets = [
            {"host": host, "address": addresses[str(host)], "ports": self.seen.hosts[host].ports} for host in self._listening()
        ]
        within_s = _REACH_S + _REACH_PER_PORT_S * len(targets) * len(self._ports)
        asked = {(host, port) for host in self._listening() for port in self.seen.hosts[host].ports}
        for host, answer in self._ask("reach", within_s, {"token": self._token, "targets": targets}).items():
            if not self._is_answer(host, "connect to the others", answer):
                continue
            if {(each["to"], each["port"]) for each in answer["reached"]} != {each for each in asked if each[0] != host}:
                self._give_up(host, "tells of other connections than those that it was to try")
            else:
                self.seen.reached += [Reach(host, each["to"], each["port"], each["error"]) for each in answer["reached"]]

        self.seen.reached.sort(key=lambda each: (each.source, each.target, each.port))

    def _trials(self) -> None:
        self._on_status("importing TensorFlow on every host")
        within_s = self._limits.hello_s
        for host, answer in self._ask("trial", within_s + _TRIAL_GRACE_S, {"within_s": within_s}).items():
            fields = {key: answer[key] for key in ("version", "gpus", "import_s", "error") if key in answer}
            self.seen.hosts[host].trial = TensorFlowTrial(**fields, last_lines=tuple(answer.get("last_lines", ())))

    def _links(self) -> None:
        """Last, when nothing else goes on any more."""
        listening = self._listening()
        schedule = rounds(listening)
        self.seen.rounds, self.seen.ring, self.seen.stream_s = len(schedule), len(listening) > FEW, STREAM_S
        closed = {(each.source, each.target) for each in self.seen.reached if each.error}
        found: dict[Pair, HostLink] = {}
        for number, pairs in enumerate(schedule, 1):
            self._on_status(f"measuring links, round {number} of {len(schedule)}")
            found |= self._measure([pair for pair in pairs if pair not in closed])
        slow, _ = far_below({pair: link.bits_per_s or 0.0 for pair, link in found.items()})
        for pairs in split(slow):
            self._on_status("measuring slow links again, in case something else was going on")
            for pair, again in self._measure(pairs).items():
                if (again.bits_per_s or 0.0) > (found[pair].bits_per_s or 0.0):
                    found[pair] = again
        self.seen.links = [found[pair] for pair in sorted(found)]

    def _measure(self, pairs: Sequence[Pair]) -> dict[Pair, HostLink]:
        """Measure one round of pairs."""
        there = self._listening()
        going = {source: target for source, target in pairs if source in there and target in there}
        targets = {
            str(source): {"host": target, "address": self.seen.hosts[target].address, "port": self.seen.hosts[target].ports[0]}
            for source, target in going.items()
        }
        wanted = {"token": self._token, "stream_s": STREAM_S, "pairs": targets}
        found = {}
        for source, answer in self._ask("measure", STREAM_S + _LINK_S, wanted, among=going.keys()).items():
            fields = {key: answer[key] for key in ("round_trip_s", "echoes", "bytes", "counted_s", "error") if key in answer}
            found[source, going[source]] = HostLink(source, going[source], **fields)
        return found

    def _listening(self) -> list[int]:
        return [host for host in self.seen.present if self.seen.hosts[host].ports]

    def _is_answer(self, host: int, what: str, answer: Event) -> bool:
        if error := answer.get("error"):
            self.seen.hosts[host].troubles += (f"cannot {what}: {error}",)
        return not error

    # Lines out and in

    def _send_heartbeats(self, over: threading.Event) -> None:
        with suppress(HostLost):  # the listener notices it, too
            while not over.wait(PING_S):
                self._channel.send(wire.encode({"order": "ping"}))

    def _ask(
        self, question: str, within_s: float, data: Mapping[str, Any] | None = None, *, among: Collection[int] | None = None
    ) -> dict[int, Event]:
        """Return the answers of those that give one in time; the others are missing from then on."""
        asked = set(self.seen.present if among is None else among)
        if not asked:
            return {}
        self._channel.send(wire.encode({"order": question, "only": sorted(asked), **(data or {})}))
        return self._answers(question, within_s, asked)

    def _answers(self, question: str, within_s: float, waiting: set[int]) -> dict[int, Event]:
        found: dict[int, Event] = {}
        deadline = time.monotonic() + within_s
        while waiting := waiting & set(self.seen.present):
            for host, event in self._receive_events():
                if event["event"] == question and host in waiting:
                    found[host] = event
                    waiting.remove(host)
            if time.monotonic() > deadline:
                for host in waiting:
                    self._miss(host, f"no answer within {within_s:g} s ({_QUESTIONS.get(question, question)})")
        return found

    def _receive_events(self) -> list[tuple[int, dict[str, Any]]]:
        """Return all events of a short while; hosts that have been silent for too long become missing."""
        events: list[tuple[int, dict[str, Any]]] = []
        timeout_s = _POLL_S
        enough = time.monotonic() + _BUSY_S
        while time.monotonic() < enough and (arrived := self._channel.receive(timeout_s)) is not None:
            timeout_s = 0.0
            host, line = arrived
            here_s = time.time()
            if host in self._given_up:
                continue
            self._heard[host] = time.monotonic()
            if isinstance(line, Lost):
                self._miss(host, printable(line.description).replace("the agent", "its process"))
                continue
            try:
                if (event := self._receiver.receive(host, line)) is not None:
                    events.append((host, {**event, "here_s": here_s}))
            except MessageError as exc:
                self._give_up(host, str(exc))
        now = time.monotonic()
        for host in self.seen.present:
            if now - self._heard.get(host, now) > self._limits.silence_s:
                how = self._channel.why_silent(host)
                self._miss(host, printable(how.description) if how else f"silent for {self._limits.silence_s:g} s")
        return events

    def _give_up(self, host: int, why: str) -> None:
        """Disconnect a host that has sent what cannot be used."""
        self._given_up.add(host)
        self._miss(host, f"given up, for it {why}")

    def _miss(self, host: int, why: str) -> None:
        row = self.seen.hosts[host]
        row.missing = row.missing or why
        row.last_lines = tuple(self._receiver.last_lines(host)[-_LAST_LINES:])


def _offset(left_s: float, arrived_s: float, answered_s: float, here_s: float) -> Offset:
    """Return the offset of a clock that read `arrived_s` and `answered_s` while this one went from `left_s` to `here_s`."""
    on_the_way_s = here_s - left_s - (answered_s - arrived_s)
    return Offset((arrived_s - left_s + answered_s - here_s) / 2, max(0.0, on_the_way_s) / 2)


HOME = "~"
_FREE_PORTS = [0, 0]  # two that the kernel gives: a task's is one as good as another


def examine(config: ClusterConfig, gpus: int | None, on_status: Callable[[str], object]) -> Diagnosis:
    """Look at the hosts that so many devices need, or at all. Raises `UsageError`, `AllocationError`."""
    with lent_hosts(config, gpus, on_status) as lent:
        hosts = [HostSeen(host.name, host.address, missing=lent.missing.get(i)) for i, host in enumerate(lent.hosts)]
        seen = Diagnosis(
            cluster=config.name,
            hosts=hosts,
            backend=config.backend,
            network=config.backend_keys.get("network"),
            interface=config.interface,
            folder=config.backend_keys.get("shared", HOME),
        )
        ports = sorted(FIRST_FIXED_PORT.values()) if config.fixed_ports else _FREE_PORTS
        if seen.present:
            Examination(lent.channel, seen, config.limits, ports=ports, on_status=on_status).carry_out()
        on_status("giving the hosts back")
    return seen


def read_expectations(config: ClusterConfig) -> Expected:
    """Return the settings of clusters.toml for each host."""
    given = capacity.predict_devices_per_host(config)
    on_gpus = capacity.predict_device(config) == "gpu"
    return Expected(
        gpus=given if on_gpus else None,
        shares=None if on_gpus else given,
        shared_folder="shared" in config.backend_keys,
    )
