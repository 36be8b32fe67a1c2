"""Late workers are found in written steps, and no others."""

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
from tests.explain.timestamped import PYTHON_S, RECEIVE_S, UPDATE_S, in_lockstep, noise, of

ALIKE = np.full((3, 40), 0.1)


def scored(ready: Numbers, *, lockstep: bool = True) -> WorkerTimings:
    scores = compute_worker_timings(in_lockstep(ready), lockstep=lockstep)
    assert scores is not None
    return scores


def with_extra(worker: int, seconds: float, steps: slice = slice(None)) -> Numbers:
    ready = ALIKE + 1e-4 * np.random.default_rng(1).standard_normal(ALIKE.shape)
    ready[worker, steps] += seconds
    return ready


def test_parts_of_a_step_add_up() -> None:
    """Python, receiving, computing and the rest are means that make a step; the CPU's time stands beside them."""
    score = scored(ALIKE).workers["worker:0"]
    assert (score.python_s, score.receive_s, score.finish_s) == (PYTHON_S, RECEIVE_S, UPDATE_S)
    assert score.compute_s == pytest.approx(0.1 - PYTHON_S - RECEIVE_S)
    assert score.ready_s == pytest.approx(0.1)
    assert (score.cpu_s, score.steps, score.ready_error_s) == (0.09, 40, 0.0)


def test_sleeper_is_named() -> None:
    """Who comes 12 ms after the others in every step is last in all of them, and that is said in one line."""
    scores = scored(with_extra(1, 0.012))
    assert scores.workers["worker:1"].last == 1.0
    assert scores.workers["worker:1"].late_s == pytest.approx(0.012, abs=1e-4)
    assert scores.workers["worker:0"].last == 0.0
    (found,) = find_late_workers(scores)
    assert describe_late_worker(found, "node03") == "worker:1 (node03) was last in 100 % of steps, by 11.9 ms: compute +12.0 ms"


def test_two_of_many_are_named() -> None:
    """Two workers that are late in all steps are last in half of them each, and both are named."""
    ready = np.full((6, 40), 0.1)
    ready[2:4] += 0.02 + 0.004 * np.random.default_rng(1).random((2, 40))
    found = find_late_workers(scored(ready))
    assert {each.worker for each in found} == {"worker:2", "worker:3"}
    assert "was late in 100 % of steps, and the last in" in describe_late_worker(found[0])


@pytest.mark.parametrize("workers", [2, 3, 8])
def test_who_is_last_in_turn_is_nobody(workers: int) -> None:
    """Where each worker is as late in its turn, none is a straggler."""
    ready = np.full((workers, 20 * workers), 0.1)
    for step in range(ready.shape[1]):
        ready[step % workers, step] += 0.02
    assert find_late_workers(scored(ready)) == []


def test_late_by_little_or_seldom_is_nobody() -> None:
    """Neither a thousandth of a step in all of them nor a second in one makes a straggler."""
    assert find_late_workers(scored(with_extra(1, 0.0001))) == []
    assert find_late_workers(scored(with_extra(1, 1.0, slice(5, 6)))) == []


def test_few_steps_name_nobody() -> None:
    """Of fewer than twenty steps nobody can say what was chance."""
    assert find_late_workers(scored(with_extra(1, 0.05)[:, :19])) == []
    assert find_late_workers(scored(with_extra(1, 0.05)[:, :20])) != []


def test_steps_that_not_all_know_are_left_out() -> None:
    """Where the timestamps of a step are not known of one worker, all are compared in the other steps."""
    sleeper = scored(with_extra(1, 0.012)).workers["worker:1"]
    given = in_lockstep(with_extra(1, 0.012))
    holes = dataclasses.replace(given[0], gradients_us=[None, None, *given[0].gradients_us[2:]])
    scores = compute_worker_timings([holes, *given[1:]], lockstep=True)
    assert scores is not None
    assert scores.workers["worker:0"].steps == 38
    assert scores.workers["worker:1"].late_s == pytest.approx(sleeper.late_s, abs=1e-4)


def test_without_a_common_step_nobody_is_compared() -> None:
    """Asynchronous workers have their own means, and nothing against the others, be their steps as many or not."""
    timestamps = in_lockstep(with_extra(1, 0.05))
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


def test_what_is_not_known_is_none() -> None:
    """A worker of which computing alone is known has no step."""
    (known,) = in_lockstep(ALIKE[:1])
    nothing = [None] * 40
    batches = dataclasses.replace(known, python_us=nothing, end_us=nothing, cpu_us=nothing)
    scores = compute_worker_timings([batches], lockstep=False)
    assert scores is not None
    score = scores.workers["worker:0"]
    assert (scores.step_s, score.python_s, score.finish_s, score.cpu_s, score.ready_s) == (None,) * 5
    assert score.steps == 40
    assert compute_worker_timings([], lockstep=True) is None


def test_a_straggler_is_compared_with_what_it_was() -> None:
    """Only by how much a worker is later than it was counts; one that is not known of is expected to have been on time."""
    then, now = scored(with_extra(1, 0.02)), scored(with_extra(1, 0.05))
    assert compute_lateness_increases(then, now) == {"worker:1": pytest.approx(0.03, abs=0.001)}
    assert compute_lateness_increases(None, now) == {"worker:1": pytest.approx(0.05, abs=0.001)}
    assert compute_lateness_increases(scored(ALIKE[:1]), now) == compute_lateness_increases(None, now)
    assert compute_lateness_increases(now, then) == compute_lateness_increases(now, scored(ALIKE)) == {}


def test_of_three_workers_a_fast_one_makes_no_straggler_of_the_others() -> None:
    """Two of three are as late as each other, and nobody waits for them but the one that is early."""
    assert find_late_workers(scored(with_extra(0, -0.02))) == []


@pytest.mark.parametrize("kind", ["normal", "long tail", "bursts"])
@pytest.mark.parametrize("workers, steps", [(2, 30), (8, 60)])
def test_noise_names_nobody(kind: str, workers: int, steps: int) -> None:
    """Where all workers are alike, at most one run in fifty calls one of them a straggler, or its pauses periodic."""
    random = np.random.default_rng(7)
    runs = [scored(noise(kind, workers, steps, random)) for _ in range(100)]
    assert sum(bool(find_late_workers(scores)) for scores in runs) <= 2
    assert sum(bool(scores.periods) for scores in runs) <= 2


def test_scores_are_as_the_schema_says_and_come_back() -> None:
    """What a record keeps of a run with a straggler and periodic pauses is what its schema describes."""
    ready = np.tile(with_extra(1, 0.012), 3)
    ready[0, ::8] += 0.2
    scores = scored(ready)
    assert scores.pauses
    assert scores.periods
    data = json.loads(json.dumps(scores.to_json()))
    jsonschema.validate(data, json_schema(WorkerTimings))
    assert WorkerTimings.from_json(data) == scores


def test_lone_worker_has_nobody_to_wait_for_it() -> None:
    """Alone, a worker is last to nobody; its pauses are its own."""
    ready = ALIKE[0] + 0.001 * np.random.default_rng(1).standard_normal(40)
    ready[7] += 0.3
    scores = compute_worker_timings([of("worker:0", ready, ready + UPDATE_S)], lockstep=True)
    assert scores is not None
    assert scores.workers["worker:0"].last is None
    assert [(pause.step, pause.worker) for pause in scores.pauses] == [(8, "worker:0")]


def reported(begin: Numbers, end: Numbers) -> WorkerTimings:
    """Of workers (rows) that tell when each of their steps (columns) begins and ends, each on a clock of its own."""
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


def reported_steps(between: Numbers, within: Numbers) -> tuple[Numbers, Numbers]:
    """When steps begin and end that are exchanged in their last part: whoever comes first waits for the last."""
    begin, end, now = np.empty_like(between), np.empty_like(between), np.zeros(len(between))
    for step in range(between.shape[1]):
        begin[:, step] = now + between[:, step]
        now = np.full(len(between), (begin[:, step] + within[:, step]).max())
        end[:, step] = now
    return begin, end


def test_who_reports_its_steps_late_is_named() -> None:
    """A program whose worker takes longer between its steps, as to read a batch: the others wait within theirs."""
    random = np.random.default_rng(1)
    between = 0.01 + 0.002 * random.random((3, 60))
    between[1] += 0.012
    scores = reported(*reported_steps(between, np.full((3, 60), 0.1)))
    (found,) = find_late_workers(scores)
    assert found.worker == "worker:1"
    assert found.late_s == pytest.approx(0.012, abs=0.001)
    assert describe_late_worker(found).startswith("worker:1 was last in 100 % of steps, by 1")
    assert "python +1" in describe_late_worker(found)
    score = scores.workers["worker:1"]
    assert (score.steps, score.compute_s, score.receive_s, score.ready_s) == (60, None, None, None)
    assert scores.step_s == pytest.approx(0.108, abs=0.002)  # the seconds between steps are in no rate, and in no step


def test_who_computes_longer_within_a_reported_step_is_not_known() -> None:
    """The others' steps are as long, for they wait: nobody is named, and not somebody else."""
    random = np.random.default_rng(1)
    within = 0.1 + 0.002 * random.random((3, 60))
    within[1] += 0.02
    assert not find_late_workers(reported(*reported_steps(np.full((3, 60), 0.01), within)))


def ending_apart(*extra_s: float) -> WorkerTimings:
    """Of workers that exchange between their steps, begin them at once, and take so much longer within each."""
    within = 0.1 + 0.002 * np.random.default_rng(1).random((len(extra_s), 60)) + np.array(extra_s)[:, None]
    begin = np.cumsum(within.max(axis=0) + 0.01) + np.zeros((len(extra_s), 1))
    return reported(begin, begin + within)


def test_reported_steps_that_end_apart_name_the_longest() -> None:
    """Of workers that begin their steps at once, the one whose own steps are longer is late by that."""
    for late in range(3):
        scores = ending_apart(*(0.02 * (late == worker) for worker in range(3)))
        (found,) = find_late_workers(scores)
        assert (found.worker, found.last) == (f"worker:{late}", 1.0)
        assert found.late_s == pytest.approx(0.02, abs=0.002)


def test_reported_steps_that_end_apart_do_not_call_the_fastest_late() -> None:
    """Of workers that begin their steps at once, the one of the shortest is the fastest: nobody is late."""
    scores = ending_apart(0.0, -0.02, 0.0)
    assert scores.workers["worker:1"].last == 0.0
    assert not find_late_workers(scores)


def test_a_reported_step_that_stands_out_is_told() -> None:
    """Pauses within steps, and none for what is done between them."""
    within = np.full((2, 60), 0.1)
    within[:, 30] += 0.5
    between = np.full((2, 60), 0.01)
    between[:, 10::10] += 3.0  # an evaluation
    scores = reported(*reported_steps(between, within))
    (pause,) = scores.pauses
    assert (pause.step, pause.worker) == (31, None)
    assert pause.seconds == pytest.approx(0.5)
    assert scores.periods == []
