"""A pretend Amazon for the tests below, and no way to the real one."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clusters.ec2.cloud import descriptions, guard
from tests.clusters.ec2.cloud.cloud import Cloud
from tests.clusters.ec2.cloud.datacenter import DataCenter, why_not
from tests.clusters.ec2.cloud.server import Server, run_server
from tests.clusters.ec2.sessions import Sessions, kill_watchdogs


@pytest.fixture(autouse=True)
def no_real_amazon(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test reaches the real Amazon, nor finds this machine's credentials; state and caches are the test's own."""
    for name in guard.list_unwanted_variables(os.environ):
        monkeypatch.delenv(name)
    for name, value in guard.environment().items():
        monkeypatch.setenv(name, value)
    for name in ("state", "cache"):
        monkeypatch.setenv(f"XDG_{name.upper()}_HOME", str(tmp_path / name))


@pytest.fixture(scope="session", autouse=True)
def shared_descriptions() -> Iterator[None]:
    """Share boto3's descriptions among all tests, also those without a server."""
    with descriptions.share_descriptions():
        yield


@pytest.fixture(scope="session")
def amazon() -> Iterator[tuple[Server, str]]:
    """The server: one for all tests of this process."""
    with run_server() as server:
        yield server


@pytest.fixture
def cloud(amazon: tuple[Server, str], no_real_amazon: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    """An account at the pretend Amazon, which this process and its children speak with."""
    server, url = amazon
    monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    cloud = Cloud(server, url)
    yield cloud
    cloud.faults.clear()
    kill_watchdogs()  # a test that failed may have left one, which would call during the next


@pytest.fixture
def datacenter(amazon: tuple[Server, str], no_real_amazon: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[DataCenter]:
    """Return a cloud with machines as instances, to which tests can log in."""
    if reason := why_not():
        pytest.skip(reason)
    server, url = amazon
    monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    with DataCenter(server, url) as cloud:
        yield cloud
        cloud.faults.clear()
        kill_watchdogs()


@pytest.fixture(scope="session")
def sessions() -> Iterator[Sessions]:
    """Return a process that begins sessions, which tests may kill."""
    with Sessions() as sessions:
        yield sessions
