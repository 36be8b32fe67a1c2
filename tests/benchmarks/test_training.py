"""Tests of the comparison with tf_cnn_benchmarks, with a script in its place that prints the same lines."""

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from benchmarks.cells import CELLS, SIZES, cluster_of, explain_missing, tasks_of
from benchmarks.ratios import Comparison, Round, conclusion
from benchmarks.tf_cnn_benchmarks import SCRIPT, TfCnnBenchmarks, ThisMachine, flags_of
from benchmarks.trainers import TrainingFailed, TrainingResult
from pytest_dtfperf.spec import MODELS, Spec

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "training.py"
ALONE = Spec(model="trivial", batch_size=32, steps=20)
TOGETHER = ALONE.replace(gpus=2, num_ps=1)
# As tf_cnn_benchmarks does: parameter servers stay for ever, and what the chief says is what counts.
SAYS = """
import sys, time
flags = dict(flag.removeprefix("--").split("=") for flag in sys.argv[1:])
if flags.get("job_name") == "ps":
    time.sleep(600)
print("Running warm up\\nDone warm up\\nStep\\tImg/sec\\ttotal_loss")
for step in (1, int(flags["num_batches"])):
    print(f"{step}\\timages/sec: 123.4 +/- 0.0 (jitter = 0.0)\\t9.704")
print("-" * 64 + "\\ntotal images/sec: 240.50\\n" + "-" * 64)
"""
DIES = SAYS.replace(
    "print(",
    "if flags.get('task_index') == '1': sys.exit('no such thing')\nif flags['task_index'] == '0': time.sleep(600)\nprint(",
    1,
)


def other_program(folder: Path, source: str) -> TfCnnBenchmarks:
    (folder / SCRIPT).write_text(source)
    return TfCnnBenchmarks(folder, sys.executable)


@pytest.mark.parametrize("spec", [ALONE, TOGETHER], ids=["alone", "with a parameter server"])
def test_rate_is_the_total_of_the_chief(tmp_path: Path, spec: Spec) -> None:
    """The rate is the chief's total, the start took time, and no process of the program is left."""
    trained = other_program(tmp_path, SAYS)(spec)
    assert trained.images_per_sec == 240.5
    assert 0 < trained.start_s == trained.warm_start_s
    assert find_processes(str(tmp_path / SCRIPT)) == []


def find_processes(argument: str) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if argument.encode() in (process / "cmdline").read_bytes().split(b"\0"):
                found.append(process.name)
    return found


def test_each_step_is_timed_on_request(tmp_path: Path) -> None:
    """With `each_step` there is a time for each measured step, and the program has the flag that prints each of them."""
    source = SAYS.replace('(1, int(flags["num_batches"]))', "(each for each in range(1, 3) if time.sleep(0.1) is None)")
    spec = ALONE.replace(steps=2)
    tasks = tasks_of(spec, cpus=(0, 1))
    outcome = other_program(tmp_path, source).train(spec, tasks, {"worker:0": ThisMachine()}, each_step=True)
    assert len(outcome.step_s) == 2
    assert min(outcome.step_s) > 0
    assert "--display_every=1" in flags_of(spec, tasks, {"worker:0": "127.0.0.1"}, display_every=1)["worker:0"]


def test_dead_task_ends_the_training(tmp_path: Path) -> None:
    """A training with a dead worker ends while its other tasks wait, and the error has the worker's last line."""
    with pytest.raises(TrainingFailed, match=r"worker:1:\nno such thing"):
        other_program(tmp_path, DIES)(TOGETHER)


def test_total_of_fewer_steps_is_refused(tmp_path: Path) -> None:
    """A total over another number of steps than requested is refused."""
    with pytest.raises(TrainingFailed, match="did not get to its end"):
        other_program(tmp_path, SAYS.replace('(1, int(flags["num_batches"]))', "(1, 10)"))(ALONE)


def test_flags_share_the_cores_among_tasks() -> None:
    """On four cores each of two workers has two threads and the server four, and a single process has no flags of a cluster."""
    hosts = {"ps:0": "10.0.0.1", "worker:0": "10.0.0.2", "worker:1": "10.0.0.3"}
    flags = flags_of(TOGETHER, tasks_of(TOGETHER, cpus=(0, 1, 2, 3)), hosts)
    assert list(flags) == ["ps:0", "worker:0", "worker:1"]
    assert "--num_intra_threads=4" in flags["ps:0"]
    assert any(flag.startswith("--worker_hosts=10.0.0.2:") and ",10.0.0.3:" in flag for flag in flags["ps:0"])
    assert {"--num_intra_threads=2", "--num_inter_threads=2", "--job_name=worker", "--task_index=1"} <= set(flags["worker:1"])
    (alone,) = flags_of(ALONE, tasks_of(ALONE, cpus=(0, 1, 2, 3)), {}).values()
    assert not any(flag.startswith(("--job_name", "--ps_hosts", "--worker_hosts")) for flag in alone)


def test_known_modes_fit_on_one_machine() -> None:
    """Each cell with a mode that this package knows fits on one machine with two cores."""
    for name, cell in CELLS.items():
        if explain_missing("trivial", cell) is None:
            spec = ALONE.replace(gpus=cell.gpus, num_ps=cell.num_ps, variable_update=cell.variable_update)
            assert cluster_of(spec).devices_per_host == cell.gpus, name
            assert sum(task.num_devices for task in tasks_of(spec, cpus=(0, 1))) == cell.gpus


def test_unknown_model_is_missing() -> None:
    """A model that is in no table is reported as missing."""
    assert explain_missing("no_such_model", CELLS["one_process"]) == "missing: this package does not know model=no_such_model"
    assert [name for name in SIZES if name in MODELS]


def test_ratio_is_computed_within_each_round() -> None:
    """The ratio is the same where the machine halves its speed between rounds, and the mean over distributed cells is
    geometric."""
    rounds = [Round(TrainingResult(rate * 2, 3.0, 1.0), TrainingResult(rate, 12.0, 12.0)) for rate in (100.0, 50.0, 60.0)]
    alone = Comparison("trivial", "one_process", is_distributed=False, rounds=rounds)
    assert alone.speed == 2
    assert "2.00  2.00 to 2.00" in alone.line()
    slower = Comparison("trivial", "replicated", is_distributed=True, rounds=[Round(rounds[0].other, rounds[0].one)])
    assert conclusion([alone, slower]).splitlines() == [
        "slowest: trivial replicated, 0.50 times as fast",
        "geometric mean over 1 distributed cells: 0.50 times as fast",
        "not compared: 0 of 2",
    ]


def test_command_without_the_other_program_shows_how_to_get_it() -> None:
    """Without the path of the other program the exit code is 2, and the message has the command that clones it."""
    ended = subprocess.run([sys.executable, PROGRAM, "--models", "trivial"], capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "git clone https://github.com/tensorflow/benchmarks" in ended.stderr
