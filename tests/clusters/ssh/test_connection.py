"""Connections to several hosts at the same time."""

import tempfile
from pathlib import Path

import pytest

from pytest_dtfperf.clusters.ssh import cluster
from pytest_dtfperf.clusters.ssh.bootstrap import Handshake
from pytest_dtfperf.clusters.ssh.endpoints import list_endpoints
from pytest_dtfperf.clusters.ssh.ssh_process import Unreachable
from pytest_dtfperf.testing.backends import wait_until
from tests.clusters.ssh.conftest import NewLab
from tests.clusters.ssh.lab import Lab

A_DAY_S = 86400  # a test that waits for so long hangs


@pytest.mark.parametrize(
    ("variable", "words"),
    [("PATH", "No such file or directory. Hint: install OpenSSH's client"), ("TMPDIR", "No such file or directory")],
)
def test_ssh_that_cannot_be_started(lab: Lab, monkeypatch: pytest.MonkeyPatch, variable: str, words: str) -> None:
    """The error of a missing ssh shows what to install; that of missing room for its stderr does not."""
    if variable == "PATH":
        monkeypatch.setenv("PATH", "/nowhere")
    else:
        monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    with pytest.raises(Unreachable) as raised:
        cluster.open_processes(Handshake.from_config(lab.config()), list(enumerate(list_endpoints(lab.config()))))
    assert str(raised.value) == f"cannot start ssh: {words}"


def test_first_failure_ends_other_connections(new_lab: NewLab) -> None:
    """A failure of one host ends the set-up of the others, which are not waited for."""
    lab = new_lab(3, each={"m2": {"programs": {"fail-or-hang": "#!/bin/sh\nexit 3\n"}}}, programs={"fail-or-hang": HANGS})
    handshake = Handshake.from_config(lab.config(setup=["fail-or-hang"], connect_s=A_DAY_S))
    with pytest.raises(Unreachable, match="host m2 failed at setup line 1 with exit code 3"):
        cluster.open_processes(handshake, list(enumerate(list_endpoints(lab.config()))))
    wait_until("nothing goes on", lambda: not any(each.processes("sleep 765432") for each in lab.machines))


def test_hosts_that_fail_for_one_reason_are_one_error(new_lab: NewLab) -> None:
    """The error of several hosts that fail at the same time has all their names, and the common reason once."""
    fits = {"m1": {"programs": {"succeed-on-m1": "#!/bin/sh\nexit 0\n"}}}
    lab = new_lab(3, each=fits, programs={"succeed-on-m1": "#!/bin/sh\nexit 3\n"})
    with pytest.raises(Unreachable, match="host m2 failed at setup line 1 with exit code 3") as raised:
        cluster.open_processes(
            Handshake.from_config(lab.config(setup=["succeed-on-m1"])), list(enumerate(list_endpoints(lab.config())))
        )
    assert raised.value.hosts == ["m2", "m3"]
    assert str(raised.value).count("setup line 1") == 1
    assert str(raised.value).endswith(" (likewise m3)")


def test_status_names_hosts_that_are_waited_for(lab: Lab) -> None:
    """The status shows a host that is still being prepared, with its current set-up line."""
    messages: list[str] = []
    handshake = Handshake.from_config(lab.config(setup=["sleep 3"]))
    for line in cluster.open_processes(handshake, list(enumerate(list_endpoints(lab.config()))), messages.append):
        line.let_go()
    assert any(words.endswith("is at setup line 1 (sleep 3)") and words.startswith("waiting for ") for words in messages)


def test_parallel_limits_handshakes(lab: Lab, tmp_path: Path) -> None:
    """A set-up line of a host begins only after the other host's has ended, if `parallel` is 1."""
    tmp_path.chmod(0o777)  # the machines' user writes there
    tmp_path.parent.chmod(0o755)
    taken = tmp_path / "taken"
    handshake = Handshake.from_config(lab.config(setup=[f"mkdir {taken} && sleep 0.5 && rmdir {taken}"], parallel=1))
    for line in cluster.open_processes(handshake, list(enumerate(list_endpoints(lab.config())))):
        line.let_go()
    assert not taken.exists()


HANGS = "#!/bin/sh\nexec sleep 765432\n"
