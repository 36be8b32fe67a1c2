"""Why judgements are not green: what is gathered of both sides, kept with baselines, and what goes wrong with it."""

import json
from dataclasses import replace
from typing import Any

import pytest

from pytest_dtfperf.baselines.canonical import canonical
from pytest_dtfperf.baselines.checks import Check, Side, ask
from pytest_dtfperf.baselines.entry import Entry
from pytest_dtfperf.baselines.steps import MOST_TASKS
from pytest_dtfperf.baselines.terms import Terms
from pytest_dtfperf.explain.anatomy import Anatomy
from pytest_dtfperf.explain.evidence import Evidence
from pytest_dtfperf.explain.scores import Scores
from pytest_dtfperf.explain.strain import PHRASES
from pytest_dtfperf.explain.strain import strains as strains_of
from pytest_dtfperf.launch.disturbance import disturbances
from pytest_dtfperf.measurement import Measurement
from pytest_dtfperf.session.evidence import of_entry, of_measurement
from pytest_dtfperf.session.explaining import told
from tests.baselines.examples import entry_of, measurement_of
from tests.explain.sides import side, slower, stamped


def traced(rates: list[float], anatomy: Anatomy | None = None, scores: Scores | None = None, **changes: Any) -> Measurement:
    """Whose last run but one was traced, the last one being disturbed."""
    measured = measurement_of([*rates, 1.0], disturbed=[len(rates)], gpus=2, batch_size=32, **changes)
    runs = list(measured.runs)
    runs[-2] = replace(
        runs[-2], anatomy=anatomy.to_json() if anatomy else None, stragglers=scores.to_json() if scores else None
    )
    return replace(measured, runs=runs)


def checked(measurement: Measurement, entry: Entry | None) -> Check:
    judgement = ask("baseline", Terms(margin=0.05), measurement, entry=entry)
    seen = Side(record="x", runs=len(measurement.runs), entry=entry)
    return Check(kind="baseline", terms=Terms(margin=0.05), side=seen, verdict=judgement.verdict, reason=judgement.reason)


def accepted(measurement: Measurement) -> Entry:
    return Entry.of(measurement, entry_of([1.0, 1.0]).provenance)


def test_a_baseline_of_traced_steps_explains() -> None:
    """A baseline keeps its last traced run's anatomy and scores, and what regressed against it is told with its cause."""
    good, bad = side(), side(*slower(python=50))
    assert good.anatomy
    assert bad.anatomy
    entry = accepted(traced([457.1, 457.0, 457.2], good.anatomy))
    read = Entry.from_json(entry.key, json.loads(canonical(entry.to_json())))
    assert read == entry
    assert of_entry(read, measurement_of([1.0]).spec).step_s[0] == pytest.approx(0.14, rel=1e-3)
    now = traced([336.8, 336.9, 336.7], bad.anatomy)
    why = told(checked(now, read), now, None, "daint")
    (cause,) = why["explanation"]["causes"]
    assert (cause["kind"], cause["location"]) == ("straggler", "worker:1")
    assert 1e3 * cause["seconds"] == pytest.approx(50, rel=0.05)


@pytest.mark.parametrize(("how", "waited_for"), [({}, True), ({"cross_replica_sync": False}, False)], ids=["all", "nobody"])
def test_all_wait_only_where_steps_are_common(how: dict[str, Any], waited_for: bool) -> None:
    """Of workers that train without waiting for each other one may be slower; nobody waits for it."""
    then = accepted(traced([457.1, 457.0, 457.2], side().anatomy, **how))
    now = traced([336.8, 336.9, 336.7], side(*slower(python=50)).anatomy, **how)
    (cause,) = told(checked(now, then), now, None, None)["explanation"]["causes"]
    assert cause["words"].endswith("; all wait for it") == waited_for


def test_what_a_baseline_keeps_is_small() -> None:
    """Of a hundred workers it keeps as many as tell what is usual, in six digits."""
    many = side(*[{}] * 100)
    scores = stamped(*[{}] * 100, step_ms=130).scores
    entry = accepted(traced([457.0, 457.0], many.anatomy, scores))
    assert entry.anatomy
    assert entry.stragglers
    assert len(entry.anatomy["tasks"]) == MOST_TASKS + 1
    assert len(entry.stragglers["workers"]) == MOST_TASKS
    assert len(canonical(entry.to_json())) < 60_000


def test_damage_costs_the_explanation_alone() -> None:
    """What no anatomy is, and numbers that no file can hold, end in one line that says so; an endless step explains nothing."""
    entry = accepted(traced([457.0, 457.0], side().anatomy))
    now = traced([336.0, 336.0], side().anatomy)
    check = checked(now, entry)

    def with_anatomy(data: dict[str, Any]) -> Measurement:
        return replace(now, runs=[replace(run, anatomy=data if run.anatomy else None) for run in now.runs])

    (why,) = told(check, with_anatomy({"tasks": 1}), None, None).items()
    assert why[0] == "unexplained"
    assert why[1].startswith("cannot be explained: TypeError: ")
    assert "\n" not in why[1]
    endless = told(check, with_anatomy({**(now.runs[-2].anatomy or {}), "wall_s": float("nan"), "tasks": {}}), None, None)
    assert endless["explanation"]["causes"] == []
    assert endless["explanation"]["unexplained_s"] == pytest.approx(64 / 336 - 64 / 457)
    boundless = replace(check, side=replace(check.side, entry=replace(entry, samples=[float("nan")] * 2)))
    assert told(boundless, now, None, None) == {
        "unexplained": "cannot be explained: ValueError: Out of range float values are not JSON compliant"
    }


def test_green_verdicts_and_new_ones_need_no_reason() -> None:
    """What passed, and what has no baseline, is not explained."""
    good = traced([457.0, 457.0, 457.0])
    assert told(checked(good, accepted(good)), good, None, None) == {}
    assert told(checked(good, None), good, None, None) == {}


def test_a_traced_run_is_preferred() -> None:
    """Of several runs the last one counts that was traced and that nobody disturbed."""
    found = of_measurement(traced([457.0, 457.0], side().anatomy), "daint")
    assert found.anatomy
    assert found.disturbances == []
    assert len(found.step_s) == 2
    assert found.cluster == "daint"


def test_disturbances_count_where_the_runs_do() -> None:
    """What disturbed a run that was thrown away slowed no run that counts; what disturbed all of them is told."""
    assert of_measurement(measurement_of([1.0, 1.0], disturbed=[0])).disturbances == []
    assert of_measurement(measurement_of([1.0, 1.0], disturbed=[0, 1])).disturbances == ["somebody else's job"]


def test_every_disturbance_is_understood() -> None:
    """Whatever is said of a disturbed host, but its memory's errors, speaks for a kind of cause."""
    gpu = {
        "index": "0",
        "before": {"utilisation": 50.0, "ecc_uncorrected": 0},
        "after": {"ecc_uncorrected": 0},
        "others": [{"name": "python", "pid": 1}],
        "during": {"looks": 10, "reasons": {"hw_thermal_slowdown": 10}},
    }
    state = {
        "window_s": 10.0, "cores": 2, "cpus": "0-1", "quota": False, "machine": "m", "throttled_s": 9.0,
        "cpu": {"busy_s": 20.0, "own_s": 5.0, "controller_s": 0.0, "steal_s": 5.0},
        "memory": {"some_s": 9.0, "full_s": 1.0, "swapped_in_mib": 9000}, "gpus": [gpu],
    }  # fmt: skip
    phrases = disturbances({"node03": state})
    found = strains_of(Evidence(), Evidence(disturbances=phrases))
    assert len(found) == len(phrases) >= 7
    assert {each.kind for each in found} == set(PHRASES.values())
    assert {host for each in found for host in each.hosts} == {"node03"}
