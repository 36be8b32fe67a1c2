"""EC2 instances as a cluster: machines of the pretend Amazon, reached by real ssh."""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_dtfperf.clusters.ec2.cluster import Ec2
from pytest_dtfperf.clusters.protocol import Cluster
from pytest_dtfperf.node import processes
from pytest_dtfperf.testing.backends import STATES, BackendContract
from tests.clusters.ec2 import runs
from tests.clusters.ec2.cloud import guard
from tests.clusters.ec2.cloud.datacenter import DataCenter, why_not
from tests.clusters.ec2.cloud.server import Server
from tests.clusters.ec2.sessions import kill_watchdogs

ROOT = Path(__file__).parents[3]  # instances are at hand: they see this machine's files, and these programs


@pytest.fixture(scope="module")
def data_center(amazon: tuple[Server, str]) -> Iterator[DataCenter]:
    """Return one data centre for all tests here, because launches take long and have tests of their own."""
    if reason := why_not():
        pytest.skip(reason)
    server, url = amazon
    with pytest.MonkeyPatch.context() as patch:
        for name, value in guard.environment(url).items():
            patch.setenv(name, value)
        with DataCenter(server, url) as cloud:
            yield cloud
            kill_watchdogs()


class TestEc2(BackendContract):
    """The ec2 backend does what every backend must. Instances are kept from one test to the next."""

    @pytest.fixture
    def tmp_path(self) -> Iterator[Path]:
        """Return a folder that all users can read, because the login user of an instance is not the tests' user."""
        with tempfile.TemporaryDirectory(prefix="dtfperf-") as folder:
            os.chmod(folder, 0o755)
            yield Path(folder)

    @pytest.fixture
    def cluster(
        self, data_center: DataCenter, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
    ) -> Cluster:
        monkeypatch.setenv("AWS_ENDPOINT_URL", data_center.url)
        ledgers = tmp_path_factory.getbasetemp() / "ledgers"
        config = runs.config(data_center, keep=True, setup=[f"export PYTHONPATH={ROOT}"])
        return Ec2(replace(config, python=sys.executable), settle_s=runs.SETTLE_S, folder=ledgers)

    def list_processes(self, session: str) -> list[int]:
        """Return the session's processes of any user."""
        found = []
        for process in processes.iterate_processes():
            with suppress(OSError):
                environment = Path(f"/proc/{process.pid}/environ").read_bytes()
                if f"DTFPERF_SESSION={session}".encode() in environment and process.pid != os.getpid():
                    found.append(process.pid)
        return found

    @pytest.mark.campaign(part=3)  # the channel is that of SSH, which is closed in each of these states there
    @pytest.mark.parametrize("state", STATES)
    def test_close_ends_everything(self, cluster: Cluster, state: str) -> None:
        """Closing ends all processes on instances, of any user."""
        super().test_close_ends_everything(cluster, state)

    @pytest.mark.skip(reason="a dead controller's kept instances are proven to be clean where ssh is")
    def test_processes_of_a_dead_controller_are_ended(self, cluster: Cluster) -> None: ...
