"""The hosts of a cluster file, and of the files that it names."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_dtfperf.clusters import local, named
from pytest_dtfperf.clusters.named import BACKENDS, ClusterConfig
from pytest_dtfperf.clusters.protocol import Resources
from pytest_dtfperf.clusters.ssh import endpoints
from pytest_dtfperf.clusters.ssh.endpoints import Endpoint
from pytest_dtfperf.errors import AllocationError, ClusterFileError, UsageError

DOCUMENT = Path(__file__).parents[3] / "docs" / "clusters.md"
NODES = "nodes_file = 'nodes'"
IPS = "public_ips = 'public'\nprivate_ips = 'private'"

Load = Callable[[str], ClusterConfig]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def load(folder: Path) -> Load:
    """A cluster file with one SSH cluster in it, read."""

    def load(text: str) -> ClusterConfig:
        (folder / "clusters.toml").write_text(f'[x]\nbackend = "ssh"\ngpus_per_host = 1\n{text}')
        return named.load(folder / "clusters.toml")["x"]

    return load


def test_hosts_of_the_cluster_file(load: Load) -> None:
    """Hosts have ssh's names, in the order of the file, and the addresses of the table private_address."""
    config = load("hosts = ['n[08-10]', 'root@gate']\nprivate_address = { n09 = '10.0.0.9' }")
    assert endpoints.list_endpoints(config) == [
        Endpoint("n08", "n08"),
        Endpoint("n09", "n09", "10.0.0.9"),
        Endpoint("n10", "n10"),
        Endpoint("gate", "root@gate"),
    ]
    assert endpoints.count_hosts(config) == 4


@pytest.mark.parametrize("names", ["n10,gate", "root@gate, n10"])
def test_named_hosts_are_selected(load: Load, names: str) -> None:
    """Only named hosts are used, in the file's order and with their addresses; an unknown name is refused."""
    config = load("hosts = ['n[08-10]', 'root@gate']\nprivate_address = { n08 = '10.0.0.8', n10 = '10.0.0.10' }")
    assert endpoints.list_endpoints(endpoints.select_hosts(config, names)) == [
        Endpoint("n10", "n10", "10.0.0.10"),
        Endpoint("gate", "root@gate"),
    ]
    assert endpoints.select_hosts(config, names).max_hosts == 2
    with pytest.raises(UsageError, match=r"unknown host of cluster 'x' 'n11'\. Did you mean 'n10'"):
        endpoints.select_hosts(config, "n08,n11")


def test_named_hosts_of_a_nodes_file_are_selected(load: Load, folder: Path) -> None:
    """Only the named host of a nodes file is used."""
    (folder / "nodes").write_text("10.0.0.1 node1\n10.0.0.2 me@node2\n")
    assert endpoints.list_endpoints(endpoints.select_hosts(load(NODES), "node2")) == [Endpoint("node2", "me@node2", "10.0.0.2")]


def test_hosts_of_a_nodes_file(load: Load, folder: Path) -> None:
    """Each line of tfperftest's file is the address for the tasks and what ssh calls it, between comments."""
    (folder / "nodes").write_text("# rack 1\nip-10-0-0-1.ec2.internal node1\n\n10.0.0.2\tme@node2   # the new one\n")
    config = load(NODES)
    assert endpoints.list_endpoints(config) == [
        Endpoint("node1", "node1", "ip-10-0-0-1.ec2.internal"),
        Endpoint("node2", "me@node2", "10.0.0.2"),
    ]
    assert config.max_hosts == 2


@pytest.mark.parametrize("end", ["\n", ""], ids=["with last end of line", "without"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_hosts_of_the_reports_two_files(load: Load, folder: Path, end: str, encoding: str) -> None:
    """Line i of both files is the same machine: ssh reaches it at the first address, and its tasks are at the second."""
    (folder / "public").write_text(f"18.0.0.5\r\n18.0.0.1{end}", encoding=encoding)
    (folder / "private").write_text(f"10.0.0.1\n10.0.0.7{end}", encoding=encoding)
    config = load(IPS)
    assert endpoints.list_endpoints(config) == [
        Endpoint("18.0.0.5", "18.0.0.5", "10.0.0.1"),
        Endpoint("18.0.0.1", "18.0.0.1", "10.0.0.7"),
    ]
    assert config.max_hosts == 2


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ("10.0.0.1 n1\nn2\n", "nodes, line 2: must be an address and what ssh calls the host, \"10.0.0.3 node3\", not 'n2'"),
        ("10.0.0.1 n1 # one\n10.0.0.2 n2 n3\n", "nodes, line 2: must be an address and what ssh calls the host"),
        ("10.0.0.1 n1\n\n10.0.0.2 N1\n", "nodes, line 3: 'N1' is in line 1 already"),
        ("10.0.0.1 n1\n10.0.0.1 n2\n", "nodes, line 2: '10.0.0.1' is in line 1 already"),
        ("10.0.0.1 n1\n10.0.0.2 -oProxyCommand=x\n", "nodes, line 2: '-oProxyCommand=x' is neither a name nor an address"),
        ("10.0.0.1,10.0.0.2 n1\n", "nodes, line 1: '10.0.0.1,10.0.0.2' is neither a name nor an address"),
        ("me@10.0.0.1 n1\n", "nodes, line 1: 'me@10.0.0.1' is neither a name nor an address"),
        ("# nobody\n", 'nodes names no host: each line must be like "10.0.0.3 node3"'),
        (b"\xff\xfe", "cannot read {folder}/nodes: it is not a UTF-8 text: byte 1 is 0xff"),
        (None, "cannot read {folder}/nodes: No such file or directory"),
    ],
)
def test_mistakes_in_a_nodes_file(load: Load, folder: Path, nodes: str | bytes | None, words: str) -> None:
    """An invalid line is refused with its number, when hosts are listed, and not before."""
    if nodes is not None:
        (folder / "nodes").write_bytes(nodes if isinstance(nodes, bytes) else nodes.encode())
    config = load(NODES)
    for asked in (endpoints.list_endpoints, endpoints.count_hosts):
        with pytest.raises(ClusterFileError, match=re.escape(words.format(folder=folder))):
            asked(config)


@pytest.mark.parametrize(
    ("public", "private", "words"),
    [
        ("18.0.0.1\n18.0.0.2\n", "10.0.0.1\n", "public has 2 lines and {folder}/private has 1"),
        ("18.0.0.1\n18.0.0.2\n", "10.0.0.1\n", "line 2 has no counterpart"),
        ("18.0.0.1\n", "10.0.0.1\n10.0.0.2\n", "line 2 has no counterpart"),
        ("18.0.0.1\n\n18.0.0.2\n", "10.0.0.1\n10.0.0.2\n", "public, line 2: is empty, but line i is machine i: remove it"),
        ("18.0.0.1\n18.0.0.2\n", "10.0.0.1\n10.0.0.2\n\n", "private, line 3: is empty, but line i is machine i: remove it"),
        ("18.0.0.1 \n", "10.0.0.1\n", "public, line 1: must be one address without blanks, not '18.0.0.1 '"),
        ("18.0.0.1\n", "10.0.0.1 10.0.0.2\n", "private, line 1: must be one address without blanks, not '10.0.0.1 10.0.0.2'"),
        ("18.0.0.1\n18.0.0.2\n18.0.0.1\n", "a\nb\nc\n", "public, line 3: '18.0.0.1' is in line 1 already"),
        ("a\nb\n", "10.0.0.1\n10.0.0.1\n", "private, line 2: '10.0.0.1' is in line 1 already"),
        ("#18.0.0.1\n", "10.0.0.1\n", "public, line 1: '#18.0.0.1' is neither a name nor an address"),
        ("me@18.0.0.1\n", "10.0.0.1\n", "public, line 1: 'me@18.0.0.1' is neither a name nor an address"),
        ("18.0.0.1\n", "me@10.0.0.1\n", "private, line 1: 'me@10.0.0.1' is neither a name nor an address"),
        ("", "10.0.0.1\n", "public is empty: each line must be the address of one machine"),
    ],
)
def test_mistakes_in_the_reports_two_files(load: Load, folder: Path, public: str, private: str, words: str) -> None:
    """Lines that would pair the wrong machines are refused with file and line, when hosts are listed."""
    (folder / "public").write_text(public)
    (folder / "private").write_text(private)
    config = load(IPS)
    for asked in (endpoints.list_endpoints, endpoints.count_hosts):
        with pytest.raises(ClusterFileError, match=re.escape(words.format(folder=folder))):
            asked(config)


def test_keys_become_arguments_of_ssh(load: Load, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """User, port, key and configuration become ssh's arguments; relative paths start at the cluster file, ~ at home."""
    home = folder / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    (folder / "config").touch()
    (home / "id").touch()
    config = load(
        "hosts = 'a,root@b'\nuser = 'me'\nport = 2222\nssh_config = 'config'\nidentity_file = '~/id'\n"
        "options = ['ProxyJump=gate', 'UserKnownHostsFile = \"my hosts\" known ~/known /etc/known %d/known']"
    )
    a, b = endpoints.list_endpoints(config)
    files = f'"{folder}/my hosts" {folder}/known ~/known /etc/known %d/known'
    output = [*f"-F {folder}/config -p 2222 -o ProxyJump=gate -o".split(), f"UserKnownHostsFile={files}"]
    output += f"-i {home}/id -o IdentitiesOnly=yes".split()
    assert a.options == ("-l", "me", *output)
    assert b.options == (*output,)  # its entry has a user


@pytest.mark.parametrize("key", ["identity_file", "ssh_config"])
def test_missing_files_are_named(load: Load, folder: Path, key: str) -> None:
    """A missing key or configuration is named before ssh starts; hosts are counted without these files."""
    config = load(f"hosts = 'a'\n{key} = 'missing'")
    with pytest.raises(ClusterFileError, match=f"cluster 'x' has {key} = 'missing', but there is no file {folder}/missing"):
        endpoints.list_endpoints(config)
    assert endpoints.count_hosts(config) == 1


def test_commands_for_people(load: Load) -> None:
    """The commands are those of as many hosts as needed, with common parts once."""
    start, *each = BACKENDS["ssh"].list_commands(load("hosts = 'n[1-3]'\nport = 22\nconnect_s = 7"), Resources(devices=2))
    assert re.fullmatch(r"SSH='ssh -T -x .*-o StrictHostKeyChecking=yes .*-o ConnectTimeout=7'", start)
    assert each == [
        "$SSH -p 22 -- n1 'python3 -P -m pytest_dtfperf.node.agent'",
        "$SSH -p 22 -- n2 'python3 -P -m pytest_dtfperf.node.agent'",
    ]


def test_more_than_there_is(load: Load) -> None:
    """A request for more devices than the hosts have is an error with the numbers."""
    with pytest.raises(AllocationError, match=r"'x' has 3 hosts of 1 device, but 4 devices need 4 hosts"):
        BACKENDS["ssh"].list_commands(load("hosts = 'n[1-3]'"), Resources(devices=4))


def test_reference_example_is_read(folder: Path) -> None:
    """The example of the reference is a valid cluster file."""
    section = DOCUMENT.read_text().partition("## Keys of `ssh`\n")[2].partition("\n## ")[0]
    (example,) = re.findall(r"```toml\n(.*?)```", section, re.DOTALL)
    (folder / "clusters.toml").write_text(example)
    clusters = named.load(folder / "clusters.toml")
    assert [each.name for each in endpoints.list_endpoints(clusters["lab"])] == ["node01", "node02", "node03", "node04"]
    with pytest.raises(ClusterFileError, match=f"cannot read {folder}/aws_public_ips.txt"):
        endpoints.count_hosts(clusters["instances"])


ALIASES = """
Host one also-one
    HostName 192.0.2.7
Host other-port
    HostName 192.0.2.7
    Port 2222
Host behind
    HostName node3.inside
    ProxyJump gate
"""


@pytest.mark.parametrize(
    "text, machines",
    [
        ("hosts = ['one', 'also-one', '192.0.2.7', 'me@one']", ["host-192.0.2.7:22"]),
        ("hosts = ['other-port']", ["host-192.0.2.7:2222"]),
        ("hosts = ['192.0.2.7']\nport = 2222", ["host-192.0.2.7:2222"]),
        ("hosts = ['192.0.2.9', 'one']", ["host-192.0.2.7:22", "host-192.0.2.9:22"]),
        ("hosts = ['behind']", ["host-node3.inside:22"]),
        ("hosts = ['localhost', '127.0.0.1']", local.get_machine()),
        ("hosts = ['localhost']\nport = 2201", ["host-127.0.0.1:2201"]),
        ("hosts = ['no-such-host.invalid']", ["host-no-such-host.invalid:22"]),
    ],
)
def test_machines_are_the_same_by_any_name(load: Load, folder: Path, text: str, machines: list[str]) -> None:
    """A machine is the same under each of its names; behind a jump host it keeps the name there, and this one is local."""
    (folder / "aliases").write_text(ALIASES)
    found = endpoints.list_machines(load(f"{text}\nssh_config = 'aliases'"))
    assert [backend_keys.replace("host-::1:2201", "host-127.0.0.1:2201") for backend_keys in found] == machines


def test_home_of_an_unknown_user_is_a_missing_file(load: Load, folder: Path) -> None:
    """A path in the home of an unknown user is reported as a missing file."""
    config = load("hosts = ['n1']\nidentity_file = '~no such user/key'")
    with pytest.raises(ClusterFileError, match=f"there is no file {folder}/~no such user/key"):
        endpoints.list_endpoints(config)
