"""From what tasks have timestamped to a run's scores, or to the words why there are none."""

import dataclasses
from collections.abc import Mapping

import numpy as np
import pytest

from pytest_dtfperf.launch.tracing import Scoring, with_cpu
from pytest_dtfperf.spec import Spec
from pytest_dtfperf.traces import StepTimestamps, pack_timestamps
from tests.explain.timestamped import make_lockstep_timestamps

SPEC = Spec(model="mnist", batch_size=16, gpus=2, num_ps=1, steps=30)
TASKS = ("ps:0", "worker:0", "worker:1")
CHIEF, OTHER = make_lockstep_timestamps(0.1 + np.array([[0.0], [0.05]]) + np.zeros((2, 30)))


def heard(sent: Mapping[str, str | list[StepTimestamps]], spec: Spec = SPEC) -> Scoring:
    scoring = Scoring(spec, TASKS)
    for task, timestamps in sent.items():
        scoring.receive(task, timestamps if isinstance(timestamps, str) else pack_timestamps(timestamps), None)
    return scoring


def test_stamps_of_all_workers_become_scores() -> None:
    """Whoever was heard first, workers are in their order, and who sleeps is last."""
    scores, why_not = heard({"worker:1": [OTHER], "worker:0": [CHIEF]}).outcome()
    assert scores is not None
    assert why_not == ""
    assert list(scores.workers) == ["worker:0", "worker:1"]
    assert scores.workers["worker:1"].last == 1.0


def test_asynchronous_workers_are_not_compared() -> None:
    """Without a common step there is no last."""
    scores, _ = heard({"worker:1": [OTHER], "worker:0": [CHIEF]}, SPEC.but(cross_replica_sync=False)).outcome()
    assert scores is not None
    assert scores.workers["worker:1"].last is None


def test_one_session_speaks_for_others() -> None:
    """In a mode of one session the chief sends the timestamps of all."""
    spec = SPEC.but(variable_update="distributed_all_reduce", num_ps=0)
    scores, _ = heard({"worker:0": [CHIEF, OTHER]}, spec).outcome()
    assert scores is not None
    assert scores.workers["worker:1"].last == 1.0


def test_lent_workers_have_the_cpu_time_that_they_report() -> None:
    """Nobody timestamps the CPU time of a worker that another's session computes on: it is that of its report, by step."""
    spec = SPEC.but(variable_update="distributed_all_reduce", num_ps=0)
    lent = dataclasses.replace(OTHER, cpu_us=[None] * 30)
    scores, _ = heard({"worker:0": [CHIEF, lent]}, spec).outcome()
    assert scores is not None
    found = with_cpu(scores, {"worker:0": 9.0, "worker:1": 1.5}, 30)
    assert found is not None
    assert found.workers["worker:1"].cpu_s == 0.05
    assert found.workers["worker:0"] == scores.workers["worker:0"]
    assert with_cpu(None, {"worker:1": 1.5}, 30) is None
    assert with_cpu(scores, {}, 0) == scores


def test_cpu_time_of_a_batch_is_of_the_batches_that_a_worker_had() -> None:
    """Of two workers in one window the one that had half as many batches used twice the CPU for each."""
    spec = SPEC.but(variable_update="parameter_server_v2", cross_replica_sync=False)
    sent = [of_batches("worker:0", [[0.0, 0.1, 0.2]] * 40), of_batches("worker:1", [[0.0, 0.1, 0.4]] * 20)]
    scores, _ = heard({"worker:0": sent}, spec).outcome()
    found = with_cpu(scores, {"worker:0": 8.0, "worker:1": 8.0}, 30)
    assert found is not None
    assert [found.workers[worker].cpu_s for worker in TASKS[1:]] == [0.2, 0.4]


def of_batches(worker: str, batches: list[list[float]]) -> StepTimestamps:
    """As `training.step_timestamps` makes them: when each was begun, had its variables, and was done."""
    nothing = [None] * len(batches)
    there, done = ([round(1e6 * (batch[at] - batch[0])) for batch in batches] for at in (1, 2))
    return StepTimestamps(
        worker=worker, python_us=nothing, variables_us=there, gradients_us=done, end_us=nothing, cpu_us=nothing
    )


def test_nothing_sent_is_nothing_known() -> None:
    """Others' programs send no timestamps: neither scores, nor a word of why."""
    assert heard({}).outcome() == (None, "")


def test_failure_of_one_task_is_told_once() -> None:
    """The first task that could not tell says why the run has no scores."""
    scoring = heard({"worker:0": [CHIEF]})
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
def test_what_cannot_be_costs_the_scores_alone(sent: dict[str, str | list[StepTimestamps]], why: str) -> None:
    """Whatever a host sends, the run goes on without scores, and says why."""
    assert heard(sent).outcome() == (None, why)
