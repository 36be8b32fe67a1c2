"""The Slurm that the tests of the backend run on."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_dtfperf.node import processes
from pytest_dtfperf.testing.backends import wait_until
from tests.clusters.slurm.conftest import NewSite
from tests.clusters.slurm.site import Site, SiteError, why_not

DAEMONISE = "setsid sleep 1234 </dev/null >/dev/null 2>&1 &"
KINDS = pytest.mark.parametrize("networked", [False, True], ids=["loopback", "networked"])
OWNER = f"""
import sys
from tests.clusters.slurm.site import Site
with Site(nodes=2, networked=sys.argv[1] == "True") as site:
    site.run("srun", "--nodes=2", "bash", "-c", {DAEMONISE!r})
    site.popen("srun", "--nodes=2", "sleep", "1234")
    print(site.folder, *site.processes(), flush=True)
    sys.stdin.read()
"""


def on_each_node(site: Site, script: str, *options: str) -> list[str]:
    """Return what a shell script prints on every node, in their order."""
    nodes = [f"--nodes={len(site.nodes)}", "--ntasks-per-node=1", "--label"]
    output = dict(line.split(": ", 1) for line in site.run("srun", *nodes, *options, "bash", "-c", script).splitlines())
    return [output[str(task)] for task in range(len(site.nodes))]


def interfaces() -> set[str]:
    return {path.name for path in Path("/sys/class/net").iterdir()}


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if (process := processes.inspect(pid)) and process.state != "Z"]


def test_nodes_are_idle(new_site: NewSite) -> None:
    """A site that is up has all its nodes ready for work, in two partitions."""
    site = new_site(nodes=3)
    assert site.nodes == ("n1", "n2", "n3")
    assert site.run("sinfo", "--noheader", "--format=%P %N %T").splitlines() == ["all* n[1-3] idle", "short n[1-3] idle"]


def test_steps_run_on_all_nodes(site: Site) -> None:
    """srun reaches every node, and a job that is over is not among the site's jobs."""
    assert on_each_node(site, "echo $SLURMD_NODENAME") == list(site.nodes)
    wait_until("the job is over", lambda: site.jobs() == [])


def test_gpus_are_bound(site: Site) -> None:
    """Tasks get the GPUs that Slurm allocated, and the node lists all of its GPUs as nvidia-smi does, each once."""
    assert on_each_node(site, "echo $CUDA_VISIBLE_DEVICES", "--gres=gpu:2") == ["0,1"] * 4
    listed = on_each_node(site, "nvidia-smi -L | xargs", "--gres=gpu:1")
    uuids = [word.rstrip(")") for line in listed for word in line.split() if word.startswith("GPU-")]
    assert len(set(uuids)) == 16
    found = "from pytest_dtfperf.node import probes; print(*(gpu.index + gpu.name for gpu in probes.list_gpus()), sep=', ')"
    probed = on_each_node(site, f'{sys.executable} -c "{found}"', "--gres=gpu:2", f"--chdir={Path.cwd()}")
    assert probed == ["0Tesla P100-PCIE-16GB, 1Tesla P100-PCIE-16GB"] * 4


@KINDS
def test_site_leaves_nothing(new_site: NewSite, networked: bool) -> None:
    """A site that is taken down leaves no process, mount, interface or file, although a job ran and tasks had daemonised."""
    if reason := why_not(networked):
        pytest.skip(reason)
    mounts, before = Path("/proc/self/mounts").read_text(), interfaces()
    with Site(nodes=2, networked=networked) as site:
        site.run("srun", "--nodes=2", "bash", "-c", DAEMONISE)
        site.run("sbatch", "--nodes=2", "--output=/dev/null", "--wrap=srun sleep 1234")
        wait_until("job and daemons run", lambda: len(site.processes("sleep 1234")) >= 4)
        pids = site.processes()
    assert alive(pids) == []
    assert Path("/proc/self/mounts").read_text() == mounts
    assert not site.folder.exists()
    # The kernel takes networks apart a little later; sites of other test processes may have come meanwhile.
    wait_until("its interface is gone", lambda: interfaces() <= before or not networked)


@KINDS
def test_site_of_a_dead_owner_is_gone(networked: bool) -> None:
    """All processes and files of a site are gone after its owner was killed."""
    if reason := why_not(networked):
        pytest.skip(reason)
    command = [sys.executable, "-c", OWNER, str(networked)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout
        folder, *pids = owner.stdout.readline().split()
        owner.send_signal(signal.SIGKILL)
    assert len(pids) > 5
    wait_until("all its processes are gone", lambda: alive([int(pid) for pid in pids]) == [])
    wait_until("its files are gone", lambda: not Path(folder).exists())


def test_sites_are_independent(new_site: NewSite) -> None:
    """Two sites at once have nothing in common."""
    one, other = new_site(nodes=1), new_site(nodes=1)
    one.run("sbatch", "--output=/dev/null", "--wrap=sleep 1234")
    assert len(one.jobs()) == 1
    assert other.jobs() == []
    assert not set(one.processes()) & set(other.processes())


def test_controller_comes_and_goes(new_site: NewSite) -> None:
    """Jobs outlive an outage of the controller."""
    site = new_site(nodes=1)
    job = site.run("sbatch", "--parsable", "--output=/dev/null", "--wrap=sleep 1234").strip()
    wait_until("the job runs", lambda: site.processes("sleep 1234"))
    site.stop_controller()
    assert not site.processes("slurmctld")
    assert site.processes("sleep 1234")
    site.start_controller()
    assert site.jobs() == [job]


def test_daemons_are_killed_one_by_one(new_site: NewSite) -> None:
    """The daemons of one node, or of its steps, can be killed without an effect on other nodes."""
    site = new_site(nodes=2)
    with site.popen("srun", "--nodes=2", "sleep", "1234") as srun:
        wait_until("the step runs", lambda: len(site.processes("sleep 1234")) == 2)
        site.kill_slurmd("n1")
        assert len(site.processes("slurmd -N")) == 1
        site.start_slurmd("n1")
        wait_until("it is back", lambda: len(site.processes("slurmd -N")) == 2)
        assert len(site.processes("slurmstepd")) == 2
        site.kill_stepds("n2")
        assert len(site.processes("slurmstepd")) == 1
        srun.kill()
    with pytest.raises(SiteError, match="no such process"):
        site.kill_stepds("n2")


def test_nodes_are_machines(new_site: NewSite) -> None:
    """The nodes of a networked site have names and addresses of their own, and can be switched off and on again."""
    site = new_site(nodes=2, networked=True)
    assert on_each_node(site, "hostname") == ["n1", "n2"]
    first, second = on_each_node(site, "ip -br -4 address show eth0 | xargs | cut -d' ' -f3")
    assert first.endswith(".1/24")
    assert second.endswith(".2/24")
    wait_until("no job hangs on the node", lambda: site.jobs() == [])
    site.power_off("n2")
    assert len(site.processes("slurmd -N")) == 1
    site.power_on("n2")
    assert on_each_node(site, "hostname") == ["n1", "n2"]


def test_switches_and_settings(new_site: NewSite) -> None:
    """A site can have a tree of switches, partitions of its own, and other settings than the usual ones."""
    switches, partitions = {"s1": "n[1-2]", "s2": "n[3-4]"}, {"gpu": "Default=YES PriorityTier=5"}
    site = new_site(switches=switches, partitions=partitions, slurm_conf="KillWait=7\nLicenses=matlab:2", cpus=3)
    assert "SwitchName=s2 Level=0" in site.run("scontrol", "show", "topology", "n3")
    assert site.run("sinfo", "--noheader", "--format=%P %c").split() == ["gpu*", "3"]
    settings = site.run("scontrol", "show", "config")
    assert "KillWait                = 7 sec" in settings
    assert "Licenses                = matlab:2" in settings


def test_failures_are_errors_with_output(new_site: NewSite) -> None:
    """A failed command, or a Slurm that does not start, is an error with its output."""
    site = new_site(nodes=1)
    with pytest.raises(SiteError, match=r"exit code 1.*invalid partition"):
        site.run("sbatch", "--partition=none", "--wrap=true")
    with pytest.raises(SiteError, match="slurmctld"):
        new_site(nodes=1, slurm_conf="SelectType=select/none_such")
