"""Tests of real training under the launcher. They run last (conftest.py)."""

import dataclasses
import gzip
import json
import os
import signal
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from pytest_dtfperf.datamodel.measurement import Run
from pytest_dtfperf.errors import RunFailed, TaskFailed, TaskStopped
from pytest_dtfperf.launch.tracing import FILE
from pytest_dtfperf.node import sweep
from tests.launch.stage import CONFIG, Stage, start_stage
from tests.launch.test_command import make_spec as another

ENTRY = "tests.launch.traced_training:run"
ENDLESS = 1_000_000  # steps
SMALL: dict[str, Any] = {"model": "lenet", "batch_size": 4}


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with start_stage(tmp_path_factory.mktemp("stage"), dataclasses.replace(CONFIG, entry=ENTRY)) as stage:
        yield stage


@pytest.fixture(scope="module")
def slowed_run(stage: Stage) -> tuple[Run, list[int]]:
    """Train with a worker that sleeps, and return the run and the number of threads of the zygote within it."""
    threads: list[int] = []

    def count_threads(*_: object) -> None:
        if not threads:
            threads.append(len(os.listdir(f"/proc/{stage.zygote()}/task")))

    spec = stage.spec(**SMALL, steps=20, warmup_steps=2)
    slowdowns = {"worker:1": 0.2}
    run = stage.launcher.run(spec, log_dir=stage.logs, injected_slowdowns=slowdowns, on_progress=count_threads)
    return run, threads


def test_training_has_all_measurements(slowed_run: tuple[Run, list[int]]) -> None:
    """A run of a server and two workers has steps, counters, phases and timings, and a worker that sleeps is last."""
    run, _ = slowed_run
    assert run.worker_timings is not None
    assert Run.from_json(run.to_json()).worker_timings == run.worker_timings
    assert (run.worker_timings.workers["worker:1"].last or 0) > 0.5
    assert {task: len(step_s) for task, step_s in run.step_s.items()} == {"worker:0": 20, "worker:1": 20}
    assert set(run.cpu_s) == set(run.peak_rss_bytes) == {"ps:0", "worker:0", "worker:1"}
    assert run.bytes_sent > 0
    assert {"reserve", "fork", "server", "ready", "build", "session", "first_step", "warmup", "stop"} <= set(run.startup_s)


def test_zygote_has_one_thread(slowed_run: tuple[Run, list[int]]) -> None:
    """The zygote that has imported TensorFlow and forked tasks has one thread."""
    _, threads = slowed_run
    assert threads == [1]


def test_run_is_explained_on_request(stage: Stage) -> None:
    """A traced run has its breakdown, a file for Perfetto, and all of its steps."""
    run = stage.launcher.run(stage.spec(**SMALL, steps=3), log_dir=stage.logs, explain=True)
    assert run.unexplained == ""
    assert run.step_breakdown is not None
    assert run.step_breakdown.tasks.keys() == {"ps:0", "worker:0", "worker:1"}
    assert sum(part.seconds for part in run.step_breakdown.path) == pytest.approx(run.step_breakdown.wall_s, abs=1e-5)
    assert Run.from_json(run.to_json()).step_breakdown == run.step_breakdown
    assert {len(step_s) for step_s in run.step_s.values()} == {3}
    assert json.loads(gzip.decompress((stage.logs / FILE).read_bytes()))["traceEvents"]


def test_invalid_data_are_the_reason(stage: Stage) -> None:
    """The failure of a training on an invalid file has this file as its reason, without a traceback."""
    labels, folder = bytes([3, 7, 12, 1]), stage.folder / "labels"
    folder.mkdir()
    (folder / "train-images-idx3-ubyte").write_bytes(struct.pack(">4I", 0x803, 4, 28, 28) + bytes(4 * 784))
    (folder / "train-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 0x801, 4) + labels)
    with pytest.raises(TaskFailed) as failed:
        stage.run(model="mnist", batch_size=4, gpus=1, num_ps=0, data="mnist", data_dir=str(folder), steps=3)
    _, reason, log = str(failed.value).splitlines()
    assert reason.startswith(f"    | SpecError: {folder}/train-labels-idx1-ubyte has label 12 at byte 10, where the network")
    assert log.startswith("    whole log: ")


def test_same_agents_run_external_commands(stage: Stage) -> None:
    """The agents of real training also run an external command."""
    asking = another("{data_dir}", data_dir=str(stage.folder))
    found = stage.launcher.run(asking, log_dir=stage.logs)
    assert (found.images_per_sec, found.step_s) == (12.5, {})


@pytest.mark.campaign(part=3)
@pytest.mark.parametrize(
    ("task", "number", "error", "words"),
    [
        ("ps:0", signal.SIGKILL, TaskFailed, "was killed by SIGKILL"),
        ("ps:0", signal.SIGSTOP, TaskStopped, r"is stopped \(state T\)"),
        ("worker:0", signal.SIGKILL, TaskFailed, "was killed by SIGKILL"),
        ("worker:1", signal.SIGSTOP, TaskStopped, r"is stopped \(state T\)"),
        ("worker:1", signal.SIGSEGV, TaskFailed, "was killed by SIGSEGV"),
    ],
    ids=["ps killed", "ps stopped", "chief killed", "worker stopped", "worker crashed"],
)
def test_killed_or_stopped_task_is_named(
    stage: Stage, task: str, number: signal.Signals, error: type[RunFailed], words: str
) -> None:
    """A killed or stopped task is named instead of TensorFlow's own errors, and only agent and zygote are left."""
    stage.forget()
    session = ""

    def strike(*_: object) -> None:
        nonlocal session
        if not session:
            session = stage.session()
            os.kill(stage.pid(task), number)

    with pytest.raises(error, match=words) as failed:
        stage.launcher.run(stage.spec(**SMALL, steps=ENDLESS), log_dir=stage.logs, on_progress=strike)
    assert failed.value.culprit.task == task
    assert len(sweep.find_left_processes([session])) == 2, "agent and zygote"


@pytest.mark.parametrize("mode, num_ps", [("parameter_server", 1), ("distributed_all_reduce", 0)])
def test_bf16_trains_after_failed_runs(stage: Stage, mode: str, num_ps: int) -> None:
    """The agents of the failed runs above train again, convolutions with biases in bf16, over several processes."""
    run = stage.run(model="lenet", batch_size=4, precision="bf16", variable_update=mode, num_ps=num_ps, steps=3)
    assert len(run.loss) == 3
