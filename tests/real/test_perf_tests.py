"""perf_tests/ as a user copies it, with real training: it works, it passes, and it fails when training got slower."""

import random
import re
import shutil
import statistics
from pathlib import Path

import pytest

from perf_tests.test_learning import WAYS
from pytest_dtfperf.spec import VARIABLE_UPDATES
from tests import campaign
from tests.plugin.conftest import Ended, PerfTests, whole_tests_in
from tests.plugin.test_verdicts import records, session

REPOSITORY = Path(__file__).parents[2]
TIMES = 1

# A rate may halve: so much a busy machine makes of nothing.
CLUSTERS = """
[local]
backend = "local"
alone = false
devices_per_host = 2
device = "cpu"

[local.training]
repeats = 5
warmup_steps = 5
steps = 15
margin = 0.5
"""
SLEEP_STEPS = 5  # how long the injected sleep is, in steps as the machine makes them at that hour: six times slower is no noise


@pytest.fixture
def copied(tmp_path: Path) -> PerfTests:
    """A copy of perf_tests/ in a folder of its own."""
    perf = whole_tests_in(tmp_path)
    shutil.rmtree(perf.folder / "perf")
    shutil.copytree(REPOSITORY / "perf_tests", perf.folder / "perf", ignore=shutil.ignore_patterns("__pycache__"))
    return perf


@pytest.mark.campaign
def test_the_whole_of_it_trains(copied: PerfTests) -> None:
    """Every perf test trains, learns and is judged, each spec is measured once, and with -v published systems are shown."""
    options, tests = chosen()
    ended = copied.run("-v", *options, "--gpus=2", "--repeats=1", "--warmup-steps=1", "--steps=2", "--batch-size=2")
    assert ended.code == 0, ended.out
    counts = re.findall(r"(\d+) (?:passed|undecided)", ended.out.splitlines()[-1])
    assert sum(map(int, counts)) == tests, ended.out
    ended.line("published: inception3")
    ended.line("Piz Daint (CSCS)")
    specs = [str(record["spec"]) for record in records(copied)]
    assert len(specs) == len(set(specs))
    accuracies = [run["accuracy"] for record in records(copied) if record["spec"]["evaluate"] for run in record["runs"]]
    assert len(accuracies) == 2
    assert min(accuracies) >= 0.95
    moved = {record["spec"]["model"]: record["runs"][0]["bytes_sent"] for record in records(copied) if record["spec"]["num_ps"]}
    assert moved["inception3"] > 2 * 2 * 90e6  # two steps: its 24 million variables down and their gradients up


def chosen() -> tuple[list[str], int]:
    """Options for what is run, and how many tests it is: all in campaigns, else none that differs from others in its network's
    size or in its mode alone, and one way of learning."""
    if campaign.WHOLE:
        return [], 17
    left_out = ["alexnet.py", "resnet50.py", "inception3.py::test_throughput[gpus2-ps0-replicated]"]
    for way in sorted(set(WAYS) - {random.Random(campaign.SEED).choice(WAYS)}):
        num_ps = int(VARIABLE_UPDATES[way].parameter_servers)
        left_out.append(f"learning.py::test_time_to_accuracy[gpus2-ps{num_ps}-{way}]")
    return [f"--deselect=perf/test_{test}" for test in left_out], 7


def test_an_injected_slow_down_fails_and_nothing_else_does(copied: PerfTests) -> None:
    """A worker that sleeps fails its test, which names it and its seconds, and the same run without it passes."""
    (copied.folder / "perf" / "clusters.toml").write_text(CLUSTERS)

    def throughput(*options: str, **environment: str) -> Ended:
        return copied.run("-k", "mnist and throughput and parameter_server", "--gpus=2", *options, **environment)

    assert throughput("--update-baselines", "--explain=always").code == 0
    (accepted,) = records(copied)
    sleep_s = SLEEP_STEPS * statistics.median(step_s for run in accepted["runs"] for step_s in run["step_s"]["worker:1"])
    for _ in range(TIMES):
        passed = throughput()
        assert passed.code == 0, passed.out
        assert set(session(copied)["verdicts"]) <= {"PASSED", "IMPROVED", "INCONCLUSIVE"}
        failed = throughput("--explain=always", DTFPERF_SLOWDOWN=f"worker:1={sleep_s:.3f}")
        assert failed.code == 1, failed.out
        assert session(copied)["verdicts"] == {"REGRESSED": 1}
        failed.line("REGRESSED: mnist b64 gpus=2 num_ps=1 parameter_server")
        failed.line("worker:1 slept ", " s in every step")
        failed.line(" ms   worker:1 (", "sleeps for", "before it asks for a step", "all wait for it")
        cause = records(copied)[0]["explanation"]["causes"][0]
        assert (cause["kind"], cause["location"], cause["confidence"]) == ("straggler", "worker:1", "high")
        assert cause["seconds"] == pytest.approx(sleep_s, rel=0.2)
