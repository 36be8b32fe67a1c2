"""A real Slurm as a cluster."""

import pickle
import subprocess
import sys

import pytest

from pytest_dtfperf.clusters import named
from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.clusters.protocol import Cluster
from pytest_dtfperf.node import sweep
from tests.clusters.conformance import Conformance
from tests.clusters.slurm.site import Site
from tests.node.handheld import wait_until

TWO_HOSTS = ClusterConfig(name="twins", backend="slurm", place={"nodes": 2, "gpus_per_node": 1, "time_limit": 5})


class TestSlurm(Conformance):
    """The Slurm backend does what every backend must."""

    @pytest.fixture
    def cluster(self, on_site: Site) -> Cluster:
        return named.open_cluster(TWO_HOSTS)

    def test_what_a_dead_controller_left_is_swept(self, cluster: Cluster) -> None:
        """A controller killed with its whole process group, srun and all, leaves no job and no process, daemons included."""
        command = [sys.executable, "-m", "tests.clusters.dying_controller", "with-all-its-processes"]
        dead = subprocess.run(command, input=pickle.dumps(cluster), stdout=subprocess.PIPE, start_new_session=True, check=False)
        session = dead.stdout.decode().strip()
        assert session
        wait_until("nothing of the session is left", lambda: sweep.left_by([session]) == [])
