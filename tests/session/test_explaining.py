"""Explanations of judgements: data of both sides, stored with baselines, and errors."""

import json
import re
import shlex
from dataclasses import replace
from typing import Any, Literal

import pytest

from pytest_dtfperf.baselines.checks import ask
from pytest_dtfperf.baselines.entry import MOST_TASKS, Entry
from pytest_dtfperf.baselines.files import canonical
from pytest_dtfperf.baselines.judgement import Judgement
from pytest_dtfperf.baselines.terms import ComparisonPolicy
from pytest_dtfperf.baselines.verdict import Verdict
from pytest_dtfperf.datamodel.explanation import CauseKind
from pytest_dtfperf.datamodel.host_state import Disturbance
from pytest_dtfperf.datamodel.measurement import Measurement
from pytest_dtfperf.datamodel.step_times import StepBreakdown, WorkerTimings
from pytest_dtfperf.explain.host_pressure import find_host_pressures as strains_of
from pytest_dtfperf.explain.measurement_profile import MeasurementProfile
from pytest_dtfperf.launch.disturbance import find_disturbances
from pytest_dtfperf.records.record import Record
from pytest_dtfperf.session.explanation import describe_cause, explain_record, profile_entry, profile_measurement
from tests.baselines.examples import HARDWARE, entry_of, measurement_of, spec_of
from tests.explain.sides import make_side, make_timestamped_side, slow_one
from tests.records.host_states import make_state


def make_traced_measurement(
    rates: list[float], breakdown: StepBreakdown | None = None, scores: WorkerTimings | None = None, **changes: Any
) -> Measurement:
    """Return a measurement with a traced last run but one, and a disturbed last run."""
    measured = measurement_of([*rates, 1.0], disturbed=[len(rates)], gpus=2, batch_size=32, **changes)
    runs = list(measured.runs)
    runs[-2] = replace(runs[-2], step_breakdown=breakdown, worker_timings=scores)
    return replace(measured, runs=runs)


def check_measurement(measurement: Measurement, entry: Entry | None) -> Judgement:
    return ask("baseline", ComparisonPolicy(margin=0.05), measurement, entry=entry)


def make_entry(measurement: Measurement) -> Entry:
    return Entry.from_measurement(measurement, entry_of([1.0, 1.0]).provenance)


def test_traced_baseline_explains_a_regression() -> None:
    """A stored baseline has the breakdown of its last traced run, and a regression against it has a cause."""
    good, bad = make_side(), make_side(*slow_one(python=50))
    assert good.step_breakdown
    assert bad.step_breakdown
    entry = make_entry(make_traced_measurement([457.1, 457.0, 457.2], good.step_breakdown))
    read = Entry.from_json({"key": entry.key, **json.loads(canonical(entry.to_file_json()))})
    assert read == entry
    assert profile_entry(read, make_traced_measurement([1.0])).step_s[0] == pytest.approx(0.14, rel=1e-3)
    current = make_traced_measurement([336.8, 336.9, 336.7], bad.step_breakdown)
    why = describe_cause(check_measurement(current, read), current, None, "--cluster=daint")
    (cause,) = why["explanation"].causes
    assert (cause.kind, cause.location) == ("straggler", "worker:1")
    assert 1e3 * cause.seconds == pytest.approx(50, rel=0.05)


@pytest.mark.parametrize(("how", "waited_for"), [({}, True), ({"cross_replica_sync": False}, False)], ids=["all", "none"])
def test_others_wait_only_for_synchronous_workers(how: dict[str, Any], waited_for: bool) -> None:
    """The cause of a slow worker states that all wait for it only if steps are synchronous."""
    baseline = make_entry(make_traced_measurement([457.1, 457.0, 457.2], make_side().step_breakdown, **how))
    current = make_traced_measurement([336.8, 336.9, 336.7], make_side(*slow_one(python=50)).step_breakdown, **how)
    (cause,) = describe_cause(check_measurement(current, baseline), current, None, None)["explanation"].causes
    assert cause.words.endswith("; all wait for it") == waited_for


def test_baseline_keeps_a_limited_number_of_tasks() -> None:
    """A baseline of 100 workers keeps a limited number of tasks and worker timings."""
    many = make_side(*[{}] * 100)
    scores = make_timestamped_side(*[{}] * 100, step_ms=130).worker_timings
    entry = make_entry(make_traced_measurement([457.0, 457.0], many.step_breakdown, scores))
    assert entry.step_breakdown
    assert entry.worker_timings
    assert len(entry.step_breakdown.tasks) == MOST_TASKS + 1
    assert len(entry.worker_timings.workers) == MOST_TASKS
    assert len(canonical(entry.to_file_json())) < 60_000


def test_failed_explanation_is_one_line() -> None:
    """Numbers that JSON cannot express give one line instead of an explanation."""
    entry = make_entry(make_traced_measurement([457.0, 457.0], make_side().step_breakdown))
    current = make_traced_measurement([336.0, 336.0], make_side().step_breakdown)
    check = check_measurement(current, entry)

    boundless = replace(check, entry=replace(entry, samples=[float("nan")] * 2))
    assert describe_cause(boundless, current, None, None) == {
        "unexplained": "cannot be explained: ValueError: Out of range float values are not JSON compliant"
    }


def test_passed_and_new_measurements_have_no_explanation() -> None:
    """A measurement that passed, or has no baseline, has no explanation."""
    good = make_traced_measurement([457.0, 457.0, 457.0])
    assert describe_cause(check_measurement(good, make_entry(good)), good, None, None) == {}
    assert describe_cause(check_measurement(good, None), good, None, None) == {}


def test_profile_uses_the_last_traced_run() -> None:
    """A profile has the breakdown of the traced and undisturbed run, and all undisturbed runs."""
    found = profile_measurement(make_traced_measurement([457.0, 457.0], make_side().step_breakdown), "--cluster=daint")
    assert found.step_breakdown
    assert found.disturbances == []
    assert len(found.step_s) == 2
    assert found.cluster == "--cluster=daint"


def test_profile_has_disturbances_only_if_all_runs_have() -> None:
    """Disturbances of one run are left out of a profile; those of all runs are in it."""
    assert profile_measurement(measurement_of([1.0, 1.0], disturbed=[0])).disturbances == []
    assert profile_measurement(measurement_of([1.0, 1.0], disturbed=[0, 1])).disturbances == [
        Disturbance(message="somebody else's job")
    ]


def make_two_sides(kind: Literal["efficiency", "overhead"], **changes: Any) -> tuple[Judgement, Measurement, Measurement]:
    """Return a check of two measurements, of which one has a worker that computes longer."""
    alone = make_traced_measurement([457.0, 457.0], make_side(*slow_one(workers=1, worker=0)).step_breakdown, **changes)
    other = replace(alone, spec=spec_of(gpus=1))
    current = make_traced_measurement(
        [336.8, 336.9], make_side(*slow_one(backward=50), cpu_ms=(90.0, 140.0)).step_breakdown, **changes
    )
    if kind == "overhead":
        other = make_traced_measurement([457.0, 457.0], make_side().step_breakdown, **changes)
    terms = ComparisonPolicy(margin=0.05, threshold=0.9)
    return Judgement(Verdict.REGRESSED, "", kind=kind, terms=terms, runs=2, other="x", other_runs=2), current, other


def put_on_hosts(measurement: Measurement, *hosts: str, **machines: str) -> Measurement:
    """Place the workers on these hosts, which are parts of these machines, with one device each."""
    state = {host: make_state(machine=machine, cpus="0", cores=1) for host, machine in machines.items()}
    placed = {f"worker:{number}": host for number, host in enumerate(hosts)}
    more: dict[str, Any] = {
        "task_hosts": {**placed, "ps:0": hosts[0]},
        "task_devices": dict.fromkeys(placed, 1),
        "state": state,
    }
    return replace(measurement, runs=[replace(run, **more) for run in measurement.runs])


GPUS = {**HARDWARE, "gpus": [{"name": "H100", "memory_gib": 80}] * 2}


@pytest.mark.parametrize(
    ("kind", "name", "when"),
    [
        ("efficiency", "the anchor", "in the anchor"),
        ("overhead", "the training with synthetic input", "with synthetic input"),
    ],
)
def test_check_of_two_measurements_names_the_other(kind: Literal["efficiency", "overhead"], name: str, when: str) -> None:
    """The sentences of a check of two measurements name the other one, and never a baseline."""
    check, current, other = make_two_sides(kind, hardware=GPUS)
    found = describe_cause(check, put_on_hosts(current, "n1", "n2"), other, "--cluster=daint")
    (cause,) = found["explanation"].causes
    assert re.fullmatch(rf"worker:1 \(n2\) computes \d+ % slower than {name}; all wait for it", cause.words)
    assert any(line.endswith(f" ms {when}") for line in cause.evidence)
    assert "baseline" not in json.dumps({**found["explanation"].to_json(), "baseline_step_s": 0}).replace(
        '"baseline_step_s"', ""
    )
    untraced = describe_cause(check, measurement_of([336.8, 336.9]), measurement_of([457.0, 457.0]), None)
    assert untraced["explanation"].notes[0].startswith(f"no step of {name} was taken apart")


def test_cause_at_a_host_has_a_search_command() -> None:
    """If one of several hosts is a cause, the explanation has the command that searches for slow hosts."""
    check, current, other = make_two_sides("efficiency", hardware=GPUS)
    several = replace(put_on_hosts(current, "n1", "n2"), hosts=["n1", "n2"])
    command = shlex.split(describe_cause(check, several, other, "--cluster=daint")["explanation"].search)
    assert command[:2] == ["dtfperf", "isolate"]
    assert command[2:-1] == current.spec.to_arguments()
    assert command[-1] == "--cluster=daint"
    for without in (replace(several, hosts=["n1"]), replace(several, injected_slowdowns={"worker:1": 0.05})):
        assert describe_cause(check, without, other, "--cluster=daint")["explanation"].search == ""
    assert describe_cause(check, several, other, None)["explanation"].search == ""


APART: dict[str, tuple[tuple[str, str], dict[str, str], dict[str, Any], bool]] = {
    "one host": (("vm", "vm"), {}, {}, False),
    "two hosts of one machine": (("a", "b"), {"a": "m", "b": "m"}, {}, False),
    "two machines": (("a", "b"), {"a": "m", "b": "n"}, {}, True),
    "GPUs of one host": (("vm", "vm"), {}, {"hardware": GPUS}, True),
}


@pytest.mark.parametrize("case", APART)
def test_shared_memory_bus_is_a_note_and_no_cause(case: str) -> None:
    """Slower computation of several devices that share a memory bus is a note and no cause."""
    hosts, machines, changes, has_cause = APART[case]
    check, current, other = make_two_sides("efficiency", **changes)
    found = describe_cause(check, put_on_hosts(current, *hosts, **machines), other, None)["explanation"]
    assert bool(found.causes) == has_cause
    assert any("share a memory bus" in note for note in found.notes) != has_cause
    assert found.step_s - found.baseline_step_s == pytest.approx(
        found.unexplained_s + sum(cause.seconds for cause in found.causes)
    )


def test_injected_slowdown_is_a_cause_on_one_machine() -> None:
    """An injected slow-down is a cause, also on one machine."""
    check, _, other = make_two_sides("efficiency")
    current = put_on_hosts(
        make_traced_measurement(
            [336.8, 336.9], make_side(*slow_one(python=50)).step_breakdown, injected_slowdowns={"worker:1": 0.05}
        ),
        "vm",
        "vm",
    )
    (cause,) = describe_cause(check, current, other, None)["explanation"].causes
    assert cause.words.startswith("worker:1 (vm) sleeps for 51.0 ms before it asks for a step, 1.00 ms in the anchor")


@pytest.mark.parametrize("high", [1.02, 1.0, 0.99, None])
def test_undecided_comparison_is_explained_by_the_session_as_by_the_command(high: float | None) -> None:
    """`dtfperf explain` explains a stored undecided comparison if, and only if, its session explains it."""
    current = make_traced_measurement([336.8, 336.9, 336.7], make_side(*slow_one(python=50)).step_breakdown)
    entry = make_entry(make_traced_measurement([457.0] * 2, make_side().step_breakdown))
    interval = {"low": None, "high": None} if high is None else {"low": -0.1, "high": high - 1}
    judgement = replace(check_measurement(current, entry), verdict=Verdict.INCONCLUSIVE, **interval)
    stored = Record(id="a1", test="t", measurement=current, verdict=judgement.verdict, checks=(judgement,))
    in_session = describe_cause(judgement, current, None, None)
    assert bool(in_session) == bool(explain_record(stored, None)) == (high == 0.99)


@pytest.mark.parametrize(("high", "has_cause"), [(1.02, False), (1.0, False), (0.99, True)])
def test_undecided_comparison_without_a_loss_has_no_cause(high: float, has_cause: bool) -> None:
    """An undecided comparison with an interval that includes no loss has no explanation."""

    current, entry = (
        make_traced_measurement([336.8, 336.9, 336.7], make_side(*slow_one(python=50)).step_breakdown),
        make_entry(make_traced_measurement([457.0] * 2, make_side().step_breakdown)),
    )
    judgement = replace(check_measurement(current, entry), verdict=Verdict.INCONCLUSIVE, low=-0.1, high=high - 1)
    assert bool(describe_cause(judgement, current, None, None)) == has_cause
    for kind, low, end in (("overhead", 1 - high, 0.1), ("efficiency", 0.9, high)):
        judgement, current, other = make_two_sides(kind)  # type: ignore[arg-type]  # mypy takes them for any text
        judgement = replace(judgement, verdict=Verdict.INCONCLUSIVE, value=0.95, low=low, high=end)
        assert bool(describe_cause(judgement, current, other, None)) == has_cause


@pytest.mark.parametrize("batch_size", [0, 64])
def test_steps_of_a_program_are_reported_or_computed(batch_size: int) -> None:
    """The step of an external program is the reported one, else computed from the batch size, else unknown."""
    runs = measurement_of([100.0, 50.0], command=("own",), batch_size=batch_size)
    current, printed = (
        replace(runs, runs=[replace(run, step_s={"worker:0": [each_s] * 4} if is_reported else {}) for run in runs.runs])
        for each_s, is_reported in ((0.5, True), (0.5, False))
    )
    assert profile_measurement(current).step_s == pytest.approx([0.25, 0.5])  # 25 images in the last run's steps
    assert profile_entry(make_entry(runs), current).step_s == pytest.approx([0.25, 0.5])
    assert bool(profile_measurement(printed).step_s) == bool(batch_size)


def test_every_disturbance_has_a_kind_of_cause() -> None:
    """Each disturbance of a host becomes host pressure of a kind of cause."""
    gpu = {
        "index": "0",
        "before": {"utilisation": 50.0, "ecc_uncorrected": 0},
        "after": {"ecc_uncorrected": 0},
        "others": [{"name": "python", "pid": 1}],
        "during": {"samples": 10, "reasons": {"hw_thermal_slowdown": 10}},
    }
    state = make_state(
        throttled_s=9.0,
        cpu={"busy_s": 20.0, "own_s": 5.0, "controller_s": 0.0, "steal_s": 5.0},
        memory={"some_s": 9.0, "full_s": 1.0, "swapped_in_mib": 9000},
        gpus=[gpu],
    )
    phrases = find_disturbances({"node03": state})
    found = strains_of(MeasurementProfile(), MeasurementProfile(disturbances=phrases))
    assert len(found) == len(phrases) >= 7
    assert {each.kind for each in found} == {CauseKind.OTHERS, CauseKind.CLOCK, CauseKind.MEMORY}
    assert {host for each in found for host in each.hosts} == {"node03"}
