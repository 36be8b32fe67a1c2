"""Tests of external commands under the launcher: they are started, read and ended, and their failures are reported."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pytest_dtfperf.datamodel.measurement import Run
from pytest_dtfperf.errors import DeadlineExceeded, InvalidMeasurement, RunFailed, TaskFailed
from pytest_dtfperf.explain.worker_timings import find_late_workers
from pytest_dtfperf.node import processes, sweep
from pytest_dtfperf.spec import Spec
from pytest_dtfperf.testing.backends import wait_until
from tests.launch.stage import CONFIG, LIMITS, Stage, read_session, start_stage

REPOSITORY = Path(__file__).parents[2]
PROGRAM = Path(__file__).parent / "other_program.py"
# The hosts need no TensorFlow for a program that brings its own.
COMMANDS = dataclasses.replace(CONFIG, entry="pytest_dtfperf.training.command:run")


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with start_stage(tmp_path_factory.mktemp("stage"), COMMANDS) as stage:
        yield stage


def make_spec(what: str = "work", **changes: Any) -> Spec:
    """Make a spec with an argument for tests/launch/other_program.py."""
    command = ("python", PROGRAM.name, what)
    settings = {
        "model": "other",
        "batch_size": 0,
        "gpus": 2,
        "num_ps": 1,
        "command": command,
        "command_dir": str(PROGRAM.parent),
    }
    return Spec(**{**settings, **changes})


def run_program(stage: Stage, spec: Spec, **how: Any) -> Run:
    return stage.launcher.run(spec, log_dir=stage.logs, **how)


def read_log(stage: Stage, task: str) -> str:
    return (stage.logs / f"{task}.log").read_text()


def test_program_has_the_last_printed_rate(stage: Stage) -> None:
    """A program with servers that never end has its last printed rate, counters of all tasks, progress, and complete logs."""
    heard: list[tuple[str, int]] = []
    found = run_program(
        stage, make_spec(num_ps=2), on_progress=lambda task, line, total_steps, rate: heard.append((task, total_steps))
    )
    assert found.images_per_sec == 12.5
    assert found.reported_rates == {"worker:0": "12.5", "worker:1": "13.5"}
    assert set(found.peak_rss_bytes) == {"ps:0", "ps:1", "worker:0", "worker:1"}
    assert min(found.cpu_s.values()) > 0
    assert found.wall_s > found.elapsed_s > 0
    assert {total_steps for _, total_steps in heard} == {0}
    assert {"worker:0", "worker:1"} <= {task for task, _ in heard}
    first, *_, last = read_log(stage, "worker-0").splitlines()
    assert first.startswith("$ python other_program.py work --job_name=worker --task_index=0 --ps_hosts=127.0.0.1:")
    assert last == "total images/sec: 12.5"


def test_line_without_the_number_keeps_the_rate(stage: Stage) -> None:
    """A later line that matches without the number does not change the rate."""
    found = run_program(stage, make_spec(rate_pattern=r"sec: (\d+)$|sec: 1[23]\.5"))
    assert found.reported_rates == {"worker:0": "11", "worker:1": "12"}


def test_loop_with_evaluations_has_the_rate_of_its_steps(stage: Stage) -> None:
    """The rate is the images of measured steps over their seconds, without warm-up, evaluations and checkpoints. A late worker
    is named, and no evaluation is a pause."""
    found = run_program(stage, make_stepping_spec(late_s=0.01))
    own_s = json.loads(read_log(stage, "worker-0").splitlines()[-1])
    assert len(own_s) == len(found.step_s["worker:0"]) == len(found.step_s["worker:1"]) == 60
    assert found.images_per_sec == pytest.approx(2 * 60 * 4 / sum(own_s), rel=0.05)
    assert found.worker_timings is not None
    scores = found.worker_timings
    assert scores.step_s is not None
    assert [each.worker for each in find_late_workers(scores)] == ["worker:1"]
    assert not [pause for pause in scores.pauses if pause.seconds > 0.15]


def test_equal_workers_are_not_late(stage: Stage) -> None:
    """No worker is named if none is late."""
    found = run_program(stage, make_stepping_spec(late_s=0.0))
    assert found.worker_timings is not None
    assert not find_late_workers(found.worker_timings)


def make_stepping_spec(late_s: float) -> Spec:
    command = ("python", "stepping_program.py", str(late_s))
    settings: dict[str, Any] = {
        "num_ps": 0,
        "variable_update": "collective_all_reduce",
        "environment": (f"PYTHONPATH={REPOSITORY}",),
    }
    return make_spec(command=command, **settings)


def test_program_has_folder_cores_and_environment(stage: Stage) -> None:
    """A program runs in its folder, on its task's cores and devices, and with the host's environment, not the zygote's."""
    names = ["CUDA_VISIBLE_DEVICES", "MINE", "OPENBLAS_NUM_THREADS", "TF_CPP_MIN_LOG_LEVEL", "TF_GRPC_REUSE_PORT"]
    run_program(stage, make_spec(",".join(names), environment=("MINE=1",)))
    (seen,) = [json.loads(line) for line in read_log(stage, "worker-1").splitlines() if line.startswith("{")]
    cores = sorted(os.sched_getaffinity(0))
    share = max(1, len(cores) // 2)
    assert seen.pop("cpus") == [cores[(share + k) % len(cores)] for k in range(share)]
    assert seen.pop("folder") == str(PROGRAM.parent)
    assert seen == {**{name: os.environ.get(name) for name in names}, "CUDA_VISIBLE_DEVICES": "", "MINE": "1"}


@pytest.mark.parametrize(
    "changes, error, task, words",
    [
        ({"what": "worker:1 leave 3"}, TaskFailed, "worker:1", r"left with exit code 3\n.*\n    \| I leave 3\n    whole log: "),
        ({"what": "worker:0 die SIGSEGV"}, TaskFailed, "worker:0", "was killed by SIGSEGV\n"),
        ({"what": "worker:1 die SIGKILL"}, TaskFailed, "worker:1", "was killed by SIGKILL\n"),
        ({"what": "ps:0 leave 4"}, TaskFailed, "ps:0", "left with exit code 4 before its workers were done"),
        (
            {"what": "worker:1 rate x"},
            InvalidMeasurement,
            "",
            r"worker:1 cannot be read, because 'x' is not a number: rate_p.*\n    \| tot.*: x\n",
        ),
        ({"what": "worker:1 leave 0"}, InvalidMeasurement, "", r"no line of worker:1's output .*:\n    \| I leave 0$"),
        (
            {"what": "worker:1 print a long line"},
            InvalidMeasurement,
            "",
            r"no line of worker:1's output .*:\n.*\n    \| x{4096}$",
        ),
        ({"command": ("no-such", "x")}, TaskFailed, "", "cannot start no-such: there is no such program on this host's PATH"),
        ({"command": ("./no-such", "x")}, TaskFailed, "", "cannot start ./no-such: there is no such file"),
        ({"command": (str(PROGRAM), "x")}, TaskFailed, "", f"cannot start {PROGRAM}: Permission denied"),
        ({"command_dir": "/no/such"}, TaskFailed, "", "there is no folder /no/such on this host .* set command_dir="),
    ],
    ids=[
        "exit code",
        "crash",
        "killed",
        "server",
        "no number",
        "no line",
        "a long line",
        "no program",
        "no file",
        "no right",
        "no folder",
    ],
)
def test_failed_program_is_named(stage: Stage, changes: dict[str, Any], error: type[Exception], task: str, words: str) -> None:
    """A failed program is named with its last output and without a traceback, and no program of the run is left."""
    with pytest.raises(error, match=words) as failed:
        run_program(stage, make_spec(**{"rate_pattern": "sec: (.*)", "rate_of": "mean", **changes}))
    if isinstance(failed.value, RunFailed):
        assert failed.value.culprit.task == (task or failed.value.culprit.task)
    assert "Traceback" not in str(failed.value)
    own = processes.list_descendants(os.getpid())
    assert not [each for each in own if _has_arguments(each.pid, PROGRAM.name)]


def test_spec_without_a_command_is_refused(stage: Stage) -> None:
    """A spec without a command on hosts for external commands alone is refused, with the entry to use."""
    with pytest.raises(TaskFailed, match=r"this spec has no command: pytest_dtfperf.training.task:run"):
        run_program(stage, stage.spec())


def test_server_may_end_before_its_workers(stage: Stage) -> None:
    """A server that ends with exit code 0 after its workers' connections is no failure."""
    assert run_program(stage, make_spec("ps:0 answer 2")).images_per_sec == 12.5


def test_silent_program_is_ended(tmp_path: Path) -> None:
    """A program that prints nothing within the limit is ended, with the limit and its last output in the message."""
    limits = dataclasses.replace(LIMITS, progress_s=1.0)
    with start_stage(tmp_path, dataclasses.replace(COMMANDS, limits=limits)) as stage, pytest.raises(DeadlineExceeded) as late:
        run_program(stage, make_spec("worker:1 fall silent"))
    assert "printed nothing and reported no step for 1 s after its line or step 1" in str(late.value)
    assert "| I fall silent" in str(late.value)


@pytest.mark.parametrize("who", ["daemon", "talker"])
def test_daemon_of_a_program_is_ended(stage: Stage, tmp_path: Path, who: str) -> None:
    """A daemon that holds the program's output open does not keep the run from ending, and is ended."""
    found = run_program(stage, make_spec(f"worker:0 leave a {who} {tmp_path / 'pid'}"))
    assert found.images_per_sec == 7
    assert processes.inspect(int((tmp_path / "pid").read_text())) is None


WRAPPED = """
import os, signal, subprocess, sys
from pytest_dtfperf.node.processes import end_group_with_parent
if os.fork() == 0:
    os.setpgid(0, 0)
    end_group_with_parent()
    subprocess.Popen(["sh", "-c", "sleep 600; :"])
    print(os.getpid(), flush=True)
signal.pause()
"""


def test_process_group_ends_with_its_parent() -> None:
    """If a task's parent is killed, the kernel ends the whole process group of the task."""
    with subprocess.Popen([sys.executable, "-c", WRAPPED], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout
        task = int(parent.stdout.readline())
        wait_until("the program has started another", lambda: len(processes.list_descendants(task)) == 2)
        group = [task, *(process.pid for process in processes.list_descendants(task))]
        parent.kill()
    wait_until("the whole group is gone", lambda: not any(each.pid in group for each in processes.iterate_processes()))


def test_program_ends_with_its_task(stage: Stage) -> None:
    """A program ends with its killed task, which is named, and only agent and zygote are left."""
    session = ""

    def strike(task: str, *_: object) -> None:
        nonlocal session
        if task == "worker:1" and not session:
            (program,) = [
                each
                for each in processes.iterate_processes()
                if _has_arguments(each.pid, "worker:1 fall silent", "--task_index=1")
            ]
            session = read_session(program.pid)
            os.kill(program.parent, signal.SIGKILL)

    with pytest.raises(TaskFailed, match=r"worker:1 on .* was killed by SIGKILL"):
        run_program(stage, make_spec("worker:1 fall silent"), on_progress=strike)
    assert len(sweep.find_left_processes([session])) == 2, "agent and zygote"


def _has_arguments(pid: int, *words: str) -> bool:
    """Return whether a process was started with these arguments."""
    with suppress(OSError):
        return set(words) <= set(Path(f"/proc/{pid}/cmdline").read_text().split("\0"))
    return False
