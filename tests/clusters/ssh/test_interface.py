"""Hosts over SSH with two networks, and the interface that tasks use."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pytest_dtfperf.clusters.named import Limits
from pytest_dtfperf.doctor import examination
from pytest_dtfperf.doctor.examination import examine, read_expectations
from pytest_dtfperf.doctor.findings import list_findings
from pytest_dtfperf.errors import AllocationError
from pytest_dtfperf.testing.backends import PATIENCE_S
from tests.clusters.ssh.conftest import NewLab
from tests.clusters.ssh.lab import Lab
from tests.clusters.ssh.test_conformance import ROOT
from tests.doctor.interpreters import SHORT_S, make_interpreter
from tests.launch.isolated import SMALL, TRAINING
from tests.launch.stage import Stage, start_stage
from tests.machines import network

LENET_PARAMETERS = 61_706  # each step sends them to m2, and gradients back
SECOND = {"m1": "10.71.0.1", "m2": "10.71.0.2"}
SEES_FILES = [f"export PYTHONPATH={ROOT}"]


@pytest.fixture
def lab(new_lab: NewLab) -> Lab:
    """Two machines that a second pair of interfaces, fast0, joins beside the network of sshd."""
    lab = new_lab(2, namespaces=True)
    first, second = (each.first for each in lab.machines)
    cable = f"ip link add fast0 type veth peer name fast0 netns {second}"
    network.run("nsenter", f"--net=/proc/{first}/ns/net", *cable.split())
    for name, address in SECOND.items():
        lab[name].run("ip", "address", "add", f"{address}/24", "dev", "fast0")
        lab[name].run("ip", "link", "set", "fast0", "up")
    return lab


@contextmanager
def on_two(lab: Lab, folder: Path, interface: str) -> Iterator[Stage]:
    config = lab.config(interface=interface, setup=SEES_FILES, entry=TRAINING.entry, limits=TRAINING.limits)
    with start_stage(folder, config) as stage:
        yield stage


def count_bytes(lab: Lab, interface: str) -> int:
    """Return the bytes that m1 has received and sent over an interface."""
    row = next(line for line in lab["m1"].run("cat", "/proc/net/dev").splitlines() if line.strip().startswith(f"{interface}:"))
    numbers = row.partition(":")[2].split()
    return int(numbers[0]) + int(numbers[8])


INTERFACES = {"name": "fast0", "network": "10.71.0.0/24"}


@pytest.mark.campaign(part=2)  # each imports TensorFlow on two hosts
@pytest.mark.parametrize("interface", INTERFACES.values(), ids=INTERFACES)
def test_tasks_use_the_interface(lab: Lab, tmp_path: Path, interface: str) -> None:
    """Data between tasks goes over the interface of clusters.toml, and the fingerprint has its speed."""
    with on_two(lab, tmp_path, interface) as stage:
        before = {name: count_bytes(lab, name) for name in ("eth0", "fast0")}
        run = stage.run(**SMALL, steps=20)
        used = {name: count_bytes(lab, name) - before[name] for name in before}
        fingerprint = stage.launcher.fingerprint
    assert run.bytes_sent > 0
    assert used["fast0"] > 20 * 4 * LENET_PARAMETERS
    assert fingerprint.hardware.interconnect == "Ethernet 10 Gb/s"  # as a pair of virtual interfaces reports


def test_an_absent_interface_is_one_line(lab: Lab, tmp_path: Path) -> None:
    """A host without the interface is refused, and the message lists those that it has."""
    lab["m2"].run("ip", "link", "set", "fast0", "name", "slow0")
    refused = pytest.raises(AllocationError, match=r"^host m2 has no interface 'fast0'\. It has eth0 \(.*slow0 \(")
    with refused as refusal, on_two(lab, tmp_path, "fast0"):
        pass
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("interface", INTERFACES.values(), ids=INTERFACES)
def test_the_doctor_measures_the_interface(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interface: str) -> None:
    """The doctor tries ports and links at the addresses of the interface, and lists what each host has."""
    monkeypatch.setattr(examination, "STREAM_S", SHORT_S)
    limits = Limits(hello_s=PATIENCE_S, silence_s=PATIENCE_S)
    python = str(make_interpreter(tmp_path / "venv", "2.99.0"))
    config = lab.config(interface=interface, python=python, setup=SEES_FILES, limits=limits, heartbeat_timeout_s=PATIENCE_S)
    before = count_bytes(lab, "fast0")
    seen = examine(config, None, lambda words: None)
    assert [host.address for host in seen.hosts] == list(SECOND.values())
    assert [host.facts and host.facts.find_interface(host.address) is not None for host in seen.hosts] == [True, True]
    assert {*(each.error for each in seen.reached), *(each.error for each in seen.links)} == {None}
    assert count_bytes(lab, "fast0") - before > sum(link.bytes for link in seen.links) > 0
    assert not [str(each) for each in list_findings(seen, read_expectations(config)) if re.search("interface", str(each))]
