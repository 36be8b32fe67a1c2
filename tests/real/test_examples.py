"""The programs of docs/examples train, as they stand there."""

import importlib.util
import re
import shutil
from pathlib import Path

from tests.cli.test_launch import launched
from tests.plugin.conftest import whole_tests_in
from tests.plugin.test_verdicts import records

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
CLUSTERS = """
[local]
backend = "local"
alone = false
entry = "pytest_dtfperf.training.command:run"
devices_per_host = 2
device = "cpu"
"""


def test_measured_programs(tmp_path: Path) -> None:
    """One prints its rate and one reports its steps; both know their roles, and what they have learnt shows."""
    perf = whole_tests_in(tmp_path)
    shutil.rmtree(perf.folder / "perf")
    shutil.copytree(EXAMPLES, perf.folder / "perf")
    (perf.folder / "perf" / "test_other_frameworks.py").unlink()
    (perf.folder / "perf" / "clusters.toml").write_text(CLUSTERS)
    ended = perf.run("--repeats=1")
    assert ended.code == 0, ended.out
    ended.line("2 undecided")
    printed, reported = sorted((record["runs"][0] for record in records(perf)), key=lambda run: len(run["step_s"]))
    assert len(printed["said"]) == 2
    assert len(reported["step_s"]) == 2
    assert {len(steps) for steps in reported["step_s"].values()} == {100}
    (log,) = (perf.folder / "perf_results").glob("*/logs/*mnist_ps*/1/worker-0.log")
    assert float(re.findall(r"accuracy ([\d.]+)", log.read_text())[-1]) > 0.8


def test_other_frameworks(tmp_path: Path) -> None:
    """JAX, and PyTorch where it is installed, report their steps in the same three lines."""
    perf = whole_tests_in(tmp_path)
    shutil.rmtree(perf.folder / "perf")
    shutil.copytree(EXAMPLES, perf.folder / "perf")
    (perf.folder / "perf" / "test_own_programs.py").unlink()
    (perf.folder / "perf" / "clusters.toml").write_text(CLUSTERS)
    ended = perf.run("--repeats=1")
    assert ended.code == 0, ended.out
    found = {record["spec"]["model"]: record["runs"][0] for record in records(perf)}
    has_torch = importlib.util.find_spec("torch") is not None
    assert found.keys() == ({"jax_steps", "torch_ddp"} if has_torch else {"jax_steps"})
    for run in found.values():
        assert {len(steps) for steps in run["step_s"].values()} == {200}
        assert all(0 < step_s < 1 for steps in run["step_s"].values() for step_s in steps)


def test_a_chief_of_parameter_server_strategy(tmp_path: Path) -> None:
    """TensorFlow 2's coordinator hands its steps to a worker, and the launch ends with it."""
    (tmp_path / "clusters.toml").write_text(CLUSTERS.replace("devices_per_host = 2\n", "").replace('device = "cpu"\n', ""))
    shutil.copy(EXAMPLES / "parameter_server_strategy.py", tmp_path)
    done = launched(tmp_path, "--chief", "--num-ps=1", "--num-workers=1", "--grace=0", "parameter_server_strategy.py")
    assert done.returncode == 0, done.stdout + done.stderr
    (first, last) = re.findall(r"^chief:0 +\| 200 steps, loss ([\d.]+) -> ([\d.]+)$", done.stdout, re.MULTILINE)[0]
    assert float(last) < float(first)
