"""ssh's arguments, and their effect beside a user's own configuration."""

import shutil
import subprocess
from pathlib import Path

import pytest

from pytest_dtfperf.clusters.ssh.endpoints import Endpoint, format_command, make_ssh_argv

# Options that users set for their terminal, and some that are unsafe.
COMFORT = """
Host n1
    HostName 10.0.0.1
    Port 2222
    User me
    ProxyJump gate
Host *
    StrictHostKeyChecking no
    NoHostAuthenticationForLocalhost yes
    UpdateHostKeys yes
    BatchMode no
    ForwardAgent yes
    ForwardX11 yes
    ControlMaster auto
    ControlPath ~/.ssh/%C
    ServerAliveInterval 0
    ServerAliveCountMax 100
    ConnectTimeout 1000
    ConnectionAttempts 10
    RequestTTY force
    RemoteCommand bash
    PermitLocalCommand yes
    LocalCommand echo hello
    LocalForward 8888 localhost:8888
    Tunnel yes
    VisualHostKey yes
    LogLevel QUIET
"""


def effective(endpoint: Endpoint, connect_s: float = 30.0) -> dict[str, str]:
    """Return each option as ssh evaluates it from its arguments and files."""
    if not shutil.which("ssh"):
        pytest.skip("there is no ssh here: apt-get install openssh-client")
    program, *arguments = make_ssh_argv(endpoint, connect_s, "true")
    done = subprocess.run([program, "-G", *arguments], capture_output=True, text=True, check=True)
    return dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)


def test_command_has_fixed_options_first() -> None:
    """The command has the fixed options, then the endpoint's own, and after `--` the target and one command."""
    argv = make_ssh_argv(Endpoint("node", "me@n1", options=("-p", "2201")), 12.3, "exec true")
    assert argv[0] == "ssh"
    assert argv[-7:] == ["-o", "ConnectTimeout=13", "-p", "2201", "--", "me@n1", "exec true"]


@pytest.mark.parametrize(("connect_s", "expected"), [(0.1, "1"), (1.0, "1"), (1.5, "2"), (30, "30")])
def test_timeout_is_in_whole_seconds(connect_s: float, expected: str) -> None:
    """The time limit for ssh is rounded up to whole seconds, because zero means no limit."""
    assert f"ConnectTimeout={expected}" in make_ssh_argv(Endpoint("n", "n"), connect_s, "true")


def test_user_configuration_sets_only_the_route(tmp_path: Path) -> None:
    """The user's configuration sets the host's address and route, but not the options that the connection needs."""
    config = tmp_path / "config"
    config.write_text(COMFORT)
    found = effective(Endpoint("n1", "n1", options=("-F", str(config))), 12.0)
    theirs = {"hostname": "10.0.0.1", "port": "2222", "user": "me", "proxyjump": "gate"}
    ours = {
        "stricthostkeychecking": "true",
        "nohostauthenticationforlocalhost": "no",
        "updatehostkeys": "false",
        "batchmode": "yes",
        "forwardagent": "no",
        "forwardx11": "no",
        "controlmaster": "false",
        "serveraliveinterval": "5",
        "serveralivecountmax": "3",
        "connecttimeout": "12",
        "connectionattempts": "1",
        "requesttty": "false",
        "permitlocalcommand": "no",
        "tunnel": "false",
        "visualhostkey": "no",
        "loglevel": "INFO",
        "clearallforwardings": "yes",
    }
    assert {name: found[name] for name in (*theirs, *ours)} == {**theirs, **ours}
    assert "controlpath" not in found
    assert "localforward" not in found


def test_options_of_the_cluster_file(tmp_path: Path) -> None:
    """Options go before the user's configuration."""
    config = tmp_path / "config"
    config.write_text(COMFORT)
    options = ("-F", str(config), "-l", "you", "-p", "22", "-o", "ProxyJump=bastion", "-o", "HostKeyAlias=i-0123")
    found = effective(Endpoint("n1", "n1", options=options))
    output = {"user": "you", "port": "22", "proxyjump": "bastion", "hostkeyalias": "i-0123"}
    assert {name: found[name] for name in output} == output


def test_command_for_users_is_quoted() -> None:
    """The command in a hint lets ssh ask questions, and is quoted for a shell."""
    endpoint = Endpoint("n1", "me@n1", options=("-i", "/my keys/id"))
    assert format_command(endpoint) == "ssh -i '/my keys/id' me@n1"
    assert format_command(endpoint, "uname -a") == "ssh -i '/my keys/id' me@n1 'uname -a'"
