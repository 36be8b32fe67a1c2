"""A network of tasks' own: what is in it, and what a process keeps that enters."""

import ctypes
import errno
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest

from pytest_dtfperf.node import isolation, ports, processes
from tests.machines import ordinary

_PR_SET_PDEATHSIG, _PR_GET_PDEATHSIG = 1, 2
ELSEWHERE = "198.51.100.1"  # RFC 5737: unassigned


def make_network() -> list[int]:
    """The files of a new network, as the starter of agents gets them."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = [sys.executable, "-m", "pytest_dtfperf.node.isolation", str(theirs.fileno())]
        subprocess.run(command, pass_fds=[theirs.fileno()], check=True)
        return socket.recv_fds(ours, 16, 2)[1]


@pytest.fixture(params=["by a process", "in a thread"])
def network(request: pytest.FixtureRequest) -> Iterator[list[int]]:
    try:
        files = make_network() if request.param == "by a process" else isolation.make_in_thread()
    except subprocess.CalledProcessError:
        pytest.skip("this machine lets this user make no namespaces")
    if not files:
        pytest.skip("this machine lets this user make no network without a user namespace")
    with ExitStack() as closing:
        for file in files:
            closing.callback(os.close, file)
        yield files


def test_process_that_has_entered() -> None:
    """A process that enters a network has only its loopback interface, and keeps its user and its parent-death signal."""
    if subprocess.run([sys.executable, "-m", "pytest_dtfperf.node.isolation"], capture_output=True, check=False).returncode:
        pytest.skip("this machine lets this user make no namespaces")
    check(os.getuid())


def test_process_without_rights_that_has_entered() -> None:
    """A process without rights that enters a network has only its loopback interface, and gets no rights."""
    if reason := ordinary.why_not():
        pytest.skip(reason)
    check(ordinary.USER, *ordinary.as_user())


def test_a_thread_makes_one_and_its_process_stays_where_it_is() -> None:
    """Root's process is in the network that it was in before, and so are the threads that it starts later."""
    before = os.readlink("/proc/self/ns/net")
    files = isolation.make_in_thread()
    for file in files:
        os.close(file)
    assert len(files) in ((2,) if ordinary.why_not() is None else (0, 2))
    assert os.readlink("/proc/self/ns/net") == before
    found = []
    thread = threading.Thread(target=lambda: found.append(os.readlink("/proc/thread-self/ns/net")))
    thread.start()
    thread.join()
    assert found == [before]


def test_no_thread_of_an_ordinary_user_makes_one() -> None:
    """A user other than root is given none, and so makes it in a process."""
    if reason := ordinary.why_not():
        pytest.skip(reason)
    command = [sys.executable, "-c", "from pytest_dtfperf.node import isolation; print(isolation.make_in_thread())"]
    assert subprocess.run([*ordinary.as_user(), *command], capture_output=True, text=True, check=True).stdout == "[]\n"


def check(user: int, *before: str) -> None:
    command = [*before, sys.executable, "-c", "from tests.node.test_isolation import enter_and_report; enter_and_report()"]
    found = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    assert found["interfaces"] == ["lo"]
    assert found["counted"] > 0, "what goes over its loopback is counted"
    assert found["elsewhere"] == errno.ENETUNREACH
    assert found["user"] == user
    assert found["signal"] == signal.SIGKILL, "it still dies with its parent"
    assert found["cores"] == 1
    assert found["capabilities"] == 0 or user == 0
    assert not found["writes what it may not"] or user == 0


def enter_and_report() -> None:
    """Enter a network in a process of its own, and print what the process then is and has."""
    files, libc, kept = make_network(), ctypes.CDLL(None), ctypes.c_int()
    closed = os.memfd_create("closed")
    os.fchmod(closed, 0o400)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
    isolation.enter(*files)
    libc.prctl(_PR_GET_PDEATHSIG, ctypes.byref(kept))
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname()).close()
    with socket.socket() as line:
        elsewhere = line.connect_ex((ELSEWHERE, 80))
    with open("/proc/self/net/dev") as file:
        rows = {line.split(":")[0].strip(): line.split(":")[1].split() for line in file.readlines()[2:]}
    with open("/proc/self/status") as file:
        status = {name: value.strip() for name, _, value in (line.partition(":") for line in file)}
    found: dict[str, Any] = {
        "interfaces": list(rows),
        "counted": int(rows["lo"][0]),
        "elsewhere": elsewhere,
        "user": os.getuid(),
        "signal": kept.value,
        "cores": len(os.sched_getaffinity(0)),
        "capabilities": int(status["CapEff"], 16),
        "writes what it may not": opens(f"/proc/self/fd/{closed}"),
    }
    print(json.dumps(found))


def opens(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_WRONLY))
    except PermissionError:
        return False
    return True


def test_ports_are_held_within(network: list[int]) -> None:
    """Ports that are reserved within a network are taken there, and free here; released, they are free again."""
    held = ports.reserve_in_network(network, partial(ports.reserve, 300))  # more than one message of the kernel's takes
    assert len(set(held.ports)) == 300
    wanted = held.ports[:2]
    with pytest.raises(ports.PortsTaken) as taken:
        ports.reserve_in_network(network, partial(ports.reserve_exactly, wanted))
    assert taken.value.ports == wanted
    held.release()
    again = ports.reserve_in_network(network, partial(ports.reserve_exactly, wanted))
    assert again.ports == wanted
    again.release()


def test_failed_reservation_in_a_network_is_raised(network: list[int]) -> None:
    """A failure of a reservation within a network is raised outside, and leaves no child and no file."""

    def list_children() -> set[int]:
        own = os.getpid()  # descendants of other children, such as the zygote of tests, may begin at any time
        return {each.pid for each in processes.list_descendants(own, dead=True) if each.parent == own}

    files, children = len(os.listdir("/proc/self/fd")), list_children()

    def fail() -> ports.Reservation:
        raise OSError(errno.ENOBUFS, "so there")

    with pytest.raises(OSError, match="so there"):
        ports.reserve_in_network(network, fail)
    assert len(os.listdir("/proc/self/fd")) == files
    assert not list_children() - children  # those of earlier tests may end at any time


def test_networks_are_independent(network: list[int]) -> None:
    """A port that is taken in one network is free in another."""
    other = make_network()
    held = ports.reserve_in_network(network, partial(ports.reserve, 1))
    also = ports.reserve_in_network(other, partial(ports.reserve_exactly, held.ports))
    assert also.ports == held.ports
    for each in (held, also):
        each.release()
    for file in other:
        os.close(file)
