"""Hosts that are allocated one by one: here each is an allocation of this machine, and some fail."""

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
def well() -> Iterator[Allocation]:
    with named.open_cluster(ClusterConfig(name="local")).allocate(Resources(devices=1)) as allocation:
        yield allocation


def down() -> AbstractContextManager[Allocation]:
    raise AllocationError("it does not answer")


def known(*names: str) -> list[Host]:
    return [Host(name, f"{name}.example") for name in names]


def next_line(lent_hosts: CheckupHosts, besides: bytes = b"hello") -> tuple[int, bytes | Lost]:
    """Return the next message of any host."""
    heard: list[tuple[int, bytes | Lost]] = []

    def arrived() -> bool:
        if (line := lent_hosts.channel.receive(0.5)) and line[1] != besides:
            heard.append(line)
        return bool(heard)

    wait_until("somebody says something", arrived)
    return heard[0]


def test_those_that_answer_are_spoken_to() -> None:
    """Hosts that cannot be allocated are missing with the reason; the others get what is sent, and are distinguished."""
    with allocate_one_by_one(known("a", "b", "c"), [well, down, well], PARROT_COMMAND, at_once=16, idle=IDLE) as lent_hosts:
        assert lent_hosts.missing == {1: "it does not answer"}
        assert lent_hosts.hosts[1] == Host("b", "b.example")
        assert lent_hosts.hosts[0].address == "127.0.0.1"
        lent_hosts.channel.send(b"echo here")
        assert sorted([next_line(lent_hosts), next_line(lent_hosts)]) == [(0, b"here"), (2, b"here")]


def test_none_answers() -> None:
    """When no host can be allocated, there is no receiver, and all reasons are reported."""
    with allocate_one_by_one(known("a", "b"), [down, down], PARROT_COMMAND, at_once=16, idle=IDLE) as lent_hosts:
        assert lent_hosts.missing.keys() == {0, 1}
        assert lent_hosts.channel.receive(0.0) is None
        with pytest.raises(HostLost):
            lent_hosts.channel.send(b"echo hello?")


def test_lost_hosts_are_told_once() -> None:
    """A host with a process that ends is reported once; when none is left, sending raises an error."""
    with allocate_one_by_one(known("a", "b"), [well, well], PARROT_COMMAND, at_once=1, idle=IDLE) as lent_hosts:
        lent_hosts.channel.send(b"echo pid")
        assert {next_line(lent_hosts)[0], next_line(lent_hosts)[0]} == {0, 1}
        lent_hosts.channel.send(b"kill 0")  # every one of them is host 0 of its own allocation
        lost: list[int] = []

        def both_lost() -> bool:
            if (line := lent_hosts.channel.receive(0.5)) and isinstance(line[1], Lost):
                lost.append(line[0])
            return len(lost) == 2

        wait_until("both are lost", both_lost)
        assert sorted(lost) == [0, 1]
        wait_until("nobody listens", lambda: _nobody_listens(lent_hosts))


def test_hosts_that_wait_for_others_hear_something() -> None:
    """While the slowest host is still being connected to, the others are not left without a word."""
    spoken = threading.Event()

    class Told(LocalAllocation):
        def start(self, argv: Sequence[str]) -> ChildrenChannel:
            channel = super().start(argv)
            send = channel.send

            def told(line: bytes) -> None:
                send(line)
                spoken.set()

            channel.send = told  # type: ignore[method-assign]
            return channel

    def late() -> AbstractContextManager[Allocation]:
        assert spoken.wait(PATIENCE_S)
        raise AllocationError("too late")

    lenders: list[OpenAllocation] = [lambda: nullcontext(Told([Host("a", "127.0.0.1")])), late]
    with allocate_one_by_one(known("a", "b"), lenders, PARROT_COMMAND, at_once=16, idle=b"echo still waiting") as lent_hosts:
        assert next_line(lent_hosts) == (0, b"still waiting")
        assert lent_hosts.missing == {1: "too late"}


def test_each_is_told_its_number() -> None:
    """A program on a host gets its host's number."""
    script = ["/bin/sh", "-c", 'echo "$@"; cat', "sh"]
    with allocate_one_by_one(known("a", "b"), [well, well], script, at_once=16, idle=IDLE) as lent_hosts:
        heard = sorted([next_line(lent_hosts, IDLE), next_line(lent_hosts, IDLE)])
        assert heard == [(0, b"--host 0"), (1, b"--host 1")]


def test_no_thread_is_left() -> None:
    """When it is over, so are its threads, each of which has closed its channel."""
    with allocate_one_by_one(known("a"), [well], PARROT_COMMAND, at_once=16, idle=IDLE) as lent_hosts:
        lent_hosts.channel.send(b"echo here")
        next_line(lent_hosts)
        assert any(thread.name.startswith("dtfperf-host") for thread in threading.enumerate())
    assert not any(thread.name.startswith("dtfperf-host") for thread in threading.enumerate())


def test_an_error_of_the_caller_ends_everything() -> None:
    """An error while hosts are allocated releases them."""
    with (
        pytest.raises(KeyboardInterrupt),
        allocate_one_by_one(known("a"), [well], PARROT_COMMAND, at_once=16, idle=IDLE),
    ):
        raise KeyboardInterrupt
    assert not any(thread.name.startswith("dtfperf-host") for thread in threading.enumerate())


def _nobody_listens(lent_hosts: CheckupHosts) -> bool:
    try:
        lent_hosts.channel.send(b"echo hello?")
    except HostLost:
        return True
    return False
