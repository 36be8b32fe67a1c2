"""The owner of something, and the fate of that process: from here, from another PID namespace, from another machine."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_dtfperf.node.owner import Fate, Owner
from pytest_dtfperf.testing.backends import wait_until
from tests.machines import ordinary
from tests.node.namespaces import hide_others, in_pid_namespace, why_not

ME = Owner.read_own()
SAY_WHO = "from pytest_dtfperf.node.owner import Owner; print(Owner.read_own().text, flush=True); input()"
SAY_FATE = "import sys; from pytest_dtfperf.node.owner import Owner; print(Owner.parse(sys.argv[1]).fate.name)"


@contextmanager
def start_owner(*command: str) -> Iterator[Owner]:
    """A process that prints its identity, started by this command."""
    argv = [*command, sys.executable, "-c", SAY_WHO]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin
        assert process.stdout
        owner = Owner.parse(process.stdout.readline().strip())
        assert owner
        yield owner
        process.stdin.close()


def fate_seen_by(owner: Owner, *command: str) -> str:
    """The fate as a process reports it that is started by this command."""
    argv = [*command, sys.executable, "-c", SAY_FATE, owner.text]
    return subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


@pytest.mark.parametrize(
    "owner, fate",
    [
        (ME, Fate.LIVES),
        (ME._replace(host="renamed"), Fate.LIVES),
        (ME._replace(started=ME.started - 1), Fate.GONE),
        (ME._replace(pid=4194304), Fate.GONE),
        (ME._replace(pid=9_999_999_999), Fate.GONE),
        (ME._replace(boot="b007"), Fate.ELSEWHERE),
        (ME._replace(namespace="1"), Fate.ELSEWHERE),
        (ME._replace(boot=""), Fate.ELSEWHERE),
        (Owner.read_or_unknown({"host": ME.host, "pid": ME.pid, "started": ME.started}), Fate.ELSEWHERE),
    ],
    ids=[
        "this process", "its machine's name has changed", "its id was given again", "no such process", "no such id",
        "another boot", "another namespace", "an unknown boot", "a ledger of an earlier version",
    ],
)  # fmt: skip
def test_fate(owner: Owner, fate: Fate) -> None:
    """A process of this boot and namespace lives or is gone; of every other the fate is unknown."""
    assert owner.fate is fate


def test_a_process_that_ends() -> None:
    """Another process is seen at work, then gone, also while its end is not reaped."""
    with start_owner() as owner:
        assert owner.fate is Fate.LIVES
        os.kill(owner.pid, signal.SIGKILL)
        wait_until("it is gone", lambda: owner.fate is Fate.GONE)


def test_text_of_an_owner_is_read_back() -> None:
    """The text of an owner in an environment, a tag or a comment is read back as the same process."""
    assert Owner.parse(ME.text) == ME


@given(st.text() | st.from_regex(r"[a-z:0-9-]{0,40}"))
def test_any_text_is_an_owner_or_none(text: str) -> None:
    """Foreign or damaged text is read without an error, and never as a process that is gone."""
    owner = Owner.parse(text)
    assert owner is None or owner.fate is Fate.ELSEWHERE


@pytest.mark.skipif(bool(why_not()), reason=why_not() or "")
def test_two_pid_namespaces() -> None:
    """A process in another PID namespace of one machine has an unknown fate, from both sides."""
    assert fate_seen_by(ME, *in_pid_namespace()) == "ELSEWHERE"
    assert fate_seen_by(ME) == "LIVES"
    with start_owner(*in_pid_namespace()) as owner:
        assert owner.host == ME.host
        assert owner.boot == ME.boot
        assert owner.fate is Fate.ELSEWHERE
        assert fate_seen_by(owner, *in_pid_namespace()) == "ELSEWHERE"


@pytest.mark.skipif(bool(why_not()), reason=why_not() or "")
def test_proc_of_another_namespace() -> None:
    """No process is considered gone if /proc shows another PID namespace than the process's own."""
    script = (
        "from pytest_dtfperf.node.owner import Owner; me = Owner.read_own(); "
        "print(me.fate.name, me._replace(pid=4000000).fate.name, me._replace(pid=1, started=1).fate.name)"
    )
    argv = [*in_pid_namespace(own_proc=False), "sh", "-c", f'"{sys.executable}" -c "{script}"; true']
    assert subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True).stdout.split() == [
        "LIVES", "ELSEWHERE", "ELSEWHERE",
    ]  # fmt: skip


@pytest.mark.skipif(bool(why_not() or ordinary.why_not()), reason=why_not() or ordinary.why_not() or "")
@pytest.mark.parametrize("hidepid", [1, 2], ids=["may not be read", "is not there"])
def test_proc_that_hides_others(hidepid: int) -> None:
    """Another user's process is not considered gone if /proc hides it (hidepid)."""
    script = (
        "from pytest_dtfperf.node import processes; from pytest_dtfperf.node.owner import Owner; me = Owner.read_own(); "
        "print(me.fate.name, me._replace(pid=1).fate.name, me.pid in {each.pid for each in processes.iterate_processes()})"
    )
    argv = [*hide_others(hidepid), *ordinary.as_user(), sys.executable, "-c", script]
    assert subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True).stdout.split() == ["LIVES", "ELSEWHERE", "True"]
