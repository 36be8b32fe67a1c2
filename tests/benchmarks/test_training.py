"""The comparison with tf_cnn_benchmarks, whose place a script takes that prints what it prints."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.cells import CELLS, SIZES, cluster_of, missing, tasks_of
from benchmarks.ratios import Comparison, Round, conclusion
from benchmarks.tf_cnn_benchmarks import SCRIPT, TfCnnBenchmarks, ThisMachine, flags_of
from benchmarks.trainers import Trained, TrainingFailed
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
def test_its_rate_is_what_the_chief_prints_last(tmp_path: Path, spec: Spec) -> None:
    """The rate is the chief's total, its start ends with the measured loop's first line, and no process of it is left."""
    trained = other_program(tmp_path, SAYS)(spec)
    assert trained.images_per_sec == 240.5
    assert 0 < trained.start_s == trained.warm_start_s


def test_each_step_of_it_is_timed_where_it_is_asked_to_tell(tmp_path: Path) -> None:
    """With `each_step` there is a time for every measured step, of a program that tells of each when it ends."""
    source = SAYS.replace('(1, int(flags["num_batches"]))', "(each for each in range(1, 3) if time.sleep(0.1) is None)")
    spec = ALONE.replace(steps=2)
    tasks = tasks_of(spec, cpus=(0, 1))
    told = other_program(tmp_path, source).train(spec, tasks, {"worker:0": ThisMachine()}, each_step=True)
    assert len(told.step_s) == 2
    assert min(told.step_s) > 0
    assert "--display_every=1" in flags_of(spec, tasks, {"worker:0": "127.0.0.1"}, display_every=1)["worker:0"]


def test_a_dead_task_ends_the_training(tmp_path: Path) -> None:
    """Whoever waits for a dead worker is ended, and the worker's last words are told."""
    with pytest.raises(TrainingFailed, match=r"worker:1:\nno such thing"):
        other_program(tmp_path, DIES)(TOGETHER)


def test_too_few_steps_are_no_rate(tmp_path: Path) -> None:
    """A total over other steps than were asked for is not taken."""
    with pytest.raises(TrainingFailed, match="did not get to its end"):
        other_program(tmp_path, SAYS.replace('(1, int(flags["num_batches"]))', "(1, 10)"))(ALONE)


def test_both_get_the_same_tasks_and_threads() -> None:
    """On four cores: two threads for each of two workers, four for a parameter server; a lone process is told of no others."""
    hosts = {"ps:0": "10.0.0.1", "worker:0": "10.0.0.2", "worker:1": "10.0.0.3"}
    flags = flags_of(TOGETHER, tasks_of(TOGETHER, cpus=(0, 1, 2, 3)), hosts)
    assert list(flags) == ["ps:0", "worker:0", "worker:1"]
    assert "--num_intra_threads=4" in flags["ps:0"]
    assert any(flag.startswith("--worker_hosts=10.0.0.2:") and ",10.0.0.3:" in flag for flag in flags["ps:0"])
    assert {"--num_intra_threads=2", "--num_inter_threads=2", "--job_name=worker", "--task_index=1"} <= set(flags["worker:1"])
    (alone,) = flags_of(ALONE, tasks_of(ALONE, cpus=(0, 1, 2, 3)), {}).values()
    assert not any(flag.startswith(("--job_name", "--ps_hosts", "--worker_hosts")) for flag in alone)


def test_every_known_mode_can_be_trained() -> None:
    """Each cell whose mode this package knows is a training that fits on one machine of two cores."""
    for name, cell in CELLS.items():
        if missing("trivial", cell) is None:
            spec = ALONE.replace(gpus=cell.gpus, num_ps=cell.num_ps, variable_update=cell.variable_update)
            assert cluster_of(spec).devices_per_host == cell.gpus, name
            assert sum(task.num_devices for task in tasks_of(spec, cpus=(0, 1))) == cell.gpus


def test_what_this_package_lacks_is_named() -> None:
    """A model that is in no table is missing, which is no failure."""
    assert missing("no_such_model", CELLS["one_process"]) == "missing: this package does not know model=no_such_model"
    assert [name for name in SIZES if name in MODELS]


def test_ratios_are_taken_round_by_round() -> None:
    """Where the machine halves its speed between two rounds, the ratio stays; means are geometric, over distributed cells."""
    rounds = [Round(Trained(rate * 2, 3.0, 1.0), Trained(rate, 12.0, 12.0)) for rate in (100.0, 50.0, 60.0)]
    alone = Comparison("trivial", "one_process", is_distributed=False, rounds=rounds)
    assert alone.speed == 2
    assert "2.00  2.00 to 2.00" in alone.line()
    slower = Comparison("trivial", "replicated", is_distributed=True, rounds=[Round(rounds[0].other, rounds[0].one)])
    assert conclusion([alone, slower]).splitlines() == [
        "slowest: trivial replicated, 0.50 times as fast",
        "geometric mean over 1 distributed cells: 0.50 times as fast",
        "not compared: 0 of 2",
    ]


def test_without_the_other_program_it_says_how_to_get_it() -> None:
    """The other program is not part of the project: without its path there is one page of help, and exit code 2."""
    ended = subprocess.run([sys.executable, PROGRAM, "--models", "trivial"], capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "git clone https://github.com/tensorflow/benchmarks" in ended.stderr
