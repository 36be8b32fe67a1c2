"""The findings of what was seen: as tables of one problem and its message."""

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
from tests.doctor.seen import FACTS, GIB, healthy, link


def problems(seen: Diagnosis, **expected: Any) -> list[str]:
    """What is wrong, without what is only worth knowing."""
    return [str(finding) for finding in list_findings(seen, ExpectedHardware(**expected)) if finding.wrong]


def remarks(seen: Diagnosis, **expected: Any) -> list[str]:
    return [str(finding) for finding in list_findings(seen, ExpectedHardware(**expected)) if not finding.wrong]


@pytest.mark.parametrize("hosts", [1, 2, 3, 16])
def test_healthy_hosts_have_nothing_wrong(hosts: int) -> None:
    """Hosts that are alike and well have no findings."""
    assert list_findings(healthy(hosts, gpus=4), ExpectedHardware(gpus=4)) == []


def facts(host: int, **changes: Any) -> Callable[[Diagnosis], None]:
    def change(seen: Diagnosis) -> None:
        seen.hosts[host].facts = replace(_facts(seen.hosts[host]), **changes)

    return change


def row(host: int, **changes: Any) -> Callable[[Diagnosis], None]:
    def change(seen: Diagnosis) -> None:
        for name, value in changes.items():
            setattr(seen.hosts[host], name, value)

    return change


def closed(*pairs: tuple[int, int]) -> Callable[[Diagnosis], None]:
    def change(seen: Diagnosis) -> None:
        seen.reached = [
            replace(each, error="no answer within 5 s") if (each.source, each.target) in pairs else each
            for each in seen.reached
        ]
        seen.links = [each for each in seen.links if (each.source, each.target) not in pairs]

    return change


def slow(host: int) -> Callable[[Diagnosis], None]:
    def change(seen: Diagnosis) -> None:
        seen.links = [link(each.source, each.target, 94) if host in (each.source, each.target) else each for each in seen.links]

    return change


def both(*changes: Callable[[Diagnosis], None]) -> Callable[[Diagnosis], None]:
    def change(seen: Diagnosis) -> None:
        for each in changes:
            each(seen)

    return change


FULL = Disk(what="cache", folder="/home/me/.cache", free_bytes=100 << 20, total_bytes=100 * GIB)
ONE_THING_WRONG: dict[str, tuple[Callable[[Diagnosis], None], tuple[str, ...]]] = {
    "not reached": (
        row(1, missing="host node1 cannot be reached: permission denied", facts=None, trial=None, offset=None, sees=None),
        ("host node1 cannot be reached: permission denied. Fix node1, or take it out",),
    ),
    "lost": (
        row(1, missing="its process was killed by SIGKILL", last_lines=("last word",)),
        ("node1: its process was killed by SIGKILL\n    | last word",),
    ),
    "a question without an answer": (
        row(1, troubles=("cannot write to ~: PermissionError",)),
        ("node1 cannot write to ~: PermissionError",),
    ),
    "python too old": (
        both(*(facts(host, python="3.9.2") for host in range(3))),
        ("Python on node0, node1, node2 is older than 3.11", "`python`"),
    ),
    "python differs": (
        facts(2, python="3.12.1"),
        ("Python differs: 3.11.9 on node0, node1; 3.12.1 on node2",),
    ),
    "no tensorflow": (
        both(facts(1, tensorflow=None), row(1, trial=TensorFlowTrial(error="the import failed"))),
        (
            "TensorFlow is missing on node1 (/usr/bin/python3 cannot import it)",
            "-m pip install 'tensorflow[and-cuda]==2",
            'setup = "uv"',
        ),
    ),
    "tensorflow that does not import": (
        row(1, trial=TensorFlowTrial(error="the import failed", last_lines=("ImportError: libcudart.so.12",))),
        ("TensorFlow 2.21.0 on node1 is installed, but: the import failed\n    | ImportError: libcudart", "Try it there"),
    ),
    "tensorflow differs": (
        row(2, trial=TensorFlowTrial("2.15.0", 4, 3.0)),
        ("TensorFlow differs: 2.21.0 on node0, node1; 2.15.0 on node2", "the same on all"),
    ),
    "too few gpus": (
        both(facts(1, gpus=("A100",) * 3), row(1, trial=TensorFlowTrial("2.21.0", 3, 3.0))),
        ("clusters.toml has 4 GPUs per host, but there are 3 on node1", "gpus_per_host"),
    ),
    "tensorflow without cuda": (
        row(1, trial=TensorFlowTrial("2.21.0", 0, 3.0)),
        ("TensorFlow does not see all GPUs that nvidia-smi lists on node1", "tensorflow[and-cuda]"),
    ),
    "nvidia-smi hangs": (
        facts(1, gpus=None, gpus_error="nvidia-smi has not answered for 20 s"),
        ("the GPUs of node1 cannot be listed: nvidia-smi has not answered for 20 s",),
    ),
    "clock ahead": (
        row(1, offset=ClockOffset(0.2, 0.001)),
        ("the clock of node1 is 0.2 s ahead of this machine's (within 0.001 s)", "chrony"),
    ),
    "clock behind": (row(1, offset=ClockOffset(-3.0, 0.001)), ("the clock of node1 is 3 s behind this machine's",)),
    "one pair": (
        closed((0, 1)),
        ("node0 -> node1 cannot connect. node0 to node1 (10.0.0.1), port 40001: no answer within 5 s", "fixed_ports"),
    ),
    "nobody reaches a host": (
        closed((0, 1), (2, 1)),
        ("no host can reach node1 (10.0.0.1), port 40001: no answer", "firewall"),
    ),
    "nobody reaches a host by an address of others": (
        both(closed((0, 1), (2, 1)), row(1, has_address=False)),
        ("No interface of it has that address: it has 127.0.0.1, 10.0.0.1",),
    ),
    "a fixed port is taken": (row(1, taken=(2230,)), ("port 2230 of node1 is taken", "fixed_ports")),
    "one slow host of three": (
        slow(2),
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
    "disk nearly full": (facts(1, disks=(FULL,)), ("(/home/me/.cache) of node1 is nearly full: 100 MiB of 100 GiB are free",)),
}


@pytest.mark.parametrize("case", ONE_THING_WRONG)
def test_one_thing_wrong_is_one_complaint(case: str) -> None:
    """A problem is reported once, with where it is and how to go on."""
    change, words = ONE_THING_WRONG[case]
    seen = healthy(3, gpus=4)
    change(seen)
    (output,) = problems(seen, gpus=4)
    for each in words:
        assert each in output
    assert output.endswith(".")


NOT_WRONG: dict[str, Callable[[Diagnosis], None]] = {
    "clock within its uncertainty": row(1, offset=ClockOffset(0.2, 0.19)),
    "clock a little off": row(1, offset=ClockOffset(0.04, 0.0)),
    "python's last number": facts(1, python="3.11.2"),
    "busy": facts(1, load=7.0),
    "gpus of another model": facts(1, gpus=("H100",) * 4),
    "disk rather full": facts(1, disks=(replace(FULL, free_bytes=15 * GIB, total_bytes=1000 * GIB),)),
}


@pytest.mark.parametrize("case", NOT_WRONG)
def test_what_does_not_keep_from_training_is_not_wrong(case: str) -> None:
    """What is within bounds, or only worth knowing, leaves the cluster healthy."""
    seen = healthy(3, gpus=4)
    NOT_WRONG[case](seen)
    assert problems(seen, gpus=4) == []


@pytest.mark.parametrize(
    "change, words",
    [
        (facts(1, load=7.0), "node1 is busy: 7 runnable processes on 8 cores"),
        (facts(1, gpus=("H100",) * 4), "GPUs differ: A100 on node0, node2; H100 on node1"),
        (facts(1, python="3.11.2"), "Python differs"),
        (facts(1, disks=(replace(FULL, free_bytes=15 * GIB, total_bytes=1000 * GIB),)), "nearly full: 15 GiB of 1000 GiB"),
    ],
)
def test_what_is_worth_knowing_is_said(change: Callable[[Diagnosis], None], words: str) -> None:
    """Remarks are made of what does not keep anybody from training."""
    seen = healthy(3, gpus=4)
    change(seen)
    assert any(words in output for output in remarks(seen, gpus=4))


def test_clocks_that_agree_with_each_other_blame_this_machine() -> None:
    """When all hosts are off by the same, it is this machine's clock that is, which training does not mind."""
    seen = healthy(3)
    for host in seen.hosts:
        host.offset = ClockOffset(60.01, 0.001)
    assert problems(seen) == []
    assert "this machine's clock is 60 s behind those of all hosts" in remarks(seen)[0]


def test_clocks_that_disagree_are_blamed_one_by_one() -> None:
    """When all hosts are off, and each differently, each is named."""
    seen = healthy(2)
    seen.hosts[0].offset, seen.hosts[1].offset = ClockOffset(60.0, 0.001), ClockOffset(-60.0, 0.001)
    assert [output[:18] for output in problems(seen)] == ["the clock of node0", "the clock of node1"]


def test_many_pairs_are_counted() -> None:
    """Of very many pairs that cannot connect, the first are named and the rest is counted."""
    seen = healthy(16)
    closed(*((i, k) for i in range(8) for k in range(8, 16)))(seen)
    (output,) = problems(seen)
    assert "and 58 more cannot connect" in output


def test_half_of_all_links_slow() -> None:
    """One bad cable between two hosts is found in one direction, too."""
    seen = healthy(2)
    seen.links = [link(0, 1, 94), link(1, 0, 9400)]
    assert "node0 -> node1 is far slower than" in problems(seen)[0]


def test_hosts_that_are_one_machine_have_no_network_to_judge() -> None:
    """What a machine sends to itself depends on what else it does, and measures no network."""
    seen = healthy(2)
    seen.links = [link(0, 1, 94), link(1, 0, 9400)]
    for host in seen.hosts:
        host.address = "127.0.0.1"
    assert problems(seen) == []


def test_devices_made_of_cores() -> None:
    """A host with fewer cores than the file makes devices of is named, and so are several."""
    seen = healthy(2, each={1: {"cores": 2}})
    assert problems(seen, shares=2) == []
    assert "clusters.toml makes 4 devices of each host's cores, but node1 has 2. Lower" in problems(seen, shares=4)[0]
    seen = healthy(2, each={0: {"cores": 2}, 1: {"cores": 2}})
    assert "of each host's cores, but node0, node1 have 2. Lower" in problems(seen, shares=4)[0]


def test_no_gpu_at_all() -> None:
    """GPUs in the file that do not exist are reported."""
    assert "has 1 GPU per host, but there is none on node0, node1" in problems(healthy(2), gpus=1)[0]


def test_gpus_are_no_matter_where_cores_are_meant() -> None:
    """With device = "cpu", GPUs that TensorFlow does not see are none of its business."""
    seen = healthy(2, gpus=1)
    for host in seen.hosts:
        host.trial = TensorFlowTrial("2.21.0", 0, 3.0)
    assert problems(seen, shares=1) == []


def test_shared_folders_are_groups() -> None:
    """Hosts that see each other's files are one group; those that see only their own are alone."""
    seen = healthy(4)
    seen.hosts[2].sees = frozenset({2, 3})
    seen.hosts[3].sees = frozenset({2, 3})
    seen.hosts[0].sees = seen.hosts[1].sees = frozenset({0, 1})
    assert group_by_shared_folder(seen) == [[0, 1], [2, 3]]
    assert problems(seen) == []
    assert "is not the same on all hosts: node0, node1; node2, node3" in problems(seen, shared_folder=True)[0]


def test_what_is_wrong_comes_first() -> None:
    """Complaints stand above remarks."""
    seen = healthy(2)
    facts(0, load=100.0)(seen)
    row(1, offset=ClockOffset(9.0, 0.0))(seen)
    assert [finding.wrong for finding in list_findings(seen, ExpectedHardware())] == [True, False]


def test_hosts_that_nobody_tried_to_reach() -> None:
    """Where only one host is left, ports and links have no findings."""
    seen = healthy(2)
    row(1, missing="silent for 10 s")(seen)
    seen.reached, seen.links = [], []
    assert len(problems(seen)) == 1


@pytest.mark.parametrize(
    "rate, words", [(95_600_000, "95.6 Mbit/s"), (9.41e9, "9.41 Gbit/s"), (1e12, "1000 Gbit/s"), (5000, "5 kbit/s")]
)
def test_rates_have_three_digits(rate: float, words: str) -> None:
    """Rates are shown in the unit that leaves them between 1 and 1000."""
    assert format_bits_per_s(rate) == words


def test_sizes() -> None:
    """Sizes are shown in GiB, small ones in MiB."""
    assert (format_bytes(3 * GIB // 2), format_bytes(100 << 20)) == ("1.5 GiB", "100 MiB")


def test_reach_without_error_is_no_complaint() -> None:
    """Connections that came through are not mentioned."""
    seen = healthy(2)
    seen.reached = [PortAttempt(0, 1, 1), PortAttempt(1, 0, 1)]
    assert problems(seen) == []


def _facts(host: HostDiagnosis) -> Any:
    assert host.facts
    return host.facts


def protected(backend: str, network: str | None, address: str, **changes: Any) -> Diagnosis:
    """One host at an address, allocated by a backend."""
    seen = replace(healthy(1), backend=backend, network=network)
    row(0, address=address)(seen)
    facts(0, **changes)(seen)
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
def test_protection(
    backend: str, network: str | None, address: str, unisolated: str, unguarded: str, protection: str, output: str
) -> None:
    """What keeps strangers from tasks is in the table; that nothing does is wrong elsewhere, and a note on this machine."""
    seen = protected(backend, network, address, unisolated=unisolated, unguarded=unguarded)
    cell = next(column for column in COLUMNS if column.heading == "protection").cell(seen, 0)
    wrong, notes = problems(seen), remarks(seen)
    assert (cell, len(wrong), len(notes)) == (protection, output == "wrong", output == "note")
    assert all(unguarded in words for words in wrong + notes)


def test_public_addresses_beside_the_one_that_tasks_use() -> None:
    """Servers listen on all addresses of a host: public ones that tasks do not use are worth knowing of."""
    seen = protected("ssh", None, "10.0.0.1", addresses=("127.0.0.1", "10.0.0.1", "203.0.113.7", "fe80::1"))
    (output,) = remarks(seen)
    assert output.startswith("tasks on node0 use 10.0.0.1, but listen on all its addresses, of which 203.0.113.7 is public")
    assert problems(seen) == []


IB0 = NetworkInterface("ib0", ("10.1.0.1",), "InfiniBand", 100.0)
ETH0 = FACTS.interfaces[0]


def test_a_host_without_the_interface_is_named() -> None:
    """An interface of clusters.toml that a host lacks is a problem, with the interfaces that it has."""
    seen = healthy(2, each={0: {"interfaces": (ETH0, IB0)}})
    seen.interface = "ib0"
    (problem,) = problems(seen)
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
def test_a_faster_interface_of_all_hosts_is_a_note(
    of_first: tuple[NetworkInterface, ...], of_second: tuple[NetworkInterface, ...], interface: str | None, count: int
) -> None:
    """A note names a faster interface that all hosts have, unless clusters.toml chooses one."""
    seen = healthy(2, each={0: {"interfaces": of_first}, 1: {"interfaces": of_second}})
    seen.interface = interface
    note = (
        "tasks use eth0 (Ethernet 10 Gb/s), and all hosts have a faster interface: ib0 (InfiniBand 100 Gb/s). "
        'Set interface = "ib0" in clusters.toml, if the hosts reach each other there.'
    )
    assert remarks(seen) == [note] * count
