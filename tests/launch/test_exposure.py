"""Tests of private addresses, of peers that may connect, and of refused hosts."""

import re
from typing import Any

import pytest

from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.clusters.placement import HostView
from pytest_dtfperf.errors import AllocationError
from pytest_dtfperf.launch import exposure
from pytest_dtfperf.launch.exposure import NetworkInterface, choose_interface

NO_ROOT = "only root may set up nftables"


def make_host(address: str, addresses: tuple[str, ...] = (), unguarded: str | None = NO_ROOT) -> HostView:
    return HostView("h1", address, cpus=(0,), addresses=addresses, unguarded=unguarded)


def make_config(backend: str = "ssh", **backend_keys: Any) -> ClusterConfig:
    return ClusterConfig(name="lab", backend=backend, backend_keys=backend_keys)


@pytest.mark.parametrize(
    "address, private",
    [
        ("10.0.0.0", True),
        ("10.255.255.255", True),
        ("11.0.0.0", False),
        ("9.255.255.255", False),
        ("172.15.255.255", False),
        ("172.16.0.0", True),
        ("172.31.255.255", True),  # where a default VPC of EC2 is
        ("172.32.0.0", False),
        ("192.168.255.255", True),
        ("192.169.0.0", False),
        ("100.63.255.255", False),
        ("100.64.0.0", True),
        ("100.127.255.255", True),
        ("100.128.0.0", False),
        ("198.17.255.255", False),
        ("198.18.0.0", True),
        ("198.19.255.255", True),
        ("198.20.0.0", False),
        ("127.0.0.1", True),
        ("169.254.169.254", True),
        ("169.255.0.0", False),
        ("8.8.8.8", False),
        ("192.0.0.1", False),  # which some versions of Python call private
        ("203.0.113.7", False),
        ("0.0.0.0", False),
        ("255.255.255.255", False),
        ("::1", True),
        ("::", False),
        ("fc00::1", True),
        ("fdff:ffff::1", True),
        ("fe00::1", False),
        ("fe80::1%eth0", True),
        ("febf::1", True),
        ("fec0::1", False),
        ("2001:db8::1", False),
        ("2a00:1450:4001::8a", False),
        ("::ffff:10.1.2.3", True),
        ("::ffff:8.8.8.8", False),
        ("64:ff9b::808:808", False),
        ("2002:0a00:0001::1", False),
    ],
)
def test_private_ranges_are_exact(address: str, private: bool) -> None:
    """The ranges of docs/security.md are private, to their first and last address, and no others."""
    assert exposure.is_private(address) is private


def test_documentation_has_the_private_ranges(request: pytest.FixtureRequest) -> None:
    """The page on security lists the private ranges, and no others."""
    page = (request.config.rootpath / "docs" / "security.md").read_text()
    table = page.partition("Not public are exactly these:")[2].partition("An IPv4 address")[0]
    listed = [word for row in table.splitlines() if row for word in re.findall(r"[\da-f.:]+/\d+|::1", row.split("|")[1])]
    assert sorted(listed) == sorted(str(network).removesuffix("/128") for network in exposure.PRIVATE)


@pytest.mark.parametrize(
    "cluster, one",
    [
        (make_config(), make_host("10.0.0.1", ("10.0.0.1", "203.0.113.7"))),
        (make_config(), make_host("203.0.113.7", unguarded=None)),
        (make_config(network="trusted"), make_host("203.0.113.7")),
        (make_config("local"), make_host("127.0.0.1", ("203.0.113.7",))),
        (make_config(), make_host("no-such-name.invalid", ("10.0.0.1", "fd00::1"))),
        (make_config(), make_host("localhost")),
    ],
    ids=["a private address", "a firewall", "trusted", "this machine", "a name of private addresses", "a name known here"],
)
def test_protected_hosts_are_allowed(cluster: ClusterConfig, one: HostView) -> None:
    """Hosts with a private address, a firewall or a trusted network are allowed."""
    exposure.check(cluster, [one])


@pytest.mark.parametrize("backend", ["ssh", "slurm", "ec2"])
@pytest.mark.parametrize(
    "one",
    [make_host("203.0.113.7"), make_host("2a00::1"), make_host("no-such-name.invalid", ("10.0.0.1", "203.0.113.7"))],
    ids=["IPv4", "IPv6", "a name"],
)
def test_public_host_is_refused(backend: str, one: HostView) -> None:
    """A public address without a firewall is refused, with the reason and each remedy."""
    with pytest.raises(AllocationError) as refusal:
        exposure.check(make_config(backend), [make_host("10.0.0.1"), one])
    words = str(refusal.value)
    assert words.startswith("h1 has the public address 2")
    assert NO_ROOT in words
    assert "private_address" in words
    assert 'network = "trusted"' in words
    assert "docs/security.md" in words


def test_peers_are_all_addresses_of_the_hosts() -> None:
    """The peers are all addresses of the allocated hosts, and no unknown names."""
    hosts = [make_host("10.0.0.1", ("10.0.0.1", "192.168.0.1")), make_host("no-such-name.invalid", ("fd00::2",))]
    assert exposure.find_peers(make_config(), hosts) == ["10.0.0.1", "192.168.0.1", "fd00::2"]


def test_local_cluster_has_no_peers() -> None:
    """The local cluster has no peers, and a network of the host or a trusted one has no restriction."""
    assert exposure.find_peers(make_config("local"), [make_host("127.0.0.1", ("10.0.0.1",))]) == []
    assert exposure.find_peers(make_config("local", network="host"), [make_host("127.0.0.1")]) is None
    assert exposure.find_peers(make_config(network="trusted"), [make_host("10.0.0.1")]) is None


ETH0 = NetworkInterface("eth0", ("192.0.2.1", "2001:db8::1"), gbps=1.0)
IB0 = NetworkInterface("ib0", ("10.1.0.1", "10.2.0.1"), "InfiniBand", 100.0)
IB1 = NetworkInterface("ib1", (), "InfiniBand")


@pytest.mark.parametrize(
    "wanted, name, address",
    [
        ("eth0", "eth0", "192.0.2.1"),
        ("ib0", "ib0", "10.1.0.1"),
        ("10.2.0.0/16", "ib0", "10.2.0.1"),
        ("2001:db8::/32", "eth0", "2001:db8::1"),
    ],
)
def test_interface_is_chosen_by_name_or_network(wanted: str, name: str, address: str) -> None:
    """A name selects the first address of its interface, and a network the first address in it."""
    found, given = choose_interface("n1", wanted, [ETH0, IB0, IB1])
    assert (found.name, given) == (name, address)


@pytest.mark.parametrize(
    "wanted, problem",
    [
        ("ib7", "host n1 has no interface 'ib7'"),
        ("ib1", "interface 'ib1' of host n1 has no address"),
        ("172.16.0.0/12", "host n1 has no address in 172.16.0.0/12"),
    ],
)
def test_missing_interface_is_refused(wanted: str, problem: str) -> None:
    """The message on a missing interface is one line, with the interfaces of the host, their addresses and speeds."""
    with pytest.raises(AllocationError) as refusal:
        choose_interface("n1", wanted, [ETH0, IB0, IB1])
    assert str(refusal.value) == (
        f"{problem}. It has eth0 (192.0.2.1, Ethernet 1 Gb/s), ib0 (10.1.0.1, InfiniBand 100 Gb/s), "
        "ib1 (without an address, InfiniBand of unknown speed). Correct `interface` in clusters.toml"
    )
