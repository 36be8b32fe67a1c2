"""Tests of machines: separate from this one and from each other, with limited links, and without anything left behind."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from pytest_dtfperf.node import processes
from pytest_dtfperf.testing.backends import PATIENCE_S, wait_until
from tests.machines.machine import SWITCHED_OFF, Machine, why_not
from tests.machines.network import MachineError, Network

NewMachine = Callable[..., Machine]

HOLDING_A_LAB = """
import sys, time
from tests.clusters.ssh.lab import Lab
with Lab(2, namespaces={namespaces}) as lab:
    for name in lab.names:
        lab.ssh(name, "(setsid sleep {sleep} &) >/dev/null 2>&1")
    print(lab.folder, lab.network.x, flush=True)
    time.sleep(600)
"""

SENT_BYTES = 4_000_000
RECEIVER = """
import socket
listening = socket.create_server(("0.0.0.0", 0))
print(listening.getsockname()[1], flush=True)
connection, _ = listening.accept()
received = 0
while some := connection.recv(1 << 20):
    received += len(some)
print(received, flush=True)
"""
SENDER = """
import socket, sys
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
print(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\\0").decode())
connection.sendall(bytes(int(sys.argv[3])))
"""


@pytest.fixture(autouse=True)
def _possible() -> None:
    if reason := why_not():
        pytest.skip(reason)


@pytest.fixture
def network() -> Iterator[Network]:
    with Network() as network:
        yield network


@pytest.fixture
def new_machine(network: Network) -> Iterator[NewMachine]:
    with ExitStack() as machines:
        yield lambda name="m1", **options: machines.enter_context(Machine(name, network, **options))


def test_machine_is_separate(new_machine: NewMachine) -> None:
    """A machine has its own name, address, processes and /etc, and changes none of this machine's files."""
    machine = new_machine(hosts={"elsewhere": "192.0.2.7"})
    assert machine.run("hostname").strip() == "m1"
    assert machine.address in machine.run("ip", "-brief", "address", "show", "dev", "eth0")
    assert machine.run("cat", "/proc/1/comm").strip() == "bash"
    assert machine.run("getent", "hosts", "elsewhere").split() == ["192.0.2.7", "elsewhere"]
    machine.run("touch", "/etc/only-here")
    assert (machine.files / "etc/only-here").exists()
    assert not Path("/etc/only-here").exists()


def test_machines_reach_each_other(new_machine: NewMachine) -> None:
    """A machine reaches the ports of another one."""
    one, other = new_machine("one"), new_machine("other")
    assert "SSH-2.0" in one.run("bash", "-c", f"read -r line </dev/tcp/{other.address}/22; echo $line")


def test_programs_are_replaced_and_hidden(new_machine: NewMachine) -> None:
    """A program can be replaced or missing on a machine."""
    machine = new_machine(programs={"python3": None, "nvidia-smi": "#!/bin/sh\necho pretend\n"})
    assert (machine.folder / "bin" / "nvidia-smi").exists()
    assert machine.run("sh", "-c", f"PATH={machine.folder}/bin:$PATH nvidia-smi").strip() == "pretend"
    assert machine.run("sh", "-c", "ls /usr/bin/python3 2>/dev/null || echo none").strip() == "none"


def test_small_disk_is_full(new_machine: NewMachine) -> None:
    """A file that does not fit on a machine's disk is refused there."""
    machine = new_machine(disk="1m")
    with pytest.raises(MachineError, match="No space left"):
        machine.run("dd", "if=/dev/zero", f"of={machine.home}/much", "bs=64k", "count=32")
    assert (machine.home / "much").exists() is False


def test_machine_can_switch_itself_off(new_machine: NewMachine) -> None:
    """A process on a machine can switch it off, which is not another end."""
    machine = new_machine()
    assert machine.poll() is None
    with machine.popen("kill", "-TERM", "1"):
        wait_until("it is off", lambda: machine.poll() is not None)
    assert machine.poll() == SWITCHED_OFF


def test_machine_is_the_same_after_power_off(new_machine: NewMachine) -> None:
    """Power off ends all processes of a machine, and after power on it has the same host key and only its sshd."""
    machine = new_machine()
    with machine.popen("sleep", "1009") as sleep:
        wait_until("it sleeps", lambda: processes.list_descendants(sleep.pid))
        key = machine.host_key
        machine.power_off()
        assert sleep.wait(PATIENCE_S) != 0
    machine.power_on()
    assert machine.host_key == key
    # sshd may still be about to fork for who only asked whether it listens
    wait_until("its one sshd is alone", lambda: machine.sessions() == [] and len(machine.processes("sshd")) == 1)


def test_unplugged_machine_is_silent(new_machine: NewMachine) -> None:
    """A machine with its link down does not answer, and answers again when the link is up."""
    machine = new_machine()
    machine.link_down()
    probe = ["timeout", "2", "bash", "-c", f"read -r line </dev/tcp/{machine.address}/22"]
    unheard = subprocess.run(probe, capture_output=True, text=True, check=False)
    assert unheard.returncode != 0
    assert "refused" not in unheard.stderr
    machine.link_up()
    wait_until("it is back", lambda: subprocess.run(probe, capture_output=True, check=False).returncode == 0)


def test_failed_command_has_exit_code_and_output(new_machine: NewMachine) -> None:
    """A failed command on a machine is an error with its exit code and output."""
    with pytest.raises(MachineError, match=r"(?s)m1: sh.*exit code 3: so there"):
        new_machine().run("sh", "-c", "echo so there >&2; exit 3")


def test_machine_can_have_several_addresses(network: Network, new_machine: NewMachine) -> None:
    """All addresses of a machine with several of them answer."""
    addresses: list[Any] = [network.address(7), network.address(8)]
    machine = new_machine(addresses=addresses)
    assert machine.address == addresses[0].partition("/")[0]
    for address in addresses:
        probe = ["bash", "-c", f"read -r line </dev/tcp/{address.partition('/')[0]}/22"]
        assert subprocess.run(probe, capture_output=True, check=False, timeout=PATIENCE_S).returncode == 0


def test_script_runs_before_sshd(new_machine: NewMachine) -> None:
    """A script that runs before sshd can add a user, without a change of this machine."""
    machine = new_machine(before="useradd --create-home --home-dir $PWD/home/guest guest", overlays=("/etc", "/var"))
    assert machine.run("id", "--name", "--user", "guest").strip() == "guest"
    assert "guest:" not in Path("/etc/passwd").read_text()


@pytest.mark.parametrize("sender", ["m1", "m2"], ids=["out of it", "into it"])
def test_shaped_link_delays_packets(new_machine: NewMachine, sender: str) -> None:
    """A link of 50 Mbit/s delays packets in the used direction, and the sender's TCP is cubic, as on clusters."""
    machines = {"m1": new_machine("m1", rate="50mbit"), "m2": new_machine("m2")}
    receiver = next(machine for name, machine in machines.items() if name != sender)
    receive = [sys.executable, "-c", RECEIVER]
    with receiver.popen(*receive, stdout=subprocess.PIPE) as receiving:
        assert receiving.stdout
        port = receiving.stdout.readline().decode().strip()
        congestion = machines[sender].run(sys.executable, "-c", SENDER, receiver.address, port, str(SENT_BYTES))
        assert int(receiving.stdout.readline()) == SENT_BYTES
    assert congestion.strip() == "cubic"
    out_of_it, into_it = (
        machines["m1"].tc("-s -j qdisc show dev eth0"),
        machines["m1"].network.tc(f"-s -j qdisc show dev {machines['m1'].link}"),
    )
    (shaper,) = json.loads(out_of_it if sender == "m1" else into_it)
    assert (shaper["kind"], shaper["options"]["rate"]) == ("tbf", 50e6 / 8)
    assert shaper["bytes"] >= SENT_BYTES
    assert shaper["overlimits"] > 0


@pytest.mark.parametrize("namespaces", [True, False], ids=["in namespaces", "on the loopback"])
def test_killed_pytest_leaves_nothing(namespaces: bool) -> None:
    """After SIGKILL of the process that holds machines, no process, file or interface of them is left."""
    sleep = "1013" if namespaces else "1019"
    script = HOLDING_A_LAB.format(namespaces=namespaces, sleep=sleep)
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout
        folder, x = holder.stdout.readline().split()
        wait_until("both sleep", lambda: len(find_sleepers(sleep)) == 2)
        holder.kill()
    wait_until("no process is left", lambda: not find_sleepers(sleep))
    wait_until("no file is left", lambda: not Path(folder).exists())
    if namespaces:
        wait_until("no interface is left", lambda: not Path(f"/sys/class/net/lab{x}").exists())


def find_sleepers(sleep: str) -> list[int]:
    return [each.pid for each in processes.iterate_processes() if read_command(each.pid) == f"sleep\0{sleep}\0"]


def read_command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""
