"""Finding what a dead session left."""

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator

import pytest

from pytest_dtfperf.node import processes, sweep

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
    sleeper = Sleeper(session, owner_of(os.getpid()))
    yield sleeper
    sleeper.end()


def owner_of(pid: int) -> str:
    seen = processes.look(pid)
    assert seen
    return f"{pid} {seen.started} {sweep.pid_namespace()}"


def swept(*options: str) -> None:
    subprocess.run([sys.executable, "-m", "pytest_dtfperf.node.sweep", *options], check=True)


def test_named_session_is_ended(sleeper: Sleeper, session: str) -> None:
    """Processes that carry the session's id are killed."""
    assert sweep.left_by([session]) == [sleeper.process.pid]
    swept(session)
    assert sleeper.process.wait(10) == -9


def test_other_sessions_are_left_alone(sleeper: Sleeper) -> None:
    """Sweeping another session touches nobody here."""
    swept(uuid.uuid4().hex)
    assert sleeper.process.poll() is None


def test_living_owner_protects_its_session(sleeper: Sleeper) -> None:
    """What belongs to a session whose owner lives is never touched."""
    swept("--abandoned")
    assert sleeper.process.poll() is None


@pytest.mark.parametrize(
    ("owner", "lives"),
    [
        ("{dead}", False),
        ("{reused}", False),
        ("{elsewhere}", True),
        ("", True),
    ],
    ids=["its process is gone", "its id belongs to another process now", "it lives in another pid namespace", "unknown"],
)
def test_owner_is_known_by_id_start_and_namespace(owner: str, lives: bool) -> None:
    """Only a process that is surely gone leaves its session abandoned."""
    me = owner_of(os.getpid()).split()
    owners = {
        "dead": f"4194304 1 {me[2]}",
        "reused": f"{me[0]} {int(me[1]) - 1} {me[2]}",
        "elsewhere": "4194304 1 pid:[1]",
    }
    assert sweep.owner_lives({sweep.OWNER: owner.format(**owners)}) is lives


def test_abandoned_session_is_ended(session: str) -> None:
    """What was left by a controller that died is found without knowing its session."""
    sleeper = Sleeper(session, f"4194304 1 {sweep.pid_namespace()}")
    swept("--abandoned")
    assert sleeper.process.wait(10) == -9
    sleeper.end()
