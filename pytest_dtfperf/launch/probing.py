"""Probes of hosts and the links between them, without a training, by a task on each, in phases.

    "compute"    all hosts at the same time: arithmetic, memory, input (training/probing.py)
    "listen"     all hosts
    "round N"    links: those of one round share no host, except in one fan (link_rounds.py)

A failure affects only its own number, which is then unknown, with the reason. An answer counts only if it was requested, and
only once: a host that sends anything else loses all of its answers.

Readings of hosts and links that another session took within the hour are used again. A reading of a host is valid until its
kernel starts again, for the same cores, GPUs and Python; a reading of a link for the same set of such hosts. Readings that
other processes disturbed are not kept.
"""

import hashlib
import re
import secrets
import statistics
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from pytest_dtfperf.clusters import answer_cache
from pytest_dtfperf.clusters.named import ClusterConfig, get_python
from pytest_dtfperf.clusters.placement import FIRST_FIXED_PORT, HostView, place
from pytest_dtfperf.clusters.protocol import LossReason
from pytest_dtfperf.codec import ValidationError
from pytest_dtfperf.datamodel.host_state import HostState
from pytest_dtfperf.datamodel.probes import HostProbe, Link, Probes, Reading, make_link_name
from pytest_dtfperf.errors import HostLost
from pytest_dtfperf.explain.probes import LINK, READING_NAMES, is_disturbed, merge_probes
from pytest_dtfperf.launch import exposure, link_rounds
from pytest_dtfperf.launch.agents import GPU_ORDER, Agents, group_tasks_by_host, make_task_order
from pytest_dtfperf.launch.disturbance import LEAST_S, compute_others_s, group_by_machine
from pytest_dtfperf.launch.link_rounds import Fan, Round
from pytest_dtfperf.launch.watch import AgentLoss, Event, format_loss
from pytest_dtfperf.messages import MessageError
from pytest_dtfperf.messages.agent import (
    DoneMessage,
    ExitMessage,
    FactsMessage,
    ForwardedMessage,
    ReadingMessage,
    ReadyMessage,
    RefusedMessage,
    ReservedMessage,
    StoppedMessage,
    StreamEntry,
    StreamMessage,
    ZygoteDeathMessage,
)
from pytest_dtfperf.spec import Spec

# The bytes of a link are counted in parts: as many as needed to show their spread.
PARTS, PART_S = 4, 0.1
MOST_SPREAD = 1e6  # the maximum in records, for a link with almost no throughput

Stream = tuple[int, int, int]  # round, from, to


@dataclass
class _HostAnswers:
    """The answers of one host."""

    readings: dict[str, Reading] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)
    facts: FactsMessage | None = None


class Answers:
    """The answers of the hosts of one probe, by their numbers among all."""

    def __init__(self, hosts: Sequence[HostView], rounds: Sequence[Round]) -> None:
        self._hosts = hosts
        self._rounds = rounds
        self._host_answers = [_HostAnswers() for _ in hosts]
        self._streams: dict[Stream, Sequence[StreamEntry] | str] = {}  # the parts of each, or why there are none
        self._expected = {(n, *pair) for n, each in enumerate(rounds) for fan in each for pair in fan.streams}
        self._lost: dict[int, str] = {}

    def receive(self, message: ForwardedMessage) -> None:
        """Process a message of a task. Raises `MessageError` for an unexpected one: its host must then be treated as lost."""
        match message:
            case ReadingMessage():
                self._note_reading(message)
            case FactsMessage():
                if self._host_answers[message.host].facts:
                    raise MessageError("reported its limits twice")
                self._host_answers[message.host].facts = message
            case StreamMessage():
                self._note_stream(message)

    def lose(self, host: int, why: str, *, lied: bool = False) -> None:
        """Expect no more answers of a host. If it violated the protocol (`lied`), discard its earlier ones, too."""
        self._lost.setdefault(host, why)
        if lied:
            self._host_answers[host] = _HostAnswers()
            self._streams = {stream: results for stream, results in self._streams.items() if host not in stream[1:]}

    def is_lost(self, host: int) -> bool:
        return host in self._lost

    def collect_probes(self, seconds: float) -> Probes:
        """Return all answers so far."""
        names = [host.name for host in self._hosts]
        known = {name: answers.facts.state for name, answers in zip(names, self._host_answers, strict=True) if answers.facts}
        states = group_by_machine(known)
        hosts = {
            names[at]: self._make_host_probe(at, states)
            for at, answers in enumerate(self._host_answers)
            if answers.readings or answers.unknown
        }
        fans = {fan.link(names): self._make_link(number, fan) for number, each in enumerate(self._rounds) for fan in each}
        return Probes(
            hosts=hosts,
            links={name: found for name, found in fans.items() if isinstance(found, Link)},
            unknown={
                **{names[at]: why for at, why in self._lost.items()},
                **{name: why for name, why in fans.items() if isinstance(why, str)},
            },
            seconds=round(seconds, 3),
        )

    def _note_reading(self, message: ReadingMessage) -> None:
        host, name = message.host, message.name
        answers = self._host_answers[host]
        if not _is_asked(name, self._hosts[host]) or name in answers.readings or name in answers.unknown:
            raise MessageError(f"reported a {name!r} that was not requested")
        if message.reading is not None:
            answers.readings[name] = message.reading
        else:
            answers.unknown[name] = message.error or "it gives no reason"

    def _note_stream(self, message: StreamMessage) -> None:
        stream = (message.round, message.host, message.to)
        if stream not in self._expected or stream in self._streams:
            raise MessageError(f"reported a stream to host number {message.to} that was not requested")
        if message.error is None and len(message.parts) != PARTS:
            raise MessageError(f"reported {len(message.parts)} parts of a stream that has {PARTS}")
        self._streams[stream] = message.parts if message.error is None else message.error

    def _make_host_probe(self, host: int, states: Mapping[str, Mapping[str, HostState]]) -> HostProbe:
        answers, name = self._host_answers[host], self._hosts[host].name
        facts = answers.facts
        return HostProbe(
            readings=answers.readings,
            clock_hz=facts.clock_hz if facts else None,
            most_clock_hz=facts.most_clock_hz if facts else None,
            limits=facts.limits if facts else {},
            others_cores=_count_others_cores(name, states[name]) if name in states else None,
            unknown=answers.unknown,
        )

    def _make_link(self, number: int, fan: Fan) -> Link | str:
        """Return the throughput, or the reason why it is unknown."""
        rates: dict[tuple[int, int], list[float]] = {}
        for source, target in fan.streams:
            result = self._streams.get((number, source, target))
            if result is None or isinstance(result, str):
                name = make_link_name(self._hosts[source].name, self._hosts[target].name)
                return f"{name}: {result or self._explain_missing(source, target)}"
            rates[source, target] = [part.bytes / part.counted_s for part in result]
        sums = [sum(parts) for parts in zip(*rates.values(), strict=True)]
        per_s = statistics.median(sums)
        if per_s <= 0:
            return f"nothing went through for {PARTS * PART_S:g} s"
        return Link(
            per_s=per_s,
            spread=min(MOST_SPREAD, (max(sums) - min(sums)) / 2 / per_s),
            repeats=PARTS,
            how={"streams": _count_streams(fan), "seconds": PARTS * PART_S},
            streams={
                self._hosts[other].name: statistics.median(parts)
                for pair, parts in rates.items()
                if (other := fan.find_other_host(pair)) is not None
            },
        )

    def _explain_missing(self, *hosts: int) -> str:
        return next((self._lost[host] for host in hosts if host in self._lost), "it was not measured")


def _count_streams(fan: Fan) -> int:
    """Return the number of simultaneous TCP streams, of all pairs of hosts."""
    return sum(fan.count_connections().values())


def _is_asked(name: str, host: HostView) -> bool:
    found = re.fullmatch(r"gpu\.(\d+)\.(matmul|convolution)", name, re.ASCII)
    return int(found[1]) < len(host.gpus) if found else name in READING_NAMES and name != LINK


def _count_others_cores(host: str, states: Mapping[str, HostState]) -> float | None:
    """Return the cores that other processes use; None under a quota, because cores are then shared without loss."""
    state = states[host]
    if state.quota:
        return None
    return round(compute_others_s(host, states) / max(state.window_s, LEAST_S), 3)


CAPACITY_FAMILIES = ("core", "cores", "gpu", "memory")  # of readings in training/probing.py
ALL_FAMILIES = (*CAPACITY_FAMILIES, "input")  # how fast the data of the training is read and decoded, if it has any


@dataclass(frozen=True)
class Deadlines:
    """Time limits of the phases, for all hosts of each."""

    compute_s: float = 90.0  # an idle host without GPUs takes four; each part of it has a lower limit of its own
    listen_s: float = 5.0
    round_s: float = 10.0  # usually 0.8


USUAL = Deadlines()


class Probing:
    """One probe: call `carry_out`, then `stop` in any case, then `collect_probes`."""

    def __init__(
        self,
        agents: Agents,
        config: ClusterConfig,
        spec: Spec,
        *,
        known: Probes | None = None,
        pairs: bool = False,
        rounds: Sequence[Round] | None = None,
        cold_input: bool = False,
        families: Sequence[str] = ALL_FAMILIES,
        deadlines: Deadlines = USUAL,
    ) -> None:
        """Prepare a probe of the hosts and links of a training.

        Args:
            known: results that are not measured again.
            pairs: measure each link by itself, too.
            rounds: of links; by default those that the training uses.
            cold_input: drop the data's files from the page cache before.
            families: of readings that are measured of hosts.

        Raises:
            SpecError: the hosts have no room for the training.
        """
        self.id = uuid.uuid4().hex[:12]
        self._agents, self._config, self._spec, self._deadlines = agents, config, spec, deadlines
        self._known = known or Probes()
        self._families, self._cold_input = families, cold_input
        self._clock = agents.clock
        self._began = self._clock()
        self._tasks = place(spec, agents.hosts, config)
        self._tasks_at = group_tasks_by_host(self._tasks)
        self._hosts = {at: agents.hosts[at] for at in sorted(self._tasks_at)}
        self._wanted = {at: wanted for at, host in self._hosts.items() if (wanted := self._list_wanted_families(host.name))}
        self._names = [host.name for host in agents.hosts]
        all_rounds = link_rounds.plan_fans(self._tasks, pairs=pairs) if rounds is None else rounds
        self._links = {fan.link(self._names) for each in all_rounds for fan in each}
        new = ([fan for fan in each if not self._is_known(fan)] for each in all_rounds)
        self._rounds = [each for each in new if each]
        self._answers = Answers(agents.hosts, self._rounds)
        self._ports: dict[int, int] = {}
        self._ready: set[int] = set()
        self._done: dict[int, str] = {}  # the last phase of each host
        self._quiet: set[int] = set()

    @property
    def is_needed(self) -> bool:
        """Whether anything is unknown."""
        return bool(self._wanted or self._rounds)

    @property
    def all_quiet(self) -> bool:
        """Whether every host has ended the probe's processes, and can be trained on."""
        return self._quiet == {*range(len(self._agents.hosts))}

    def carry_out(self) -> None:
        """Run all phases. Raises `HostLost` when no host is left, `AllocationError` if ports would be public."""
        self._agents.expect(self.id, {_get_task(host): host for host in self._hosts})
        if self._rounds:
            self._reserve()
        self._start()
        self._lead("compute", self._wanted, self._deadlines.compute_s)
        if self._rounds:
            self._lead("listen", self._hosts, self._deadlines.listen_s)
        for number, each in enumerate(self._rounds):
            self._lead(f"round {number}", {source for fan in each for source, _ in fan.streams}, self._deadlines.round_s)

    def stop(self) -> None:
        """End what is left of the probe on all hosts that still listen."""
        with suppress(HostLost):
            self._order("stop", grace_s=0.0)
            self._listen(lambda: self.all_quiet, self._config.limits.stop_s)

    def collect_probes(self) -> Probes:
        """Return what is known of the training's hosts and links, from this probe and those before."""
        found = merge_probes(self._known, self._answers.collect_probes(self._clock() - self._began))
        hosts = {host.name for host in self._hosts.values()}
        return replace(
            found,
            hosts={name: probe for name, probe in found.hosts.items() if name in hosts},
            links={name: link for name, link in found.links.items() if name in self._links},
        )

    def _list_wanted_families(self, host: str) -> Sequence[str]:
        """Return the families of readings that are to be measured of a host."""
        probe = self._known.hosts.get(host)
        if probe is None:
            return [family for family in self._families if family != "input" or self._brings_images]
        how = probe.readings["input"].how if "input" in probe.readings else {}
        is_known = (how.get("data"), how.get("model")) == (self._spec.data, self._spec.model)
        return [] if is_known or not self._brings_images else ["input"]

    def _is_known(self, fan: Fan) -> bool:
        link = self._known.links.get(fan.link(self._names))
        return link is not None and link.how.get("streams") == _count_streams(fan)

    @property
    def _brings_images(self) -> bool:
        return "input" in self._families and self._spec.data != "synthetic" and not self._spec.command

    # Phases

    def _reserve(self) -> None:
        """Reserve a port for streams on each host."""
        exposure.check(self._config, self._hosts.values())
        wanted: dict[str, Any] = {"ports": [FIRST_FIXED_PORT["worker"]]} if self._config.fixed_ports else {"count": 1}
        peers = exposure.find_peers(self._config, self._agents.hosts)
        self._order("reserve", hosts={str(host): wanted for host in self._hosts}, isolated=self._isolated, peers=peers)
        self._wait("a port", self._hosts, lambda host: host in self._ports, self._config.limits.reserve_s)

    def _start(self) -> None:
        rounds = [_make_targets(each) for each in self._rounds]
        addresses = {str(at): {"address": host.address, "port": self._ports.get(at, 0)} for at, host in self._hosts.items()}
        probe = {"token": secrets.token_hex(8), "rounds": rounds, "addresses": addresses, "parts": PARTS, "part_s": PART_S}
        tasks = [self._make_task_order(host) for host in self._list_remaining_hosts(self._hosts)]
        cold = self._config.start == "cold"
        common = {"run": self.id, "probe": probe}
        self._order("start", cold=cold, isolated=self._isolated, free_ports=True, common=common, env=GPU_ORDER, tasks=tasks)
        self._wait("its first message", self._hosts, lambda host: host in self._ready, self._config.limits.ready_s)

    def _make_task_order(self, host: int) -> dict[str, Any]:
        """Return the part of the order for the task of this host."""
        gpus = self._hosts[host].gpus if any(task.gpus for task in self._tasks_at[host]) else ()
        worker = next((task for task in self._tasks_at[host] if task.job == "worker"), None)
        order = make_task_order(worker, self.id, self._spec) if worker and self._brings_images else None
        own = {"host": host, "port": self._ports.get(host, 0), "gpus": len(gpus), "input": order}
        cpus = list(worker.cpus) if worker and self._spec.cpu_affinity else []
        return {
            "host": host,
            "task": _get_task(host),
            "order": {**own, "families": self._wanted.get(host, []), "input_cpus": cpus, "cold_input": self._cold_input},
            "env": {"CUDA_VISIBLE_DEVICES": ",".join(gpus)},
            "cpus": [],
        }

    def _lead(self, phase: str, hosts: Collection[int], within_s: float) -> None:
        if left := self._list_remaining_hosts(hosts):
            self._order("notify", tasks=[_get_task(host) for host in left], word=phase)
            self._wait(phase, left, lambda host: self._done.get(host) == phase, within_s)

    @property
    def _isolated(self) -> bool:
        return exposure.may_be_isolated(self._spec)

    def _order(self, order: str, **data: Any) -> None:
        self._agents.order(order, run=self.id, **data)

    # Events

    def _list_remaining_hosts(self, hosts: Iterable[int]) -> list[int]:
        return [host for host in hosts if not self._answers.is_lost(host)]

    def _wait(self, what: str, hosts: Collection[int], has: Callable[[int], bool], within_s: float) -> None:
        """Wait until all remaining hosts have it; those that do not in time are lost."""
        self._listen(lambda: all(map(has, self._list_remaining_hosts(hosts))), within_s)
        for host in self._list_remaining_hosts(hosts):
            if not has(host):
                self._answers.lose(host, f"no answer within {within_s:g} s ({what})")

    def _listen(self, is_enough: Callable[[], bool], within_s: float) -> None:
        deadline = self._clock() + within_s
        while not is_enough() and self._clock() < deadline:
            event = self._agents.wait_for_event(self._agents.poll_s)
            while event is not None and self._clock() < deadline:  # `is_enough` reads all hosts: not for each of their events
                self._receive(event)
                event = self._agents.wait_for_event(0.0)

    def _receive(self, event: Event) -> None:
        host = event.host
        match event:
            case ReservedMessage() if host in self._hosts:
                self._ports[host] = event.ports[0]
            case RefusedMessage() if host in self._hosts:
                self._answers.lose(host, event.reason)
            case ForwardedMessage() if not self._answers.is_lost(host):
                self._receive_from_task(host, event)
            case ExitMessage():
                self._answers.lose(host, _describe_end(event))
            case ZygoteDeathMessage():
                self._answers.lose(host, "the zygote, which its tasks fork from, has ended")
            case AgentLoss():
                why = format_loss(self._agents.hosts[host].name, "is gone", event.loss, event.last_lines)
                if host in self._hosts:
                    self._answers.lose(host, why.partition("\n")[0], lied=event.loss.reason is LossReason.PROTOCOL_ERROR)
            case StoppedMessage():
                self._quiet.add(host)

    def _receive_from_task(self, host: int, message: ForwardedMessage) -> None:
        if isinstance(message, ReadyMessage):
            self._ready.add(host)
        elif isinstance(message, DoneMessage):
            self._done[host] = message.phase
        else:
            try:
                self._answers.receive(message)
            except MessageError as exc:
                self._answers.lose(host, f"disconnected because it {exc}", lied=True)


def _get_task(host: int) -> str:
    return f"probe:{host}"


def _make_targets(fans_at_once: link_rounds.Round) -> Mapping[str, Mapping[str, int]]:
    """Return for each sending host its targets, with the number of connections to each."""
    found: dict[str, dict[str, int]] = {}
    for fan in fans_at_once:
        for (source, target), connections in fan.count_connections().items():
            found.setdefault(str(source), {})[str(target)] = connections
    return found


def _describe_end(event: ExitMessage) -> str:
    how = f"exit code {event.code}" if event.signal is None else f"signal {event.signal}"
    message = event.last_lines[-1] if event.last_lines else "without a word"
    return f"its task ended early ({how}): {message}"


MAX_AGE_S = 3600.0
Kept = TypeVar("Kept", HostProbe, Link)
_NOT_KEPT = "input"  # depends on the data set, which the name of a reading does not show


def load_probes(config: ClusterConfig, hosts: Sequence[HostView]) -> Probes:
    """Return what is known of these hosts and the links between them; hosts without a boot id are unknown."""
    found = {}
    for host in hosts:
        kept = answer_cache.load(_make_host_key(config, host), MAX_AGE_S) if host.boot else None
        if kept is not None and (probe := _parse(HostProbe, kept)):
            found[host.name] = probe
    read = {name: link for name, each in _load_links(hosts).items() if (link := _parse(Link, each["link"]))}
    return Probes(hosts=found, links=read)


def store_probes(config: ClusterConfig, hosts: Sequence[HostView], probes: Probes) -> None:
    """Keep the undisturbed readings of `probes`, all of which were taken now."""
    disturbed = {name for name, probe in probes.hosts.items() if probe.unknown or is_disturbed(probe)}
    for host in hosts:
        probe = probes.hosts.get(host.name)
        if probe is None or host.name in disturbed or not host.boot:
            continue
        readings = {name: reading for name, reading in probe.readings.items() if name != _NOT_KEPT}
        answer_cache.store(_make_host_key(config, host), replace(probe, readings=readings).to_json())
    if probes.links and not disturbed and all(host.boot for host in hosts):
        new = {name: {"at": time.time(), "link": link.to_json()} for name, link in probes.links.items()}
        answer_cache.store(_make_links_key(hosts), {**_load_links(hosts), **new})


def _load_links(hosts: Sequence[HostView]) -> dict[str, Any]:
    """Return the readings of links by name, each with the time at which it was taken, without those that are too old."""
    kept = answer_cache.load(_make_links_key(hosts), MAX_AGE_S) if all(host.boot for host in hosts) else None
    try:
        return {name: each for name, each in (kept or {}).items() if 0 <= time.time() - each["at"] <= MAX_AGE_S}
    except (TypeError, KeyError):  # another version of this package wrote it
        return {}


def _parse(kind: type[Kept], kept: Any) -> Kept | None:
    """Return a reading of the file, or None for one that another version of this package wrote."""
    try:
        return kind.from_json(kept)
    except ValidationError:
        return None


def _make_host_key(config: ClusterConfig, host: HostView) -> str:
    computes_with = (host.cpus, host.gpus, config.entry, get_python(config), config.environment)
    return f"probe of {host.name} {host.boot} {_compute_digest(str(computes_with))}"


def _make_links_key(hosts: Sequence[HostView]) -> str:
    return f"links of {_compute_digest(' '.join(sorted(f'{host.name} {host.address} {host.boot}' for host in hosts)))}"


def _compute_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
