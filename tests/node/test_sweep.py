"""Finding and ending processes of dead sessions."""

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator

import pytest

from pytest_dtfperf.node import sweep
from pytest_dtfperf.node.owner import Owner

SLEEP = [sys.executable, "-S", "-c", "print(flush=True); import time; time.sleep(3600)"]


class Sleeper:
    """A process of some session and owner."""

    def __init__(self, session: str, owner: str = "") -> None:
        environment = {**os.environ, sweep.SESSION: session, sweep.OWNER: owner}
        self.process = subprocess.Popen(SLEEP, env=environment, stdout=subprocess.PIPE, start_new_session=True)
        assert self.process.stdout
        self.process.stdout.readline()

    def end(self) -> None:
        assert self.process.stdout
        self.process.stdout.close()
        self.process.kill()
        self.process.wait()


@pytest.fixture
def session() -> str:
    return uuid.uuid4().hex


@pytest.fixture
def sleeper(session: str) -> Iterator[Sleeper]:
    sleeper = Sleeper(session, Owner.read_own().text)
    yield sleeper
    sleeper.end()


def make_ended_owner() -> Owner:
    """A process of here that is no more: its id cannot be given."""
    return Owner.read_own()._replace(pid=4194304)


def run_sweep(*options: str) -> None:
    subprocess.run([sys.executable, "-m", "pytest_dtfperf.node.sweep", *options], check=True)


def test_named_session_is_ended(sleeper: Sleeper, session: str) -> None:
    """Processes that carry the session's id are killed."""
    assert sweep.find_left_processes([session]) == [sleeper.process.pid]
    run_sweep(session)
    assert sleeper.process.wait(10) == -9


def test_other_sessions_are_kept(sleeper: Sleeper) -> None:
    """Sweeping another session touches no process here."""
    run_sweep(uuid.uuid4().hex)
    assert sleeper.process.poll() is None


def test_living_owner_protects_its_session(sleeper: Sleeper) -> None:
    """The processes of a session with a living owner are kept."""
    run_sweep("--abandoned")
    assert sleeper.process.poll() is None


@pytest.mark.parametrize(
    ("owner", "abandoned"),
    [
        (make_ended_owner().text, True),
        (Owner.read_own()._replace(namespace="1").text, False),
        ("", False),
        ("4194304 1 pid:[4026531836]", False),
        (make_ended_owner().text.replace("4194304", "9" * 5000), False),
    ],
    ids=["its process is gone", "it is of another pid namespace", "no owner", "of an earlier version", "damaged"],
)
def test_only_dead_owners_abandon_a_session(owner: str, abandoned: bool) -> None:
    """A session is abandoned only if its owner can be checked from here and does not exist."""
    assert sweep.is_abandoned({sweep.OWNER: owner}) is abandoned


def test_abandoned_session_is_ended(session: str) -> None:
    """The processes of a dead controller are found without its session's id."""
    sleeper = Sleeper(session, make_ended_owner().text)
    run_sweep("--abandoned")
    assert sleeper.process.wait(10) == -9
    sleeper.end()
