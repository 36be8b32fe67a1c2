"""Access to the ports of tasks on hosts over ssh."""

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pytest_dtfperf.errors import AllocationError
from pytest_dtfperf.node import isolation
from tests import campaign
from tests.clusters.ssh.conftest import NewLab
from tests.clusters.ssh.lab import Lab
from tests.clusters.ssh.test_conformance import ROOT
from tests.launch import serving_toy, stranger
from tests.launch.image import make_image
from tests.launch.isolated import TRAINING, while_training
from tests.launch.stage import Stage, start_stage
from tests.launch.stranger import ANSWERED, UNANSWERED
from tests.machines.machine import Machine
from tests.node.handheld import TOY

SEES_FILES = [f"export PYTHONPATH={ROOT}"]
# Takes away, for one machine, what a firewall is made with: then its agent is no better than one that is not root.
NO_NFTABLES = {"before": "rm -f /usr/lib/*/libnftables.so* /usr/lib64/libnftables.so*", "overlays": ("/etc", "/usr")}


def list_ports(machine: Machine) -> list[int]:
    """Return the ports that programs on a machine listen on, except for its sshd."""
    rows = [row.split() for row in machine.run("cat", "/proc/net/tcp", "/proc/net/tcp6").splitlines()]
    ports = {int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A"}
    return sorted(ports - {machine.port})


def call_from(lab: Lab, caller: str, called: str, port: int) -> str:
    """Return the outcome of a call by an unrelated program from one machine to another."""
    return lab[caller].run(sys.executable, stranger.__file__, lab[called].address, str(port)).strip()


@contextmanager
def on_two(lab: Lab, folder: Path, **keys: object) -> Iterator[Stage]:
    """A launcher on m1 and m2."""
    config = lab.config(limits=TRAINING.limits, **{"hosts": ["m1", "m2"], "setup": SEES_FILES, **keys})
    with start_stage(folder, config) as stage:
        yield stage


@pytest.mark.campaign
@pytest.mark.parametrize(
    "keys, entry, answer",
    [
        pytest.param({}, serving_toy.ENTRY, UNANSWERED, id="by default"),
        pytest.param({"network": "trusted"}, serving_toy.ENTRY, ANSWERED, id="trusted"),
        *([pytest.param({}, TRAINING.entry, UNANSWERED, id="TensorFlow")] if campaign.WHOLE else []),
    ],
)
def test_strangers(new_lab: NewLab, tmp_path: Path, keys: dict[str, str], entry: str, answer: str) -> None:
    """A host outside the allocation reaches no server of a training, unless its network is trusted."""
    if reason := isolation.explain_missing_firewall():
        pytest.skip(reason)
    lab = new_lab(3, namespaces=True)
    seen: dict[str, set[str]] = {"allocated": set(), "not allocated": set()}
    during: list[str] = []

    def act() -> None:
        servers = [(name, port) for name in ("m1", "m2") for port in list_ports(lab[name])]
        assert len(servers) == 3, "two on m1, one on m2"
        for name, port in servers:
            seen["allocated"].add(call_from(lab, {"m1": "m2", "m2": "m1"}[name], name, port))
            seen["not allocated"].add(call_from(lab, "m3", name, port))
        during.extend(lab[each].run("nft", "list", "tables") for each in ("m1", "m2"))

    with on_two(lab, tmp_path, entry=entry, **keys) as stage:
        while_training(stage, act)
        after = [lab[each].run("nft", "list", "tables") for each in ("m1", "m2")]
    assert seen == {"allocated": {ANSWERED}, "not allocated": {answer}}
    assert ["dtfperf_" in each for each in during] == [not keys] * 2
    assert after == ["", ""]


@pytest.mark.parametrize(
    "of_m2, keys, refused",
    [
        (NO_NFTABLES, {}, True),
        ({}, {}, False),
        (NO_NFTABLES, {"network": "trusted"}, False),
    ],
    ids=["without a firewall", "with a firewall", "trusted"],
)
def test_public_addresses(
    new_lab: NewLab, tmp_path: Path, of_m2: dict[str, object], keys: dict[str, str], refused: bool
) -> None:
    """Tasks train at public addresses only with a firewall around them, or in a network that the file calls trusted."""
    if reason := isolation.explain_missing_firewall():
        pytest.skip(reason)
    lab = new_lab(2, namespaces=True, each={"m2": of_m2})
    addresses = dict(zip(("m1", "m2"), ("203.0.113.1", "203.0.113.2"), strict=True))
    for name, address in addresses.items():
        lab[name].run("ip", "address", "add", f"{address}/24", "dev", "eth0")
    with on_two(lab, tmp_path, entry=TOY, private_address=addresses, **keys) as stage:
        if refused:
            with pytest.raises(AllocationError, match=r"(?s)^m2 has the public address 203\.0\.113\.2.*libnftables.*trusted"):
                stage.run()
        else:
            assert set(stage.run().step_s) == {"worker:0", "worker:1"}


@pytest.mark.skipif(not shutil.which("bwrap"), reason="bubblewrap is not installed: apt-get install bubblewrap")
def test_container_on_hosts_over_ssh(lab: Lab, tmp_path: Path) -> None:
    """Agents and tasks of hosts over ssh run in the container; what is sent to the hosts is seen in it."""
    container = "bwrap --dev-bind / / --proc /proc --unshare-pid --die-with-parent --"
    keys = {"entry": TRAINING.entry, "container": container, "container_python": sys.executable}
    with on_two(lab, tmp_path, hosts=["m1"], **keys) as stage:  # each host imports TensorFlow for seconds
        assert stage.run(gpus=1, num_ps=1).images_per_sec > 0


@pytest.mark.skipif(not shutil.which("ch-run"), reason="Charliecloud is not installed: apt-get install charliecloud")
def test_image_on_hosts_over_ssh(lab: Lab, tmp_path: Path) -> None:
    """Agents and tasks of hosts over ssh run in a container image, and its digest is in the fingerprint."""
    container = make_image(tmp_path / "image")
    setup = [*SEES_FILES, "export USER=root"]  # Charliecloud asks for it
    keys = {"entry": TRAINING.entry, "container": container, "container_python": sys.executable, "setup": setup}
    with on_two(lab, tmp_path, hosts=["m1"], **keys) as stage:
        assert stage.run(gpus=1, num_ps=1).images_per_sec > 0
        assert str(stage.launcher.fingerprint.software["container"]).startswith("folder sha256:")
