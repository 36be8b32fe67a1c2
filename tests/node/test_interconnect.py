"""The interconnect of a host, as the kernel reports it."""

from pathlib import Path

import pytest

from pytest_dtfperf.node.interfaces import find_fastest, find_interface, list_addresses, list_interfaces

ROUTES = """Iface	Destination	Gateway 	Flags	RefCnt	Use	Metric	Mask
eth1	0000A8C0	00000000	0001	0	0	0	00FFFFFF
eth0	00000000	010200C0	0003	0	0	0	00000000
"""


class Sys:
    """A machine's folders of links, with the entries that are read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / "route").write_text(ROUTES)

    def port(self, device: str, *, state: str = "4: ACTIVE", rate: str, layer: str = "InfiniBand") -> None:
        port = self._folder / "infiniband" / device / "ports" / "1"
        port.mkdir(parents=True)
        for name, text in {"state": state, "rate": rate, "link_layer": layer}.items():
            (port / name).write_text(f"{text}\n")

    def interface(self, name: str, speed: str) -> None:
        (self._folder / "net" / name).mkdir(parents=True)
        (self._folder / "net" / name / "speed").write_text(f"{speed}\n")

    def card(self, name: str, *, hardware: str, rdma: bool = False) -> None:
        (self._folder / "net" / name / "type").write_text(f"{hardware}\n")
        if rdma:
            (self._folder / "net" / name / "device" / "infiniband").mkdir(parents=True)

    def interfaces(self) -> list[tuple[str, str, float | None]]:
        found = list_interfaces(str(self._folder / "net"))
        return [(each["name"], each["kind"], each["gbps"]) for each in found if each["name"].startswith("test-")]

    def fastest(self) -> str | None:
        return find_fastest(*(str(self._folder / name) for name in ("infiniband", "net", "route")))


@pytest.fixture
def machine(tmp_path: Path) -> Sys:
    return Sys(tmp_path)


def test_fastest_port_that_is_up(machine: Sys) -> None:
    """The interconnect is the fastest active port for remote memory access; inactive ones do not count."""
    machine.interface("eth0", "10000")
    machine.port("mlx5_0", rate="56 Gb/sec (4X FDR)")
    machine.port("mlx5_1", rate="100 Gb/sec (4X EDR)")
    machine.port("mlx5_2", rate="200 Gb/sec (4X HDR)", state="1: DOWN")
    assert machine.fastest() == "InfiniBand 100 Gb/s"


@pytest.mark.parametrize("layer, name", [("Ethernet", "RoCE 25 Gb/s"), ("Unspecified", "RDMA 25 Gb/s")])
def test_other_link_layers(machine: Sys, layer: str, name: str) -> None:
    """Remote memory access over Ethernet is distinguished from InfiniBand; over something else, it is only called so."""
    machine.port("bnxt_0", rate="25 Gb/sec (1X EDR)", layer=layer)
    assert machine.fastest() == name


@pytest.mark.parametrize(
    "speed, name",
    [("1000", "Ethernet 1 Gb/s"), ("2500", "Ethernet 2.5 Gb/s"), ("-1", None), ("0", None), ("", None)],
    ids=["gigabit", "fraction", "virtual", "none", "down"],
)
def test_interface_of_the_default_route(machine: Sys, speed: str, name: str | None) -> None:
    """The interconnect without such a port is the interface of the default route, if it has a speed."""
    machine.interface("eth0", speed)
    machine.interface("eth1", "400000")
    assert machine.fastest() == name


def test_unknown_interconnect(tmp_path: Path) -> None:
    """A host without any of these files has an unknown interconnect."""
    assert find_fastest(*(str(tmp_path / name) for name in ("infiniband", "net", "route"))) is None


def test_interfaces_are_listed_by_kind_and_speed(machine: Sys) -> None:
    """IPoIB, Ethernet with remote memory access and plain Ethernet are distinguished; an unknown speed is None."""
    for name, speed, kind, rdma in (
        ("test-eth0", "1000", "1", False),
        ("test-eth1", "-1", "1", True),
        ("test-ib0", "100000", "32", True),
    ):
        machine.interface(name, speed)
        machine.card(name, hardware=kind, rdma=rdma)
    assert machine.interfaces() == [
        ("test-eth0", "Ethernet", 1.0),
        ("test-eth1", "RoCE", None),
        ("test-ib0", "InfiniBand", 100.0),
    ]


def test_interfaces_of_this_host_have_its_addresses() -> None:
    """The addresses of all interfaces are those of the host, and the loopback interface is not listed."""
    found = list_interfaces()
    assert {address for each in found for address in each["addresses"]} == set(list_addresses())
    assert "lo" not in [each["name"] for each in found]


def test_an_address_has_an_interface() -> None:
    """The loopback's is found; an address that this machine does not have (RFC 5737) has none."""
    assert find_interface("127.0.0.1") == "lo"
    assert find_interface("203.0.113.1") is None
