"""Tests of machines on 127.0.0.0/8, for users who are not root."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from pytest_dtfperf.node import processes
from pytest_dtfperf.testing.backends import wait_until
from tests.clusters.ssh.lab import Lab
from tests.machines.loopback import LoopbackMachine, why_not


@pytest.fixture
def lab() -> Iterator[Lab]:
    if reason := why_not():
        pytest.skip(reason)
    with ExitStack() as ends:
        yield ends.enter_context(Lab(2, namespaces=False))


def test_machines_have_different_addresses_and_homes(lab: Lab) -> None:
    """Machines differ by address and port, and a user who logs in has a home of this machine alone."""
    assert len({(each.address, each.port) for each in lab.machines}) == 2
    for each in lab.machines:
        assert isinstance(each, LoopbackMachine)
        assert each.address.startswith("127.")
        output = lab.ssh(each.name, "echo $HOME $XDG_CACHE_HOME")
        assert output.stdout.split() == [str(each.home), str(each.cache)], output.stderr


def test_power_off_ends_daemons(lab: Lab) -> None:
    """Daemons on a machine end with it, and a machine that is on again has the same port."""
    first = lab.machines[0]
    lab.ssh("m1", "(setsid sleep 1021 &) >/dev/null 2>&1")
    wait_until("it sleeps", lambda: first.processes("sleep 1021"))
    where = first.port
    first.power_off()
    assert "refused" in lab.ssh("m1", "true").stderr
    first.power_on()
    assert first.port == where
    assert first.processes("sleep") == []
    assert lab.ssh("m1", "echo back").stdout == "back\n"


def test_sessions_end_with_their_processes(lab: Lab) -> None:
    """A session is listed while its daemon runs, and not after its end."""
    first = lab.machines[0]
    lab.ssh("m1", "(setsid sleep 1031 &) >/dev/null 2>&1")
    wait_until("it sleeps", lambda: first.processes("sleep 1031"))
    assert first.sessions()
    for pid in first.processes("sleep 1031"):
        processes.kill(pid)
    wait_until("nobody is there", lambda: not first.sessions())
