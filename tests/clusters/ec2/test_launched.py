"""Instances as endpoints of ssh."""

import subprocess
from pathlib import Path

import pytest

from pytest_dtfperf.clusters.ec2 import contact
from pytest_dtfperf.clusters.ec2.instances import Instance
from pytest_dtfperf.clusters.ssh.endpoints import make_ssh_argv
from pytest_dtfperf.errors import AllocationError
from tests.clusters.ec2.runs import PLAN, plan
from tests.full_disk import full_behind


def instance(number: int = 0, public: str | None = "198.51.100.7") -> Instance:
    return Instance(
        id=f"i-{number}",
        index=number,
        state="running",
        private=f"10.0.0.{number}",
        public=public,
        zone="us-east-1a",
        kind="g4dn.xlarge",
        reason="",
        launched=0.0,
        tags={},
    )


def settings(folder: Path, **other: object) -> dict[str, list[str]]:
    """Return ssh's own settings for an instance's endpoint."""
    endpoint = contact.make_endpoint(plan(**other), folder, instance())
    argv = make_ssh_argv(endpoint, 10.0, "true")
    output = subprocess.run([argv[0], "-G", *argv[1:]], capture_output=True, text=True, check=True).stdout
    found: dict[str, list[str]] = {}
    for line in output.splitlines():
        key, _, value = line.partition(" ")
        found.setdefault(key, []).append(value)
    return found


@pytest.mark.parametrize("public, target", [(True, "ubuntu@198.51.100.7"), (False, "ubuntu@10.0.0.0")])
def test_two_addresses(tmp_path: Path, public: bool, target: str) -> None:
    """Logins use the address of the cluster file's choice; tasks always use the private one."""
    endpoint = contact.make_endpoint(plan(public=public), tmp_path, instance())
    assert (endpoint.name, endpoint.target, endpoint.address) == ("i-0", target, "10.0.0.0")


def test_endpoints_have_the_order_of_the_launch(tmp_path: Path) -> None:
    """Host i is the instance with launch index i, in any order of Amazon's answer."""
    shuffled = [instance(2), instance(0), instance(1)]
    assert [each.name for each in contact.make_endpoints(PLAN, tmp_path, shuffled)] == ["i-0", "i-1", "i-2"]


def test_only_the_runs_own_keys_and_files(tmp_path: Path) -> None:
    """ssh offers this run's key alone, and believes this run's file alone, under the instance's id."""
    folder = tmp_path / "100% mine"
    output = settings(folder, port=2222)
    assert output["identityfile"] == [f"{folder}/login".replace("%", "%%")]  # as it was given
    assert output["userknownhostsfile"] == [f"{folder}/known_hosts.i-0"]
    assert output["globalknownhostsfile"] == ["/dev/null"]
    assert output["identitiesonly"] == ["yes"]
    assert output["identityagent"] == ["none"]
    assert output["hostkeyalias"] == ["i-0"]
    assert output["stricthostkeychecking"] == ["true"]
    assert output["port"] == ["2222"]
    assert output["user"] == ["ubuntu"]


def test_one_key_is_trusted_at_a_time(tmp_path: Path) -> None:
    """A new host key replaces the old one; comments are ignored."""
    contact.trust_keys(tmp_path, "i-0", "ssh-ed25519 AAAAold somebody")
    contact.trust_keys(tmp_path, "i-0", "ssh-ed25519 AAAAnew", "ssh-ed25519 AAAAnew else")
    assert contact.get_known_hosts_path(tmp_path, "i-0").read_text() == "i-0 ssh-ed25519 AAAAnew\n"
    assert [each.name for each in tmp_path.iterdir()] == ["known_hosts.i-0"]


def test_full_disk_keeps_the_trusted_key(tmp_path: Path) -> None:
    """A key that cannot be written is an error with its path, and the earlier key stays."""
    contact.trust_keys(tmp_path, "i-0", "ssh-ed25519 AAAAold")
    words = rf"{tmp_path}/known_hosts\.i-0 cannot be written: .*; make room on that disk"
    with full_behind(tmp_path / "none", room=3), pytest.raises(AllocationError, match=words):
        contact.trust_keys(tmp_path, "i-0", "ssh-ed25519 AAAAnew")
    assert contact.get_known_hosts_path(tmp_path, "i-0").read_text() == "i-0 ssh-ed25519 AAAAold\n"


@pytest.mark.parametrize(
    "line, is_one",
    [
        ("ssh-ed25519 AAAAC3Nz comment", True),
        ("ssh-ed25519", False),
        ("ssh-rsa AAAAB3Nz", False),
        ("", False),
        ("hello there", False),
    ],
)
def test_public_keys_are_recognised(line: str, is_one: bool) -> None:
    """Other output of an instance is not taken for its key."""
    assert contact.is_public_key(line) is is_one


def test_keys_are_readable_by_their_user_only(tmp_path: Path) -> None:
    """Two pairs of keys are made, and only this user can read their private halves."""
    contact.make_keys(tmp_path, "test")
    assert contact.is_public_key(contact.read_injected_key(tmp_path))
    assert all((tmp_path / name).stat().st_mode & 0o077 == 0 for name in ("login", "host"))
