"""A real Slurm as a cluster."""

import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_dtfperf.clusters import named
from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.clusters.protocol import Cluster, Resources
from pytest_dtfperf.clusters.slurm.client import SlurmClient
from pytest_dtfperf.errors import AllocationError
from pytest_dtfperf.launch.agents import OF_INTERFACE, Agents
from pytest_dtfperf.node import sweep
from pytest_dtfperf.testing.backends import PARROT_COMMAND, BackendContract, start_parrots, wait_until
from tests import campaign
from tests.clusters.slurm import scene
from tests.clusters.slurm.conftest import LogIn, NewSite
from tests.clusters.slurm.site import Site, why_not
from tests.launch.image import make_image
from tests.launch.stage import start_stage
from tests.node.handheld import TOY

TWO_HOSTS = ClusterConfig(name="twins", backend="slurm", backend_keys={"nodes": 2, "gpus_per_node": 1, "time_limit": 5})
OTHER_SYSTEMS = [Path(root) for root in os.environ.get("DTFPERF_SLURM_ROOTS", "").split(":") if root]  # CONTRIBUTING.md


class SlurmContract(BackendContract):
    """The Slurm backend does what every backend must."""

    def test_processes_of_a_dead_controller_are_ended(self, cluster: Cluster) -> None:
        """A controller killed with its whole process group, srun and all, leaves no job and no process, daemons included."""
        command = [sys.executable, "-m", "pytest_dtfperf.testing.backends", "with-all-its-processes"]
        dead = subprocess.run(command, input=pickle.dumps(cluster), stdout=subprocess.PIPE, start_new_session=True, check=False)
        session = dead.stdout.decode().strip()
        assert session
        wait_until("nothing of the session is left", lambda: sweep.find_left_processes([session]) == [])


@pytest.fixture(scope="module", params=OTHER_SYSTEMS, ids=[root.name for root in OTHER_SYSTEMS])
def other_site(request: pytest.FixtureRequest) -> Iterator[Site]:
    """A site of another version of Slurm."""
    with Site(nodes=4, gpus=4, root=str(request.param)) as site:
        yield site


if OTHER_SYSTEMS:

    class TestSlurmOfOtherSystems(SlurmContract):
        """The contract holds for every version of Slurm that a developer has installed."""

        @pytest.fixture
        def cluster(self, other_site: Site, log_in: LogIn) -> Iterator[Cluster]:
            log_in(other_site)
            yield named.open_cluster(TWO_HOSTS)
            wait_until("no job is left", lambda: other_site.jobs() == [])


@pytest.fixture(scope="module")
def networked_site() -> Iterator[Site]:
    """Return a site on which every node has its own network, host name and processes, where this machine allows it."""
    if reason := why_not():
        pytest.skip(reason)
    with Site(nodes=4, gpus=4, networked=why_not(networked=True) is None) as site:
        yield site


class TestSlurm(SlurmContract):
    """The contract holds on nodes that are separate machines."""

    @pytest.fixture
    def cluster(self, networked_site: Site, log_in: LogIn) -> Iterator[Cluster]:
        log_in(networked_site)
        yield named.open_cluster(TWO_HOSTS)
        wait_until("no job is left", lambda: networked_site.jobs() == [])


@pytest.mark.parametrize("interface", ["eth0", "ib0"])
def test_tasks_of_nodes_use_the_interface(networked_site: Site, log_in: LogIn, interface: str) -> None:
    """Nodes have the address of the interface in clusters.toml; a node without it is named, with the interfaces that it has."""
    if why_not(networked=True):
        pytest.skip("nodes of one machine have its interfaces")
    log_in(networked_site)
    config = replace(TWO_HOSTS, interface=interface, entry=TOY)
    with named.open_cluster(config).allocate(Resources(devices=2)) as allocation:
        if interface == "ib0":
            with pytest.raises(AllocationError, match=r"^host n1 has no interface 'ib0'\. It has eth0 \([\d.]+, Ethernet"):
                Agents(allocation, config)
            return
        with closing(Agents(allocation, config)) as agents:
            assert [host.address for host in agents.hosts] == [host.address for host in allocation.hosts]
            assert [dict(host.environment) for host in agents.hosts] == [dict.fromkeys(OF_INTERFACE, "eth0")] * 2


@pytest.fixture
def site_of_kinds(new_site: NewSite, log_in: LogIn) -> Site:
    """Four nodes: n1 is drained, n2 is down, n4 is of another kind."""
    site = new_site(nodes=4)
    site.run("scontrol", "update", "nodename=n1", "state=drain", "reason=bad cable")
    site.run("scontrol", "update", "nodename=n2", "state=down", "reason=no power")
    site.run("scontrol", "update", "nodename=n4", "availablefeatures=ssd", "activefeatures=ssd")
    log_in(site)
    return site


def test_drained_and_down_nodes_are_skipped_and_named(site_of_kinds: Site) -> None:
    """A job does not wait for nodes of include_nodes that get no jobs, and these are named with the administrator's reasons."""
    output: list[str] = []
    cluster = named.open_cluster(make_config(include_nodes="n[1-3]"))
    with cluster.allocate(Resources(devices=1, on_status=output.append)) as allocation:
        assert [host.name for host in allocation.hosts] == ["n3"]
    assert output[0] == "Slurm gives no jobs to n1 (drained: bad cable), n2 (down: no power)"
    wait_until("no job is left", lambda: site_of_kinds.jobs() == [])


@pytest.mark.parametrize(
    "devices, keys, message",
    [
        (
            1,
            {"include_nodes": "n3"},
            "the partition has nodes of 2 kinds, and this job has got {plain} (others: 1 with {plain}, ssd). ",
        ),
        (
            2,
            {},
            "the nodes of this job are of 2 kinds, and the slowest sets the pace: n3: {plain}; n4: {plain}, ssd. Set",
        ),
        (1, {"constraint": "ssd"}, ""),
    ],
    ids=["one kind", "mixed", "constraint"],
)
def test_kinds_of_nodes_are_named(site_of_kinds: Site, devices: int, keys: dict[str, str], message: str) -> None:
    """A job in a partition with several kinds of nodes reports the allocated kind, unless a constraint selects it."""
    output: list[str] = []
    with named.open_cluster(make_config(**keys)).allocate(Resources(devices=devices, on_status=output.append)):
        pass
    plain = next(iter(SlurmClient().list_nodes())).kind
    kinds = [line for line in output if "kinds" in line]
    assert [line.startswith(message.format(plain=plain)) for line in kinds] == [True] * bool(message)
    wait_until("no job is left", lambda: site_of_kinds.jobs() == [])


def make_config(**backend_keys: str) -> ClusterConfig:
    keys = {"nodes": 4, "time_limit": 5, "max_pending": "60s", **backend_keys}
    return ClusterConfig(name="kinds", backend="slurm", backend_keys=keys, devices_per_host=1, device="cpu")


if campaign.WHOLE:

    @pytest.mark.campaign
    class TestSlurmOnOneMachine(SlurmContract):
        """The contract holds on nodes that are daemons of one machine, with its name, its network and its processes."""

        @pytest.fixture
        def cluster(self, login_site: Site) -> Cluster:
            return named.open_cluster(TWO_HOSTS)


def open_cluster_with_setup(*setup: str) -> Cluster:
    return named.open_cluster(replace(TWO_HOSTS, backend_keys={**TWO_HOSTS.backend_keys, "setup": setup}))


def test_setup_lines(login_site: Site) -> None:
    """Setup lines with quotes, blanks, functions and exports run unchanged on each node, and their settings remain."""
    cluster = open_cluster_with_setup(
        'module() { echo loads "$2"; export LOADED_$1="${*:2}"; }',
        "module A 'one \"quoted\"  two'  # as on many sites",
        'export WHERE="$SLURMD_NODENAME\'s"; read -r nothing || export READ=nothing',
    )
    with cluster.allocate(Resources(devices=2)) as allocation, start_parrots(allocation) as parrots:
        assert parrots.receive_answers("environment LOADED_A") == [b'one "quoted"  two'] * 2
        assert parrots.receive_answers("environment WHERE") == [f"{host.name}'s".encode() for host in allocation.hosts]
        assert parrots.receive_answers("environment READ") == [b"nothing"] * 2


def test_failing_setup_line_is_named(login_site: Site) -> None:
    """A failed setup line is reported with its number, its text and its node, and its earlier output."""
    cluster = open_cluster_with_setup("true", 'echo "from the site"; [ "$SLURM_PROCID" = 0 ]')
    with cluster.allocate(Resources(devices=2)) as allocation, pytest.raises(AllocationError) as error:
        allocation.start(PARROT_COMMAND)
    assert str(error.value).startswith(f"the agent on {allocation.hosts[1].name} could not be started")
    assert "from the site" in str(error.value)
    assert 'setup line 2 failed with exit code 1: echo "from the site"; [ "$SLURM_PROCID" = 0 ]' in str(error.value)


@pytest.mark.skipif(not shutil.which("bwrap"), reason="bubblewrap is not installed: apt-get install bubblewrap")
def test_container_on_nodes_of_a_job(login_site: Site, tmp_path: Path) -> None:
    """Agents and tasks of a job's nodes run in the container, and end with it."""
    container = "bwrap --dev-bind / / --proc /proc --unshare-pid --die-with-parent --"
    config = scene.slurm(container=container, container_python=sys.executable)
    with start_stage(tmp_path, config) as stage:
        assert stage.run(num_ps=1).images_per_sec > 0


@pytest.mark.skipif(not shutil.which("ch-run"), reason="Charliecloud is not installed: apt-get install charliecloud")
def test_image_on_nodes_of_a_job(login_site: Site, tmp_path: Path) -> None:
    """Agents and tasks of a job's nodes run in a container image, and its digest is in the fingerprint."""
    container = make_image(tmp_path / "image")
    config = scene.slurm(container=container, container_python=sys.executable, backend_keys={"setup": ["export USER=root"]})
    with start_stage(tmp_path, config) as stage:
        assert stage.run(num_ps=1).images_per_sec > 0
        assert str(stage.launcher.fingerprint.software["container"]).startswith("folder sha256:")


def test_keepalive_step_runs_on_another_node_if_hosts_may_be_missing(new_site: NewSite, log_in: LogIn) -> None:
    """If the first node of a job starts nothing, the job is kept by another node, and a start names the first one."""
    site = new_site(nodes=3, slurmd_timeout_s=300)  # until then, a node without its daemon is not down, and the job runs
    log_in(site)
    messages: list[str] = []

    def end_first_daemon(message: str) -> None:
        messages.append(message)
        if "runs on n1, n2, n3" in message:
            site.kill_slurmd("n1")

    config = ClusterConfig(name="mini", backend="slurm", backend_keys={"nodes": 3, "time_limit": 5})
    resources = Resources(devices=3, on_status=end_first_daemon, may_lack_hosts=True)
    with named.open_cluster(replace(config, devices_per_host=1)).allocate(resources) as allocation:
        assert any("the keep-alive step on n1 could not be started" in each for each in messages)
        with pytest.raises(AllocationError, match="n1 could not be started") as caught:
            allocation.start(PARROT_COMMAND)
        assert caught.value.hosts == ["n1"]
        left = named.BACKENDS["slurm"].share_hosts(allocation, config, ["n1"])
        with closing(left.start(PARROT_COMMAND)):
            assert [host.name for host in left.hosts] == ["n2", "n3"]
