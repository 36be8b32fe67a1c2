"""What a person sees: rows, notes and problems, on terminals of any width."""

from pathlib import Path

import pytest

from pytest_dtfperf.doctor.diagnosis import ClockOffset, Diagnosis, HostDiagnosis, HostLink, TensorFlowTrial
from pytest_dtfperf.doctor.findings import ExpectedHardware, list_findings
from pytest_dtfperf.doctor.table import COLUMNS, format_report
from pytest_dtfperf.launch.exposure import NetworkInterface
from tests.doctor.seen import healthy

WIDE = 200


def shown(seen: Diagnosis, width: int = WIDE) -> str:
    return format_report(seen, list_findings(seen, ExpectedHardware()), width=width)


def rows(text: str, name: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(f"{name} ")]


def test_a_row_per_host() -> None:
    """Everything that was seen of a host is in its row."""
    (row,) = rows(shown(healthy(3, gpus=4)), "node1")
    clock, network = "+1.00 ±0.20 ms", ("eth0 10 Gb/s", "2 of 2", "50 µs", "9.4 Gbit/s")
    words = ("yes", "3.11.9", "2.21.0", "4 A100", "64 GiB", clock, *network, "shared by all")
    position = 0
    for each in words:
        position = row.index(each, position)


def test_notes_say_what_the_numbers_were_counted_over() -> None:
    """The notes below the table describe how clocks, round trips and rates were measured, with their numbers."""
    text = " ".join(shown(healthy(3)).split())
    for words in (
        "± is its largest error",
        "every ordered pair, 6 links in 6 rounds",
        "median of 100 messages of 64 bytes",
        "counted by the receiver over 1.00 s of its own clock, after 0.25 s that are not counted",
        "whether other hosts see the files that a host writes to ~",
    ):
        assert words in text


def test_interfaces_are_listed_where_there_are_several() -> None:
    """A note lists the interfaces of all hosts with their speeds, hosts that are alike together."""
    ib0 = NetworkInterface("ib0", ("10.1.0.1",), "InfiniBand", 100.0)
    other = NetworkInterface("eth1", ("10.2.0.1",))
    eth0 = healthy(1).hosts[0].facts.interfaces[0]  # type: ignore[union-attr]
    seen = healthy(3, each={0: {"interfaces": (eth0, ib0)}, 1: {"interfaces": (eth0, ib0)}, 2: {"interfaces": (eth0, other)}})
    assert (
        "interface: the one that tasks use. node0, node1 have eth0 (Ethernet 10 Gb/s), ib0 (InfiniBand 100 Gb/s); "
        "node2 has eth0 (Ethernet 10 Gb/s), eth1 (Ethernet of unknown speed)." in " ".join(shown(seen).split())
    )


def test_a_ring_is_called_one() -> None:
    """Where not every pair was measured, the notes name those that were."""
    seen = healthy(16)
    seen.ring = True
    seen.links = [each for each in seen.links if (each.source - each.target) % 16 in (1, 15)]
    assert "every host with the next one in a ring, both ways, 32 links" in " ".join(shown(seen).split())


def test_a_ring_without_a_host_that_is_missing_is_one() -> None:
    """A host that could not be had leaves no gap in the ring, and it is not called every pair."""
    seen = healthy(10)
    seen.hosts[3] = HostDiagnosis("node3", "10.0.0.3", missing="node3 is down")
    there = [host for host in range(10) if host != 3]
    seen.ring = True
    seen.links = [HostLink(here, there[at - 1], 5e-5, 100, 10**9, 1.0) for at, here in enumerate(there)]
    seen.links += [HostLink(each.target, each.source, 5e-5, 100, 10**9, 1.0) for each in seen.links]
    text = " ".join(shown(seen).split())
    assert "every host with the next one in a ring, both ways, 18 links" in text
    assert "every ordered pair" not in text


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120, 160, 200])
def test_no_table_is_wider_than_the_terminal(width: int) -> None:
    """On narrow terminals there are several tables, none of which runs over the edge, and nothing of a row is cut or lost."""
    found = rows(shown(healthy(3, gpus=4), width), "node1")
    assert all(len(line) <= width for line in found)
    assert [cell for line in found for cell in line.split()[1:]] == rows(shown(healthy(3, gpus=4)), "node1")[0].split()[1:]
    assert (len(found) == 1) == (width >= 200)


def test_parts_are_of_one_kind() -> None:
    """Where one table does not hold all, the network's columns begin a new one."""
    headings = [line for line in shown(healthy(3, gpus=4), 120).splitlines() if line.startswith("host ")]
    assert [line.split()[1] for line in headings] == ["reachable", "interface"]


def test_every_column_is_explained() -> None:
    """The documentation has a row for every column."""
    text = (Path(__file__).parents[2] / "docs" / "doctor.md").read_text()
    assert [column.heading for column in COLUMNS if f"| {column.heading} |" not in text] == []


def test_a_question_has_its_own_end() -> None:
    """Messages that end with a full stop get no second one."""
    seen = healthy(1)
    seen.hosts[0].missing = "node0 does not answer; is it up?"
    assert "wrong: node0 does not answer; is it up?\n" in shown(seen)


def test_long_names_give_way() -> None:
    """A host's name that is too long for a narrow terminal is cut, and no number is."""
    seen = healthy(2)
    seen.hosts[0].name = "ip-10-0-0-1.eu-central-1.compute.internal"
    lines = [line for line in shown(seen, 70).splitlines() if line.startswith("ip-10-")]
    assert all("…" in line and len(line) <= 70 for line in lines)
    text = " ".join(lines)
    assert "64 GiB" in text
    assert "9.4 Gbit/s" in text


def test_a_host_that_is_missing_is_a_row() -> None:
    """A host that cannot be reached is in the table, without numbers, and below it is the reason."""
    seen = healthy(2)
    host = seen.hosts[1]
    host.missing, host.facts, host.trial, host.offset, host.sees = "connection refused", None, None, None, None
    seen.reached, seen.links = [], []
    text = shown(seen)
    (row,) = rows(text, "node1")
    assert row.split()[1:3] == ["no", "-"]
    assert "wrong: node1: connection refused." in text


def test_a_host_that_was_lost_keeps_what_was_seen() -> None:
    """A host that fell silent keeps its facts in the table."""
    seen = healthy(2)
    seen.hosts[1].missing = "silent for 10 s"
    (row,) = rows(shown(seen), "node1")
    assert row.split()[1:3] == ["lost", "3.11.9"]


def test_a_host_that_was_lost_while_it_was_asked_what_it_is_was_reached() -> None:
    """A host with a clock that was read was there: it is lost, and not one that could not be allocated."""
    seen = healthy(2)
    host = seen.hosts[1]
    host.missing, host.facts, host.trial, host.sees = "no answer within 60 s (its state)", None, None, None
    (row,) = rows(shown(seen), "node1")
    assert row.split()[1] == "lost"


def test_tensorflow_is_told_apart_from_none() -> None:
    """A TensorFlow that cannot be imported, and none at all, do not look like one that works."""
    seen = healthy(2, each={1: {"tensorflow": None}})
    for host in seen.hosts:
        host.trial = TensorFlowTrial(error="the import failed")
    text = shown(seen)
    assert "2.21.0 fails" in rows(text, "node0")[0]
    assert "missing" in rows(text, "node1")[0]


def test_complaints_say_how_to_go_on() -> None:
    """Each problem is followed by advice; the last line counts them."""
    seen = healthy(2, each={0: {"load": 100.0}})
    seen.hosts[1].offset = ClockOffset(9.0, 0.001)
    lines = shown(seen).splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("wrong: the clock of node1 is 9 s ahead"))
    assert lines[at + 1] == "       Run chrony or ntpd there."
    assert any(line.startswith("note:  node0 is busy") for line in lines)
    assert lines[-1] == "cluster alps: 2 hosts, 1 thing is wrong, 1 to know of."


def test_nothing_wrong_is_said() -> None:
    """A healthy cluster ends with one line that confirms it."""
    assert shown(healthy(1)).splitlines()[-1] == "cluster alps: 1 host, nothing is wrong."


def test_files_that_some_share() -> None:
    """The table shows with how many others hosts share a folder."""
    seen = healthy(3)
    seen.hosts[2].sees = frozenset({2})
    seen.hosts[0].sees = seen.hosts[1].sees = frozenset({0, 1})
    text = shown(seen)
    assert rows(text, "node0")[0].endswith("shared by 2")
    assert rows(text, "node2")[0].endswith("its own")


def test_one_host_has_no_network() -> None:
    """One host has no notes about links, files and ports."""
    text = shown(healthy(1))
    assert "round trip:" not in text
    assert rows(text, "node0")[0].split()[-7:] == [*"----", "private", "network", "-"]


def test_a_link_that_broke_has_no_rate() -> None:
    """What could not be measured counts in no median; where nothing else was, there is none."""
    (sends,) = (column for column in COLUMNS if column.heading == "sends")
    for hosts, cells in ((2, ["-", "9.4 Gbit/s"]), (3, ["9.4 Gbit/s"] * 3)):
        seen = healthy(hosts)
        seen.links[0] = HostLink(0, 1, error="it broke")
        assert [sends.cell(seen, host) for host in range(hosts)] == cells
        assert all(cell in rows(shown(seen), f"node{host}")[0] for host, cell in enumerate(cells))


def test_colours_are_asked_for() -> None:
    """Without colour there is no escape sequence; with it, there is."""
    seen = healthy(1)
    assert "\x1b" not in format_report(seen, [], width=80)
    assert "\x1b[32myes" in format_report(seen, [], width=80, colour=True)
