"""From what the tasks of a probe have told to what hosts and links can do. Pure.

A host is believed what it was asked, and once: whatever else it tells, nothing it has told is used.
"""

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_dtfperf.explain.probes import LINK, WORDS, HostProbe, Link, Probes, Reading
from pytest_dtfperf.launch.disturbance import LEAST_S, others_s
from pytest_dtfperf.launch.fans import Fan, Round
from pytest_dtfperf.launch.placement import HostView
from pytest_dtfperf.messages.kinds import MessageError

# Bytes of a link are counted in parts: so many as tell how far they are apart.
PARTS, PART_S = 4, 0.1
MOST_SPREAD = 1e6  # as records have it at most: of what hardly went through

Event = Mapping[str, Any]
Stream = tuple[int, int, int]  # round, from, to


@dataclass
class _Told:
    """By one host."""

    readings: dict[str, Reading] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)
    facts: Event | None = None


class Answers:
    """Of the hosts of one probe, by their numbers among all."""

    def __init__(self, hosts: Sequence[HostView], rounds: Sequence[Round]) -> None:
        self._hosts = hosts
        self._rounds = rounds
        self._told = [_Told() for _ in hosts]
        self._streams: dict[Stream, Sequence[Mapping[str, float]] | str] = {}  # the parts of each, or why there are none
        self._lost: dict[int, str] = {}

    def hear(self, event: Event) -> None:
        """Take in what a task has said. Raises `MessageError` for what it was not asked: it must be lost then."""
        match event["kind"]:
            case "reading":
                self._reading(event)
            case "facts":
                if self._told[event["host"]].facts:
                    raise MessageError("told twice what limits it")
                self._told[event["host"]].facts = event
            case "stream":
                self._stream(event)

    def lose(self, host: int, why: str, *, lied: bool = False) -> None:
        """There is nothing more of it; if it `lied`, nothing at all."""
        self._lost.setdefault(host, why)
        if lied:
            self._told[host] = _Told()
            self._streams = {stream: told for stream, told in self._streams.items() if host not in stream[1:]}

    def is_lost(self, host: int) -> bool:
        return host in self._lost

    def probes(self, seconds: float) -> Probes:
        """All that was told by now."""
        names = [host.name for host in self._hosts]
        states = {name: told.facts["state"] for name, told in zip(names, self._told, strict=True) if told.facts}
        hosts = {names[at]: self._host(at, states) for at, told in enumerate(self._told) if told.readings or told.unknown}
        fans = {fan.link(names): self._fan(number, fan) for number, each in enumerate(self._rounds) for fan in each}
        return Probes(
            hosts=hosts,
            links={name: found for name, found in fans.items() if isinstance(found, Link)},
            unknown={
                **{names[at]: why for at, why in self._lost.items()},
                **{name: why for name, why in fans.items() if isinstance(why, str)},
            },
            seconds=round(seconds, 3),
        )

    def _reading(self, event: Event) -> None:
        host, name = event["host"], event["name"]
        told = self._told[host]
        if not _is_asked(name, self._hosts[host]) or name in told.readings or name in told.unknown:
            raise MessageError(f"told a {name!r} that nobody has asked it for")
        if (reading := event.get("reading")) is not None:
            told.readings[name] = Reading.from_json(reading)
        else:
            told.unknown[name] = event.get("error") or "it does not say why"

    def _stream(self, event: Event) -> None:
        stream = (event["round"], event["host"], event["to"])
        fans = self._rounds[stream[0]] if stream[0] < len(self._rounds) else ()
        if not any(stream[1:] in fan.streams for fan in fans) or stream in self._streams:
            raise MessageError(f"told of a stream to host number {event['to']} that nobody has asked it for")
        if event["error"] is None and len(event["parts"]) != PARTS:
            raise MessageError(f"told {len(event['parts'])} parts of a stream that has {PARTS}")
        self._streams[stream] = event["parts"] if event["error"] is None else event["error"]

    def _host(self, at: int, states: Mapping[str, Mapping[str, Any]]) -> HostProbe:
        told, name = self._told[at], self._hosts[at].name
        facts = told.facts or {}
        return HostProbe(
            readings=told.readings,
            clock_hz=facts.get("clock_hz"),
            most_clock_hz=facts.get("most_clock_hz"),
            limits=facts.get("limits", {}),
            others_cores=_others_cores(name, states) if name in states else None,
            unknown=told.unknown,
        )

    def _fan(self, number: int, fan: Fan) -> Link | str:
        """What goes through, or why nobody knows."""
        rates: dict[tuple[int, int], list[float]] = {}
        for source, target in fan.streams:
            told = self._streams.get((number, source, target))
            if told is None or isinstance(told, str):
                return f"{self._hosts[source].name}>{self._hosts[target].name}: {told or self._why_not(source, target)}"
            rates[source, target] = [part["bytes"] / part["counted_s"] for part in told]
        sums = [sum(parts) for parts in zip(*rates.values(), strict=True)]
        per_s = statistics.median(sums)
        if per_s <= 0:
            return f"nothing went through for {PARTS * PART_S:g} s"
        return Link(
            per_s=per_s,
            spread=min(MOST_SPREAD, (max(sums) - min(sums)) / 2 / per_s),
            repeats=PARTS,
            how={"streams": len(rates), "seconds": PARTS * PART_S},
            streams={
                self._hosts[other].name: statistics.median(parts)
                for pair, parts in rates.items()
                if (other := fan.other(pair)) is not None
            },
        )

    def _why_not(self, *hosts: int) -> str:
        return next((self._lost[host] for host in hosts if host in self._lost), "it was not measured")


def _is_asked(name: str, host: HostView) -> bool:
    found = re.fullmatch(r"gpu\.(\d+)\.(matmul|convolution)", name, re.ASCII)
    return int(found[1]) < len(host.gpus) if found else name in WORDS and name != LINK


def _others_cores(host: str, states: Mapping[str, Mapping[str, Any]]) -> float | None:
    """Under a quota, cores are everybody's, and what others do with them is not taken from us."""
    state = states[host]
    if state["quota"]:
        return None
    window_s: float = max(state["window_s"], LEAST_S)
    return round(others_s(host, states) / window_s, 3)
