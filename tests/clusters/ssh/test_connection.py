"""Asking hosts something, side by side."""

import sys
import tempfile
from pathlib import Path

import pytest

from pytest_dtfperf.clusters.ssh import connection
from pytest_dtfperf.clusters.ssh.bootstrap import Handshake
from pytest_dtfperf.clusters.ssh.endpoints import Endpoint, list_endpoints
from pytest_dtfperf.clusters.ssh.ssh_process import Unreachable
from pytest_dtfperf.testing.backends import wait_until
from tests.clusters.ssh.conftest import NewLab
from tests.clusters.ssh.lab import Lab

READY_S = 20.0
A_DAY_S = 86400  # a test that waits for so long hangs


def program(text: str) -> list[str]:
    return [sys.executable, "-c", text]


def test_every_host_answers(lab: Lab) -> None:
    """Each host runs the same command with its index and settings in the environment, and returns its lines."""
    text = "import os; print(os.environ['DTFPERF_HOST_INDEX']); print(os.environ['WORD']); print(input())"
    answers = connection.run_everywhere(
        lab.config(), list_endpoints(lab.config()), program(text), READY_S, env={"WORD": "w"}, stdin=b"in\n"
    )
    assert [each.endpoint.name for each in answers] == ["m1", "m2"]
    assert [each.failure for each in answers] == [None, None]
    assert [each.lines for each in answers] == [[b"0", b"w", b"in"], [b"1", b"w", b"in"]]


def test_one_hosts_failure_is_its_own(lab: Lab) -> None:
    """An unreachable host, or a failed program, does not affect the other hosts' answers."""
    hosts = [*list_endpoints(lab.config()), Endpoint("m3", "m1", options=("-F", str(lab.ssh_config), "-p", "1"))]
    text = "import os, sys; print('here'); sys.exit('no' if os.environ['DTFPERF_HOST_INDEX'] == '1' else 0)"
    first, second, third = connection.run_everywhere(lab.config(), hosts, program(text), READY_S)
    assert (first.lines, first.failure) == ([b"here"], None)
    assert second.failure == "host m2 does not answer: (the agent left with exit code 1)\n    | no"
    assert third.failure
    assert third.failure.startswith("m3 cannot be reached")


def test_answer_that_takes_too_long(lab: Lab) -> None:
    """A command beyond its time limit is ended, and reported as late."""
    answers = connection.run_everywhere(lab.config(), list_endpoints(lab.config()), program("input()"), 1.0)
    assert [each.failure for each in answers] == [
        f"host {name} does not answer: it took longer than 1 s" for name in ("m1", "m2")
    ]


def test_answer_without_end(lab: Lab) -> None:
    """A host that answers with a line that never ends, or with too many, is its own failure; the others' answers are heard."""
    text = """
import os
while os.environ["DTFPERF_HOST_INDEX"] == "0":
    os.write(1, b"x" * 65536)
print("here")
"""
    first, second = connection.run_everywhere(lab.config(), list_endpoints(lab.config()), program(text), READY_S)
    assert first.failure == "host m1 does not answer: it sent more than 16 MiB without the end of a line"
    assert (second.lines, second.failure) == ([b"here"], None)
    text = text.replace("65536", "65536 + b'\\n'")
    first, second = connection.run_everywhere(lab.config(), list_endpoints(lab.config()), program(text), READY_S)
    assert first.failure == "host m1 answers with more than 1 MiB"
    assert (second.lines, second.failure) == ([b"here"], None)


@pytest.mark.parametrize(
    ("variable", "words"),
    [("PATH", "No such file or directory. Hint: install OpenSSH's client"), ("TMPDIR", "No such file or directory")],
)
def test_ssh_that_cannot_be_started(lab: Lab, monkeypatch: pytest.MonkeyPatch, variable: str, words: str) -> None:
    """Without ssh, the message shows what to install; without room for its stderr, it does not."""
    if variable == "PATH":
        monkeypatch.setenv("PATH", "/nowhere")
    else:
        monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    first, _ = connection.run_everywhere(lab.config(), list_endpoints(lab.config()), ["true"], READY_S)
    assert first.failure == f"cannot start ssh: {words}"


def test_first_failure_lets_the_others_go(new_lab: NewLab) -> None:
    """Hosts that are still prepared when another fails are not waited for, and nothing of it goes on there."""
    lab = new_lab(3, each={"m2": {"programs": {"fail-or-hang": "#!/bin/sh\nexit 3\n"}}}, programs={"fail-or-hang": HANGS})
    handshake = Handshake.of(lab.config(setup=["fail-or-hang"], connect_s=A_DAY_S))
    with pytest.raises(Unreachable, match="host m2 failed at setup line 1 with exit code 3"):
        connection.open_processes(handshake, list(enumerate(list_endpoints(lab.config()))))
    wait_until("nothing goes on", lambda: not any(each.processes("sleep 765432") for each in lab.machines))


def test_people_are_told_who_is_waited_for(lab: Lab) -> None:
    """While hosts are prepared, people see what one of them is at."""
    told: list[str] = []
    handshake = Handshake.of(lab.config(setup=["sleep 3"]))
    for line in connection.open_processes(handshake, list(enumerate(list_endpoints(lab.config()))), told.append):
        line.let_go()
    assert any(words.endswith("is at setup line 1 (sleep 3)") and words.startswith("waiting for ") for words in told)


def test_no_more_at_once_than_may_be(lab: Lab, tmp_path: Path) -> None:
    """With one handshake at a time, no set-up line of a host begins before the other host's has ended."""
    tmp_path.chmod(0o777)  # the machines' user writes there
    tmp_path.parent.chmod(0o755)
    taken = tmp_path / "taken"
    handshake = Handshake.of(lab.config(setup=[f"mkdir {taken} && sleep 0.5 && rmdir {taken}"], parallel=1))
    for line in connection.open_processes(handshake, list(enumerate(list_endpoints(lab.config())))):
        line.let_go()
    assert not taken.exists()


HANGS = "#!/bin/sh\nexec sleep 765432\n"
