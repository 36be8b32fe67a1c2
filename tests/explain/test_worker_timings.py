"""Tests that late workers are found in step timestamps, and no others."""

import dataclasses
import json

import jsonschema
import numpy as np
import pytest

from pytest_dtfperf.baselines.json_schema import json_schema
from pytest_dtfperf.datamodel.step_times import WorkerTimings
from pytest_dtfperf.explain.worker_timings import (
    Numbers,
    compute_lateness_increases,
    compute_worker_timings,
    describe_late_worker,
    find_late_workers,
)
from pytest_dtfperf.traces import StepTimestamps
from tests.explain.timestamped import PYTHON_S, RECEIVE_S, UPDATE_S, make_lockstep_timestamps, make_noise, make_timestamps

ALIKE = np.full((3, 40), 0.1)


def compute_timings(ready: Numbers, *, lockstep: bool = True) -> WorkerTimings:
    scores = compute_worker_timings(make_lockstep_timestamps(ready), lockstep=lockstep)
    assert scores is not None
    return scores


def add_delay(worker: int, seconds: float, steps: slice = slice(None)) -> Numbers:
    ready = ALIKE + 1e-4 * np.random.default_rng(1).standard_normal(ALIKE.shape)
    ready[worker, steps] += seconds
    return ready


def test_parts_of_a_step_are_means() -> None:
    """Python, receiving, computing and the rest are means that add up to the step; CPU time is separate."""
    score = compute_timings(ALIKE).workers["worker:0"]
    assert (score.python_s, score.receive_s, score.finish_s) == (PYTHON_S, RECEIVE_S, UPDATE_S)
    assert score.compute_s == pytest.approx(0.1 - PYTHON_S - RECEIVE_S)
    assert score.ready_s == pytest.approx(0.1)
    assert (score.cpu_s, score.steps, score.ready_error_s) == (0.09, 40, 0.0)


def test_late_worker_is_named() -> None:
    """A worker that is 12 ms later than the others in every step is last in all of them, and its line has the seconds."""
    scores = compute_timings(add_delay(1, 0.012))
    assert scores.workers["worker:1"].last == 1.0
    assert scores.workers["worker:1"].late_s == pytest.approx(0.012, abs=1e-4)
    assert scores.workers["worker:0"].last == 0.0
    (found,) = find_late_workers(scores)
    assert describe_late_worker(found, "node03") == "worker:1 (node03) was last in 100 % of steps, by 11.9 ms: compute +12.0 ms"


def test_two_late_workers_are_named() -> None:
    """Two of six workers that are late in all steps are both named, although each is last in only a part of them."""
    ready = np.full((6, 40), 0.1)
    ready[2:4] += 0.02 + 0.004 * np.random.default_rng(1).random((2, 40))
    found = find_late_workers(compute_timings(ready))
    assert {each.worker for each in found} == {"worker:2", "worker:3"}
    assert "was late in 100 % of steps, and the last in" in describe_late_worker(found[0])


@pytest.mark.parametrize("workers", [2, 3, 8])
def test_workers_late_in_turn_are_not_named(workers: int) -> None:
    """No worker is named if each is equally late in its turn."""
    ready = np.full((workers, 20 * workers), 0.1)
    for step in range(ready.shape[1]):
        ready[step % workers, step] += 0.02
    assert find_late_workers(compute_timings(ready)) == []


def test_slightly_or_rarely_late_worker_is_not_named() -> None:
    """A worker that is late by a thousandth of each step, or by a second in one step, is not named."""
    assert find_late_workers(compute_timings(add_delay(1, 0.0001))) == []
    assert find_late_workers(compute_timings(add_delay(1, 1.0, slice(5, 6)))) == []


def test_few_steps_name_no_worker() -> None:
    """A late worker is named with twenty steps, and not with nineteen."""
    assert find_late_workers(compute_timings(add_delay(1, 0.05)[:, :19])) == []
    assert find_late_workers(compute_timings(add_delay(1, 0.05)[:, :20])) != []


def test_steps_unknown_of_one_worker_are_left_out() -> None:
    """If timestamps of two steps of one worker are unknown, all workers are compared in the other steps."""
    sleeper = compute_timings(add_delay(1, 0.012)).workers["worker:1"]
    given = make_lockstep_timestamps(add_delay(1, 0.012))
    holes = dataclasses.replace(given[0], gradients_us=[None, None, *given[0].gradients_us[2:]])
    scores = compute_worker_timings([holes, *given[1:]], lockstep=True)
    assert scores is not None
    assert scores.workers["worker:0"].steps == 38
    assert scores.workers["worker:1"].late_s == pytest.approx(sleeper.late_s, abs=1e-4)


def test_workers_without_common_steps_are_not_compared() -> None:
    """Asynchronous workers, or workers with different numbers of steps, have their own means and are not compared."""
    timestamps = make_lockstep_timestamps(add_delay(1, 0.05))
    shorter = dataclasses.replace(
        timestamps[0], **{name: getattr(timestamps[0], name)[:30] for name in timestamps[0].to_json() if name != "worker"}
    )
    for scores in (
        compute_worker_timings(timestamps, lockstep=False),
        compute_worker_timings([shorter, *timestamps[1:]], lockstep=True),
    ):
        assert scores is not None
        assert {score.last for score in scores.workers.values()} == {None}
        assert find_late_workers(scores) == []
        assert scores.workers["worker:1"].ready_s == pytest.approx(0.15, abs=0.001)


def test_unknown_times_are_none() -> None:
    """A worker with known times of computing alone has no step time, and without any worker there are no timings."""
    (known,) = make_lockstep_timestamps(ALIKE[:1])
    nothing = [None] * 40
    batches = dataclasses.replace(known, python_us=nothing, end_us=nothing, cpu_us=nothing)
    scores = compute_worker_timings([batches], lockstep=False)
    assert scores is not None
    score = scores.workers["worker:0"]
    assert (scores.step_s, score.python_s, score.finish_s, score.cpu_s, score.ready_s) == (None,) * 5
    assert score.steps == 40
    assert compute_worker_timings([], lockstep=True) is None


def test_lateness_is_compared_with_the_baseline() -> None:
    """A worker's lateness counts by its increase since the baseline; a worker unknown there is expected to have been on
    time."""
    baseline, current = compute_timings(add_delay(1, 0.02)), compute_timings(add_delay(1, 0.05))
    assert compute_lateness_increases(baseline, current) == {"worker:1": pytest.approx(0.03, abs=0.001)}
    assert compute_lateness_increases(None, current) == {"worker:1": pytest.approx(0.05, abs=0.001)}
    assert compute_lateness_increases(compute_timings(ALIKE[:1]), current) == compute_lateness_increases(None, current)
    assert compute_lateness_increases(current, baseline) == compute_lateness_increases(current, compute_timings(ALIKE)) == {}


def test_fast_worker_makes_the_others_not_late() -> None:
    """Two of three equally late workers are not named because the third is early."""
    assert find_late_workers(compute_timings(add_delay(0, -0.02))) == []


@pytest.mark.parametrize("kind", ["normal", "long tail", "bursts"])
@pytest.mark.parametrize("workers, steps", [(2, 30), (8, 60)])
def test_noise_names_no_worker(kind: str, workers: int, steps: int) -> None:
    """If all workers are alike, at most two of 100 runs name a late worker or a period."""
    random = np.random.default_rng(7)
    runs = [compute_timings(make_noise(kind, workers, steps, random)) for _ in range(100)]
    assert sum(bool(find_late_workers(scores)) for scores in runs) <= 2
    assert sum(bool(scores.periods) for scores in runs) <= 2


def test_timings_fit_the_schema_and_survive_json() -> None:
    """Timings with a late worker, pauses and periods fit their schema, and are the same after JSON."""
    ready = np.tile(add_delay(1, 0.012), 3)
    ready[0, ::8] += 0.2
    scores = compute_timings(ready)
    assert scores.pauses
    assert scores.periods
    data = json.loads(json.dumps(scores.to_json()))
    jsonschema.validate(data, json_schema(WorkerTimings))
    assert WorkerTimings.from_json(data) == scores


def test_lone_worker_is_not_compared() -> None:
    """A lone worker is never last, and its pauses have its name."""
    ready = ALIKE[0] + 0.001 * np.random.default_rng(1).standard_normal(40)
    ready[7] += 0.3
    scores = compute_worker_timings([make_timestamps("worker:0", ready, ready + UPDATE_S)], lockstep=True)
    assert scores is not None
    assert scores.workers["worker:0"].last is None
    assert [(pause.step, pause.worker) for pause in scores.pauses] == [(8, "worker:0")]


def compute_reported_timings(begin: Numbers, end: Numbers) -> WorkerTimings:
    """Return the timings of workers (rows) that report begin and end of their steps (columns), each on its own clock."""
    unknown = [None] * begin.shape[1]
    timestamps = [
        StepTimestamps(
            worker=f"worker:{number}", python_us=unknown, variables_us=unknown, gradients_us=unknown, cpu_us=unknown,
            end_us=[int(each) for each in np.rint(1e6 * (ends - begins))],
            between_us=[None, *(int(each) for each in np.rint(1e6 * (begins[1:] - ends[:-1])))],
        )
        for number, (begins, ends) in enumerate(zip(begin, end, strict=True))
    ]  # fmt: skip
    scores = compute_worker_timings(timestamps, lockstep=True)
    assert scores is not None
    return scores


def make_reported_steps(between: Numbers, within: Numbers) -> tuple[Numbers, Numbers]:
    """Return begins and ends of steps with an exchange in their last part, in which all workers wait for the last one."""
    begin, end, now = np.empty_like(between), np.empty_like(between), np.zeros(len(between))
    for step in range(between.shape[1]):
        begin[:, step] = now + between[:, step]
        now = np.full(len(between), (begin[:, step] + within[:, step]).max())
        end[:, step] = now
    return begin, end


def test_worker_late_between_reported_steps_is_named() -> None:
    """A worker that takes longer between its reported steps is late by that, and the time is in no step."""
    random = np.random.default_rng(1)
    between = 0.01 + 0.002 * random.random((3, 60))
    between[1] += 0.012
    scores = compute_reported_timings(*make_reported_steps(between, np.full((3, 60), 0.1)))
    (found,) = find_late_workers(scores)
    assert found.worker == "worker:1"
    assert found.late_s == pytest.approx(0.012, abs=0.001)
    assert describe_late_worker(found).startswith("worker:1 was last in 100 % of steps, by 1")
    assert "python +1" in describe_late_worker(found)
    score = scores.workers["worker:1"]
    assert (score.steps, score.compute_s, score.receive_s, score.ready_s) == (60, None, None, None)
    assert scores.step_s == pytest.approx(0.108, abs=0.002)  # the seconds between steps are in no rate, and in no step


def test_worker_slow_within_reported_steps_is_not_named() -> None:
    """No worker is named if one computes longer within its reported steps, in which the others wait."""
    random = np.random.default_rng(1)
    within = 0.1 + 0.002 * random.random((3, 60))
    within[1] += 0.02
    assert not find_late_workers(compute_reported_timings(*make_reported_steps(np.full((3, 60), 0.01), within)))


def compute_timings_without_waits(*extra_s: float) -> WorkerTimings:
    """Return the timings of workers that begin their steps at once, and take so much longer within each."""
    within = 0.1 + 0.002 * np.random.default_rng(1).random((len(extra_s), 60)) + np.array(extra_s)[:, None]
    begin = np.cumsum(within.max(axis=0) + 0.01) + np.zeros((len(extra_s), 1))
    return compute_reported_timings(begin, begin + within)


def test_longest_reported_step_is_late() -> None:
    """If workers begin their steps at once, the one with longer steps is late by that."""
    for late in range(3):
        scores = compute_timings_without_waits(*(0.02 * (late == worker) for worker in range(3)))
        (found,) = find_late_workers(scores)
        assert (found.worker, found.last) == (f"worker:{late}", 1.0)
        assert found.late_s == pytest.approx(0.02, abs=0.002)


def test_shortest_reported_step_is_not_late() -> None:
    """If workers begin their steps at once, the one with the shortest steps is never last, and none is late."""
    scores = compute_timings_without_waits(0.0, -0.02, 0.0)
    assert scores.workers["worker:1"].last == 0.0
    assert not find_late_workers(scores)


def test_long_reported_step_is_a_pause() -> None:
    """A long reported step is a pause, and long times between steps are none."""
    within = np.full((2, 60), 0.1)
    within[:, 30] += 0.5
    between = np.full((2, 60), 0.01)
    between[:, 10::10] += 3.0  # an evaluation
    scores = compute_reported_timings(*make_reported_steps(between, within))
    (pause,) = scores.pauses
    assert (pause.step, pause.worker) == (31, None)
    assert pause.seconds == pytest.approx(0.5)
    assert scores.periods == []
