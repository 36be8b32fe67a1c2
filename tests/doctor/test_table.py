"""Tests of the report for people: rows, notes and problems, on terminals of any width."""

from pathlib import Path

import pytest

from pytest_dtfperf.doctor.diagnosis import ClockOffset, Diagnosis, HostDiagnosis, HostLink, TensorFlowTrial
from pytest_dtfperf.doctor.findings import ExpectedHardware, list_findings
from pytest_dtfperf.doctor.table import COLUMNS, format_report
from pytest_dtfperf.launch.exposure import NetworkInterface
from tests.doctor.seen import make_healthy

WIDE = 200


def format_diagnosis(seen: Diagnosis, width: int = WIDE) -> str:
    return format_report(seen, list_findings(seen, ExpectedHardware()), width=width)


def find_rows(text: str, name: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(f"{name} ")]


def test_row_has_all_facts_of_its_host() -> None:
    """The row of a host has its facts in the order of the columns."""
    (row,) = find_rows(format_diagnosis(make_healthy(3, gpus=4)), "node1")
    clock, network = "+1.00 ±0.20 ms", ("eth0 10 Gb/s", "2 of 2", "50 µs", "9.4 Gbit/s")
    words = ("yes", "3.11.9", "2.21.0", "4 A100", "64 GiB", clock, *network, "shared by all")
    position = 0
    for each in words:
        position = row.index(each, position)


def test_notes_describe_the_measurements() -> None:
    """The notes below the table describe the measurement of clocks, round trips and rates, with their numbers."""
    text = " ".join(format_diagnosis(make_healthy(3)).split())
    for words in (
        "± is its largest error",
        "every ordered pair, 6 links in 6 rounds",
        "median of 100 messages of 64 bytes",
        "counted by the receiver over 1.00 s of its own clock, after 0.25 s that are not counted",
        "whether other hosts see the files that a host writes to ~",
    ):
        assert words in text


def test_note_lists_several_interfaces() -> None:
    """A note lists the interfaces of all hosts with their speeds, equal hosts together."""
    ib0 = NetworkInterface("ib0", ("10.1.0.1",), "InfiniBand", 100.0)
    other = NetworkInterface("eth1", ("10.2.0.1",))
    eth0 = make_healthy(1).hosts[0].facts.interfaces[0]  # type: ignore[union-attr]
    seen = make_healthy(
        3, each={0: {"interfaces": (eth0, ib0)}, 1: {"interfaces": (eth0, ib0)}, 2: {"interfaces": (eth0, other)}}
    )
    assert (
        "interface: the one that tasks use. node0, node1 have eth0 (Ethernet 10 Gb/s), ib0 (InfiniBand 100 Gb/s); "
        "node2 has eth0 (Ethernet 10 Gb/s), eth1 (Ethernet of unknown speed)." in " ".join(format_diagnosis(seen).split())
    )


def test_notes_name_the_pairs_of_a_ring() -> None:
    """If not every pair was measured, the notes name the measured ones."""
    seen = make_healthy(16)
    seen.ring = True
    seen.links = [each for each in seen.links if (each.source - each.target) % 16 in (1, 15)]
    assert "every host with the next one in a ring, both ways, 32 links" in " ".join(format_diagnosis(seen).split())


def test_ring_without_a_missing_host_is_a_ring() -> None:
    """Links in a ring without a missing host are called a ring, and not every pair."""
    seen = make_healthy(10)
    seen.hosts[3] = HostDiagnosis("node3", "10.0.0.3", missing="node3 is down")
    there = [host for host in range(10) if host != 3]
    seen.ring = True
    seen.links = [HostLink(here, there[at - 1], 5e-5, 100, 10**9, 1.0) for at, here in enumerate(there)]
    seen.links += [HostLink(each.target, each.source, 5e-5, 100, 10**9, 1.0) for each in seen.links]
    text = " ".join(format_diagnosis(seen).split())
    assert "every host with the next one in a ring, both ways, 18 links" in text
    assert "every ordered pair" not in text


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120, 160, 200])
def test_no_table_is_wider_than_the_terminal(width: int) -> None:
    """On narrow terminals a row is in several tables, none is wider than the terminal, and no cell is cut or lost."""
    found = find_rows(format_diagnosis(make_healthy(3, gpus=4), width), "node1")
    assert all(len(line) <= width for line in found)
    assert [cell for line in found for cell in line.split()[1:]] == find_rows(
        format_diagnosis(make_healthy(3, gpus=4)), "node1"
    )[0].split()[1:]
    assert (len(found) == 1) == (width >= 200)


def test_network_columns_begin_a_new_table() -> None:
    """If one table does not fit, the network's columns begin a new one."""
    headings = [line for line in format_diagnosis(make_healthy(3, gpus=4), 120).splitlines() if line.startswith("host ")]
    assert [line.split()[1] for line in headings] == ["reachable", "interface"]


def test_documentation_has_every_column() -> None:
    """The documentation has a row for every column."""
    text = (Path(__file__).parents[2] / "docs" / "doctor.md").read_text()
    assert [column.heading for column in COLUMNS if f"| {column.heading} |" not in text] == []


def test_message_has_one_end() -> None:
    """A message that ends with a question mark gets no full stop."""
    seen = make_healthy(1)
    seen.hosts[0].missing = "node0 does not answer; is it up?"
    assert "wrong: node0 does not answer; is it up?\n" in format_diagnosis(seen)


def test_long_host_name_is_cut() -> None:
    """A host's name that is too long for a narrow terminal is cut, and no number is."""
    seen = make_healthy(2)
    seen.hosts[0].name = "ip-10-0-0-1.eu-central-1.compute.internal"
    lines = [line for line in format_diagnosis(seen, 70).splitlines() if line.startswith("ip-10-")]
    assert all("…" in line and len(line) <= 70 for line in lines)
    text = " ".join(lines)
    assert "64 GiB" in text
    assert "9.4 Gbit/s" in text


def test_missing_host_is_a_row() -> None:
    """A host that cannot be reached is a row without facts, and below the table is the reason."""
    seen = make_healthy(2)
    host = seen.hosts[1]
    host.missing, host.facts, host.trial, host.offset, host.sees = "connection refused", None, None, None, None
    seen.reached, seen.links = [], []
    text = format_diagnosis(seen)
    (row,) = find_rows(text, "node1")
    assert row.split()[1:3] == ["no", "-"]
    assert "wrong: node1: connection refused." in text


def test_lost_host_keeps_its_facts() -> None:
    """A silent host keeps its facts in the table."""
    seen = make_healthy(2)
    seen.hosts[1].missing = "silent for 10 s"
    (row,) = find_rows(format_diagnosis(seen), "node1")
    assert row.split()[1:3] == ["lost", "3.11.9"]


def test_host_with_a_known_clock_is_lost() -> None:
    """A host without facts, but with a known clock, is lost, and not unreachable."""
    seen = make_healthy(2)
    host = seen.hosts[1]
    host.missing, host.facts, host.trial, host.sees = "no answer within 60 s (its state)", None, None, None
    (row,) = find_rows(format_diagnosis(seen), "node1")
    assert row.split()[1] == "lost"


def test_failing_tensorflow_differs_from_a_missing_one() -> None:
    """A TensorFlow that cannot be imported and a missing one have different cells."""
    seen = make_healthy(2, each={1: {"tensorflow": None}})
    for host in seen.hosts:
        host.trial = TensorFlowTrial(error="the import failed")
    text = format_diagnosis(seen)
    assert "2.21.0 fails" in find_rows(text, "node0")[0]
    assert "missing" in find_rows(text, "node1")[0]


def test_problem_has_advice_and_is_counted() -> None:
    """A problem is followed by advice, a remark is a note, and the last line counts both."""
    seen = make_healthy(2, each={0: {"load": 100.0}})
    seen.hosts[1].offset = ClockOffset(9.0, 0.001)
    lines = format_diagnosis(seen).splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("wrong: the clock of node1 is 9 s ahead"))
    assert lines[at + 1] == "       Run chrony or ntpd there."
    assert any(line.startswith("note:  node0 is busy") for line in lines)
    assert lines[-1] == "cluster alps: 2 hosts, 1 thing is wrong, 1 to know of."


def test_healthy_cluster_ends_with_a_confirmation() -> None:
    """The last line confirms a healthy cluster."""
    assert format_diagnosis(make_healthy(1)).splitlines()[-1] == "cluster alps: 1 host, nothing is wrong."


def test_table_has_the_number_of_sharing_hosts() -> None:
    """The row of a host has the number of hosts that share its folder."""
    seen = make_healthy(3)
    seen.hosts[2].sees = frozenset({2})
    seen.hosts[0].sees = seen.hosts[1].sees = frozenset({0, 1})
    text = format_diagnosis(seen)
    assert find_rows(text, "node0")[0].endswith("shared by 2")
    assert find_rows(text, "node2")[0].endswith("its own")


def test_single_host_has_no_network_cells() -> None:
    """A single host has no note about round trips, and empty cells of links, files and ports."""
    text = format_diagnosis(make_healthy(1))
    assert "round trip:" not in text
    assert find_rows(text, "node0")[0].split()[-7:] == [*"----", "private", "network", "-"]


def test_broken_link_is_in_no_median() -> None:
    """A link that broke is in no median, and a host with no other link has no rate."""
    (sends,) = (column for column in COLUMNS if column.heading == "sends")
    for hosts, cells in ((2, ["-", "9.4 Gbit/s"]), (3, ["9.4 Gbit/s"] * 3)):
        seen = make_healthy(hosts)
        seen.links[0] = HostLink(0, 1, error="it broke")
        assert [sends.cell(seen, host) for host in range(hosts)] == cells
        assert all(cell in find_rows(format_diagnosis(seen), f"node{host}")[0] for host, cell in enumerate(cells))


def test_colours_are_optional() -> None:
    """The report has escape sequences only with colours."""
    seen = make_healthy(1)
    assert "\x1b" not in format_report(seen, [], width=80)
    assert "\x1b[32myes" in format_report(seen, [], width=80, colour=True)
