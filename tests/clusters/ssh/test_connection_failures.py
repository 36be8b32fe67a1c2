"""The explanations of ssh's messages when it cannot reach a host, or loses it."""

import os
import re
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from pytest_dtfperf.clusters.protocol import Resources
from pytest_dtfperf.clusters.ssh.bootstrap import Handshake
from pytest_dtfperf.clusters.ssh.cluster import Ssh, open_processes
from pytest_dtfperf.clusters.ssh.connection_failures import ConnectionFailure, explain_failure
from pytest_dtfperf.clusters.ssh.endpoints import Endpoint, list_endpoints, make_ssh_argv
from pytest_dtfperf.clusters.ssh.ssh_process import Unreachable
from pytest_dtfperf.errors import AllocationError
from pytest_dtfperf.testing.backends import wait_until
from tests.clusters.ssh.lab import Lab, why_not
from tests.machines.machine import make_key

Config = Callable[..., Path]

N1 = Endpoint("n1", "n1", options=("-p", "2201"))

# What OpenSSH_9.2p1 Debian-2+deb12u10 wrote on stderr before it left with exit code 255, or, where nothing can be made to fail
# that way here, writes as its source says; and what is made of it for n1.
RECORDED: Mapping[str, tuple[str, str]] = {
    "unknown host key": (
        ("No ED25519 host key is known for [10.0.0.1]:2201 and you have requested strict checking.\r\n"
        "Host key verification failed.\r\n"),
        ("n1 is not trusted yet: no ED25519 host key of [10.0.0.1]:2201 is known here. Compare the fingerprint that this shows "
        "with the host's own, and answer yes: ssh -p 2201 n1"),
    ),
    "unknown host key of an alias": (
        "No ED25519 host key is known for i-0123 and you have requested strict checking.\r\nHost key verification failed.\r\n",
        "n1 is not trusted yet: no ED25519 host key of i-0123 is known here. *",
    ),
    "changed host key": (
        ("@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@\r\n"
        "@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\r\n"
        "@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@\r\n"
        "IT IS POSSIBLE THAT SOMEONE IS DOING SOMETHING NASTY!\r\n"
        "Someone could be eavesdropping on you right now (man-in-the-middle attack)!\r\n"
        "It is also possible that a host key has just been changed.\r\n"
        "The fingerprint for the ED25519 key sent by the remote host is\n"
        "SHA256:O1Lwp6o5DJlKsBxNkiB9d549QfXMin2CZSdnJogat6A.\r\n"
        "Please contact your system administrator.\r\n"
        "Add correct host key in /home/me/.ssh/known_hosts to get rid of this message.\r\n"
        "Offending ED25519 key in /home/me/.ssh/known_hosts:17\r\n"
        "  remove with:\r\n"
        '  ssh-keygen -f "/home/me/.ssh/known_hosts" -R "[10.0.0.1]:2201"\r\n'
        "Host key for [10.0.0.1]:2201 has changed and you have requested strict checking.\r\n"
        "Host key verification failed.\r\n"),
        ("n1 shows another host key, SHA256:O1Lwp6o5DJlKsBxNkiB9d549QfXMin2CZSdnJogat6A, than the one that is known of "
        "[10.0.0.1]:2201 (/home/me/.ssh/known_hosts:17): it was set up anew, or another machine answers in its name. Ask its "
        "administrator; only if the new key is its own, forget the old one: ssh-keygen -R '[10.0.0.1]:2201', and answer yes "
        "for the new: "
        "ssh -p 2201 n1"),
    ),
    "revoked host key": (
        ("@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@\r\n"
        "@       WARNING: REVOKED HOST KEY DETECTED!               @\r\n"
        "@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@\r\n"
        "The ED25519 host key for [10.0.0.1]:2201 is marked as revoked.\r\n"
        "This could mean that a stolen key is being used to\r\n"
        "impersonate this host.\r\n"
        "ED25519 host key for [10.0.0.1]:2201 was revoked and you have requested strict checking.\r\n"
        "Host key verification failed.\r\n"),
        "n1 shows a host key of [10.0.0.1]:2201 that is marked as revoked. Ask its administrator, and do not log in before",
    ),
    "permission denied": (
        "root@10.0.0.1: Permission denied (publickey).\r\n",
        ("n1 does not let root in, by publickey: is it the right user, is the key in its authorized_keys, and a key with a "
        "passphrase in ssh-agent (ssh-add)? To try: ssh -p 2201 n1"),
    ),
    "no key file": (
        ("Warning: Identity file /nonexistent/key not accessible: No such file or directory.\n"
        "root@10.0.0.1: Permission denied (publickey,password).\r\n"),
        "n1 does not let root in, by publickey,password: ssh could not use the key /nonexistent/key (No such file or *",
    ),
    "open key file": (
        ("@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@\r\n"
        "@         WARNING: UNPROTECTED PRIVATE KEY FILE!          @\r\n"
        "@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@\r\n"
        "Permissions 0644 for '/my keys/id' are too open.\r\n"
        "It is required that your private key files are NOT accessible by others.\r\n"
        "This private key will be ignored.\r\n"
        'Load key "/my keys/id": bad permissions\r\n'
        "root@10.0.0.1: Permission denied (publickey).\r\n"),
        ("n1 does not let root in, by publickey: others may read the key /my keys/id, so ssh does not use it; "
        "chmod 600 '/my keys/id'. *"),
    ),
    "damaged key file": (
        'Load key "id": error in libcrypto\r\nroot@10.0.0.1: Permission denied (publickey).\r\n',
        "n1 does not let root in, by publickey: ssh could not use the key id (error in libcrypto). *",
    ),
    "too many keys": (
        ("Received disconnect from 10.0.0.1 port 2201:2: Too many authentication failures\r\n"
        "Disconnected from 10.0.0.1 port 2201\r\n"),
        "n1 lost patience before ssh offered the right key (Too many authentication failures): set it with identity_file. *",
    ),
    "no common cipher": (
        "Unable to negotiate with 10.0.0.1 port 2201: no matching cipher found. Their offer: aes128-ctr,aes192-ctr\r\n",
        ("n1 and this machine's ssh have too little in common: no matching cipher found. It offers aes128-ctr,aes192-ctr; "
        "options can allow one"),
    ),
    "refused": (
        "ssh: connect to host 10.0.0.1 port 2201: Connection refused\r\n",
        "n1 cannot be reached at 10.0.0.1 port 2201: no program listens there. Is sshd running, and on this port?",
    ),
    "timed out": (
        "ssh: connect to host 10.0.0.1 port 22: Connection timed out\r\n",
        ("n1 cannot be reached at 10.0.0.1 port 22: it did not answer in time; is the machine up, its address right, and no "
        "firewall in between?"),
    ),
    "reset at once": (
        "ssh: connect to host 10.0.0.1 port 22: Connection reset by peer\r\n",
        "n1 reset the connection at once: *",
    ),
    "no route": (
        "ssh: connect to host 10.0.0.1 port 22: No route to host\r\n",
        "n1 cannot be reached at 10.0.0.1 port 22: there is no route to it; *",
    ),
    "no network": (
        "ssh: connect to host 10.0.0.1 port 22: Network is unreachable\r\n",
        "n1 cannot be reached at 10.0.0.1 port 22: this machine has no network, or none that leads there",
    ),
    "silent": (
        "Connection timed out during banner exchange\r\nConnection to 10.0.0.1 port 2201 timed out\r\n",
        "n1 takes connections, but did not answer in time: it is overloaded, or no sshd is behind that port",
    ),
    "no such name": (
        "ssh: Could not resolve hostname no-such-host.invalid: Name or service not known\r\n",
        "n1 is not known to this machine: no-such-host.invalid is neither an alias of ssh_config nor a name of a machine (*)",
    ),
    "no name server": (
        "ssh: Could not resolve hostname n1: Temporary failure in name resolution\r\n",
        "n1 cannot be looked up now: n1: Temporary failure in name resolution",
    ),
    "too many logins": (
        "kex_exchange_identification: Connection closed by remote host\r\nConnection closed by 10.0.0.1 port 2201\r\n",
        "n1 closed the connection before the login: too many at once (MaxStartups of its sshd), or it is no sshd",
    ),
    "kept out by PAM": (
        ("Access denied by pam_slurm_adopt: you have no active jobs on this node\n"
        "Connection closed by 10.0.0.1 port 2201\r\n"),
        ("n1 ended the login with the message 'Access denied by pam_slurm_adopt: you have no active jobs on this node'. Users "
        "without a job there are kept out: train with backend = \"slurm\", or inside a job. To try: ssh -p 2201 n1"),
    ),
    "kept out behind a long banner": (
        ("** WARNING: connection is not using a post-quantum key exchange algorithm.\r\n"
        "*****************\n* Authorised users only *\n" + "* and more of it *\n" * 40 +
        "Your account has expired; please contact your system administrator.\n\nConnection closed by 10.0.0.1 port 2201\r\n"),
        "n1 ended the login with the message '* and more of it * * and more of it * Your account has expired; please contact *",
    ),
    "kept out while it boots": (
        ('"System is booting up. Unprivileged users are not permitted to log in yet. Please come back later. For technical '
        'details, see pam_nologin(8)."\nConnection closed by 10.0.0.1 port 2201\r\n'),
        "n1 ended the login with the message '\"System is booting up. Unprivileged users are not permitted to log in yet. *",
    ),
    "kept out by the jump host": (
        ("Access denied: user me (uid=5249) has no active jobs on this node.\nConnection closed by 10.0.0.9 port 22\r\n"
        "kex_exchange_identification: Connection closed by remote host\r\nConnection closed by UNKNOWN port 65535\r\n"),
        "the jump host of n1 ended the login with the message 'Access denied: user me (uid=5249) has no active jobs on this *",
    ),
    "kept out behind a jump host": (
        ("Welcome to the gate\nYour account has expired; please contact your system administrator.\n"
        "Connection closed by UNKNOWN port 65535\r\n"),
        "n1, or what leads to it, ended the login with the message 'Welcome to the gate Your account has expired; *",
    ),
    "agent refuses": (
        ('sign_and_send_pubkey: signing failed for ED25519-SK "/home/me/.ssh/id_sk" from agent: agent refused operation\r\n'
        "me@10.0.0.1: Permission denied (publickey).\r\n"),
        ("n1 does not let me in: ssh-agent did not sign with the key /home/me/.ssh/id_sk (agent refused operation). Unlock it, "
        "confirm or touch its device, or add it anew (ssh-add). To try: ssh -p 2201 n1"),
    ),
    "agent refuses, in older words": (
        "sign_and_send_pubkey: signing failed: agent refused operation\r\nme@10.0.0.1: Permission denied (publickey).\r\n",
        "n1 does not let me in: ssh-agent did not sign with its key (agent refused operation). *",
    ),
    "missing identity": (
        ("no such identity: /home/me/.ssh/id_gone: No such file or directory\r\n"
        "me@10.0.0.1: Permission denied (publickey,password).\r\n"),
        ("n1 does not let me in, by publickey,password: ssh could not use the key /home/me/.ssh/id_gone (No such file or "
        "directory). To try: ssh -p 2201 n1"),
    ),
    "no signature in common": (
        ("sign_and_send_pubkey: no mutual signature supported\r\nme@10.0.0.1: Permission denied (publickey).\r\n"),
        "n1 does not let me in, by publickey: ssh could not use the key (no mutual signature supported). *",
    ),
    "second factor": (
        "me@10.0.0.1: Permission denied (keyboard-interactive).\r\n",
        "n1 does not let me in without a person, by keyboard-interactive alone: it wants a second factor after the key, or *",
    ),
    "reset before the login": (
        "kex_exchange_identification: read: Connection reset by peer\r\nConnection reset by 10.0.0.1 port 2201\r\n",
        "n1 reset the connection before the login: *",
    ),
    "closed before a word": (
        "banner exchange: Connection to 10.0.0.1 port 2201: Broken pipe\r\n",
        "n1 closed the connection before the login: *",
    ),
    "no sshd": (
        "banner exchange: Connection to 10.0.0.1 port 2201: invalid format\r\n",
        "n1 does not speak SSH as it should (invalid format): is another program behind that port?",
    ),
    "no sessions": (
        "channel 0: open failed: connect failed: open failed\r\n",
        "n1 lets the user in, but starts no command (MaxSessions, ForceCommand)",
    ),
    "unknown option": (
        "command-line: line 0: Bad configuration option: nosuchthing\r\n",
        "this machine's ssh does not understand 'nosuchthing' in options",
    ),
    "option with a wrong value": (
        "command-line line 0: Bad IPQoS value: fish\r\n",
        "this machine's ssh does not understand 'Bad IPQoS value: fish' in options",
    ),
    "wrong line in the configuration": (
        ("/home/me/.ssh/config: line 2: Bad configuration option: nonsense\r\n"
        "/home/me/.ssh/config: terminating, 1 bad configuration options\r\n"),
        "this machine's ssh does not understand 'nonsense' in /home/me/.ssh/config",
    ),
    "configuration that others may write": (
        "Bad owner or permissions on /home/me/.ssh/config\r\n",
        "ssh does not read /home/me/.ssh/config, which others may write: chmod 600 /home/me/.ssh/config",
    ),
    "no configuration": (
        "Can't open user config file /nonexistent/cfg: No such file or directory\r\n",
        "ssh cannot read /nonexistent/cfg: No such file or directory",
    ),
    "jump host refuses": (
        ("ssh: connect to host 10.0.0.9 port 22299: Connection refused\r\n"
        "kex_exchange_identification: Connection closed by remote host\r\n"
        "Connection closed by UNKNOWN port 65535\r\n"),
        "the jump host of n1 cannot be reached at 10.0.0.9 port 22299: no program listens there. *",
    ),
    "jump host unknown": (
        ("No ED25519 host key is known for 10.0.0.9 and you have requested strict checking.\r\n"
        "Host key verification failed.\r\n"
        "kex_exchange_identification: Connection closed by remote host\r\n"
        "Connection closed by UNKNOWN port 65535\r\n"),
        "the jump host of n1 is not trusted yet: no ED25519 host key of 10.0.0.9 is known here. *",
    ),
    "jump host denies": (
        ("me@10.0.0.9: Permission denied (publickey).\r\n"
        "kex_exchange_identification: Connection closed by remote host\r\n"
        "Connection closed by UNKNOWN port 65535\r\n"),
        "the jump host of n1 does not let me in, by publickey: *",
    ),
    "jump host without a name": (
        ("ssh: Could not resolve hostname gate.invalid: Name or service not known\r\n"
        "kex_exchange_identification: Connection closed by remote host\r\n"
        "Connection closed by UNKNOWN port 65535\r\n"),
        "the jump host of n1 is not known to this machine: gate.invalid is neither *",
    ),
    "jump host does not reach it": (
        ("channel 0: open failed: connect failed: Connection refused\r\n"
        "stdio forwarding failed\r\n"
        "kex_exchange_identification: Connection closed by remote host\r\n"
        "Connection closed by UNKNOWN port 65535\r\n"),
        "n1 cannot be reached from its jump host: Connection refused. Is it up, its address right, sshd running on this port?",
    ),
    "jump host may not": (
        ("channel 0: open failed: administratively prohibited: open failed\r\n"
        "stdio forwarding failed\r\n"
        "kex_exchange_identification: Connection closed by remote host\r\n"
        "Connection closed by UNKNOWN port 65535\r\n"),
        "the jump host of n1 does not let connections through (AllowTcpForwarding, PermitOpen): its sshd must",
    ),
    "jump host's key not trusted without a word": (
        ("Host key verification failed.\r\n"
        "kex_exchange_identification: Connection closed by remote host\r\n"
        "Connection closed by UNKNOWN port 65535\r\n"),
        "n1, or a jump host before it, shows a host key that is not trusted. See, and decide: ssh -p 2201 n1",
    ),
    "proxy command missing": (
        ("/bin/bash: line 1: /nonexistent/nc: No such file or directory\n"
        "kex_exchange_identification: Connection closed by remote host\r\n"
        "Connection closed by UNKNOWN port 65535\r\n"),
        ("what leads to n1, a jump host or ProxyCommand, ended before it answered and printed '/bin/bash: line 1: "
        "/nonexistent/nc: No such file or directory'. To see for yourself: ssh -p 2201 n1"),
    ),
    "proxy command fails": (
        "kex_exchange_identification: Connection closed by remote host\r\nConnection closed by UNKNOWN port 65535\r\n",
        "what leads to n1, a jump host or ProxyCommand, ended before it answered. To see for yourself: ssh -p 2201 n1",
    ),
    "proxy command fails at once": (
        "banner exchange: Connection to UNKNOWN port 65535: Broken pipe\r\n",
        "what leads to n1, a jump host or ProxyCommand, ended before it answered. To see for yourself: ssh -p 2201 n1",
    ),
    "jump host refuses at once": (
        ("ssh: connect to host 10.0.0.9 port 22299: Connection refused\r\n"
        "banner exchange: Connection to UNKNOWN port 65535: Broken pipe\r\n"),
        "the jump host of n1 cannot be reached at 10.0.0.9 port 22299: no program listens there. *",
    ),
    "host falls silent": (
        "Timeout, server 10.0.0.1 not responding.\r\n",
        "n1 answers no more: it is down, or the network to it is",
    ),
    "sshd ends": (
        "Connection to 10.0.0.1 closed by remote host.\r\n",
        "n1 ended the connection: its sshd, or the machine, went down",
    ),
    "host hangs up while ssh writes": (
        "client_loop: send disconnect: Broken pipe\r\n",
        "n1 ended the connection: its sshd, or the machine, went down",
    ),
    "host hangs up on what it has not read": (
        "Read from remote host 10.0.0.1: Connection reset by peer\r\n",
        "n1 ended the connection: its sshd, or the machine, went down",
    ),
    "connection breaks": (
        "client_loop: send disconnect: No route to host\r\n",
        "the connection to n1 broke (No route to host): it is down, or the network to it is",
    ),
    "program missing": (
        "bash: line 1: python9: command not found\n",
        "n1 has no program python9 in its PATH: *",
    ),
    "program missing in dash": (
        "sh: 1: python9: not found\n",
        "n1 has no program python9 in its PATH: *",
    ),
    "nothing": ("", "n1 cannot be reached, ssh ended without a message. To see for yourself: ssh -p 2201 n1"),
    "something new": (
        "the moon is in the wrong phase\r\n",
        "n1 cannot be reached, ssh's message: 'the moon is in the wrong phase'. To see for yourself: ssh -p 2201 n1",
    ),
}  # fmt: skip
TRANSIENT = {  # those where another try may help
    "kept out while it boots",
    "no name server", "too many logins", "reset at once", "reset before the login", "proxy command missing",
    "closed before a word", "proxy command fails", "proxy command fails at once",
}  # fmt: skip


def is_like(words: str, pattern: str) -> bool:
    """`*` in the pattern is anything."""
    return re.fullmatch(re.escape(pattern).replace(r"\*", ".*"), words) is not None


@pytest.mark.parametrize("what", RECORDED)
def test_recorded_failures_are_explained(what: str) -> None:
    """Each failure is one sentence with the host, the cause, and the remedy."""
    stderr, expected = RECORDED[what]
    failure = explain_failure(stderr, N1)
    assert is_like(failure.message, expected), failure.message
    assert failure.is_transient == (what in TRANSIENT)
    assert "\n" not in failure.message
    assert "\r" not in failure.message


BANNER = "Permission denied to everybody but us.\nConnection refused by policy is logged.\nHost key verification failed.\n"
AFTER_BANNERS = (
    "permission denied", "no key file", "open key file", "too many keys", "no sessions", "host falls silent", "sshd ends",
    "connection breaks", "program missing",
)  # fmt: skip


@pytest.mark.parametrize("what", AFTER_BANNERS)
def test_banners_are_not_mistaken(what: str) -> None:
    """A host's output before the login is not taken for ssh's messages after it."""
    stderr, _ = RECORDED[what]
    assert explain_failure(BANNER + stderr, N1) == explain_failure(stderr, N1)


def test_long_lines_are_cut() -> None:
    """A quoted line of 100,000 characters is cut."""
    assert len(explain_failure("x" * 100_000, N1).message) < 500


# The same with the ssh and sshd that are here.


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    if reason := why_not(namespaces=False):
        pytest.skip(reason)
    with Lab(1, namespaces=False, sshd=["MaxAuthTries 2"]) as lab:
        yield lab


@pytest.fixture
def config(lab: Lab, tmp_path: Path) -> Config:
    """Write the configuration of a user who can log in to m1, except for the given changes."""

    def write(**changed: str | Path) -> Path:
        m1 = lab["m1"]
        usual: dict[str, str | Path | int] = {
            "HostName": m1.address,
            "Port": m1.port,
            "User": m1.user,
            "IdentityFile": lab.identity,
            "IdentitiesOnly": "yes",
            "IdentityAgent": "none",
            "UserKnownHostsFile": lab.known_hosts,
            "GlobalKnownHostsFile": "/dev/null",
            "StrictHostKeyChecking": "yes",
        }
        path = tmp_path / f"config{len(list(tmp_path.iterdir()))}"
        path.write_text("".join(f"{name} {value}\n" for name, value in {**usual, **changed}.items()))
        path.chmod(0o600)
        return path

    return write


def failure_of(config: Path, command: str = "true", connect_s: float = 30.0) -> ConnectionFailure:
    """Return the explanation of ssh's failure with this configuration."""
    endpoint = Endpoint("m1", "m1", options=("-F", str(config)))
    argv = make_ssh_argv(endpoint, connect_s, command)
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, start_new_session=True)
    assert done.returncode == 255, done
    return explain_failure(done.stderr, endpoint)


def get_known_hosts_name(lab: Lab) -> str:
    return lab.known_hosts.read_text().split()[0]


def test_here_an_unknown_host_key(config: Config, lab: Lab, tmp_path: Path) -> None:
    """An unknown host key is reported with its name, and a command that asks the user."""
    (tmp_path / "known").touch()
    path = config(UserKnownHostsFile=tmp_path / "known")
    failure = failure_of(path)
    assert failure.message.startswith(
        f"m1 is not trusted yet: no ED25519 host key of {get_known_hosts_name(lab)} is known here. "
    )
    assert failure.message.endswith(f"answer yes: ssh -F {path} m1")
    assert not failure.is_transient


def test_here_a_changed_host_key(config: Config, lab: Lab, tmp_path: Path) -> None:
    """A changed host key is reported with the new fingerprint and the line of the old key."""
    other = make_key(tmp_path / "other", "other")
    (tmp_path / "known").write_text(f"{get_known_hosts_name(lab)} {' '.join(other.split()[:2])}\n")
    words = failure_of(config(UserKnownHostsFile=tmp_path / "known")).message
    assert re.match(r"m1 shows another host key, SHA256:\S+, than the one that is known of ", words), words
    assert f"({tmp_path}/known:1)" in words


def test_here_a_revoked_host_key(config: Config, lab: Lab, tmp_path: Path) -> None:
    """A revoked host key is reported."""
    (tmp_path / "known").write_text(f"@revoked {lab.known_hosts.read_text()}")
    assert "that is marked as revoked" in failure_of(config(UserKnownHostsFile=tmp_path / "known")).message


def test_here_a_key_that_is_not_authorized(config: Config, lab: Lab, tmp_path: Path) -> None:
    """A refused user key is reported with the user and the accepted methods."""
    make_key(tmp_path / "mine", "mine")
    words = failure_of(config(IdentityFile=tmp_path / "mine")).message
    assert words.startswith(f"m1 does not let {lab['m1'].user} in, by publickey: is it the right user, ")


def test_here_a_key_that_others_may_read(config: Config, lab: Lab, tmp_path: Path) -> None:
    """A key that ssh does not use because others may read it is named with the cure."""
    (tmp_path / "mine").write_text(lab.identity.read_text())
    (tmp_path / "mine").chmod(0o644)
    words = failure_of(config(IdentityFile=tmp_path / "mine")).message
    assert f"others may read the key {tmp_path}/mine, so ssh does not use it; chmod 600 {tmp_path}/mine." in words


def test_here_a_closed_port(config: Config) -> None:
    """A host without sshd is named with its port."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        failure = failure_of(config(HostName="127.0.0.1", Port=str(port)))
    assert failure.message.startswith(
        f"m1 cannot be reached at 127.0.0.1 port {port}: no program listens there. Is sshd running"
    )


def test_here_an_unknown_name(config: Config) -> None:
    """An unknown host name is reported; the resolver decides whether the error is temporary."""
    assert re.match(
        r"m1 (is not known to this machine|cannot be looked up now): ", failure_of(config(HostName="m1.invalid")).message
    )


def test_here_an_option_that_does_not_exist(config: Config) -> None:
    """A line that ssh does not understand is reported with its file."""
    path = config(Nonsense="yes")
    assert failure_of(path).message == f"this machine's ssh does not understand 'nonsense' in {path}"


@contextmanager
def run_server(answer: Callable[[socket.socket], object]) -> Iterator[int]:
    """Accept connections on a port without an sshd, until the end of the block."""
    with socket.create_server(("127.0.0.1", 0)) as server, ExitStack() as taken:

        def serve() -> None:
            with suppress(OSError):  # the end
                while True:
                    connection, _ = server.accept()
                    taken.enter_context(connection)
                    answer(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


@pytest.mark.parametrize("answer", [socket.socket.close, reset], ids=["closed", "reset"])
def test_here_a_connection_that_ends_before_the_login(config: Config, answer: Callable[[socket.socket], object]) -> None:
    """A connection that is closed or reset at once is a transient failure."""
    with run_server(answer) as port:
        failure = failure_of(config(HostName="127.0.0.1", Port=str(port)))
    assert re.match(r"m1 (closed|reset) the connection (at once|before the login): ", failure.message), failure.message
    assert failure.is_transient


def test_here_a_silent_port(config: Config) -> None:
    """A silent port takes no longer than the time limit, and is reported."""
    with run_server(lambda connection: None) as port:
        failure = failure_of(config(HostName="127.0.0.1", Port=str(port)), connect_s=1.0)
    assert failure.message.startswith("m1 takes connections, but did not answer in time: ")
    assert not failure.is_transient


def test_here_too_many_logins(tmp_path: Path) -> None:
    """An sshd with its maximum of pending logins drops the next one, which is a transient failure."""
    if reason := why_not(namespaces=False):
        pytest.skip(reason)
    with Lab(1, namespaces=False, sshd=["MaxStartups 1"]) as lab, ExitStack() as others:
        m1 = lab["m1"]

        def is_taken() -> bool:  # the lab's own look at its port may still count as a login
            other = others.enter_context(socket.create_connection((m1.address, m1.port)))
            return other.recv(4) == b"SSH-"

        wait_until("a login begins", is_taken)
        failure = failure_of(lab.ssh_config)
    assert re.match(r"m1 (closed|reset) the connection before the login: too many at once \(MaxStartups", failure.message)
    assert failure.is_transient


JUMP = """
Host gate
    HostName {address}
    Port {port}
    {line}
Host m1
    ProxyJump gate
"""


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("UserKnownHostsFile /dev/null", "the jump host of m1 is not trusted yet: no ED25519 host key of "),
        ("IdentityFile /nonexistent", "the jump host of m1 does not let "),
        ("ProxyCommand false", "what leads to m1, a jump host or ProxyCommand, ended before it answered. "),
    ],
    ids=["unknown", "denies", "cannot be reached"],
)
def test_here_a_jump_host(lab: Lab, tmp_path: Path, line: str, words: str) -> None:
    """The message of a jump host's own ssh is reported for the jump host."""
    m1 = lab["m1"]
    usual = lab.ssh_config.read_text()
    if line.startswith("IdentityFile"):
        usual = usual.replace(f"IdentityFile {lab.identity}", "")
    (tmp_path / "config").write_text(JUMP.format(address=m1.address, port=m1.port, line=line) + usual)
    assert failure_of(tmp_path / "config").message.startswith(words)


def test_here_a_jump_host_without_a_route(lab: Lab, tmp_path: Path) -> None:
    """A host that its jump host cannot reach is reported."""
    m1 = lab["m1"]
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        jump = JUMP.format(address=m1.address, port=m1.port, line="")
        jump += f"    HostName 127.0.0.1\n    Port {closed.getsockname()[1]}\n"
        (tmp_path / "config").write_text(jump + lab.ssh_config.read_text())
        words = failure_of(tmp_path / "config").message
    assert words.startswith("m1 cannot be reached from its jump host: Connection refused. ")


# An account stack like that of nodes that admit only users with a job there. Each login that it sees is a line of /etc/logins.
PAM = """
printf '%s\\n' 'account optional pam_exec.so /etc/count' 'account optional pam_echo.so file=/etc/said' \\
    'account required pam_deny.so' 'session optional pam_permit.so' 'auth optional pam_permit.so' >/etc/pam.d/sshd
printf 'Access denied by pam_slurm_adopt: you have no active jobs on this node\\n' >/etc/said
printf '#!/bin/sh\\necho login >>/etc/logins\\n' >/etc/count
chmod 755 /etc/count
touch /etc/logins
"""
KEPT_OUT = {"before": PAM, "sshd": ["UsePAM yes"]}
REFUSED = "ended the login with the message 'Access denied by pam_slurm_adopt: you have no active jobs on this node'. "


@pytest.mark.parametrize("gate", [None, "let in", "kept out"])
def test_here_an_account_that_is_kept_out(tmp_path: Path, gate: str | None) -> None:
    """PAM's message is quoted for the host and for its jump host, and each is connected to once."""
    if reason := why_not(namespaces=True):
        pytest.skip(reason)
    each = {"m1": KEPT_OUT, "m2": KEPT_OUT if gate == "kept out" else {}}
    with Lab(2, namespaces=True, each=each) as lab:
        if gate:
            lab.ssh_config.write_text(f"Host m1\n    ProxyJump m2\n{lab.ssh_config.read_text()}")
        config = lab.config(hosts=["m1"])
        who = {None: "m1", "let in": "m1, or what leads to it,", "kept out": "the jump host of m1"}[gate]
        with pytest.raises(AllocationError) as refused, Ssh(config).allocate(Resources(devices=1)):
            pass
        assert str(refused.value).startswith(f"{who} {REFUSED}")
        with pytest.raises(Unreachable) as unreachable:
            open_processes(Handshake.from_config(config), list(enumerate(list_endpoints(config))))
        assert str(unreachable.value).startswith(f"{who} {REFUSED}")
        asked = lab["m2" if gate == "kept out" else "m1"]
        assert asked.run("cat", "/etc/logins").splitlines() == ["login", "login"]  # one for each of the two above


def test_here_a_second_factor(lab: Lab) -> None:
    """A host that requires a second factor is reported with the methods, which need a user."""
    if reason := why_not(namespaces=False):
        pytest.skip(reason)
    with Lab(1, namespaces=False, sshd=["AuthenticationMethods publickey,password", "PasswordAuthentication yes"]) as strict:
        failure = failure_of(strict.ssh_config)
        user = strict["m1"].user
    assert failure.message.startswith(
        f"m1 does not let {user} in without a person, by password alone: it wants a second factor "
    )
    assert not failure.is_transient


def test_here_an_agent_that_refuses(config: Config, lab: Lab, tmp_path: Path) -> None:
    """A key that the agent holds, and does not sign with, is named."""
    socket_of = tmp_path / "agent"
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(socket_of)], env={**os.environ, "SSH_ASKPASS": "/bin/false"})
    try:
        wait_until("the agent is there", socket_of.exists)
        environment = {**os.environ, "SSH_AUTH_SOCK": str(socket_of)}
        subprocess.run(["ssh-add", "-q", "-c", str(lab.identity)], env=environment, check=True)  # it asks a person at each use
        (tmp_path / "only.pub").write_text(lab.identity.with_suffix(".pub").read_text())
        words = failure_of(config(IdentityFile=tmp_path / "only", IdentityAgent=socket_of)).message
    finally:
        agent.kill()
        agent.wait()
    assert words.startswith(f"m1 does not let {lab['m1'].user} in: ssh-agent did not sign with the key ")
    assert "(agent refused operation). Unlock it, confirm or touch its device, or add it anew (ssh-add). " in words


def test_here_a_missing_identity(config: Config, lab: Lab, tmp_path: Path) -> None:
    """A key file that is not there is named."""
    words = failure_of(config(IdentityFile=tmp_path / "gone")).message
    assert f"ssh could not use the key {tmp_path}/gone (No such file or directory)" in words


def test_here_an_sshd_that_ends(lab: Lab) -> None:
    """A session that its sshd ends is reported."""
    assert failure_of(lab.ssh_config, "kill -9 $PPID; sleep 1").message == (
        "m1 ended the connection: its sshd, or the machine, went down"
    )


def test_here_a_banner(tmp_path: Path) -> None:
    """A host with a banner that quotes ssh's own errors is not misunderstood."""
    if reason := why_not(namespaces=False):
        pytest.skip(reason)
    (tmp_path / "banner").write_text(BANNER)
    with Lab(1, namespaces=False, sshd=[f"Banner {tmp_path}/banner"]) as lab:
        lab["m1"].folder.joinpath("authorized_keys").write_text("")
        assert failure_of(lab.ssh_config).message.startswith(f"m1 does not let {lab['m1'].user} in, by publickey: ")
