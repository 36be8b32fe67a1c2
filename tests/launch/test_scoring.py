"""Tests of the way from received timestamps to a run's worker timings, or to the reason for none."""

import dataclasses
from collections.abc import Mapping

import numpy as np
import pytest

from pytest_dtfperf.launch.tracing import TimestampCollector, with_cpu
from pytest_dtfperf.spec import Spec
from pytest_dtfperf.traces import StepTimestamps, pack_timestamps
from tests.explain.timestamped import make_lockstep_timestamps

SPEC = Spec(model="mnist", batch_size=16, gpus=2, num_ps=1, steps=30)
TASKS = ("ps:0", "worker:0", "worker:1")
CHIEF, OTHER = make_lockstep_timestamps(0.1 + np.array([[0.0], [0.05]]) + np.zeros((2, 30)))


def receive_timestamps(sent: Mapping[str, str | list[StepTimestamps]], spec: Spec = SPEC) -> TimestampCollector:
    scoring = TimestampCollector(spec, TASKS)
    for task, timestamps in sent.items():
        scoring.receive(task, timestamps if isinstance(timestamps, str) else pack_timestamps(timestamps), None)
    return scoring


def test_timestamps_of_all_workers_become_timings() -> None:
    """Received in any order, timings are in the order of the workers, and a late worker is last."""
    scores, why_not = receive_timestamps({"worker:1": [OTHER], "worker:0": [CHIEF]}).outcome()
    assert scores is not None
    assert why_not == ""
    assert list(scores.workers) == ["worker:0", "worker:1"]
    assert scores.workers["worker:1"].last == 1.0


def test_asynchronous_workers_are_not_compared() -> None:
    """Asynchronous workers are never last."""
    scores, _ = receive_timestamps({"worker:1": [OTHER], "worker:0": [CHIEF]}, SPEC.replace(cross_replica_sync=False)).outcome()
    assert scores is not None
    assert scores.workers["worker:1"].last is None


def test_chief_of_one_session_sends_all_timestamps() -> None:
    """In a mode of one session the chief sends the timestamps of all workers."""
    spec = SPEC.replace(variable_update="distributed_all_reduce", num_ps=0)
    scores, _ = receive_timestamps({"worker:0": [CHIEF, OTHER]}, spec).outcome()
    assert scores is not None
    assert scores.workers["worker:1"].last == 1.0


def test_workers_without_own_session_have_their_reported_cpu_time() -> None:
    """A worker without timestamps of its CPU time has that of its report, divided by the steps."""
    spec = SPEC.replace(variable_update="distributed_all_reduce", num_ps=0)
    dependent = dataclasses.replace(OTHER, cpu_us=[None] * 30)
    scores, _ = receive_timestamps({"worker:0": [CHIEF, dependent]}, spec).outcome()
    assert scores is not None
    found = with_cpu(scores, {"worker:0": 9.0, "worker:1": 1.5}, 30)
    assert found is not None
    assert found.workers["worker:1"].cpu_s == 0.05
    assert found.workers["worker:0"] == scores.workers["worker:0"]
    assert with_cpu(None, {"worker:1": 1.5}, 30) is None
    assert with_cpu(scores, {}, 0) == scores


def test_cpu_time_is_divided_by_the_worker_s_own_batches() -> None:
    """A worker with half as many batches and the same CPU time has twice the CPU time for each."""
    spec = SPEC.replace(variable_update="parameter_server_v2", cross_replica_sync=False)
    sent = [
        make_batch_timestamps("worker:0", [[0.0, 0.1, 0.2]] * 40),
        make_batch_timestamps("worker:1", [[0.0, 0.1, 0.4]] * 20),
    ]
    scores, _ = receive_timestamps({"worker:0": sent}, spec).outcome()
    found = with_cpu(scores, {"worker:0": 8.0, "worker:1": 8.0}, 30)
    assert found is not None
    assert [found.workers[worker].cpu_s for worker in TASKS[1:]] == [0.2, 0.4]


def make_batch_timestamps(worker: str, batches: list[list[float]]) -> StepTimestamps:
    """Make timestamps of batches that began, had their variables and were done at these seconds."""
    nothing = [None] * len(batches)
    there, done = ([round(1e6 * (batch[at] - batch[0])) for batch in batches] for at in (1, 2))
    return StepTimestamps(
        worker=worker, python_us=nothing, variables_us=there, gradients_us=done, end_us=nothing, cpu_us=nothing
    )


def test_run_without_timestamps_has_no_reason() -> None:
    """Without timestamps there are neither timings nor a reason."""
    assert receive_timestamps({}).outcome() == (None, "")


def test_first_task_without_timestamps_is_the_reason() -> None:
    """The first task without timestamps is the reason for no timings."""
    scoring = receive_timestamps({"worker:0": [CHIEF]})
    scoring.receive("worker:1", None, "InvalidStamps: are too many")
    scoring.receive("worker:0", None, "another")
    assert scoring.outcome() == (None, "worker:1 has no timestamps: InvalidStamps: are too many")


@pytest.mark.parametrize(
    "sent, why",
    [
        ({"worker:0": "AAAA"}, "the timestamps cannot be unpacked"),
        ({"worker:0": [OTHER]}, "the timestamps of worker:0 are those of worker:1"),
        ({"worker:0": [CHIEF, CHIEF]}, "the timestamps of worker:0 are there twice"),
        (
            {"ps:0": [dataclasses.replace(CHIEF, worker="ps:0")]},
            "the timestamps of ps:0 name ps:0, which is no worker of this run",
        ),
        (
            {"worker:0": make_lockstep_timestamps(np.full((1, 61), 0.1))},
            "the timestamps of worker:0 are of 61 steps, there are 60",
        ),
    ],
    ids=["text", "another's", "twice", "a server's", "too many"],
)
def test_invalid_timestamps_are_the_reason(sent: dict[str, str | list[StepTimestamps]], why: str) -> None:
    """With invalid timestamps there are no timings, but the reason."""
    assert receive_timestamps(sent).outcome() == (None, why)
