"""Hosts that cannot be used, and hosts that are lost: one clear message each, and nothing left behind."""

import dataclasses
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.clusters.protocol import LossReason, Lost, Resources
from pytest_dtfperf.clusters.ssh import endpoints
from pytest_dtfperf.clusters.ssh.cluster import Ssh, SshAllocation
from pytest_dtfperf.errors import AllocationError, AllocationOver
from pytest_dtfperf.launch.agents import Agents
from pytest_dtfperf.launch.watch import AgentLoss
from pytest_dtfperf.node import processes, sweep
from pytest_dtfperf.testing.backends import PARROT_COMMAND, PATIENCE_S, ParrotChannel, start_parrots, wait_until
from tests.clusters.ssh.conftest import NewLab
from tests.clusters.ssh.lab import Lab
from tests.clusters.ssh.test_conformance import ROOT
from tests.machines import machine
from tests.node.handheld import TOY

SEES_FILES = [f"export PYTHONPATH={ROOT}"]
apart = pytest.mark.skipif(machine.why_not() is not None, reason=f"machines of their own: {machine.why_not()}")


def refusal(config: ClusterConfig, hosts: int = 2) -> str:
    """Return the error of an allocation."""
    with pytest.raises(AllocationError) as refused, Ssh(config).allocate(Resources(devices=hosts)):
        pass
    return str(refused.value)


# Hosts that cannot be used.


def test_wrong_key(new_lab: NewLab) -> None:
    """A host that refuses the user's key is named, with the file to check."""
    lab = new_lab(2, each={"m2": {"authorized": []}})
    words = refusal(lab.config())
    assert words.startswith("m2 does not let ")
    assert "authorized_keys" in words


def test_no_login(new_lab: NewLab) -> None:
    """sshd's message for /etc/nologin is quoted and explained."""
    lab = new_lab(1, sshd=["ForceCommand echo 'Maintenance until noon' >&2; exit 254"])  # as sshd without PAM does by itself
    assert refusal(lab.config(), hosts=1) == (
        "host m1 lets no users in now (/etc/nologin). Hint: ask its administrator when it will\n    | Maintenance until noon"
    )


def trust_only(lab: Lab, folder: Path, *keys: str) -> ClusterConfig:
    """Return the cluster of a user with only these known host keys."""
    known_hosts, ssh_config = folder / "known_hosts", folder / "ssh_config"
    known_hosts.write_text("".join(f"{key}\n" for key in keys))
    ssh_config.write_text(lab.ssh_config.read_text().replace(str(lab.known_hosts), str(known_hosts)))
    return lab.config(ssh_config=str(ssh_config))


def test_unknown_host_key(lab: Lab, tmp_path: Path) -> None:
    """A host with an unknown key is refused."""
    first, _ = lab.known_hosts.read_text().splitlines()
    words = refusal(trust_only(lab, tmp_path, first))
    assert "m2" in words
    assert "host key" in words


def test_changed_host_key(lab: Lab, tmp_path: Path) -> None:
    """A host with another key than before is refused."""
    first, second = lab.known_hosts.read_text().splitlines()
    words = refusal(trust_only(lab, tmp_path, first, f"{second.split()[0]} {' '.join(first.split()[1:])}"))
    assert "m2" in words
    assert "host key" in words


def test_unknown_name(lab: Lab) -> None:
    """An unknown host name is reported, at once or after its look-up has timed out."""
    words = refusal(lab.config(hosts=["m1", "no-such-host.invalid"], connect_s=5))
    assert "no-such-host.invalid" in words


def test_closed_port(lab: Lab) -> None:
    """A closed port is reported."""
    words = refusal(lab.config(port=1))
    assert "cannot be reached at" in words
    assert "port 1" in words


@apart
def test_host_that_is_down(new_lab: NewLab) -> None:
    """A host that does not answer is named, and the other one is disconnected."""
    lab = new_lab(2)
    lab["m2"].power_off()
    words = refusal(lab.config(connect_s=3))
    assert words.startswith("m2 cannot be reached") or "host m2 did not answer" in words
    wait_until("no user is logged in to m1", lambda: not lab["m1"].sessions())


def test_no_such_python(lab: Lab) -> None:
    """A host without the interpreter is reported with the key that names another."""
    words = refusal(lab.config(python="python3.99"))
    assert "has no python3.99. Hint: name its interpreter with `python`" in words
    assert "Python 3.11 or newer, with TensorFlow" in words


def test_old_python(new_lab: NewLab) -> None:
    """A host with an old Python is reported with its version."""
    older = "import sys; sys.version_info = (3, 8, 10, 'final', 0); exec(sys.argv[1])"
    program = f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -c {shlex.quote(older)} "$3"\n'
    lab = new_lab(1, programs={"python3": program})
    words = refusal(lab.config(python="python3"), hosts=1)
    assert words.startswith("host m1 has Python 3.8.10 as python3. Hint: name another interpreter with `python`")


def test_missing_tensorflow(new_lab: NewLab) -> None:
    """A host without TensorFlow is reported with three remedies."""
    lab = new_lab(1, programs={"python3": f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -S "$@"\n'})
    config = lab.config(python="python3")
    with Ssh(config).allocate(Resources(devices=1)) as allocation, pytest.raises(AllocationError) as refused:
        Agents(allocation, config)
    assert "the agent on m1 did not start" in str(refused.value)
    assert "TensorFlow is missing on m1: name an interpreter that has it with `python`" in str(refused.value)


@apart
def test_full_disk(new_lab: NewLab) -> None:
    """A host with a full home is allocated; one without any room is refused with the folder."""
    lab = new_lab(1, disk="64k")
    with Ssh(lab.config(setup=SEES_FILES)).allocate(Resources(devices=1)) as allocation, start_parrots(allocation) as parrots:
        assert parrots.receive_answers("echo here") == [b"here"]
    words = refusal(lab.config(setup=[f"export TMPDIR={lab['m1'].home}"]), hosts=1)
    assert words.startswith(
        f"host m1 cannot keep what runs on hosts (1 MB): {lab['m1'].cache}/dtfperf: No space left on device"
    )
    assert "make room there" in words


@apart
def test_cache_that_cannot_be_written(new_lab: NewLab) -> None:
    """The code is in a temporary folder, which is deleted afterwards, if the cache cannot be written."""
    lab = new_lab(1, environment={"XDG_CACHE_HOME": "/proc/none"})
    config = lab.config(setup=[*SEES_FILES, f"export TMPDIR={lab['m1'].home}"])
    with Ssh(config).allocate(Resources(devices=1)) as allocation, start_parrots(allocation) as parrots:
        assert parrots.receive_answers("echo here") == [b"here"]
        assert list(lab["m1"].home.glob("dtfperf-*"))
    wait_until("the temporary folder is gone", lambda: not list(lab["m1"].home.glob("dtfperf-*")))


def test_setup_line_that_fails(lab: Lab) -> None:
    """A failed line is reported with its number, its code and its output; later ones are not run."""
    words = refusal(lab.config(setup=["true", "echo no such module >&2; (exit 7)", "touch /no/such/folder/file"]), hosts=1)
    assert words.startswith("host m1 failed at setup line 2 with exit code 7: echo no such module")
    assert "| no such module" in words
    assert "folder" not in words.partition("\n")[2]


def test_setup_line_that_hangs(lab: Lab) -> None:
    """The current line at the time limit is reported, and is ended there."""
    words = refusal(lab.config(setup=["true", "sleep 987654"], connect_s=3), hosts=1)
    assert words.startswith("host m1 was not ready within 3 s: it was still at setup line 2 (sleep 987654)")
    wait_until("the line is over", lambda: not lab["m1"].processes("sleep 987654"))


def test_account_without_a_shell(new_lab: NewLab) -> None:
    """A login that runs no commands is reported with its output."""
    lab = new_lab(1, sshd=["ForceCommand echo this account is closed; exit 1"])
    words = refusal(lab.config(), hosts=1)
    assert words.startswith("host m1 ended the connection before it did anything for us (exit code 1)")
    assert "| this account is closed" in words


def test_output_of_login_scripts_is_ignored(new_lab: NewLab) -> None:
    """The output of login scripts, with or without a newline, is ignored."""
    lab = new_lab(1)
    for name in (".bashrc", ".profile"):
        with (lab["m1"].home / name).open("a") as file:
            file.write("echo Welcome; printf 'dtfperf: welcomes you too\\nand more'\n")
    with Ssh(lab.config(setup=SEES_FILES)).allocate(Resources(devices=1)) as allocation, start_parrots(allocation) as parrots:
        assert parrots.receive_answers("echo here") == [b"here"]


def test_busy_sshd_is_retried(new_lab: NewLab) -> None:
    """A host that drops connections because too many come at once is tried again until it accepts them."""
    lab = new_lab(1, sshd=["MaxStartups 1:100:1", "PerSourceMaxStartups none"])
    config = lab.config(setup=SEES_FILES, hosts=["m1"], connect_s=4 * PATIENCE_S)
    lab.ssh_config.write_text(lab.ssh_config.read_text().replace("Host m1\n", "Host m1 a b c d\n"))
    many = dataclasses.replace(config, backend_keys={**config.backend_keys, "hosts": ["m1", *"abcd"]})
    with Ssh(many).allocate(Resources(devices=5)) as allocation:
        assert len(allocation.hosts) == 5


# Hosts that are lost.


def ssh_of_first_host() -> int:
    """Return the ssh process on this machine that is connected to the first host."""
    found: list[int] = []

    def find_orphan() -> list[int]:  # a thread that ends hands its children on, and for a moment they have no parent
        found[:] = [each.pid for each in processes.list_descendants(os.getpid()) if _is_ssh_to_m1(_command(each.pid))]
        return found

    wait_until("there is such a one", find_orphan)
    return found[0]


def supervisor_of(lab: Lab, session: str) -> int:
    """Return the supervisor of the first host."""
    ours = set(sweep.find_left_processes([session])) & set(lab["m1"].sessions())
    (supervisor,) = {each.parent for pid in ours if (each := processes.inspect(pid)) and each.parent not in ours}
    return supervisor


def sshd_of(lab: Lab, session: str) -> int:
    found = processes.inspect(supervisor_of(lab, session))
    assert found
    return found.parent


HOW: dict[str, tuple[Callable[[Lab, str], int], str]] = {
    "ssh": (lambda lab, session: ssh_of_first_host(), "ssh, the connection to m1, was killed by SIGKILL"),
    "sshd": (sshd_of, "m1 ended the connection"),
    "supervisor": (supervisor_of, "the supervisor of the agent on m1 was killed, and the agent with it"),
}


@pytest.mark.parametrize("whom", HOW)
def test_killed_on_the_way(lab: Lab, whom: str) -> None:
    """A host is lost with the reason, and keeps nothing, if any process between controller and agent is killed."""
    find, words = HOW[whom]
    with Ssh(lab.config(setup=SEES_FILES)).allocate(Resources(devices=2)) as allocation, start_parrots(allocation) as parrots:
        session = parrots.session
        if whom != "supervisor":  # then the daemon would keep the agent's stdout open, and the loss would be found by silence
            assert parrots.receive_answers("daemon") == [b"daemon"] * 2
        os.kill(find(lab, session), signal.SIGKILL)
        how = until_lost(parrots)
        assert how.reason is LossReason.CUT_OFF
        assert words in how.description
        parrots.channel.send(b"echo still here")
        assert parrots.receive_lines(1) == [(1, b"still here")]
    wait_until("nothing of the session is left", lambda: sweep.find_left_processes([session]) == [])


@apart
def test_hosts_that_go_away(new_lab: NewLab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts that are switched off or cut off are noticed; one that was cut off ends everything by itself."""
    sooner = tuple(word.replace("ServerAliveInterval=5", "ServerAliveInterval=1") for word in endpoints.SSH_OPTIONS)
    monkeypatch.setattr(endpoints, "SSH_OPTIONS", sooner)
    lab = new_lab(2)
    config = dataclasses.replace(lab.config(setup=SEES_FILES, entry=TOY), heartbeat_timeout_s=5.0)
    with Ssh(config).allocate(Resources(devices=2)) as allocation, closing(Agents(allocation, config)) as agents:
        assert lab["m2"].processes("node.agent")
        began = time.monotonic()
        lab["m1"].power_off()
        lab["m2"].link_down()
        wait_until("nothing of ours is left on it", lambda: not lab["m2"].processes("pytest_dtfperf"))
        lost: dict[int, str] = {}
        while len(lost) < 2:
            if isinstance(event := agents.wait_for_event(1.0), AgentLoss):
                lost[event.host] = event.loss.description
            assert time.monotonic() - began < 2 * PATIENCE_S, f"only {lost} were noticed"
        assert "m1 answers no more" in lost[0]
        assert "m2 answers no more" in lost[1]


def test_agents_cannot_restart_on_lost_hosts(new_lab: NewLab) -> None:
    """An allocation is over if its hosts are gone when agents start again."""
    lab = new_lab(2)
    with Ssh(lab.config(setup=SEES_FILES, connect_s=3)).allocate(Resources(devices=2)) as allocation:
        with start_parrots(allocation):
            pass
        lab["m2"].power_off()
        with pytest.raises(AllocationOver, match="m2"):
            allocation.start(PARROT_COMMAND)


def test_connection_lost_before_the_start_is_repeated(lab: Lab) -> None:
    """A connection that was lost between allocation and start is made again."""
    with Ssh(lab.config(setup=SEES_FILES)).allocate(Resources(devices=2)) as allocation:
        assert isinstance(allocation, SshAllocation)
        os.kill(ssh_of_first_host(), signal.SIGKILL)
        with start_parrots(allocation) as parrots:
            assert parrots.receive_answers("environment DTFPERF_HOST_INDEX") == [b"0", b"1"]


def test_stopped_agent_does_not_outlive_its_heartbeat(lab: Lab) -> None:
    """An agent that is stopped for longer than its time-out cannot end itself: its supervisor does, with all below."""
    config = dataclasses.replace(lab.config(setup=SEES_FILES), heartbeat_timeout_s=1.0)
    with Ssh(config).allocate(Resources(devices=1)) as allocation, start_parrots(allocation) as parrots:
        session = parrots.session
        assert parrots.receive_answers("daemon") == [b"daemon"]
        parrots.channel.send(b"stop")
        wait_until("nothing of the session is left", lambda: sweep.find_left_processes([session]) == [])
        assert until_lost(parrots) == Lost(LossReason.ENDED, "its supervisor ended the agent")


def until_lost(parrots: ParrotChannel) -> Lost:
    """Return how the first host is lost, after all of its output."""
    while not isinstance((heard := parrots.receive_lines(1)[0])[1], Lost):
        assert heard[0] == 0
    return heard[1]


def _is_ssh_to_m1(command: str) -> bool:
    return command.startswith("ssh ") and " -- m1 " in command


def _command(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline") as file:
            return file.read().replace("\0", " ")
    except OSError:
        return ""
