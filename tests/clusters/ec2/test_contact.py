"""The first login to instances, on machines, and its failures."""

import os
import threading
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from moto.ec2.models.instances import Instance

from pytest_dtfperf.clusters.ec2 import contact
from pytest_dtfperf.clusters.ec2.backend import Ec2Backend
from pytest_dtfperf.clusters.ec2.contact import READY, ROTATE
from pytest_dtfperf.clusters.ssh.endpoints import Endpoint
from pytest_dtfperf.errors import AllocationError
from pytest_dtfperf.testing.backends import PARROT_COMMAND, wait_until
from tests.clusters.ec2 import runs
from tests.clusters.ec2.cloud import ending
from tests.clusters.ec2.cloud.cloud import NOTHING
from tests.clusters.ec2.cloud.datacenter import DataCenter
from tests.clusters.ec2.cloud.hands import client
from tests.clusters.ec2.runs import Heard

ROOT = Path(__file__).parents[3]  # instances see this machine's files


@pytest.fixture(autouse=True)
def short_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A packet that is dropped here is not on its way round the world."""
    monkeypatch.setattr(contact, "_CONNECT_S", 1.0)
    monkeypatch.setattr(contact, "_POLL_S", 0.2)


def test_new_host_key_is_made_once(datacenter: DataCenter) -> None:
    """Repeated steps of the key's rotation return the same key, which is not the injected one."""
    with runs.backend(datacenter).provide_instances(Heard().resources(devices=1)) as lot:
        (computer,) = datacenter.wait_for_machines(1)
        wait_until("it is ready", lambda: computer.run("sh", "-c", f"test -e {READY} && echo yes || true").strip() == "yes")
        steps = "; ".join(f"{ROTATE} {step}" for step in ("prepare", "prepare", "use", "use", "prepare"))
        keys = computer.run("sh", "-c", f"set -e; {steps}").strip().splitlines()
        injected = (lot.ledger.folder / "host.pub").read_text().split()[1]
    assert len(keys) == 5
    assert len({key.split()[1] for key in keys}) == 1
    assert injected not in keys[0]


def test_unreachable_instance_is_reported(datacenter: DataCenter) -> None:
    """An unreachable instance is reported with the addresses that may log in, and nothing is left."""
    cluster = runs.backend(datacenter, caller_cidr="203.0.113.9/32", boot_s=2.0)
    with (
        pytest.raises(
            AllocationError, match=r"could not be logged in to in time: .*\. Logins are let in from 203\.0\.113\.9/32: is"
        ),
        cluster.allocate(Heard().resources()),
    ):
        pass
    assert datacenter.list_resources() == NOTHING


def test_instance_that_ends_during_the_wait(datacenter: DataCenter) -> None:
    """The wait ends with an error if Amazon shows that an instance has ended."""

    class Meddling(list[str]):
        def append(self, words: str) -> None:
            super().append(words)
            if "waiting until they can be logged in to" in words:
                client().terminate_instances(InstanceIds=list(datacenter.machines))

    heard = Heard()
    heard.words = Meddling()
    cluster = runs.backend(datacenter, caller_cidr="203.0.113.9/32")
    with (
        pytest.raises(AllocationError, match=r"instance i-\w+ is \S+ before it could be used: Client\.UserInitiatedShutdown"),
        cluster.allocate(heard.resources()),
    ):
        pass
    assert datacenter.list_resources() == NOTHING


@pytest.mark.parametrize("what", ["ends before it runs", "ends while it boots", "does not answer", "ends after login"])
def test_start_names_an_instance_that_does_not_boot(datacenter: DataCenter, what: str) -> None:
    """If hosts may be missing, the others can be used after an instance has failed, and a start on all of them names it."""
    failed: list[str] = []
    boot = datacenter.world.on_boot
    assert boot

    def boot_all_but_one(instance: Instance) -> None:
        if what == "ends before it runs" and not failed:
            failed.append(instance.id)
            ending.shut_down(instance, "Server.InternalError", "Internal error on launch")
        else:
            boot(instance)

    class Meddling(list[str]):
        def append(self, words: str) -> None:
            super().append(words)
            moment = "connecting to" if what == "ends after login" else "waiting until they can be logged in to"
            if moment not in words or failed:
                return
            failed.append(next(iter(datacenter.machines)))
            if what == "does not answer":
                datacenter.crash(failed[0])
            else:
                client().terminate_instances(InstanceIds=failed)

    datacenter.world.on_boot = boot_all_but_one
    heard = Heard()
    heard.words = Meddling()
    setup = f"export PYTHONPATH={ROOT}"
    cluster = runs.backend(datacenter, count=3, boot_s=20.0, setup=[setup])
    with cluster.allocate(replace(heard.resources(devices=3), may_lack_hosts=True)) as allocation:
        assert {host.name for host in allocation.hosts} == datacenter.machines.keys() - set(failed)
        with pytest.raises(AllocationError, match=failed[0]) as caught:
            allocation.start(PARROT_COMMAND)
        assert caught.value.hosts == failed
        left = Ec2Backend().share_hosts(allocation, runs.config(datacenter, setup=[setup]), failed)
        with closing(left.start(PARROT_COMMAND)):
            assert len(left.hosts) == 2
    assert datacenter.list_resources() == NOTHING


def test_image_that_is_never_ready(datacenter: DataCenter, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that answers but has not armed its own end is not used."""
    monkeypatch.setattr(contact, "_PREPARE", "test -e /run/never")
    with (
        pytest.raises(
            AllocationError, match=r"could not be logged in to in time: it has not finished starting \(exit code 1\)$"
        ),
        runs.backend(datacenter, boot_s=3.0).allocate(Heard().resources()),
    ):
        pass


def test_endless_output_of_a_login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Endless output of a login is cut off, and is reported as the reason."""
    ssh = tmp_path / "ssh"
    ssh.write_text("#!/bin/sh\nexec yes\n")
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    stop = threading.Event()
    talk = contact._Talk(Endpoint("i-1", "192.0.2.1"), time.monotonic() + 1.0, stop, "Look at its console.")
    with pytest.raises(AllocationError, match=r"in time: it printed more than 1024 KiB to one short command\. Look at its"):
        talk.repeat_until_answer("echo here", lambda line: line == "here")
