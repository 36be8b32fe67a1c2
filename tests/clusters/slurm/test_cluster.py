"""A real Slurm as a cluster."""

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_dtfperf.clusters import named
from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.clusters.protocol import Cluster
from pytest_dtfperf.node import sweep
from tests.clusters.conformance import Conformance
from tests.clusters.slurm.conftest import LogIn
from tests.clusters.slurm.site import Site
from tests.node.handheld import wait_until

TWO_HOSTS = ClusterConfig(name="twins", backend="slurm", place={"nodes": 2, "gpus_per_node": 1, "time_limit": 5})
OTHER_SYSTEMS = [Path(root) for root in os.environ.get("DTFPERF_SLURM_ROOTS", "").split(":") if root]  # CONTRIBUTING.md


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


@pytest.fixture(scope="module", params=OTHER_SYSTEMS, ids=[root.name for root in OTHER_SYSTEMS])
def other_site(request: pytest.FixtureRequest) -> Iterator[Site]:
    """A site of another version of Slurm."""
    with Site(nodes=4, gpus=4, root=str(request.param)) as site:
        yield site


if OTHER_SYSTEMS:

    class TestSlurmOfOtherSystems(TestSlurm):
        """So it does with every version of Slurm that a developer has at hand."""

        @pytest.fixture
        def cluster(self, other_site: Site, log_in: LogIn) -> Iterator[Cluster]:
            log_in(other_site)
            yield named.open_cluster(TWO_HOSTS)
            wait_until("no job is left", lambda: other_site.jobs() == [])
