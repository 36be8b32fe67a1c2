"""The doctor's checks of hosts, each with a time-out. Hosts that do not answer are left out of the following checks."""

import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from pytest_dtfperf.clusters import capacity
from pytest_dtfperf.clusters.named import ClusterConfig, Limits
from pytest_dtfperf.clusters.placement import FIRST_FIXED_PORT
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
from pytest_dtfperf.messages import Message, MessageError, MessageReceiver
from pytest_dtfperf.messages.programs import (
    CHECKUP,
    CheckupFailure,
    CheckupHello,
    ClockAnswer,
    FactsAnswer,
    FilesAnswer,
    LinkAnswer,
    ListenAnswer,
    ReachAnswer,
    RemoveAnswer,
    TrialAnswer,
    TrialFailure,
    WriteAnswer,
)
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


class _NoAnswer(Message):
    """The type of an answer that no host sends."""


_EXPECTED: Mapping[type[Message], str] = {
    CheckupHello: "its first message",
    ClockAnswer: "its clock",
    FactsAnswer: "its state",
    WriteAnswer: "a file in the folder",
    FilesAnswer: "the files in the folder",
    RemoveAnswer: "a file in the folder",
    ListenAnswer: "ports to listen on",
    ReachAnswer: "connections to the others",
    TrialAnswer: "the import of TensorFlow",
    LinkAnswer: "a link",
    _NoAnswer: "its end",
}

Answer = TypeVar("Answer", bound=Message)


class Examination:
    """The checks of all hosts. The channel's creator closes it.

    `ports` are those on which every host should listen, 0 for a free one.
    """

    def __init__(
        self,
        channel: Channel,
        diagnosis: Diagnosis,
        limits: Limits,
        *,
        ports: Sequence[int],
        on_status: Callable[[str], object],
    ) -> None:
        self.diagnosis = diagnosis
        self._channel = channel
        self._limits = limits
        self._ports = ports
        self._on_status = on_status
        self._token = secrets.token_hex(8)
        self._received_at: dict[int, float] = {}
        self._answered_s: dict[int, float] = {}  # time of the last answer of each host
        self._receiver = MessageReceiver(CHECKUP, len(diagnosis.hosts))
        self._given_up: set[int] = set()

    def run(self) -> None:
        """Run all checks. Returns also when no host is left: `diagnosis` has the reason of each."""
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
                self._collect_answers(_NoAnswer, _LAST_WORDS_S, set(self.diagnosis.present))

    # Checks

    def _wait_for_hello(self) -> None:
        self._on_status(f"waiting for {format_count(len(self.diagnosis.present), 'host')}")
        self._collect_answers(CheckupHello, self._limits.hello_s, set(self.diagnosis.present))

    def _compare_clocks(self) -> None:
        """Measure clock offsets as NTP does: the shortest of several round trips is the most exact."""
        self._on_status("comparing clocks")
        for number in range(CLOCK_ROUNDS):
            left_s = time.time()
            for host, answer in self._ask("clock", ClockAnswer, _CLOCK_S, {"round": number}).items():
                if isinstance(answer, CheckupFailure):
                    continue
                new = _compute_offset(left_s, answer.arrived_s, answer.left_s, self._answered_s[host])
                best = self.diagnosis.hosts[host].offset
                if best is None or new.uncertainty_s < best.uncertainty_s:
                    self.diagnosis.hosts[host].offset = new

    def _read_facts(self) -> None:
        self._on_status("reading the state of every host")
        for host, answer in self._note_failures("read its state", self._ask("facts", FactsAnswer, _FACTS_S)).items():
            self.diagnosis.hosts[host].facts = facts = HostFacts.from_message(answer)
            if self.diagnosis.interface:
                with suppress(AllocationError):  # findings.py reports it
                    _, self.diagnosis.hosts[host].address = choose_interface("", self.diagnosis.interface, facts.interfaces)

    def _compare_files(self) -> None:
        """Let every host write a file, search those of all hosts, and remove its own."""
        folder = self.diagnosis.folder
        self._on_status(f"comparing the files in {folder}")
        where = {"folder": folder, "token": self._token}
        written = list(self._note_failures(f"write to {folder}", self._ask("write", WriteAnswer, _FILES_S, where)))
        listed = self._ask("list_files", FilesAnswer, _FILES_S, {"hosts": written, **where})
        for host, answer in self._note_failures(f"read {folder}", listed).items():
            if strange := set(answer.sees) - set(written):
                self._give_up(host, f"sees a file of host number {min(strange)}, which has written none")
            else:
                self.diagnosis.hosts[host].sees = frozenset(answer.sees)
        self._ask("remove", RemoveAnswer, _FILES_S)  # hosts also do this when they exit

    def _test_ports(self) -> None:
        """Let all hosts listen, and then try every port of every other host."""
        self._on_status("connecting every host with every other")
        addresses = {str(host): self.diagnosis.hosts[host].address for host in self.diagnosis.present}
        wanted = {"token": self._token, "ports": self._ports, "addresses": addresses}
        listening = self._ask("listen", ListenAnswer, _FACTS_S, wanted)
        for host, answer in self._note_failures("listen on ports", listening).items():
            row = self.diagnosis.hosts[host]
            row.ports, row.taken, row.has_address = tuple(answer.ports), tuple(answer.taken), answer.has_address
        targets = [
            {"host": host, "address": addresses[str(host)], "ports": self.diagnosis.hosts[host].ports}
            for host in self._list_listening()
        ]
        within_s = _REACH_S + _REACH_PER_PORT_S * len(targets) * len(self._ports)
        asked = {(host, port) for host in self._list_listening() for port in self.diagnosis.hosts[host].ports}
        reached = self._ask("reach", ReachAnswer, within_s, {"token": self._token, "targets": targets})
        for host, attempts in self._note_failures("connect to the others", reached).items():
            if {(each.to, each.port) for each in attempts.reached} != {each for each in asked if each[0] != host}:
                self._give_up(host, "reported other connections than the requested ones")
            else:
                self.diagnosis.reached += [PortAttempt(host, each.to, each.port, each.error) for each in attempts.reached]
        self.diagnosis.reached.sort(key=lambda each: (each.source, each.target, each.port))

    def _import_tensorflow(self) -> None:
        self._on_status("importing TensorFlow on every host")
        within_s = self._limits.hello_s
        for host, answer in self._ask("trial", TrialAnswer, within_s + _TRIAL_GRACE_S, {"within_s": within_s}).items():
            if isinstance(answer, CheckupFailure):
                lines = tuple(answer.last_lines) if isinstance(answer, TrialFailure) else ()
                self.diagnosis.hosts[host].trial = TensorFlowTrial(error=answer.error, last_lines=lines)
            else:
                self.diagnosis.hosts[host].trial = TensorFlowTrial(answer.version, answer.gpus, answer.import_s)

    def _measure_links(self) -> None:
        """Measure all links. This is the last check, when nothing else runs on the hosts."""
        listening = self._list_listening()
        schedule = make_rounds(listening)
        self.diagnosis.rounds, self.diagnosis.ring = len(schedule), len(listening) > FEW
        closed = {(each.source, each.target) for each in self.diagnosis.reached if each.error}
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
        self.diagnosis.links = [found[pair] for pair in sorted(found)]

    def _measure_round(self, pairs: Sequence[Pair]) -> dict[Pair, HostLink]:
        hosts, listening = self.diagnosis.hosts, self._list_listening()
        going = {source: target for source, target in pairs if source in listening and target in listening}
        targets = {
            str(source): {"host": target, "address": hosts[target].address, "port": hosts[target].ports[0]}
            for source, target in going.items()
        }
        wanted = {"token": self._token, "stream_s": STREAM_S, "pairs": targets}
        found = {}
        for source, answer in self._ask("measure", LinkAnswer, STREAM_S + _LINK_S, wanted, hosts=going.keys()).items():
            target = going[source]
            if isinstance(answer, CheckupFailure):
                found[source, target] = HostLink(source, target, error=answer.error)
            else:
                values = (answer.round_trip_s, answer.echoes, answer.bytes, answer.counted_s)
                found[source, target] = HostLink(source, target, *values)
        return found

    def _list_listening(self) -> list[int]:
        return [host for host in self.diagnosis.present if self.diagnosis.hosts[host].ports]

    def _note_failures(self, what: str, answers: Mapping[int, Answer | CheckupFailure]) -> dict[int, Answer]:
        """Return the answers without the failures, and note these as troubles of their hosts."""
        found = {}
        for host, answer in answers.items():
            if isinstance(answer, CheckupFailure):
                self.diagnosis.hosts[host].troubles += (f"cannot {what}: {answer.error}",)
            else:
                found[host] = answer
        return found

    # Lines out and in

    def _ask(
        self,
        question: str,
        kind: type[Answer],
        within_s: float,
        data: Mapping[str, Any] | None = None,
        *,
        hosts: Collection[int] | None = None,
    ) -> dict[int, Answer | CheckupFailure]:
        """Return the answers of a kind, or failures, that arrive in time. Hosts without one are missing from then on."""
        asked = set(self.diagnosis.present if hosts is None else hosts)
        if not asked:
            return {}
        self._channel.send(wire.encode({"order": question, "only": sorted(asked), **(data or {})}))
        return self._collect_answers(kind, within_s, asked, may_fail=True)

    def _collect_answers(
        self, kind: type[Answer], within_s: float, waiting: set[int], *, may_fail: bool = False
    ) -> dict[int, Answer | CheckupFailure]:
        found: dict[int, Answer | CheckupFailure] = {}
        deadline = time.monotonic() + within_s
        while waiting := waiting & set(self.diagnosis.present):
            for message, here_s in self._receive_messages():
                if message.host not in waiting:
                    continue
                if isinstance(message, kind) or (may_fail and isinstance(message, CheckupFailure)):
                    found[message.host], self._answered_s[message.host] = message, here_s
                    waiting.remove(message.host)
            if time.monotonic() > deadline:
                for host in waiting:
                    self._mark_missing(host, f"no answer within {within_s:g} s ({_EXPECTED[kind]})")
        return found

    def _receive_messages(self) -> list[tuple[Message, float]]:
        """Return all messages of a short time with their times; hosts that are silent for too long become missing."""
        messages: list[tuple[Message, float]] = []
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
                if (message := self._receiver.receive(host, line)) is not None:
                    messages.append((message, here_s))
            except MessageError as exc:
                self._give_up(host, str(exc))
        now = time.monotonic()
        for host in self.diagnosis.present:
            if now - self._received_at.get(host, now) > self._limits.silence_s:
                how = self._channel.explain_silence(host)
                self._mark_missing(host, printable(how.description) if how else f"silent for {self._limits.silence_s:g} s")
        return messages

    def _give_up(self, host: int, why: str) -> None:
        """Disconnect a host that has sent an invalid message."""
        self._given_up.add(host)
        self._mark_missing(host, f"disconnected because it {why}")

    def _mark_missing(self, host: int, why: str) -> None:
        row = self.diagnosis.hosts[host]
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
        diagnosis = Diagnosis(
            cluster=config.name,
            hosts=hosts,
            backend=config.backend,
            network=config.backend_keys.get("network"),
            interface=config.interface,
            folder=config.backend_keys.get("shared", HOME),
        )
        ports = sorted(FIRST_FIXED_PORT.values()) if config.fixed_ports else _FREE_PORTS
        if diagnosis.present:
            Examination(allocated.channel, diagnosis, config.limits, ports=ports, on_status=on_status).run()
        on_status("releasing the hosts")
    return diagnosis


def read_expectations(config: ClusterConfig) -> ExpectedHardware:
    """Return the settings of clusters.toml for each host."""
    given = capacity.predict_devices_per_host(config)
    on_gpus = capacity.predict_device(config) == "gpu"
    return ExpectedHardware(
        gpus=given if on_gpus else None,
        shares=None if on_gpus else given,
        shared_folder="shared" in config.backend_keys,
    )
