"""Tests of perf_tests/ as a user copies it, with real training."""

import random
import re
import shutil
import statistics
from pathlib import Path

import pytest

from perf_tests.test_learning import WAYS
from pytest_dtfperf.spec import VARIABLE_UPDATES
from tests import campaign
from tests.plugin.conftest import Ended, PerfTests, perf_tests_in, whole_tests_in
from tests.plugin.test_verdicts import records, session
from tests.real.imported import use_forks

REPOSITORY = Path(__file__).parents[2]

# What is trained less outside of campaigns: of each perf test its usual text and the shorter one. With 80 longer steps of half
# the images test_mnist.py reaches the 95 % that it asserts. test_learning.py stops at less, and is as undecided after one
# run of each side as after two.
SHORTER = (
    ("mnist", "steps=200", "steps=80"),
    ("mnist", '"learning_rate": 1e-3, "batch_size": 64', '"learning_rate": 3e-3, "batch_size": 32'),
    ("learning", "REPEATS = 3", "REPEATS = 1"),
    ("learning", "TARGET = 0.95", "TARGET = 0.4"),
    ("learning", '"eval_during_training_every_n_steps": 20', '"eval_during_training_every_n_steps": 5'),
)

# A rate may halve: so much a busy machine makes of nothing.
CLUSTERS = """
[local]
backend = "local"
dedicated = false
devices_per_host = 2
device = "cpu"

[local.training]
repeats = 2
batch_size = 4
warmup_steps = 1
steps = 8
margin = 0.5
"""
MOST = 8  # runs of what is slowed down: where other tests' work has made the baseline scatter by half, three do not tell
SLEEP_STEPS = 8  # of the machine at that hour, so long is the injected sleep: nine times slower is no noise


def copy_perf_tests(perf: PerfTests) -> PerfTests:
    """With a copy of perf_tests/."""
    shutil.rmtree(perf.folder / "perf")
    shutil.copytree(REPOSITORY / "perf_tests", perf.folder / "perf", ignore=shutil.ignore_patterns("__pycache__"))
    return perf


@pytest.mark.campaign
def test_all_perf_tests_pass(tmp_path: Path) -> None:
    """Each perf test trains and is judged, each spec is measured once, accuracies are high, and published systems are shown."""
    options, tests = choose_tests()
    perf = copy_perf_tests(whole_tests_in(tmp_path) if campaign.WHOLE else perf_tests_in(tmp_path))
    clusters = perf.folder / "perf" / "clusters.toml"  # other tests are at work here, which would have each run made again
    clusters.write_text(
        clusters.read_text().replace('[local]\nbackend = "local"\n', '[local]\nbackend = "local"\ndedicated = false\n')
    )
    if not campaign.WHOLE:
        clusters.write_text(use_forks(clusters.read_text()))
        for name, usual, shorter in SHORTER:
            test = perf.folder / "perf" / f"test_{name}.py"
            assert usual in test.read_text()
            test.write_text(test.read_text().replace(usual, shorter))
        options = [*options, "--time-budget=none"]  # on a machine busy with other tests six minutes were too few for the last
    ended = perf.run("-v", *options, "--gpus=2", "--repeats=1", "--warmup-steps=1", "--steps=2", "--batch-size=1")
    assert ended.code == 0, ended.out
    counts = re.findall(r"(\d+) (?:passed|undecided)", ended.out.splitlines()[-1])
    assert sum(map(int, counts)) == tests, ended.out
    ended.line("published: inception3")
    ended.line("Piz Daint (CSCS)")
    specs = [str(record["spec"]) for record in records(perf)]
    assert len(specs) == len(set(specs))
    accuracies = [run["accuracy"] for record in records(perf) if record["spec"]["evaluate"] for run in record["runs"]]
    assert len(accuracies) == 2
    assert min(accuracies) >= 0.95
    moved = {record["spec"]["model"]: record["runs"][0]["bytes_sent"] for record in records(perf) if record["spec"]["num_ps"]}
    assert moved["inception3"] > 2 * 2 * 90e6  # two steps: its 24 million variables down and their gradients up


def choose_tests() -> tuple[list[str], int]:
    """Return options that select tests, and their number: all in campaigns, and otherwise without those that differ from others
    only in size, model, mode or rate, and with one way of learning."""
    if campaign.WHOLE:
        return [], 17
    # No two of the others have a spec in common: tests/plugin/test_verdicts.py has an anchor that another test has measured.
    left_out = ["alexnet.py", "resnet50.py", "inception3.py::test_scaling_efficiency", "mnist.py::test_throughput"]
    left_out.append("inception3.py::test_throughput[gpus2-ps0-replicated]")
    for way in sorted(set(WAYS) - {random.Random(campaign.SEED).choice(WAYS)}):
        num_ps = int(VARIABLE_UPDATES[way].parameter_servers)
        left_out.append(f"learning.py::test_time_to_accuracy[gpus2-ps{num_ps}-{way}]")
    return [f"--deselect=perf/test_{test}" for test in left_out], 4


@pytest.mark.campaign
def test_injected_slow_down_fails_its_test(perf: PerfTests) -> None:
    """A worker that sleeps fails its test, which names it and its seconds. In campaigns the run without it passes first."""
    (copy_perf_tests(perf).folder / "perf" / "clusters.toml").write_text(use_forks(CLUSTERS))

    def throughput(*options: str, **environment: str) -> Ended:
        return perf.run("-k", "mnist and throughput and parameter_server", "--gpus=2", *options, **environment)

    assert throughput("--update-baselines", "--explain=always").code == 0
    (accepted,) = records(perf)
    sleep_s = SLEEP_STEPS * statistics.median(step_s for run in accepted["runs"] for step_s in run["step_s"]["worker:1"])
    if campaign.WHOLE:
        passed = throughput()
        assert passed.code == 0, passed.out
        assert set(session(perf)["verdicts"]) <= {"PASSED", "IMPROVED", "INCONCLUSIVE", "TAINTED"}
    failed = throughput("--explain=always", f"--repeats={MOST}", DTFPERF_SLOWDOWN=f"worker:1={sleep_s:.3f}")
    assert failed.code == 1, failed.out
    assert session(perf)["verdicts"] == {"REGRESSED": 1}
    failed.line("REGRESSED: mnist b4 gpus=2 num_ps=1 parameter_server")
    failed.line("worker:1 slept ", " s in every step")
    failed.line(" ms   worker:1 (", "sleeps for", "before it asks for a step", "all wait for it")
    cause = records(perf)[0]["explanation"]["causes"][0]
    assert (cause["kind"], cause["location"], cause["confidence"]) == ("straggler", "worker:1", "high")
    if campaign.WHOLE:  # other load on the machine changes the measured seconds, and not which worker is named
        assert cause["seconds"] == pytest.approx(sleep_s, rel=0.2)
