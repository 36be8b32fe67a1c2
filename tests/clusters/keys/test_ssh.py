"""The keys of a cluster of SSH hosts in clusters.toml."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from pytest_dtfperf.clusters import capacity, named
from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.clusters.ssh import keys as keys
from pytest_dtfperf.errors import ClusterFileError

FULL = """
hosts = ["node[01-03]", "root@login"]
gpus_per_host = 4
user = "me"
port = 2222
identity_file = "~/.ssh/cluster"
ssh_config = "ssh_config"
options = ["ProxyJump=gateway", "Compression = no"]
private_address = { node01 = "10.0.0.1", node02 = "fd00::2" }
setup = ["module load cuda", "source '/apps/my env/bin/activate'"]
connect_s = 12.5
parallel = 8
network = "trusted"
"""


class Load:
    """A cluster file with one SSH cluster in it, read."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "clusters.toml"

    def __call__(self, text: str) -> ClusterConfig:
        self._file.write_text(f'[x]\nbackend = "ssh"\n{text}')
        return named.load(self._file)["x"]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    return Load(tmp_path)


def test_table_with_all_keys_is_valid(load: Load) -> None:
    """Every key of the table is valid, and reaches the backend unchanged; three of them replace hosts."""
    output = tomllib.loads(FULL)
    assert {*output, "nodes_file", "public_ips", "private_ips"} == set(keys.KEYS)
    assert load(FULL).backend_keys == output
    files = {"nodes_file": "nodes", "gpus_per_host": 1}
    assert load('nodes_file = "nodes"\ngpus_per_host = 1').backend_keys == files
    files = {"public_ips": "outside", "private_ips": "inside", "gpus_per_host": 1}
    assert load('public_ips = "outside"\nprivate_ips = "inside"\ngpus_per_host = 1').backend_keys == files


@pytest.mark.parametrize(
    ("text", "words"),
    [
        # where the hosts are
        ("", 'must set its hosts: hosts = "node[01-16]", nodes_file, or public_ips and private_ips'),
        ("hosts = 'a'\nnodes_file = 'n'", "has hosts and nodes_file: only one of them may set its hosts"),
        ("hosts = 'a'\npublic_ips = 'p'\nprivate_ips = 'q'", "has hosts and public_ips: only one of them"),
        ("nodes_file = 'n'\npublic_ips = 'p'\nprivate_ips = 'q'", "has nodes_file and public_ips: only one of them"),
        ("public_ips = 'p'", "has public_ips without private_ips: line i of both is the same machine"),
        ("hosts = 'a'\nprivate_ips = 'q'", "has private_ips without public_ips"),
        ("host = 'a'", "unknown key 'host'. Did you mean 'hosts'?"),
        # the hosts themselves
        ("hosts = []", "hosts must be a list of hosts, or text like \"node[01-16],login\", not []"),
        ("hosts = 3", "hosts must be a list of hosts"),
        ("hosts = ''", "hosts must be a list of hosts"),
        ("hosts = 'n[3-1]'", "hosts = 'n[3-1]' is no list of hosts: 'n[3-1]' counts backwards: 3-1"),
        ("hosts = ['a', 'n[']", "is no list of hosts: 'n[' has brackets that are not like [01-16,20]"),
        ("hosts = 'n[1-70000]'", "is no list of hosts: 'n[1-70000]' makes more than 65536 hosts"),
        ("hosts = 'a,,b'", "is no list of hosts: there is nothing where a host should be"),
        ("hosts = ['n[1-3]', 'N2']", "hosts has 'N2' twice"),
        ("hosts = 'a b'", "hosts has 'a b', which is no name for ssh"),
        ("hosts = ['-oProxyCommand=rm']", "hosts has '-oProxyCommand=rm', which is no name for ssh"),
        ("hosts = ['me@-x']", "hosts has 'me@-x', which is no name for ssh"),
        ("hosts = ['ssh://n1:22']", "hosts has 'ssh://n1:22', which is no name for ssh"),
        ("hosts = ['$(reboot)']", "hosts has '$(reboot)', which is no name for ssh"),
        ("hosts = ['me@you@n1']", "hosts has 'me@you@n1', which is no name for ssh"),
        # devices
        ("hosts = 'a'", "must set how many devices a host has: gpus_per_host = 4, or on hosts without GPUs"),
        # addresses
        ("hosts = 'a'\nprivate_address = '10.0.0.1'", 'private_address must be a network like "10.0.0.0/8", or a table'),
        ("hosts = 'a'\nprivate_address = '10.0.0.1/8'", "private_address must be a network"),
        ("hosts = 'a'\nprivate_address = {}", "private_address must be a network"),
        ("hosts = 'a'\nprivate_address = { a = 1 }", "private_address must be a network"),
        ("hosts = 'a'\nprivate_address = { b = '10.0.0.1' }", "has an address for 'b', which is not in hosts"),
        ("hosts = 'a'\nprivate_address = { a = '10.0.0.1 x' }", "'10.0.0.1 x' for 'a', which is neither a name nor an address"),
        ("hosts = 'a,b'\nprivate_address = { a = 'x', b = 'x' }", "private_address has 'x' for two hosts"),
        ("nodes_file = 'n'\nprivate_address = '10.0.0.0/8'", "and nodes_file, which contains the addresses, too"),
        ("public_ips = 'p'\nprivate_ips = 'q'\nprivate_address = '10.0.0.0/8'", "private_address and private_ips, which"),
        # the rest
        ("hosts = 'a'\nport = 0", "port must be a port, 1 to 65535, not 0"),
        ("hosts = 'a'\nport = 65536", "port must be a port"),
        ("hosts = 'a'\nport = '22'", "port must be a port"),
        ("hosts = 'a'\nsetup = 'pip'", "setup must be a list of shell lines, or \"uv\", not 'pip'"),
        ("hosts = 'a'\nconnect_s = 0", "connect_s must be a number above 0"),
        ("hosts = 'a'\nparallel = 0", "parallel must be a whole number of at least 1"),
        ("hosts = 'a'\noptions = '-v'", "options must be a list of texts"),
    ],
)  # fmt: skip
def test_mistakes_are_named(load: Load, text: str, words: str) -> None:
    """An invalid table is refused before any host is contacted, with the key and what is allowed."""
    devices = "" if words.startswith("must set how many") else "gpus_per_host = 1\n"
    with pytest.raises(ClusterFileError, match=rf"clusters\.toml: \[x\] .*{re.escape(words)}"):
        load(devices + text)


UNTRUSTED = "a host with an unknown key is refused. ssh-keyscan can add host keys"
NEEDED = "the backend sets it, or cannot work with it"
FORM = 'options must be like "Key=Value" of ssh_config'


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("StrictHostKeyChecking=no", UNTRUSTED),
        ("StrictHostKeyChecking=accept-new", UNTRUSTED),
        ("stricthostkeychecking = OFF", UNTRUSTED),
        ("UserKnownHostsFile=/dev/null", UNTRUSTED),
        ("UserKnownHostsFile=known_hosts /dev/stdin", UNTRUSTED),
        ('GLOBALKNOWNHOSTSFILE="/dev/null"', UNTRUSTED),
        ("UserKnownHostsFile=none", UNTRUSTED),
        ("KnownHostsCommand=/bin/echo %H %t %K", UNTRUSTED),
        ("VerifyHostKeyDNS=yes", UNTRUSTED),
        ("NoHostAuthenticationForLocalhost=yes", UNTRUSTED),
        ("CheckHostIP=no", UNTRUSTED),
        ("User=root", "use the key user"),
        ("Port=22", "use the key port"),
        ("IdentityFile=~/.ssh/id", "use the key identity_file"),
        ("connecttimeout=3", "use the key connect_s"),
        ("BatchMode=no", NEEDED),
        ("ControlMaster=auto", NEEDED),
        ("ControlPath=/tmp/%C", NEEDED),
        ("ControlPersist=yes", NEEDED),
        ("ServerAliveInterval=60", NEEDED),
        ("ServerAliveCountMax=9", NEEDED),
        ("RequestTTY=force", NEEDED),
        ("RemoteCommand=bash", NEEDED),
        ("ForwardAgent=yes", NEEDED),
        ("ForwardX11=yes", NEEDED),
        ("LocalForward=8888 localhost:8888", NEEDED),
        ("LogLevel=QUIET", NEEDED),
        ("Host=x", NEEDED),
        ("Match=all", NEEDED),
        ("Include=other", NEEDED),
        ("-v", FORM),
        ("-oBatchMode=no", FORM),
        ("BatchMode no", FORM),
        ("ProxyJump", FORM),
        ("ProxyJump=", FORM),
        ("=x", FORM),
        ("", FORM),
        ("ProxyJump=a\nStrictHostKeyChecking=no", FORM),
        ('UserKnownHostsFile="known', "a quote has no end"),
    ],
)
def test_dangerous_options_are_refused(option: str, words: str) -> None:
    """An option that would trust unknown hosts, has a key of its own, or breaks the connection is refused in any form."""
    table: dict[str, Any] = {"hosts": "a", "gpus_per_host": 1, "options": ["Compression=no", option]}
    validate = keys.validate(table)
    assert validate is not None
    assert words in validate
    assert repr(option) in validate


@pytest.mark.parametrize(
    "option",
    [
        "ProxyJump=gateway",
        "ProxyCommand=nc %h %p",
        "HostKeyAlias=i-0123",
        "UserKnownHostsFile=known_hosts",
        'UserKnownHostsFile = "my hosts" ~/.ssh/known_hosts',
        "HostKeyAlgorithms=ssh-ed25519",
        "CertificateFile=id-cert.pub",
        "AddressFamily=inet",
        "IPQoS=throughput",
    ],
)
def test_other_options_are_the_users(option: str) -> None:
    """Harmless options are passed on; ssh checks whether they exist."""
    assert keys.validate({"hosts": "a", "gpus_per_host": 1, "options": [option]}) is None


def test_devices_are_counted_from_the_file(load: Load) -> None:
    """The numbers of hosts and devices follow from the file, without a connection."""
    config = load('hosts = "node[01-16]"\ngpus_per_host = 4')
    assert (config.max_hosts, capacity.count_devices(config), capacity.predict_device(config)) == (16, 64, "gpu")
    config = load('hosts = ["a", "b[1-2]"]\ndevices_per_host = 2')
    assert (config.max_hosts, capacity.count_devices(config), capacity.predict_device(config)) == (3, 6, "cpu")


def test_hosts_have_their_own_python(load: Load) -> None:
    """The hosts' interpreter is python3 of their PATH, unless the file sets another."""
    assert named.get_python(load('hosts = "a"\ngpus_per_host = 1')) == "python3"
    assert named.get_python(load('hosts = "a"\ngpus_per_host = 1\npython = "/opt/bin/python"')) == "/opt/bin/python"
