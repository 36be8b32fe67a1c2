"""An outage of Slurm's controller costs time, and nothing else."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from pytest_dtfperf.clusters import named
from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.clusters.protocol import Resources
from pytest_dtfperf.clusters.slurm import client, cluster
from pytest_dtfperf.clusters.slurm.client import ControllerDown, SlurmClient
from pytest_dtfperf.errors import AllocationError
from tests.clusters.slurm.conftest import LogIn, NewSite
from tests.clusters.slurm.site import Site

ONE_NODE = ClusterConfig(name="one", backend="slurm", backend_keys={"nodes": 1, "time_limit": 5}, devices_per_host=1)


def test_query_is_repeated_during_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    """A query that fails twice is repeated, its answer is returned, and the reason of the wait is shown."""
    monkeypatch.setattr(client, "FIRST_PAUSE_S", 0.0)
    answers: Iterator[ControllerDown | str] = iter([ControllerDown("squeue: away"), ControllerDown("squeue: away"), "17"])

    def ask() -> str:
        answer = next(answers)
        if isinstance(answer, ControllerDown):
            raise answer
        return answer

    messages: list[str] = []
    assert client.retry_while_down(ask, messages.append) == "17"
    assert messages == ["squeue: away: asking again for up to 10 minutes"] * 2


def test_patience_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait for a controller that stays away ends with an error."""
    monkeypatch.setattr(client, "OUTAGE_S", -1.0)
    with pytest.raises(ControllerDown, match="away"):
        client.retry_while_down(lambda: (_ for _ in ()).throw(ControllerDown("away")), lambda words: None)


@pytest.mark.parametrize("taken", [True, False], ids=["taken", "not taken"])
def test_submission_with_a_lost_answer_makes_one_job(login_site: Site, monkeypatch: pytest.MonkeyPatch, taken: bool) -> None:
    """A submission without an answer makes one job, whether or not the controller had accepted it."""

    class LosesTheAnswer(SlurmClient):
        asked = 0

        def submit(self, argv: Sequence[str], script: str) -> str:
            LosesTheAnswer.asked += 1
            if LosesTheAnswer.asked > 1:
                return super().submit(argv, script)
            if taken:
                super().submit(argv, script)
            raise ControllerDown("sbatch: Socket timed out on send/recv operation")

    monkeypatch.setattr(cluster, "SlurmClient", LosesTheAnswer)
    with named.open_cluster(ONE_NODE).allocate(Resources(devices=1)) as allocation:
        assert len(allocation.hosts) == 1
        assert len(login_site.jobs()) == 1
    assert LosesTheAnswer.asked == (1 if taken else 2)


def test_unknown_output_of_squeue_is_a_cluster_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unknown output of a later Slurm is reported as an error of the cluster with the output, and fails no test."""
    squeue = tmp_path / "squeue"
    squeue.write_text("#!/bin/sh\necho 17 RUNNING\n")
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(AllocationError, match="cannot read what squeue printed: '17 RUNNING"):
        SlurmClient().list_jobs()


def test_machine_without_slurm_is_refused_at_once(login_site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm commands without a configuration are an error at once, not an outage, if they never found one."""
    sbatch = tmp_path / "sbatch"
    sbatch.write_text(
        "#!/bin/sh\necho 'sbatch: error: resolve_ctls_from_dns_srv: res_nsearch error: Unknown host' >&2\n"
        "echo 'sbatch: fatal: Could not establish a configuration source' >&2\nexit 1\n"
    )
    sbatch.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with (
        pytest.raises(AllocationError, match=r"knows of no Slurm cluster.*Could not establish"),
        named.open_cluster(ONE_NODE).allocate(Resources(devices=1)),
    ):
        pass


def test_missing_configuration_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing SLURM_CONF is an error at once; Slurm itself would search for a minute at every command."""
    monkeypatch.setenv("SLURM_CONF", "/nowhere/slurm.conf")
    with pytest.raises(AllocationError, match=r"SLURM_CONF names /nowhere/slurm\.conf"):
        SlurmClient()


# Of srun, the first time.
AWAY = """#!/bin/sh
[ -e {folder}/asked ] && exec /usr/bin/srun "$@"
touch {folder}/asked
echo "srun: error: Unable to create step for job 1: Unable to contact slurm controller (connect failure)" >&2
exit 1
"""


def test_outage_after_the_allocation_keeps_the_nodes(
    new_site: NewSite, log_in: LogIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes are kept if the controller does not answer for a moment, and the message shows the reason of the wait."""

    class AwayAtFirst(SlurmClient):
        asked = 0

        def find_addresses(self, nodes: Sequence[str]) -> dict[str, str]:
            AwayAtFirst.asked += 1
            if AwayAtFirst.asked == 1:
                raise ControllerDown("scontrol: Socket timed out on send/recv operation")
            return super().find_addresses(nodes)

    site = new_site(nodes=1)
    log_in(site)
    srun = site.folder / "bin" / "srun"
    srun.write_text(AWAY.format(folder=tmp_path))
    srun.chmod(0o755)
    monkeypatch.setattr(cluster, "SlurmClient", AwayAtFirst)
    messages: list[str] = []
    with named.open_cluster(ONE_NODE).allocate(Resources(devices=1, on_status=messages.append)) as allocation:
        assert [host.name for host in allocation.hosts] == ["n1"]
    keepalive, addresses = (words for words in messages if words.endswith("asking again for up to 10 minutes"))
    assert "keep-alive step on n1" in keepalive
    assert "Unable to contact slurm controller" in keepalive
    assert "Socket timed out" in addresses
