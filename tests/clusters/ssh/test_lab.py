"""The lab itself: users can log in with its files, and only with these."""

import pytest

from tests.clusters.ssh.conftest import NewLab
from tests.clusters.ssh.lab import Lab
from tests.machines.machine import make_key


def test_names_are_aliases(lab: Lab) -> None:
    """Each machine is reached by its name, is at home in a folder of its own, and has this Python as `python3`."""
    for each in lab.machines:
        output = lab.ssh(each.name, "echo $HOME; python3 -c 'import pytest_dtfperf'")
        assert (output.returncode, output.stdout) == (0, f"{each.home}\n"), output.stderr


def test_login_shell_has_the_same_programs(new_lab: NewLab) -> None:
    """The programs of a machine also come first in a login shell."""
    lab = new_lab(1, programs={"nvidia-smi": "#!/bin/sh\necho pretend\n"})
    for command in ("nvidia-smi", "bash -l -c nvidia-smi"):
        assert lab.ssh("m1", command).stdout == "pretend\n"


def test_machines_in_namespaces_have_names(new_lab: NewLab) -> None:
    """Machines in namespaces of their own find each other by name."""
    lab = new_lab(2, namespaces=True)
    output = lab.ssh("m1", "getent hosts m2")
    assert output.stdout.split() == [lab["m2"].address, "m2"], output.stderr


@pytest.mark.parametrize("namespaces", [True, False], ids=["in namespaces", "on the loopback"])
def test_wrong_files_keep_users_out(new_lab: NewLab, namespaces: bool) -> None:
    """A login without the host key in known_hosts, or with another user key, fails."""
    lab = new_lab(1, namespaces=namespaces)
    known = lab.known_hosts.read_text()
    lab.known_hosts.write_text("")
    assert "Host key verification failed" in lab.ssh("m1", "true").stderr
    lab.known_hosts.write_text(known)
    lab.identity.unlink()
    make_key(lab.identity, "a stranger")
    assert "Permission denied (publickey)" in lab.ssh("m1", "true").stderr


def test_config_and_toml_are_equivalent(lab: Lab) -> None:
    """The cluster of a lab names its machines; keys of a test replace the lab's own."""
    config = lab.config(parallel=3, python=None)
    assert config.backend_keys["hosts"] == ["m1", "m2"]
    assert config.backend_keys["parallel"] == 3
    assert config.python is None
    assert f'ssh_config = "{lab.ssh_config}"' in lab.toml()
    assert 'hosts = ["m2"]' in lab.toml('hosts = ["m2"]')
    assert 'hosts = ["m1", "m2"]' not in lab.toml('hosts = ["m2"]')
