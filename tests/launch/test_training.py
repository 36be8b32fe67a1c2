"""Real training under the launcher: it measures, and whoever dies is named. Runs last (conftest.py)."""

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
from tests.launch.stage import CONFIG, Stage, staged
from tests.launch.test_command import spec as another

ENTRY = "tests.launch.traced_training:run"
ENDLESS = 1_000_000  # steps
SMALL: dict[str, Any] = {"model": "lenet", "batch_size": 4}


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(tmp_path_factory.mktemp("stage"), dataclasses.replace(CONFIG, entry=ENTRY)) as stage:
        yield stage


def test_training_is_measured(stage: Stage) -> None:
    """One parameter server and two workers train, and all that a run has to tell is there: who sleeps is last."""
    spec = stage.spec(**SMALL, steps=20, warmup_steps=2)
    run = stage.launcher.run(spec, log_dir=stage.logs, injected_slowdowns={"worker:1": 0.2})
    assert run.worker_timings is not None
    assert Run.from_json(run.to_json()).worker_timings == run.worker_timings
    assert (run.worker_timings.workers["worker:1"].last or 0) > 0.5
    assert {task: len(step_s) for task, step_s in run.step_s.items()} == {"worker:0": 20, "worker:1": 20}
    assert set(run.cpu_s) == set(run.peak_rss_bytes) == {"ps:0", "worker:0", "worker:1"}
    assert run.bytes_sent > 0
    assert {"reserve", "fork", "server", "ready", "build", "session", "first_step", "warmup", "stop"} <= set(run.startup_s)


def test_run_is_explained_if_that_is_asked(stage: Stage) -> None:
    """Some more steps are traced: the run has its breakdown, the logs have a file for Perfetto, and no step is missing."""
    run = stage.launcher.run(stage.spec(**SMALL, steps=3), log_dir=stage.logs, explain=True)
    assert run.unexplained == ""
    assert run.step_breakdown is not None
    assert run.step_breakdown.tasks.keys() == {"ps:0", "worker:0", "worker:1"}
    assert sum(part.seconds for part in run.step_breakdown.path) == pytest.approx(run.step_breakdown.wall_s, abs=1e-5)
    assert Run.from_json(run.to_json()).step_breakdown == run.step_breakdown
    assert {len(step_s) for step_s in run.step_s.values()} == {3}
    assert json.loads(gzip.decompress((stage.logs / FILE).read_bytes()))["traceEvents"]


@pytest.mark.parametrize("mode, num_ps", [("parameter_server", 1), ("distributed_all_reduce", 0)])
def test_bf16_trains_over_several_processes(stage: Stage, mode: str, num_ps: int) -> None:
    """With oneDNN as TensorFlow has it, convolutions with biases train in bf16, whatever becomes of the casts."""
    run = stage.run(model="lenet", batch_size=4, precision="bf16", variable_update=mode, num_ps=num_ps, steps=3)
    assert len(run.loss) == 3


def test_bad_data_are_the_reason(stage: Stage) -> None:
    """A file that cannot be trained on is what a failure shows, and no line of how it was found."""
    labels, folder = bytes([3, 7, 12, 1]), stage.folder / "labels"
    folder.mkdir()
    (folder / "train-images-idx3-ubyte").write_bytes(struct.pack(">4I", 0x803, 4, 28, 28) + bytes(4 * 784))
    (folder / "train-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 0x801, 4) + labels)
    with pytest.raises(TaskFailed) as failed:
        stage.run(model="mnist", batch_size=4, gpus=1, num_ps=0, data="mnist", data_dir=str(folder), steps=3)
    _, reason, log = str(failed.value).splitlines()
    assert reason.startswith(f"    | SpecError: {folder}/train-labels-idx1-ubyte has label 12 at byte 10, where the network")
    assert log.startswith("    whole log: ")


def test_the_same_agents_run_other_programs(stage: Stage) -> None:
    """A spec with a command needs no agents of its own."""
    asking = another("{data_dir}", data_dir=str(stage.folder))
    found = stage.launcher.run(asking, log_dir=stage.logs)
    assert (found.images_per_sec, found.step_s) == (12.5, {})


def test_zygote_can_be_forked(stage: Stage) -> None:
    """Having imported TensorFlow and forked tasks, the zygote still has one thread."""

    class Enough(Exception):
        pass

    def count(*_: object) -> None:
        raise Enough(len(os.listdir(f"/proc/{stage.zygote()}/task")))

    with pytest.raises(Enough, match=r"^1$"):
        stage.launcher.run(stage.spec(**SMALL, steps=ENDLESS), log_dir=stage.logs, on_progress=count)


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
def test_who_ends_training_is_named(
    stage: Stage, task: str, number: signal.Signals, error: type[RunFailed], words: str
) -> None:
    """TensorFlow's own errors and hangs do not hide whose death it was, and nothing of the run is left."""
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


def test_training_goes_on_after_all_that(stage: Stage) -> None:
    """The same agents train again as if nothing had happened."""
    assert stage.run(**SMALL, steps=5).images_per_sec > 0
