"""Hosts over ssh as a cluster."""

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_dtfperf.clusters.protocol import Cluster, Resources
from pytest_dtfperf.clusters.ssh.cluster import Ssh
from pytest_dtfperf.node import processes
from pytest_dtfperf.testing.backends import BackendContract, start_parrots, wait_until
from tests.clusters.ssh.lab import Lab

ROOT = Path(__file__).parents[3]  # the hosts are at hand: they see this machine's files, and these programs


class TestSsh(BackendContract):
    """The ssh backend does what every backend must."""

    @pytest.fixture
    def cluster(self, lab: Lab) -> Cluster:
        return Ssh(lab.config(setup=[f"export PYTHONPATH={ROOT}"]))

    def test_processes_of_a_dead_controller_are_ended(self, cluster: Cluster) -> None:
        """An allocation ends the leftovers of a dead controller and supervisor, and nothing of living sessions."""
        command = [sys.executable, "-m", "tests.clusters.ssh.orphan_maker"]
        left = subprocess.run(command, input=pickle.dumps(cluster), stdout=subprocess.PIPE, check=True)
        abandoned = int(left.stdout)
        assert processes.inspect(abandoned)
        with cluster.allocate(Resources(devices=2)) as living, start_parrots(living) as parrots:
            with cluster.allocate(Resources(devices=1)):
                assert parrots.receive_answers("echo alive") == [b"alive"] * 2
            wait_until(
                "the abandoned daemon is gone", lambda: abandoned not in {each.pid for each in processes.iterate_processes()}
            )
