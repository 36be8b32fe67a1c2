"""Tests on the nodes of a real Slurm, with real training, and with toys that report what each task sees."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import campaign
from tests.clusters.slurm.conftest import shared_site, site
from tests.clusters.slurm.site import Site
from tests.plugin.conftest import PerfTests, perf_tests_in
from tests.plugin.test_slurm import CORES, Job, Mini, leaving_nothing
from tests.plugin.test_verdicts import records
from tests.real.conftest import assert_own_model_trained, write_own_model

__all__ = ["shared_site", "site"]

REAL = 'entry = "tests.real.recording_training:run"'
QUICK = ("--warmup-steps=1", "--steps=2", "--batch-size=2", "--repeats=1")
THROUGHPUT = """
import pytest

@pytest.mark.parametrize("model", {models})
def test_throughput(train, baseline, model, gpus, num_ps):
    baseline.check(train(model=model, gpus=gpus, num_ps=num_ps))
"""
MODELS, BYTES = (["mnist", "inception3"], 90e6) if campaign.WHOLE else (["mnist"], 13e6)  # of the last one's variables

MiniWith = Callable[..., Mini]


class TaskReports:
    """Hold the nodes of the last run's tasks, and the GPUs that they could see."""

    def __init__(self, folder: Path) -> None:
        self._seen = {file.stem: json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))}

    @property
    def nodes(self) -> dict[str, str]:
        return {task: seen["node"] for task, seen in self._seen.items()}

    @property
    def gpus(self) -> dict[str, str | None]:
        return {task: seen["gpus"] for task, seen in self._seen.items()}


@pytest.fixture
def reports(tmp_path: Path) -> Path:
    folder = tmp_path / "tells"
    folder.mkdir()
    return folder


@pytest.fixture
def mini_with(site: Site, perf: PerfTests, reports: Path) -> Iterator[MiniWith]:
    """Make perf tests on the login node of four nodes with four GPUs each, with these lines in clusters.toml."""
    perf.environment |= {"TOY_REPORTS": str(reports)}
    with ExitStack() as ends:
        yield lambda *backend_keys: ends.enter_context(leaving_nothing(Mini(perf, site, backend_keys)))


@dataclass(frozen=True)
class TrainedSession:
    """Hold a session on two nodes: its jobs, its records and the nodes of its tasks, by model."""

    jobs: list[Job]
    records: dict[str, dict[str, Any]]
    nodes: dict[str, dict[str, str]]


@pytest.fixture(scope="module")
def trained_session(shared_site: Site, tmp_path_factory: pytest.TempPathFactory) -> TrainedSession:
    """Train a model of the package, in campaigns two, and one of the test's own folder, with two workers and two servers."""
    perf = perf_tests_in(tmp_path_factory.mktemp("slurm"))
    reports = tmp_path_factory.mktemp("tells")
    perf.environment |= {"TOY_REPORTS": str(reports)}
    with leaving_nothing(Mini(perf, shared_site, (*CORES, REAL))) as mini:
        write_own_model(perf)
        perf.write(THROUGHPUT.format(models=MODELS), "test_throughput.py")
        ended = mini.run("--gpus=2", "--num-ps=2", *QUICK)
        assert ended.code == 0, ended.out
    nodes = {folder.name: TaskReports(folder).nodes for folder in reports.iterdir()}
    return TrainedSession(mini.jobs, {record["spec"]["model"]: record for record in records(perf)}, nodes)


NODES = {"ps-0": "n1", "ps-1": "n2", "worker-0": "n1", "worker-1": "n2"}


@pytest.mark.campaign
def test_models_train_across_nodes(trained_session: TrainedSession) -> None:
    """Models train with two workers and two servers on two nodes of one job, and all their variables are sent."""
    assert [job.nodes for job in trained_session.jobs] == [2]
    assert trained_session.records.keys() == {*MODELS, "mine.cnn"}
    for model in MODELS:
        (run,) = trained_session.records[model]["runs"]
        assert run["hosts"] == ["n1", "n2"]
        assert {task: len(steps) for task, steps in run["step_s"].items()} == {"worker:0": 2, "worker:1": 2}
        assert len(run["loss"]) == 2
        assert trained_session.nodes[model] == NODES
    assert run["bytes_sent"] > 2 * 2 * BYTES  # to and fro in each of two steps


def test_own_model_trains_across_nodes(trained_session: TrainedSession) -> None:
    """A Keras model of the test's own folder trains on two nodes of a job, and is counted there."""
    assert_own_model_trained(trained_session.records["mine.cnn"], ["n1", "n2"])
    assert trained_session.nodes["mine.cnn"] == NODES


def test_separate_servers_have_the_first_nodes(mini_with: MiniWith, reports: Path) -> None:
    """Separate servers have a node each, the first ones, and the job has as many nodes as both need."""
    mini = mini_with(*CORES, "ps_on_worker_hosts = false")
    mini.perf.write(THROUGHPUT.format(models=["mnist"]))
    ended = mini.run("--gpus=2", "--num-ps=2", *QUICK)
    assert ended.code == 0, ended.out
    assert [job.nodes for job in mini.jobs] == [4]
    (record,) = records(mini.perf)
    assert record["hosts"] == ["n1", "n2", "n3", "n4"]
    assert TaskReports(reports).nodes == {"ps-0": "n1", "ps-1": "n2", "worker-0": "n3", "worker-1": "n4"}


def test_every_worker_sees_its_own_gpu(mini_with: MiniWith, reports: Path) -> None:
    """Each of eight workers sees one GPU of its node that no other worker sees, and servers see none."""
    mini = mini_with("nodes = 4", "gpus_per_node = 4")
    ended = mini.run("--gpus=8", "--num-ps=2")
    assert ended.code == 0, ended.out
    assert [job.nodes for job in mini.jobs] == [2]
    reports_of_tasks = TaskReports(reports)
    assert reports_of_tasks.gpus == {"ps-0": "", "ps-1": "", **{f"worker-{i}": str(i % 4) for i in range(8)}}
    assert reports_of_tasks.nodes == {"ps-0": "n1", "ps-1": "n2", **{f"worker-{i}": f"n{i // 4 + 1}" for i in range(8)}}


def test_worker_of_two_gpus_sees_both(mini_with: MiniWith, reports: Path) -> None:
    """A worker process with two GPUs sees these two."""
    mini = mini_with("nodes = 4", "gpus_per_node = 4", "devices_per_worker = 2")
    ended = mini.run("--gpus=6", "--num-ps=1")
    assert ended.code == 0, ended.out
    assert TaskReports(reports).gpus == {"ps-0": "", "worker-0": "0,1", "worker-1": "2,3", "worker-2": "0,1"}
