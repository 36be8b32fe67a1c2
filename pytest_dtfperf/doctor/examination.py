"""The doctor's checks of hosts, each with a time-out. Hosts that do not answer are left out of the following checks."""

import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

from pytest_dtfperf.clusters import capacity
from pytest_dtfperf.clusters.named import ClusterConfig, Limits
from pytest_dtfperf.clusters.protocol import Channel, Lost, send_heartbeats
from pytest_dtfperf.doctor.allocation import allocate_hosts
from pytest_dtfperf.doctor.diagnosis import (
    ClockOffset,
    Diagnosis,
    HostDiagnosis,
    HostFacts,
    HostLink,
    PortAttempt,
    TensorFlowTrial,
    find_slow_links,
)
from pytest_dtfperf.doctor.findings import ExpectedHardware
from pytest_dtfperf.errors import AllocationError, HostLost
from pytest_dtfperf.formats import format_count, printable
from pytest_dtfperf.launch.exposure import choose_interface
from pytest_dtfperf.launch.link_rounds import FEW, Pair, make_rounds, split
from pytest_dtfperf.launch.placement import FIRST_FIXED_PORT
from pytest_dtfperf.messages.received import MessageError, MessageReceiver
from pytest_dtfperf.messages.tables import CHECKUP
from pytest_dtfperf.node import wire

CLOCK_ROUNDS = 10
STREAM_S = 1.0
_CLOCK_S = 10.0
_FACTS_S = 60.0  # nvidia-smi may take 20 s
_FILES_S = 30.0  # file servers may be slow
_LINK_S = 45.0  # besides the stream itself: longer than the time-outs of its steps
_REACH_S = 60.0
_REACH_PER_PORT_S = 0.25  # 64 are tried at once, each for up to 15 s
_TRIAL_GRACE_S = 15.0  # the host itself ends a slow import, and reports it
_LAST_LINES = 5
_LAST_WORDS_S = 10.0
_POLL_S = 0.1
_BUSY_S = 1.0  # the longest time of receiving without a check of time-outs
_QUESTIONS = {
    "hello": "its first message",
    "clock": "its clock",
    "facts": "its state",
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
    """The checks of all hosts. The channel's creator closes it.

    `ports` are those on which every host should listen, 0 for a free one.
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
        self._received_at: dict[int, float] = {}
        self._receiver = MessageReceiver(CHECKUP, len(seen.hosts))
        self._given_up: set[int] = set()

    def run(self) -> None:
        """Run all checks. Returns also when no host is left: `seen` has the reason of each."""
        with send_heartbeats(self._channel):
            try:
                self._wait_for_hello()
                self._compare_clocks()
                self._read_facts()
                self._compare_files()
                self._test_ports()
                self._import_tensorflow()
                self._measure_links()
            except HostLost:  # the last host: each has its own reason by now
                self._collect_answers("its end", _LAST_WORDS_S, set(self.seen.present))

    # Checks

    def _wait_for_hello(self) -> None:
        self._on_status(f"waiting for {format_count(len(self.seen.present), 'host')}")
        self._collect_answers("hello", self._limits.hello_s, set(self.seen.present))

    def _compare_clocks(self) -> None:
        """Measure clock offsets as NTP does: the shortest of several round trips is the most exact."""
        self._on_status("comparing clocks")
        for number in range(CLOCK_ROUNDS):
            left_s = time.time()
            for host, answer in self._ask("clock", _CLOCK_S, {"round": number}).items():
                new = _compute_offset(left_s, answer["arrived_s"], answer["left_s"], answer["here_s"])
                best = self.seen.hosts[host].offset
                if best is None or new.uncertainty_s < best.uncertainty_s:
                    self.seen.hosts[host].offset = new

    def _read_facts(self) -> None:
        self._on_status("reading the state of every host")
        for host, answer in self._ask("facts", _FACTS_S).items():
            if self._is_answer(host, "read its state", answer):
                self.seen.hosts[host].facts = facts = HostFacts.from_event(answer)
                if self.seen.interface:
                    with suppress(AllocationError):  # findings.py reports it
                        _, self.seen.hosts[host].address = choose_interface("", self.seen.interface, facts.interfaces)

    def _compare_files(self) -> None:
        """Let every host write a file, search those of all hosts, and remove its own."""
        self._on_status(f"comparing the files in {self.seen.folder}")
        where = {"folder": self.seen.folder, "token": self._token}
        written = [
            host
            for host, answer in self._ask("write", _FILES_S, where).items()
            if self._is_answer(host, f"write to {self.seen.folder}", answer)
        ]
        for host, answer in self._ask("list_files", _FILES_S, {"hosts": written, **where}).items():
            if not self._is_answer(host, f"read {self.seen.folder}", answer):
                continue
            if strange := set(answer["sees"]) - set(written):
                self._give_up(host, f"sees a file of host number {min(strange)}, which has written none")
            else:
                self.seen.hosts[host].sees = frozenset(answer["sees"])
        self._ask("remove", _FILES_S)  # hosts also do this when they exit

    def _test_ports(self) -> None:
        """Let all hosts listen, and then try every port of every other host."""
        self._on_status("connecting every host with every other")
        addresses = {str(host): self.seen.hosts[host].address for host in self.seen.present}
        wanted = {"token": self._token, "ports": self._ports, "addresses": addresses}
        for host, answer in self._ask("listen", _FACTS_S, wanted).items():
            if self._is_answer(host, "listen on ports", answer):
                row = self.seen.hosts[host]
                row.ports, row.taken, row.has_address = tuple(answer["ports"]), tuple(answer["taken"]), answer["has_address"]
        targets = [
            {"host": host, "address": addresses[str(host)], "ports": self.seen.hosts[host].ports}
            for host in self._list_listening()
        ]
        within_s = _REACH_S + _REACH_PER_PORT_S * len(targets) * len(self._ports)
        asked = {(host, port) for host in self._list_listening() for port in self.seen.hosts[host].ports}
        for host, answer in self._ask("reach", within_s, {"token": self._token, "targets": targets}).items():
            if not self._is_answer(host, "connect to the others", answer):
                continue
            if {(each["to"], each["port"]) for each in answer["reached"]} != {each for each in asked if each[0] != host}:
                self._give_up(host, "reported other connections than the requested ones")
            else:
                self.seen.reached += [PortAttempt(host, each["to"], each["port"], each["error"]) for each in answer["reached"]]

        self.seen.reached.sort(key=lambda each: (each.source, each.target, each.port))

    def _import_tensorflow(self) -> None:
        self._on_status("importing TensorFlow on every host")
        within_s = self._limits.hello_s
        for host, answer in self._ask("trial", within_s + _TRIAL_GRACE_S, {"within_s": within_s}).items():
            fields = {key: answer[key] for key in ("version", "gpus", "import_s", "error") if key in answer}
            self.seen.hosts[host].trial = TensorFlowTrial(**fields, last_lines=tuple(answer.get("last_lines", ())))

    def _measure_links(self) -> None:
        """Measure all links. This is the last check, when nothing else runs on the hosts."""
        listening = self._list_listening()
        schedule = make_rounds(listening)
        self.seen.rounds, self.seen.ring, self.seen.stream_s = len(schedule), len(listening) > FEW, STREAM_S
        closed = {(each.source, each.target) for each in self.seen.reached if each.error}
        found: dict[Pair, HostLink] = {}
        for number, pairs in enumerate(schedule, 1):
            self._on_status(f"measuring links, round {number} of {len(schedule)}")
            found |= self._measure_round([pair for pair in pairs if pair not in closed])
        slow, _ = find_slow_links({pair: link.bits_per_s or 0.0 for pair, link in found.items()})
        for pairs in split(slow):
            self._on_status("measuring slow links again, in case other traffic slowed them")
            for pair, again in self._measure_round(pairs).items():
                if (again.bits_per_s or 0.0) > (found[pair].bits_per_s or 0.0):
                    found[pair] = again
        self.seen.links = [found[pair] for pair in sorted(found)]

    def _measure_round(self, pairs: Sequence[Pair]) -> dict[Pair, HostLink]:
        """Measure one round of pairs."""
        there = self._list_listening()
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

    def _list_listening(self) -> list[int]:
        return [host for host in self.seen.present if self.seen.hosts[host].ports]

    def _is_answer(self, host: int, what: str, answer: Event) -> bool:
        if error := answer.get("error"):
            self.seen.hosts[host].troubles += (f"cannot {what}: {error}",)
        return not error

    # Lines out and in

    def _ask(
        self, question: str, within_s: float, data: Mapping[str, Any] | None = None, *, among: Collection[int] | None = None
    ) -> dict[int, Event]:
        """Return the answers that arrive in time. Hosts without one are missing from then on."""
        asked = set(self.seen.present if among is None else among)
        if not asked:
            return {}
        self._channel.send(wire.encode({"order": question, "only": sorted(asked), **(data or {})}))
        return self._collect_answers(question, within_s, asked)

    def _collect_answers(self, question: str, within_s: float, waiting: set[int]) -> dict[int, Event]:
        found: dict[int, Event] = {}
        deadline = time.monotonic() + within_s
        while waiting := waiting & set(self.seen.present):
            for host, event in self._receive_events():
                if event["event"] == question and host in waiting:
                    found[host] = event
                    waiting.remove(host)
            if time.monotonic() > deadline:
                for host in waiting:
                    self._mark_missing(host, f"no answer within {within_s:g} s ({_QUESTIONS.get(question, question)})")
        return found

    def _receive_events(self) -> list[tuple[int, dict[str, Any]]]:
        """Return all events of a short time; hosts that have been silent for too long become missing."""
        events: list[tuple[int, dict[str, Any]]] = []
        timeout_s = _POLL_S
        enough = time.monotonic() + _BUSY_S
        while time.monotonic() < enough and (arrived := self._channel.receive(timeout_s)) is not None:
            timeout_s = 0.0
            host, line = arrived
            here_s = time.time()
            if host in self._given_up:
                continue
            self._received_at[host] = time.monotonic()
            if isinstance(line, Lost):
                self._mark_missing(host, printable(line.description).replace("the agent", "its process"))
                continue
            try:
                if (event := self._receiver.receive(host, line)) is not None:
                    events.append((host, {**event, "here_s": here_s}))
            except MessageError as exc:
                self._give_up(host, str(exc))
        now = time.monotonic()
        for host in self.seen.present:
            if now - self._received_at.get(host, now) > self._limits.silence_s:
                how = self._channel.explain_silence(host)
                self._mark_missing(host, printable(how.description) if how else f"silent for {self._limits.silence_s:g} s")
        return events

    def _give_up(self, host: int, why: str) -> None:
        """Disconnect a host that has sent an invalid message."""
        self._given_up.add(host)
        self._mark_missing(host, f"disconnected because it {why}")

    def _mark_missing(self, host: int, why: str) -> None:
        row = self.seen.hosts[host]
        row.missing = row.missing or why
        row.last_lines = tuple(self._receiver.last_lines(host)[-_LAST_LINES:])


def _compute_offset(left_s: float, arrived_s: float, answered_s: float, here_s: float) -> ClockOffset:
    """Return the offset of a clock that read `arrived_s` and `answered_s` while this one went from `left_s` to `here_s`."""
    on_the_way_s = here_s - left_s - (answered_s - arrived_s)
    return ClockOffset((arrived_s - left_s + answered_s - here_s) / 2, max(0.0, on_the_way_s) / 2)


HOME = "~"
_FREE_PORTS = [0, 0]  # two ports that the kernel chooses


def examine(config: ClusterConfig, gpus: int | None, on_status: Callable[[str], object]) -> Diagnosis:
    """Check the hosts that so many devices need, or all. Raises `UsageError`, `AllocationError`."""
    with allocate_hosts(config, gpus, on_status) as allocated:
        hosts = [
            HostDiagnosis(host.name, host.address, missing=allocated.missing.get(i)) for i, host in enumerate(allocated.hosts)
        ]
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
            Examination(allocated.channel, seen, config.limits, ports=ports, on_status=on_status).run()
        on_status("releasing the hosts")
    return seen


def read_expectations(config: ClusterConfig) -> ExpectedHardware:
    """Return the settings of clusters.toml for each host."""
    given = capacity.predict_devices_per_host(config)
    on_gpus = capacity.predict_device(config) == "gpu"
    return ExpectedHardware(
        gpus=given if on_gpus else None,
        shares=None if on_gpus else given,
        shared_folder="shared" in config.backend_keys,
    )
