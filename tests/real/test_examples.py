"""Tests of the programs in docs/examples."""

import importlib.util
import re
import shutil
from pathlib import Path

import pytest

from tests.cli.test_launch import launch
from tests.plugin.conftest import COMMANDS_HERE, Ended, PerfTests
from tests.plugin.test_verdicts import records
from tests.real import imported

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


def measure_examples(perf: PerfTests, tests: str, **environment: str) -> Ended:
    """Run one file of the examples' perf tests once."""
    shutil.rmtree(perf.folder / "perf")
    shutil.copytree(EXAMPLES, perf.folder / "perf", ignore=shutil.ignore_patterns("test_*"))
    shutil.copy(EXAMPLES / tests, perf.folder / "perf")
    (perf.folder / "perf" / "clusters.toml").write_text(COMMANDS_HERE)
    ended = perf.run("--repeats=1", **environment)
    assert ended.code == 0, ended.out
    return ended


def test_own_programs_are_measured(perf: PerfTests) -> None:
    """One program prints its rate and two report their steps, without evaluations, and the trained one has learnt."""
    ended = measure_examples(perf, "test_own_programs.py", PATH=imported.path())
    ended.line("3 undecided")
    found = {record["spec"]["model"]: record["runs"][0] for record in records(perf)}
    printed, reported, keras = (found[name] for name in ("mnist_ps", "multi_worker_mirrored", "keras_fit"))
    assert len(printed["reported_rates"]) == 2
    assert not printed["step_s"]
    assert len(reported["step_s"]) == 2
    assert {len(steps) for steps in reported["step_s"].values()} == {100}
    (steps,) = keras["step_s"].values()  # two epochs, less the warm-up; validation and checkpoints are no part of its rate
    assert len(steps) == 2 * 60 - 10
    assert keras["images_per_sec"] == pytest.approx(len(steps) * 32 / sum(steps))
    assert keras["elapsed_s"] == pytest.approx(sum(steps))
    (log,) = (perf.folder / "perf_results").glob("*/logs/*mnist_ps*/1/worker-0.log")
    assert float(re.findall(r"accuracy ([\d.]+)", log.read_text())[-1]) > 0.8


def test_other_frameworks_report_their_steps(perf: PerfTests) -> None:
    """JAX, and PyTorch if it is installed, report 200 steps of each worker."""
    measure_examples(perf, "test_other_frameworks.py")
    found = {record["spec"]["model"]: record["runs"][0] for record in records(perf)}
    has_torch = importlib.util.find_spec("torch") is not None
    assert found.keys() == ({"jax_steps", "torch_ddp"} if has_torch else {"jax_steps"})
    for run in found.values():
        assert {len(steps) for steps in run["step_s"].values()} == {200}
        assert all(step_s > 0 for steps in run["step_s"].values() for step_s in steps)


def test_chief_of_parameter_server_strategy_trains(tmp_path: Path) -> None:
    """TensorFlow 2's coordinator reduces its loss on a worker, and the launch ends with it."""
    (tmp_path / "clusters.toml").write_text(COMMANDS_HERE.replace("devices_per_host = 2\n", "").replace('device = "cpu"\n', ""))
    shutil.copy(EXAMPLES / "parameter_server_strategy.py", tmp_path)
    words = ("--chief", "--num-ps=1", "--num-workers=1", "--grace=0", "parameter_server_strategy.py")
    done = launch(tmp_path, *words, PATH=imported.path())
    assert done.returncode == 0, done.stdout + done.stderr
    (first, last) = re.findall(r"^chief:0 +\| 200 steps, loss ([\d.]+) -> ([\d.]+)$", done.stdout, re.MULTILINE)[0]
    assert float(last) < float(first)
