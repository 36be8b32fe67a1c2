"""Tests of what a search for slow hosts reads from its runs."""

from dataclasses import replace

import pytest

from pytest_dtfperf.datamodel.step_times import WorkerTiming, WorkerTimings
from pytest_dtfperf.qualify.isolation import IsolationCost, find_late_hosts, list_excluded, measure_pace
from pytest_dtfperf.qualify.search import SlowSet, SlowSetKind
from tests.baselines.examples import run_of, spec_of

HOSTS = {"worker:0": "a", "worker:1": "b", "worker:2": "c"}


def make_timing(late_s: float) -> WorkerTiming:
    """Return the timing of a worker that is so much later than the others."""
    return WorkerTiming(
        steps=100,
        python_s=0.001,
        receive_s=0.02,
        finish_s=0.02,
        cpu_s=0.1,
        compute_s=0.1 + max(0.0, late_s),
        ready_s=0.121 + max(0.0, late_s),
        ready_error_s=0.0005,
        last=float(late_s > 0),
        late_s=late_s,
        late_error_s=0.0005,
        behind=float(late_s > 0),
    )


def test_late_worker_names_its_host() -> None:
    """A worker that the others wait for in each step gives its host, with a sentence about the lateness."""
    timings = WorkerTimings(
        steps=100, step_s=0.2, workers={name: make_timing(0.05 if name == "worker:1" else -0.05) for name in HOSTS}
    )
    found = find_late_hosts(replace(run_of(10.0), task_hosts=HOSTS, worker_timings=timings))
    assert list(found) == ["b"]
    assert found["b"].startswith("worker:1 (b) was last in 100 % of steps, by 50.0 ms: compute +50.0 ms")


def test_run_without_timings_names_no_host() -> None:
    """A run without step timings names no late host."""
    assert find_late_hosts(replace(run_of(10.0), task_hosts=HOSTS)) == {}


def test_pace_of_independent_workers_is_that_of_the_slowest() -> None:
    """The pace of independent workers is computed as if all were as slow as the slowest."""
    run = replace(run_of(100.0), step_s={"worker:0": [0.1, 0.1], "worker:1": [0.4, 0.4]})
    assert measure_pace(spec_of(gpus=2, batch_size=8), run) == 100.0
    apart = spec_of(gpus=2, batch_size=8, variable_update="independent", num_ps=0)
    assert measure_pace(apart, run) == pytest.approx(2 * 8 / 0.4)


def test_excluded_hosts_are_few() -> None:
    """One host of a slow link is excluded, unless another finding excludes the other one, and all of a distant group are."""

    def exclude(*findings: tuple[SlowSetKind, list[str]]) -> list[str]:
        return list_excluded([SlowSet(kind=kind, hosts=hosts, slowdown=0.2, runs=2) for kind, hosts in findings])

    assert exclude((SlowSetKind.LINK, ["a", "b"])) == ["a"]
    assert exclude((SlowSetKind.HOST, ["b"]), (SlowSetKind.LINK, ["a", "b"])) == ["b"]
    assert exclude((SlowSetKind.BETWEEN, ["a", "b"])) == ["a", "b"]
    assert exclude((SlowSetKind.BETWEEN, [])) == []


def test_cost_is_stated_in_trainings_and_minutes() -> None:
    """The cost has both numbers of trainings and of rounds, and minutes once a training was timed."""
    unknown = IsolationCost(runs=[16, 25], rounds=[4, 12], seconds=None)
    assert str(unknown) == "16 trainings in 4 rounds if no host is slow, about 25 in 12 if one is"
    assert str(replace(unknown, seconds=[240.0, 720.0])).endswith("if one is: 4 min to 12 min")
