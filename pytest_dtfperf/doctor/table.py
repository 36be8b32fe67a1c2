"""The doctor's report: a row for each host, also as numbers, with notes and findings. Pure."""

import statistics
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from pytest_dtfperf.doctor.diagnosis import (
    Diagnosis,
    HostDiagnosis,
    end_sentence,
    format_bits_per_s,
    format_bytes,
    format_hosts,
)
from pytest_dtfperf.doctor.findings import Finding, get_protection, group_by_shared_folder, group_interfaces
from pytest_dtfperf.formats import NONE, format_count, join_some
from pytest_dtfperf.node.links import RAMP_S
from pytest_dtfperf.report.tables import GAP, make_table, render

_INTERFACES = 8  # per host in a note
_NARROWEST = 12  # the smallest width of a host's name


@dataclass(frozen=True)
class Column:
    """A column of the table."""

    heading: str
    cell: Callable[[Diagnosis, int], str]
    number: bool = False
    begins: bool = False  # begins a new table if one is not wide enough for all


def format_report(diagnosis: Diagnosis, found: Sequence[Finding], *, width: int, colour: bool = False) -> str:
    """Return the table, in parts if the terminal is narrow, the notes, the findings, and a last line."""
    blocks: list[RenderableType] = []
    for columns in _split_columns(diagnosis, width):
        blocks += [_make_table(columns), ""]
    blocks += [_wrap_text(note, width) for note in _list_notes(diagnosis)]
    for finding in found:
        blocks += ["", _format_finding(finding, width)]
    blocks += ["", _wrap_text(format_verdict(diagnosis, found), width)]
    return render(blocks, width, colour)


def format_verdict(diagnosis: Diagnosis, found: Sequence[Finding]) -> str:
    """Return the last line, such as `cluster alps: 16 hosts, nothing is wrong`."""
    wrong = sum(finding.wrong for finding in found)
    remarks = len(found) - wrong
    what = {0: "nothing is wrong", 1: "1 thing is wrong"}.get(wrong, f"{wrong} things are wrong")
    more = f", {remarks} to know of" if remarks else ""
    return f"cluster {diagnosis.cluster}: {format_count(len(diagnosis.hosts), 'host')}, {what}{more}."


# Cells


def _reachable(diagnosis: Diagnosis, host: int) -> str:
    row = diagnosis.hosts[host]
    return "yes" if row.missing is None else "no" if row.facts is None and row.offset is None else "lost"


def _python(diagnosis: Diagnosis, host: int) -> str:
    facts = diagnosis.hosts[host].facts
    return facts.python if facts else NONE


def _tensorflow(diagnosis: Diagnosis, host: int) -> str:
    row = diagnosis.hosts[host]
    if row.trial is None:
        return NONE
    if row.trial.error is None:
        return row.trial.version or NONE
    return f"{row.facts.tensorflow} fails" if row.facts and row.facts.tensorflow else "missing"


def _devices(diagnosis: Diagnosis, host: int) -> str:
    """Return the GPUs that nvidia-smi lists, or the cores of a host without GPUs."""
    facts = diagnosis.hosts[host].facts
    if facts is None:
        return NONE
    if facts.gpus is None:
        return "GPUs unknown"
    if not facts.gpus:
        return format_count(facts.cores, "core")
    return f"{len(facts.gpus)} {' + '.join(sorted(set(facts.gpus)))}"


def _memory(diagnosis: Diagnosis, host: int) -> str:
    facts = diagnosis.hosts[host].facts
    return format_bytes(facts.memory_bytes) if facts else NONE


def _clock(diagnosis: Diagnosis, host: int) -> str:
    offset = diagnosis.hosts[host].offset
    return NONE if offset is None else f"{1e3 * offset.s:+.2f} ±{1e3 * offset.uncertainty_s:.2f} ms"


def _interface(diagnosis: Diagnosis, host: int) -> str:
    """Return the interface that tasks use, with its speed if the kernel knows it."""
    row = diagnosis.hosts[host]
    used = row.facts.find_interface(row.address) if row.facts else None
    return NONE if used is None else f"{used.name} {used.gbps:g} Gb/s" if used.gbps else used.name


def _ports(diagnosis: Diagnosis, host: int) -> str:
    """Return how many connections succeeded: the host's ports times the hosts that try them."""
    reached, tried = _ports_of(diagnosis, host)
    return f"{reached} of {tried}" if tried else NONE


def _ports_of(diagnosis: Diagnosis, host: int) -> tuple[int, int]:
    tried = [each for each in diagnosis.reached if each.target == host]
    return sum(each.error is None for each in tried), len(tried)


def _round_trip(diagnosis: Diagnosis, host: int) -> str:
    time_s = _round_trip_s(diagnosis, host)
    return NONE if time_s is None else format_duration(time_s)


def _round_trip_s(diagnosis: Diagnosis, host: int) -> float | None:
    return _median(link.round_trip_s for link in diagnosis.links if link.source == host)


def _format_out(diagnosis: Diagnosis, host: int) -> str:
    return _rate(_find_send_rate(diagnosis, host))


def _find_send_rate(diagnosis: Diagnosis, host: int) -> float | None:
    return _median(link.bits_per_s for link in diagnosis.links if link.source == host)


def _format_in(diagnosis: Diagnosis, host: int) -> str:
    return _rate(_receives(diagnosis, host))


def _receives(diagnosis: Diagnosis, host: int) -> float | None:
    return _median(link.bits_per_s for link in diagnosis.links if link.target == host)


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _rate(bits_per_s: float | None) -> str:
    return NONE if bits_per_s is None else format_bits_per_s(bits_per_s)


def _files(diagnosis: Diagnosis, host: int) -> str:
    by, sighted = _count_sharing(diagnosis, host), sum(each.sees is not None for each in diagnosis.hosts)
    if by is None:
        return NONE
    if by == sighted:
        return "shared by all"
    return "its own" if by == 1 else f"shared by {by}"


def _count_sharing(diagnosis: Diagnosis, host: int) -> int | None:
    """Return how many hosts see its files, including itself; None if unknown."""
    group = next((each for each in group_by_shared_folder(diagnosis) if host in each), None)
    return len(group) if group and sum(each.sees is not None for each in diagnosis.hosts) > 1 else None


def _protection(diagnosis: Diagnosis, host: int) -> str:
    facts = diagnosis.hosts[host].facts
    return get_protection(diagnosis, diagnosis.hosts[host], facts) if facts else NONE


def _load(diagnosis: Diagnosis, host: int) -> str:
    facts = diagnosis.hosts[host].facts
    return f"{facts.load:.2f}" if facts else NONE


COLUMNS = (
    Column("reachable", _reachable),
    Column("python", _python),
    Column("TensorFlow", _tensorflow),
    Column("devices", _devices),
    Column("memory", _memory, number=True),
    Column("load", _load, number=True),
    Column("clock offset", _clock, number=True),
    Column("interface", _interface, begins=True),
    Column("ports", _ports, number=True),
    Column("round trip", _round_trip, number=True),
    Column("sends", _format_out, number=True),
    Column("receives", _format_in, number=True),
    Column("protection", _protection),
    Column("files", _files),
)


def make_rows(diagnosis: Diagnosis) -> list[dict[str, Any]]:
    """Return the values of each host as numbers; None if unknown."""
    return [_make_row(diagnosis, index, host) for index, host in enumerate(diagnosis.hosts)]


def _make_row(diagnosis: Diagnosis, index: int, host: HostDiagnosis) -> dict[str, Any]:
    facts, trial, offset = host.facts, host.trial, host.offset
    reached, tried = _ports_of(diagnosis, index)
    used = facts.find_interface(host.address) if facts else None
    return {
        "name": host.name,
        "address": host.address,
        "missing": host.missing,
        "python": facts.python if facts else None,
        "tensorflow": trial.version if trial and trial.error is None else None,
        "gpus": list(facts.gpus) if facts and facts.gpus is not None else None,
        "cores": facts.cores if facts else None,
        "memory_bytes": facts.memory_bytes if facts else None,
        "load": facts.load if facts else None,
        "clock_offset_s": offset.s if offset else None,
        "clock_uncertainty_s": offset.uncertainty_s if offset else None,
        "interface": used.name if used else None,
        "interface_gbps": used.gbps if used else None,
        "ports_tried": tried,
        "ports_reached": reached,
        "round_trip_s": _round_trip_s(diagnosis, index),
        "sends_bits_per_s": _find_send_rate(diagnosis, index),
        "receives_bits_per_s": _receives(diagnosis, index),
        "protection": get_protection(diagnosis, host, facts) if facts else None,
        "files": _count_sharing(diagnosis, index),
    }


def format_duration(s: float) -> str:
    """Format a duration: `85 µs`, `1.2 ms`."""
    return f"{1e6 * s:.0f} µs" if s < 1e-3 else f"{1e3 * s:.3g} ms"


# Around the table


def _list_notes(diagnosis: Diagnosis) -> list[str]:
    """Return notes on how the numbers were measured."""
    notes = []
    if any(host.offset for host in diagnosis.hosts):
        notes.append("clock offset: against this machine's, from the shortest of several round trips; ± is its largest error.")
    if any(len(interfaces) > 1 for interfaces in group_interfaces(diagnosis)):
        notes.append(_format_interfaces_note(diagnosis))
    if diagnosis.reached:
        ports = {(each.target, each.port) for each in diagnosis.reached}
        notes.append(
            f"ports: connections that came through, of all that the other hosts tried; {len(ports)} ports in all, on the "
            "addresses that tasks use."
        )
    counted = [link for link in diagnosis.links if link.error is None]
    if counted:
        pairs = "every host with the next one in a ring, both ways" if diagnosis.ring else "every ordered pair"
        echoes = min(link.echoes for link in counted), max(link.echoes for link in counted)
        number = f"{echoes[0]}" if echoes[0] == echoes[1] else f"{echoes[0]} to {echoes[1]}"
        times = [link.counted_s for link in counted]
        notes.append(
            f"round trip, sends, receives: medians over a host's links; measured were {pairs}, {len(counted)} links in "
            f"{diagnosis.rounds} rounds of pairs without a common host. Round trip: median of {number} messages of 64 bytes "
            f"over TCP. Sends, receives: one TCP stream, bytes counted by the receiver over {_format_span(times)} s of its own "
            f"clock, after {RAMP_S:g} s that are not counted."
        )
    if any(host.facts for host in diagnosis.hosts):
        notes.append("protection: of the ports of tasks against other users (docs/security.md).")
    if len(group_by_shared_folder(diagnosis)) and sum(host.sees is not None for host in diagnosis.hosts) > 1:
        notes.append(f"files: whether other hosts see the files that a host writes to {diagnosis.folder}.")
    return notes


def _format_interfaces_note(diagnosis: Diagnosis) -> str:
    """Return the note on interfaces: `m1, m2 have eth0 (Ethernet 10 Gb/s) and ib0 (InfiniBand 100 Gb/s)`."""
    alike = []
    for interfaces, hosts in group_interfaces(diagnosis).items():
        described = [f"{each.name} ({each.speed or f'{each.kind} of unknown speed'})" for each in interfaces]
        have = "have" if len(hosts) > 1 else "has"
        alike.append(f"{format_hosts(hosts)} {have} {join_some(described, _INTERFACES) or 'none'}")
    return f"interface: the one that tasks use. {'; '.join(alike)}."


def _format_span(times: Sequence[float]) -> str:
    least, most = f"{min(times):.2f}", f"{max(times):.2f}"
    return least if least == most else f"{least} to {most}"


def _format_finding(finding: Finding, width: int) -> Text:
    """Return a finding as text: the problem, with its line breaks, and below it the advice."""
    first, *quoted = finding.message.splitlines()
    mark = "wrong: " if finding.wrong else "note:  "
    advice = end_sentence(finding.advice)
    lines = [
        *_wrap(f"{mark}{first if quoted else end_sentence(first)}", width, 7),
        *quoted,
        *_wrap(f"       {advice}", width, 7),
    ]
    text = Text("\n".join(lines), no_wrap=True, overflow="ignore")
    text.stylize("bold red" if finding.wrong else "yellow", 0, len(mark.rstrip()))
    return text


def _wrap(text: str, width: int, indent: int) -> list[str]:
    """Return the lines of a text. They break only at spaces, so that each path and command can be copied."""
    wide = max(width, 40)
    return textwrap.wrap(text, wide, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)


def _wrap_text(text: str, width: int) -> Text:
    return Text("\n".join(_wrap(text, width, 2)), no_wrap=True, overflow="ignore")


@dataclass(frozen=True)
class _DrawnColumn:
    """A column with its formatted cells."""

    cells: Sequence[str]  # the heading first
    number: bool = False
    begins: bool = False
    most: int | None = None  # wider ones are cut

    @property
    def width(self) -> int:
        natural = max(Text(cell).cell_len for cell in self.cells)
        return min(natural, self.most or natural)


def _split_columns(diagnosis: Diagnosis, width: int) -> list[list[_DrawnColumn]]:
    """Return the columns in as many tables as the width requires. Each begins with the hosts' names, which may be cut."""
    names, hosts = _DrawnColumn(["host", *(host.name for host in diagnosis.hosts)]), range(len(diagnosis.hosts))
    columns = [
        _DrawnColumn([each.heading, *(each.cell(diagnosis, host) for host in hosts)], each.number, each.begins)
        for each in COLUMNS
    ]
    if _compute_width([names, *columns]) <= width:
        return [[names, *columns]]
    names = _DrawnColumn(names.cells, most=max(_NARROWEST, width // 3))
    parts = [[names]]
    for column in columns:
        if column.begins or (len(parts[-1]) > 1 and _compute_width([*parts[-1], column]) > width):
            parts.append([names])
        parts[-1].append(column)
    return parts


def _compute_width(columns: Sequence[_DrawnColumn]) -> int:
    return sum(column.width for column in columns) + GAP * (len(columns) - 1)


def _make_table(columns: Sequence[_DrawnColumn]) -> Table:
    headings, *rows = zip(*(column.cells for column in columns), strict=True)
    text_columns = [position for position, column in enumerate(columns) if not column.number]
    return make_table(headings, rows, [column.width for column in columns], text_columns=text_columns, styles=_STYLES)


_STYLES = {"yes": "green", "no": "bold red", "lost": "bold red", "missing": "bold red"}
