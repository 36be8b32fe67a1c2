"""A firewall around ports."""

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from pytest_dtfperf.node.isolation import Firewall, explain_missing_firewall
from pytest_dtfperf.testing.backends import PATIENCE_S, wait_until
from tests.machines import network as networks
from tests.machines import ordinary
from tests.machines.network import Network

PEER, STRANGER, HERE = 1, 2, 253
PREFIX = "fd5d:1f2a::"
OPEN, SILENT = "open", "silent"
CONNECT = """
import socket, sys
source, address, port, within_s = sys.argv[1:]
try:
    socket.create_connection((address, int(port)), float(within_s), (source, 0))
    print("open")
except TimeoutError:
    print("silent")
"""
UNLUCKY_S = 1.0  # for dropped packets: no answer is later than that
HOLD = """
import sys, time
from pytest_dtfperf.node.isolation import Firewall
guard = Firewall("killed", [int(sys.argv[1])], [])
print("up", flush=True)
time.sleep(600)
"""


class Ground:
    """A process that listens here on two ports, and others elsewhere that call."""

    def __init__(self, network: Network, guarded: int, other: int) -> None:
        self._network = network
        self.guarded, self.other = guarded, other

    def address(self, host: int, family: int = 4) -> str:
        return self._network.address(host).partition("/")[0] if family == 4 else f"{PREFIX}{host}"

    def calls(self, source: int, port: int, family: int, expected: str) -> str:
        """Return the outcome of a connection from another host."""
        within_s = UNLUCKY_S if expected == SILENT else PATIENCE_S
        call = [self.address(source, family), self.address(HERE, family), str(port), str(within_s)]
        command = ["nsenter", f"--net={self._network.namespace}", sys.executable, "-c", CONNECT, *call]
        return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()

    def sends(self, words: bytes) -> None:
        """A host elsewhere sends a datagram to the guarded port."""
        there = (self.address(HERE), self.guarded)
        script = f"import socket; socket.socket(type=socket.SOCK_DGRAM).sendto({words!r}, {there!r})"
        subprocess.run(["nsenter", f"--net={self._network.namespace}", sys.executable, "-c", script], check=True)


@pytest.fixture(scope="module")
def ground() -> Iterator[Ground]:
    if reason := networks.why_not() or explain_missing_firewall():
        pytest.skip(reason)
    with ExitStack() as stack:
        network = stack.enter_context(Network())
        for host in (PEER, STRANGER):
            network.ip(f"address add {network.address(host)} dev bridge", f"address add {PREFIX}{host}/64 dev bridge nodad")
        networks.run("ip", "address", "add", f"{PREFIX}{HERE}/64", "dev", f"lab{network.x}", "nodad")
        ports = []
        for _ in range(2):
            listening = stack.enter_context(socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True))
            ports.append(listening.getsockname()[1])
        yield Ground(network, *ports)


def tables() -> str:
    return networks.run("nft", "list", "tables")


@pytest.mark.parametrize("family", [4, 6], ids=["IPv4", "IPv6"])
def test_strangers_are_kept_from_its_ports(ground: Ground, family: int) -> None:
    """Peers come through to a guarded port and strangers do not; other ports are open to all; afterwards all are."""
    guard = Firewall("t", [ground.guarded], [ground.address(PEER, 4), ground.address(PEER, 6)])
    seen = {
        (host, port): ground.calls(host, port, family, SILENT if (host, port) == (STRANGER, ground.guarded) else OPEN)
        for host in (PEER, STRANGER)
        for port in (ground.guarded, ground.other)
    }
    guard.close()
    assert seen.pop((STRANGER, ground.guarded)) == SILENT
    assert set(seen.values()) == {OPEN}
    assert ground.calls(STRANGER, ground.guarded, family, OPEN) == OPEN


def test_other_protocols_are_not_filtered(ground: Ground) -> None:
    """A datagram from another host to a guarded port arrives, because name services and clocks need other protocols."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind((ground.address(HERE), ground.guarded))
        receiver.settimeout(PATIENCE_S)
        guard = Firewall("t", [ground.guarded], [])
        ground.sends(b"hello")
        assert receiver.recv(5) == b"hello"
        guard.close()


def test_the_host_itself_comes_through(ground: Ground) -> None:
    """Tasks of one host reach each other at any of its addresses, also where there are no peers."""
    guard = Firewall("t", [ground.guarded], [])
    for address in ("127.0.0.1", "::1", ground.address(HERE, 4), ground.address(HERE, 6)):
        socket.create_connection((address, ground.guarded), PATIENCE_S).close()
    guard.close()


def test_firewall_ends_with_its_process(ground: Ground) -> None:
    """The table of a process that is killed by SIGKILL is gone without any clean-up."""
    with subprocess.Popen([sys.executable, "-c", HOLD, str(ground.guarded)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout
        assert holder.stdout.readline() == b"up\n"
        assert f"dtfperf_{holder.pid}_killed" in tables()
        holder.send_signal(signal.SIGKILL)
    wait_until("the table is gone", lambda: f"dtfperf_{holder.pid}_killed" not in tables())


def test_agents_of_one_process_id_have_tables_of_their_own(ground: Ground) -> None:
    """Two agents with the same process id, in containers of one host, have separate tables for the same run."""
    first, second = (Firewall("same", [ground.guarded], []) for _ in range(2))
    first.close()
    second.close()


def test_two_runs_have_two_tables(ground: Ground) -> None:
    """Guards of several agents on one machine stand beside each other, each for its own ports."""
    first, second = Firewall("a", [ground.guarded], []), Firewall("b", [ground.other], [ground.address(PEER)])
    assert ground.calls(PEER, ground.guarded, 4, SILENT) == SILENT
    assert ground.calls(PEER, ground.other, 4, OPEN) == OPEN
    first.close()
    assert ground.calls(STRANGER, ground.guarded, 4, OPEN) == OPEN
    assert ground.calls(STRANGER, ground.other, 4, SILENT) == SILENT
    second.close()


@pytest.mark.parametrize("peer", ["10.0.0.1 }; flush ruleset; #", "lab7", ""])
def test_invalid_addresses_are_refused(ground: Ground, peer: str) -> None:
    """An address from another host is checked before it becomes part of a rule."""
    with pytest.raises(ValueError, match="does not appear to be an IPv4 or IPv6 address"):
        Firewall("t", [ground.guarded], [peer])


def test_an_ordinary_user_cannot_have_it() -> None:
    """A user other than root gets an error that names root."""
    if reason := ordinary.why_not():
        pytest.skip(reason)
    command = [
        *ordinary.as_user(),
        sys.executable,
        "-c",
        "from pytest_dtfperf.node.isolation import explain_missing_firewall; print(explain_missing_firewall())",
    ]
    assert subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout == "only root may set up nftables\n"
