"""Tests of hosts that are allocated one by one: each is an allocation of this machine, and some fail."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import pytest

from pytest_dtfperf.clusters import named
from pytest_dtfperf.clusters.children import ChildrenChannel
from pytest_dtfperf.clusters.local import LocalAllocation
from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.clusters.protocol import Allocation, Host, Lost, Resources
from pytest_dtfperf.doctor.allocation import CheckupHosts, OpenAllocation, allocate_one_by_one
from pytest_dtfperf.errors import AllocationError, HostLost
from pytest_dtfperf.testing.backends import PARROT_COMMAND, PATIENCE_S, wait_until

IDLE = b"nothing"


@contextmanager
def allocate_local() -> Iterator[Allocation]:
    with named.open_cluster(ClusterConfig(name="local")).allocate(Resources(devices=1)) as allocation:
        yield allocation


def fail_to_allocate() -> AbstractContextManager[Allocation]:
    raise AllocationError("it does not answer")


def make_hosts(*names: str) -> list[Host]:
    return [Host(name, f"{name}.example") for name in names]


def receive_next(allocated_hosts: CheckupHosts, besides: bytes = b"hello") -> tuple[int, bytes | Lost]:
    """Return the next message of any host."""
    heard: list[tuple[int, bytes | Lost]] = []

    def has_arrived() -> bool:
        if (line := allocated_hosts.channel.receive(0.5)) and line[1] != besides:
            heard.append(line)
        return bool(heard)

    wait_until("somebody says something", has_arrived)
    return heard[0]


def test_reachable_hosts_receive_messages() -> None:
    """Hosts that cannot be allocated are missing with the reason, and the others receive messages and answer with their
    numbers."""
    with allocate_one_by_one(
        make_hosts("a", "b", "c"), [allocate_local, fail_to_allocate, allocate_local], PARROT_COMMAND, at_once=16, idle=IDLE
    ) as allocated_hosts:
        assert allocated_hosts.missing == {1: "it does not answer"}
        assert allocated_hosts.hosts[1] == Host("b", "b.example")
        assert allocated_hosts.hosts[0].address == "127.0.0.1"
        allocated_hosts.channel.send(b"echo here")
        assert sorted([receive_next(allocated_hosts), receive_next(allocated_hosts)]) == [(0, b"here"), (2, b"here")]


def test_unreachable_hosts_have_their_reasons() -> None:
    """If no host can be allocated, all have the reason, nothing is received, and sending fails."""
    with allocate_one_by_one(
        make_hosts("a", "b"), [fail_to_allocate, fail_to_allocate], PARROT_COMMAND, at_once=16, idle=IDLE
    ) as allocated_hosts:
        assert allocated_hosts.missing == dict.fromkeys((0, 1), "it does not answer")
        assert allocated_hosts.channel.receive(0.0) is None
        with pytest.raises(HostLost):
            allocated_hosts.channel.send(b"echo hello?")


def test_lost_host_is_reported_once() -> None:
    """A host with an ended process is reported as lost, and sending fails after the last one."""
    with allocate_one_by_one(
        make_hosts("a", "b"), [allocate_local, allocate_local], PARROT_COMMAND, at_once=1, idle=IDLE
    ) as allocated_hosts:
        allocated_hosts.channel.send(b"echo pid")
        assert {receive_next(allocated_hosts)[0], receive_next(allocated_hosts)[0]} == {0, 1}
        allocated_hosts.channel.send(b"kill 0")  # every one of them is host 0 of its own allocation
        lost: list[int] = []

        def are_both_lost() -> bool:
            if (line := allocated_hosts.channel.receive(0.5)) and isinstance(line[1], Lost):
                lost.append(line[0])
            return len(lost) == 2

        wait_until("both are lost", are_both_lost)
        assert sorted(lost) == [0, 1]
        wait_until("no process listens", lambda: _is_closed(allocated_hosts))


def test_waiting_hosts_receive_a_message() -> None:
    """During the connection to the slowest host, the others receive the idle message."""
    spoken = threading.Event()

    class NotifyingAllocation(LocalAllocation):
        def start(self, argv: Sequence[str]) -> ChildrenChannel:
            channel = super().start(argv)
            send = channel.send

            def send_and_notify(line: bytes) -> None:
                send(line)
                spoken.set()

            channel.send = send_and_notify  # type: ignore[method-assign]
            return channel

    def fail_late() -> AbstractContextManager[Allocation]:
        assert spoken.wait(PATIENCE_S)
        raise AllocationError("too late")

    allocators: list[OpenAllocation] = [lambda: nullcontext(NotifyingAllocation([Host("a", "127.0.0.1")])), fail_late]
    with allocate_one_by_one(
        make_hosts("a", "b"), allocators, PARROT_COMMAND, at_once=16, idle=b"echo still waiting"
    ) as allocated_hosts:
        assert receive_next(allocated_hosts) == (0, b"still waiting")
        assert allocated_hosts.missing == {1: "too late"}


def test_program_gets_the_number_of_its_host() -> None:
    """The program on each host gets the host's number as an argument."""
    script = ["/bin/sh", "-c", 'echo "$@"; cat', "sh"]
    with allocate_one_by_one(
        make_hosts("a", "b"), [allocate_local, allocate_local], script, at_once=16, idle=IDLE
    ) as allocated_hosts:
        heard = sorted([receive_next(allocated_hosts, IDLE), receive_next(allocated_hosts, IDLE)])
        assert heard == [(0, b"--host 0"), (1, b"--host 1")]


def test_no_thread_is_left() -> None:
    """After the block no thread of the hosts is left."""
    with allocate_one_by_one(make_hosts("a"), [allocate_local], PARROT_COMMAND, at_once=16, idle=IDLE) as allocated_hosts:
        allocated_hosts.channel.send(b"echo here")
        receive_next(allocated_hosts)
        assert any(thread.name.startswith("dtfperf-host") for thread in threading.enumerate())
    assert not any(thread.name.startswith("dtfperf-host") for thread in threading.enumerate())


def test_error_of_the_caller_releases_hosts() -> None:
    """An error within the block releases the hosts, and no thread is left."""
    released: list[str] = []

    @contextmanager
    def allocate() -> Iterator[Allocation]:
        with allocate_local() as allocation:
            try:
                yield allocation
            finally:
                released.append("a")

    with (
        pytest.raises(KeyboardInterrupt),
        allocate_one_by_one(make_hosts("a"), [allocate], PARROT_COMMAND, at_once=16, idle=IDLE),
    ):
        raise KeyboardInterrupt
    assert released == ["a"]
    assert not any(thread.name.startswith("dtfperf-host") for thread in threading.enumerate())


def _is_closed(allocated_hosts: CheckupHosts) -> bool:
    try:
        allocated_hosts.channel.send(b"echo hello?")
    except HostLost:
        return True
    return False
