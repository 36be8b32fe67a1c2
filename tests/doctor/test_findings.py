"""Tests of findings: tables of one problem each, with its message."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pytest_dtfperf.doctor.diagnosis import (
    ClockOffset,
    Diagnosis,
    Disk,
    HostDiagnosis,
    HostLink,
    PortAttempt,
    TensorFlowTrial,
    format_bits_per_s,
    format_bytes,
)
from pytest_dtfperf.doctor.findings import ExpectedHardware, group_by_shared_folder, list_findings
from pytest_dtfperf.doctor.table import COLUMNS
from pytest_dtfperf.launch.exposure import NetworkInterface
from tests.doctor.seen import FACTS, GIB, make_healthy, make_link


def list_problems(seen: Diagnosis, **expected: Any) -> list[str]:
    """Return the messages of findings that are wrong."""
    return [str(finding) for finding in list_findings(seen, ExpectedHardware(**expected)) if finding.wrong]


def list_remarks(seen: Diagnosis, **expected: Any) -> list[str]:
    return [str(finding) for finding in list_findings(seen, ExpectedHardware(**expected)) if not finding.wrong]


@pytest.mark.parametrize("hosts", [1, 2, 3, 16])
def test_healthy_hosts_have_no_findings(hosts: int) -> None:
    """Equal, healthy hosts have no findings."""
    assert list_findings(make_healthy(hosts, gpus=4), ExpectedHardware(gpus=4)) == []


def change_facts(host: int, **changes: Any) -> Callable[[Diagnosis], None]:
    def change(seen: Diagnosis) -> None:
        seen.hosts[host].facts = replace(_get_facts(seen.hosts[host]), **changes)

    return change


def change_row(host: int, **changes: Any) -> Callable[[Diagnosis], None]:
    def change(seen: Diagnosis) -> None:
        for name, value in changes.items():
            setattr(seen.hosts[host], name, value)

    return change


def close_ports(*pairs: tuple[int, int]) -> Callable[[Diagnosis], None]:
    def change(seen: Diagnosis) -> None:
        seen.reached = [
            replace(each, error="no answer within 5 s") if (each.source, each.target) in pairs else each
            for each in seen.reached
        ]
        seen.links = [each for each in seen.links if (each.source, each.target) not in pairs]

    return change


def slow_links(host: int) -> Callable[[Diagnosis], None]:
    def change(seen: Diagnosis) -> None:
        seen.links = [
            make_link(each.source, each.target, 94) if host in (each.source, each.target) else each for each in seen.links
        ]

    return change


def change_all(*changes: Callable[[Diagnosis], None]) -> Callable[[Diagnosis], None]:
    def change(seen: Diagnosis) -> None:
        for each in changes:
            each(seen)

    return change


FULL = Disk(what="cache", folder="/home/me/.cache", free_bytes=100 << 20, total_bytes=100 * GIB)
ONE_THING_WRONG: dict[str, tuple[Callable[[Diagnosis], None], tuple[str, ...]]] = {
    "not reached": (
        change_row(
            1, missing="host node1 cannot be reached: permission denied", facts=None, trial=None, offset=None, sees=None
        ),
        ("host node1 cannot be reached: permission denied. Fix node1, or take it out",),
    ),
    "lost": (
        change_row(1, missing="its process was killed by SIGKILL", last_lines=("last word",)),
        ("node1: its process was killed by SIGKILL\n    | last word",),
    ),
    "a question without an answer": (
        change_row(1, troubles=("cannot write to ~: PermissionError",)),
        ("node1 cannot write to ~: PermissionError",),
    ),
    "python too old": (
        change_all(*(change_facts(host, python="3.9.2") for host in range(3))),
        ("Python on node0, node1, node2 is older than 3.11", "`python`"),
    ),
    "python differs": (
        change_facts(2, python="3.12.1"),
        ("Python differs: 3.11.9 on node0, node1; 3.12.1 on node2",),
    ),
    "no tensorflow": (
        change_all(change_facts(1, tensorflow=None), change_row(1, trial=TensorFlowTrial(error="the import failed"))),
        (
            "TensorFlow is missing on node1 (/usr/bin/python3 cannot import it)",
            "-m pip install 'tensorflow[and-cuda]==2",
            'setup = "uv"',
        ),
    ),
    "tensorflow that does not import": (
        change_row(1, trial=TensorFlowTrial(error="the import failed", last_lines=("ImportError: libcudart.so.12",))),
        ("TensorFlow 2.21.0 on node1 is installed, but: the import failed\n    | ImportError: libcudart", "Try it there"),
    ),
    "tensorflow differs": (
        change_row(2, trial=TensorFlowTrial("2.15.0", 4, 3.0)),
        ("TensorFlow differs: 2.21.0 on node0, node1; 2.15.0 on node2", "the same on all"),
    ),
    "too few gpus": (
        change_all(change_facts(1, gpus=("A100",) * 3), change_row(1, trial=TensorFlowTrial("2.21.0", 3, 3.0))),
        ("clusters.toml has 4 GPUs per host, but there are 3 on node1", "gpus_per_host"),
    ),
    "tensorflow without cuda": (
        change_row(1, trial=TensorFlowTrial("2.21.0", 0, 3.0)),
        ("TensorFlow does not see all GPUs that nvidia-smi lists on node1", "tensorflow[and-cuda]"),
    ),
    "nvidia-smi hangs": (
        change_facts(1, gpus=None, gpus_error="nvidia-smi has not answered for 20 s"),
        ("the GPUs of node1 cannot be listed: nvidia-smi has not answered for 20 s",),
    ),
    "clock ahead": (
        change_row(1, offset=ClockOffset(0.2, 0.001)),
        ("the clock of node1 is 0.2 s ahead of this machine's (within 0.001 s)", "chrony"),
    ),
    "clock behind": (change_row(1, offset=ClockOffset(-3.0, 0.001)), ("the clock of node1 is 3 s behind this machine's",)),
    "one pair": (
        close_ports((0, 1)),
        ("node0 -> node1 cannot connect. node0 to node1 (10.0.0.1), port 40001: no answer within 5 s", "fixed_ports"),
    ),
    "a host that no other reaches": (
        close_ports((0, 1), (2, 1)),
        ("no host can reach node1 (10.0.0.1), port 40001: no answer", "firewall"),
    ),
    "a host that no other reaches, with the address of another": (
        change_all(close_ports((0, 1), (2, 1)), change_row(1, has_address=False)),
        ("No interface of it has that address: it has 127.0.0.1, 10.0.0.1",),
    ),
    "a fixed port is taken": (change_row(1, taken=(2230,)), ("port 2230 of node1 is taken", "fixed_ports")),
    "one slow host of three": (
        slow_links(2),
        (
            "node0 -> node2, node1 -> node2, node2 -> node0, node2 -> node1 are far slower than the other links",
            ": 94 Mbit/s where 9.4 Gbit/s is usual. node2 is in all of them",
            "ethtool",
        ),
    ),
    "a link that breaks": (
        lambda seen: seen.links.__setitem__(0, HostLink(0, 1, error="nothing has gone through for 10 s")),
        ("the link node0 -> node1 could not be measured: nothing has gone through for 10 s", "MTU"),
    ),
    "disk nearly full": (
        change_facts(1, disks=(FULL,)),
        ("(/home/me/.cache) of node1 is nearly full: 100 MiB of 100 GiB are free",),
    ),
}


@pytest.mark.parametrize("case", ONE_THING_WRONG)
def test_problem_is_reported_once(case: str) -> None:
    """A problem is reported once, with its location and advice, as a full sentence."""
    change, words = ONE_THING_WRONG[case]
    seen = make_healthy(3, gpus=4)
    change(seen)
    (output,) = list_problems(seen, gpus=4)
    for each in words:
        assert each in output
    assert output.endswith(".")


NOT_WRONG: dict[str, Callable[[Diagnosis], None]] = {
    "clock within its uncertainty": change_row(1, offset=ClockOffset(0.2, 0.19)),
    "clock a little off": change_row(1, offset=ClockOffset(0.04, 0.0)),
    "python's last number": change_facts(1, python="3.11.2"),
    "busy": change_facts(1, load=7.0),
    "gpus of another model": change_facts(1, gpus=("H100",) * 4),
    "disk rather full": change_facts(1, disks=(replace(FULL, free_bytes=15 * GIB, total_bytes=1000 * GIB),)),
}


@pytest.mark.parametrize("case", NOT_WRONG)
def test_harmless_difference_is_no_problem(case: str) -> None:
    """A difference that does not prevent training is no problem."""
    seen = make_healthy(3, gpus=4)
    NOT_WRONG[case](seen)
    assert list_problems(seen, gpus=4) == []


@pytest.mark.parametrize(
    "change, words",
    [
        (change_facts(1, load=7.0), "node1 is busy: 7 runnable processes on 8 cores"),
        (change_facts(1, gpus=("H100",) * 4), "GPUs differ: A100 on node0, node2; H100 on node1"),
        (change_facts(1, python="3.11.2"), "Python differs"),
        (
            change_facts(1, disks=(replace(FULL, free_bytes=15 * GIB, total_bytes=1000 * GIB),)),
            "nearly full: 15 GiB of 1000 GiB",
        ),
    ],
)
def test_harmless_difference_is_a_remark(change: Callable[[Diagnosis], None], words: str) -> None:
    """A difference that does not prevent training is a remark."""
    seen = make_healthy(3, gpus=4)
    change(seen)
    assert any(words in output for output in list_remarks(seen, gpus=4))


def test_equal_clock_offsets_are_of_this_machine() -> None:
    """If all hosts have the same offset, a remark names this machine's clock, and there is no problem."""
    seen = make_healthy(3)
    for host in seen.hosts:
        host.offset = ClockOffset(60.01, 0.001)
    assert list_problems(seen) == []
    assert "this machine's clock is 60 s behind those of all hosts" in list_remarks(seen)[0]


def test_different_clock_offsets_are_of_the_hosts() -> None:
    """If all hosts have different offsets, each host has a problem."""
    seen = make_healthy(2)
    seen.hosts[0].offset, seen.hosts[1].offset = ClockOffset(60.0, 0.001), ClockOffset(-60.0, 0.001)
    assert [output[:18] for output in list_problems(seen)] == ["the clock of node0", "the clock of node1"]


def test_many_pairs_are_counted() -> None:
    """The message of many pairs that cannot connect names the first ones and counts the rest."""
    seen = make_healthy(16)
    close_ports(*((i, k) for i in range(8) for k in range(8, 16)))(seen)
    (output,) = list_problems(seen)
    assert "and 58 more cannot connect" in output


def test_link_slow_in_one_direction_is_found() -> None:
    """A slow direction between two hosts is found."""
    seen = make_healthy(2)
    seen.links = [make_link(0, 1, 94), make_link(1, 0, 9400)]
    assert "node0 -> node1 is far slower than" in list_problems(seen)[0]


def test_links_within_a_machine_are_not_judged() -> None:
    """Links between hosts on one machine are no problem, at any rate."""
    seen = make_healthy(2)
    seen.links = [make_link(0, 1, 94), make_link(1, 0, 9400)]
    for host in seen.hosts:
        host.address = "127.0.0.1"
    assert list_problems(seen) == []


def test_too_few_cores_for_devices_are_a_problem() -> None:
    """Hosts with fewer cores than devices of cores are named in one problem."""
    seen = make_healthy(2, each={1: {"cores": 2}})
    assert list_problems(seen, shares=2) == []
    assert "clusters.toml makes 4 devices of each host's cores, but node1 has 2. Lower" in list_problems(seen, shares=4)[0]
    seen = make_healthy(2, each={0: {"cores": 2}, 1: {"cores": 2}})
    assert "of each host's cores, but node0, node1 have 2. Lower" in list_problems(seen, shares=4)[0]


def test_missing_gpus_are_a_problem() -> None:
    """GPUs in the clusters file that do not exist are a problem."""
    assert "has 1 GPU per host, but there is none on node0, node1" in list_problems(make_healthy(2), gpus=1)[0]


def test_unseen_gpus_are_no_problem_of_cpu_devices() -> None:
    """With devices of cores, GPUs that TensorFlow does not see are no problem."""
    seen = make_healthy(2, gpus=1)
    for host in seen.hosts:
        host.trial = TensorFlowTrial("2.21.0", 0, 3.0)
    assert list_problems(seen, shares=1) == []


def test_hosts_are_grouped_by_shared_folder() -> None:
    """Hosts that see each other's files are one group, which is a problem only if a shared folder is expected."""
    seen = make_healthy(4)
    seen.hosts[2].sees = frozenset({2, 3})
    seen.hosts[3].sees = frozenset({2, 3})
    seen.hosts[0].sees = seen.hosts[1].sees = frozenset({0, 1})
    assert group_by_shared_folder(seen) == [[0, 1], [2, 3]]
    assert list_problems(seen) == []
    assert "is not the same on all hosts: node0, node1; node2, node3" in list_problems(seen, shared_folder=True)[0]


def test_problems_come_before_remarks() -> None:
    """Problems come before remarks."""
    seen = make_healthy(2)
    change_facts(0, load=100.0)(seen)
    change_row(1, offset=ClockOffset(9.0, 0.0))(seen)
    assert [finding.wrong for finding in list_findings(seen, ExpectedHardware())] == [True, False]


def test_lost_host_has_one_problem() -> None:
    """A lost host is the only problem if no ports and links could be checked."""
    seen = make_healthy(2)
    change_row(1, missing="silent for 10 s")(seen)
    seen.reached, seen.links = [], []
    assert len(list_problems(seen)) == 1


@pytest.mark.parametrize(
    "rate, words", [(95_600_000, "95.6 Mbit/s"), (9.41e9, "9.41 Gbit/s"), (1e12, "1000 Gbit/s"), (5000, "5 kbit/s")]
)
def test_rates_have_three_digits(rate: float, words: str) -> None:
    """Rates have the unit in which they are 1 to 1000."""
    assert format_bits_per_s(rate) == words


def test_sizes_have_gib_or_mib() -> None:
    """Sizes are in GiB, and small ones in MiB."""
    assert (format_bytes(3 * GIB // 2), format_bytes(100 << 20)) == ("1.5 GiB", "100 MiB")


def test_successful_connections_are_no_problem() -> None:
    """Connections without an error are no problem."""
    seen = make_healthy(2)
    seen.reached = [PortAttempt(0, 1, 1), PortAttempt(1, 0, 1)]
    assert list_problems(seen) == []


def _get_facts(host: HostDiagnosis) -> Any:
    assert host.facts
    return host.facts


def make_protected(backend: str, network: str | None, address: str, **changes: Any) -> Diagnosis:
    """Make a diagnosis of one host at an address, allocated by a backend."""
    seen = replace(make_healthy(1), backend=backend, network=network)
    change_row(0, address=address)(seen)
    change_facts(0, **changes)(seen)
    return seen


CAN, ROOTLESS, FORBIDDEN = None, "only root may set up nftables", "namespaces are not allowed to this user"


@pytest.mark.parametrize(
    "backend, network, address, unisolated, unguarded, protection, output",
    [
        ("local", None, "127.0.0.1", CAN, ROOTLESS, "isolated", ""),
        ("local", None, "127.0.0.1", FORBIDDEN, CAN, "firewall", ""),
        ("local", None, "127.0.0.1", FORBIDDEN, ROOTLESS, "none", "note"),
        ("local", "host", "127.0.0.1", CAN, CAN, "as the host", ""),
        ("ssh", None, "203.0.113.7", FORBIDDEN, CAN, "firewall", ""),
        ("ssh", None, "10.0.0.1", CAN, ROOTLESS, "private network", ""),
        ("ssh", None, "203.0.113.7", CAN, ROOTLESS, "none", "wrong"),
        ("ssh", "trusted", "203.0.113.7", CAN, CAN, "trusted", ""),
        ("slurm", None, "2a00::1", CAN, ROOTLESS, "none", "wrong"),
        ("ec2", None, "172.31.0.7", CAN, ROOTLESS, "security group", ""),
    ],
)
def test_missing_protection_is_a_problem_or_a_remark(
    backend: str, network: str | None, address: str, unisolated: str, unguarded: str, protection: str, output: str
) -> None:
    """The table has the protection of tasks. Without any there is a problem, or a remark if the host is this machine."""
    seen = make_protected(backend, network, address, unisolated=unisolated, unguarded=unguarded)
    cell = next(column for column in COLUMNS if column.heading == "protection").cell(seen, 0)
    wrong, notes = list_problems(seen), list_remarks(seen)
    assert (cell, len(wrong), len(notes)) == (protection, output == "wrong", output == "note")
    assert all(unguarded in words for words in wrong + notes)


def test_other_public_addresses_are_a_remark() -> None:
    """Public addresses of a host that tasks do not use, but listen on, are a remark."""
    seen = make_protected("ssh", None, "10.0.0.1", addresses=("127.0.0.1", "10.0.0.1", "203.0.113.7", "fe80::1"))
    (output,) = list_remarks(seen)
    assert output.startswith("tasks on node0 use 10.0.0.1, but listen on all its addresses, of which 203.0.113.7 is public")
    assert list_problems(seen) == []


IB0 = NetworkInterface("ib0", ("10.1.0.1",), "InfiniBand", 100.0)
ETH0 = FACTS.interfaces[0]


def test_host_without_the_interface_is_a_problem() -> None:
    """A host without the interface of clusters.toml is a problem, with the interfaces that it has."""
    seen = make_healthy(2, each={0: {"interfaces": (ETH0, IB0)}})
    seen.interface = "ib0"
    (problem,) = list_problems(seen)
    assert problem == (
        "host node1 has no interface 'ib0'. It has eth0 (10.0.0.0, Ethernet 10 Gb/s). Correct `interface` in clusters.toml."
    )


@pytest.mark.parametrize(
    "of_first, of_second, interface, count",
    [
        ((ETH0, IB0), (ETH0, IB0), None, 1),
        ((ETH0, IB0), (ETH0,), None, 0),
        ((ETH0, IB0), (ETH0, replace(IB0, addresses=())), None, 0),
        ((ETH0, IB0), (ETH0, IB0), "eth0", 0),
        ((ETH0,), (ETH0,), None, 0),
    ],
    ids=["on both", "on one", "without an address", "chosen", "no other"],
)
def test_faster_interface_of_all_hosts_is_a_remark(
    of_first: tuple[NetworkInterface, ...], of_second: tuple[NetworkInterface, ...], interface: str | None, count: int
) -> None:
    """A faster interface of all hosts is a remark, unless clusters.toml chooses one."""
    seen = make_healthy(2, each={0: {"interfaces": of_first}, 1: {"interfaces": of_second}})
    seen.interface = interface
    note = (
        "tasks use eth0 (Ethernet 10 Gb/s), and all hosts have a faster interface: ib0 (InfiniBand 100 Gb/s). "
        'Set interface = "ib0" in clusters.toml, if the hosts reach each other there.'
    )
    assert list_remarks(seen) == [note] * count
