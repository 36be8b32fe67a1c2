"""Tests of the parts of a step's time, of traces made by hand with known answers and of real ones."""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_dtfperf.baselines.json_schema import json_schema
from pytest_dtfperf.codec import ValidationError
from pytest_dtfperf.datamodel.step_times import KINDS, StepBreakdown
from pytest_dtfperf.explain.step_breakdown import compute_step_breakdown
from pytest_dtfperf.spec import Spec
from pytest_dtfperf.traces import InvalidTrace, TaskTrace
from pytest_dtfperf.training.models import get_network
from pytest_dtfperf.training.models.outline import compute_outline
from tests.explain.made import MODES, Session, Times, load_real_traces, make_training, rename_tasks, shift_clocks

SCHEMA = json_schema(StepBreakdown)
LOCKSTEP = {mode: mode != "independent" for mode in MODES}

lengths = st.integers(1, 10_000)
times = st.builds(Times, **dict.fromkeys(Times.__dataclass_fields__, lengths))
trainings = st.builds(make_training, st.lists(times, min_size=1, max_size=4), apply=lengths, token=lengths, done=lengths)


def bind_clocks(traces: Sequence[TaskTrace]) -> dict[tuple[str, str], int]:
    """Return bounds of zero between the clocks of all tasks, as on one host."""
    tasks = ["ps:0", *(trace.task for trace in traces)]
    return {(one, other): 0 for one in tasks for other in tasks if one != other}


def sum_path(breakdown: StepBreakdown) -> Mapping[tuple[str, str | None], float]:
    found: Counter[tuple[str, str | None]] = Counter()
    for part in breakdown.path:
        found[part.kind, part.location] += part.seconds  # type: ignore[assignment]  # typeshed counts in whole numbers
    return found


def assert_adds_up(breakdown: StepBreakdown) -> None:
    rounding = 1e-7 * (len(breakdown.path) + len(KINDS))
    assert math.isclose(sum(part.seconds for part in breakdown.path), breakdown.wall_s, abs_tol=rounding)
    assert all(part.seconds >= 0 for part in breakdown.path)
    for of_task in breakdown.tasks.values():
        assert math.isclose(sum(of_task.parts.values()), of_task.wall_s, abs_tol=rounding)
        assert all(seconds >= 0 for seconds in of_task.parts.values())


def test_critical_path_is_the_slowest_workers_step() -> None:
    """The worker that receives values late has all of its parts on the path, and the other one only the end of the step."""
    traces = make_training([Times(), Times(receive=300)])
    path = sum_path(compute_step_breakdown(traces, clocks=bind_clocks(traces)))
    assert {key: round(1e6 * seconds) for key, seconds in path.items()} == {
        ("python", "worker:1"): 5,
        ("host", "worker:1"): 9,  # and a microsecond in which the parameter server reads the variable
        ("receive", "ps:0>worker:1"): 300,
        ("forward", "worker:1"): 50,
        ("backward", "worker:1"): 90,
        ("send", "worker:1>ps:0"): 80,
        ("apply", "ps:0"): 1 + 30 + 7,
        ("host", "worker:0"): 3,
    }


def test_transfers_on_the_path_name_their_variable() -> None:
    """The transfers on the path, of a value and of its gradient, have the name of their variable, and other parts have none."""
    traces = make_training([Times(), Times(send=900)])
    parts = compute_step_breakdown(traces, clocks=bind_clocks(traces)).path
    assert {part.kind: part.variable for part in parts if part.kind in ("send", "receive")} == {
        "send": "weights",
        "receive": "weights",
    }
    assert all(part.variable is None for part in parts if part.kind not in ("send", "receive"))


@given(trainings)
def test_path_has_the_slowest_workers_backward_pass(traces: list[TaskTrace]) -> None:
    """With any durations the path adds up, and has the backward pass of a slowest worker in full."""
    breakdown = compute_step_breakdown(traces, clocks=bind_clocks(traces))
    assert_adds_up(breakdown)
    arrived = {trace.task: max(r.end_us for r in trace.steps[0].received) for trace in traces}
    last = max(arrived.values())
    slowest = [task for task, at in arrived.items() if at == last]
    (of_path,) = [part for part in breakdown.path if part.kind == "backward"]
    assert of_path.location in slowest
    (trace,) = [trace for trace in traces if trace.task == of_path.location]
    ran = {trace.operations[r.operation].name: r.end_us - r.start_us for r in trace.steps[0].ran}
    assert of_path.seconds == pytest.approx(ran["tower0/gradients/backward"] / 1e6)


@given(trainings)
def test_parts_add_up_with_unknown_clocks(traces: list[TaskTrace]) -> None:
    """If only the trace bounds the clocks, the parts add up to the step, and none is negative."""
    breakdown = compute_step_breakdown(traces)
    assert_adds_up(breakdown)
    assert all(error >= 0 for error in breakdown.clock_error_s.values())


@given(trainings, st.lists(st.integers(-(10**9), 10**9), min_size=5, max_size=5))
def test_clocks_of_hosts_do_not_change_the_breakdown(traces: list[TaskTrace], ahead: list[int]) -> None:
    """A training on hosts with clocks a quarter of an hour apart has the same step breakdown."""
    tasks = ["ps:0", *(trace.task for trace in traces)]
    off = dict(zip(tasks, ahead, strict=False))
    assert compute_step_breakdown([shift_clocks(trace, off) for trace in traces]) == compute_step_breakdown(traces)


@given(trainings, st.permutations([f"worker:{i}" for i in range(4)]))
def test_names_of_tasks_do_not_change_the_breakdown(traces: list[TaskTrace], names: list[str]) -> None:
    """Workers with other names have the same step breakdown under their new names."""
    renamed = {trace.task: name for trace, name in zip(traces, names, strict=False)}
    before, after = compute_step_breakdown(traces), compute_step_breakdown([rename_tasks(trace, renamed) for trace in traces])
    assert after.wall_s == before.wall_s
    assert sorted(part.seconds for part in after.path) == sorted(part.seconds for part in before.path)
    assert {renamed.get(task, task): parts for task, parts in before.tasks.items()} == after.tasks


def test_time_of_a_task_counts_as_computing_first() -> None:
    """Transfers during computing are not counted, time without an event is the host's, and time before the call is Python's."""
    session = Session("worker:0", begin=0, called=10, end=100)
    session.run("tower0/forward", 20, 60)
    session.run("tower0/gradients/backward", 50, 70, "tower0/forward")
    session.run("read", 12, 15, "w", on="ps:0", kind="ReadVariableOp")
    session.receive("read", 90, "ps:0", "worker:0")
    traces = [session.trace()]
    of_task = compute_step_breakdown(traces, clocks=bind_clocks(traces)).tasks["worker:0"]
    found = {kind: round(1e6 * seconds) for kind, seconds in of_task.parts.items()}
    assert found == {"python": 10, "host": 2 + 10, "apply": 3, "receive": 5 + 20, "forward": 40, "backward": 10}
    assert of_task.cpu_s == pytest.approx(50e-6)


def test_sleep_before_the_call_is_python() -> None:
    """A sleep outside of the session is Python of this worker on the path, and waiting of the other worker."""
    traces = make_training([Times(), Times(python=5000)])
    breakdown = compute_step_breakdown(traces, clocks=bind_clocks(traces))
    assert breakdown.path[0].kind == "python"
    assert breakdown.path[0].location == "worker:1"
    assert max(breakdown.tasks["worker:0"].parts, key=lambda kind: breakdown.tasks["worker:0"].parts[kind]) == "wait"


def test_link_without_clocks_has_no_rate() -> None:
    """A link with clock errors as large as its transfers has bytes and no rate, and with known clocks it has both."""
    traces = make_training([Times(send=1), Times(send=1)])
    loose = {(link.source, link.destination): link for link in compute_step_breakdown(traces).links}
    tight = {(link.source, link.destination): link for link in compute_step_breakdown(traces, clocks=bind_clocks(traces)).links}
    assert loose["worker:1", "ps:0"].bytes_per_s is None
    assert loose["worker:1", "ps:0"].size_bytes == 4000
    assert tight["worker:1", "ps:0"].bytes_per_s == pytest.approx(4000 / 1e-6)


def test_traces_too_short_are_refused() -> None:
    """A trace of one step is refused, since the first step is never counted, and so are traces of no worker."""
    with pytest.raises(InvalidTrace, match="1 steps, and the first is never counted"):
        compute_step_breakdown([TaskTrace("worker:0", [], [], make_training([Times()])[0].steps[:1])])
    with pytest.raises(InvalidTrace, match="of no worker"):
        compute_step_breakdown([])


def test_step_that_ends_before_it_begins_is_refused() -> None:
    """A trace with a step of negative duration, from a clock that was set back, is refused."""
    chief, other = make_training([Times(), Times()])
    first, second = other.steps
    torn = replace(other, steps=[first, replace(second, end_us=second.end_us - 1_000_000)])
    for lockstep in (True, False):
        with pytest.raises(InvalidTrace, match=r"of worker:1 has a step that ends before it begins: its host's clock was set"):
            compute_step_breakdown([chief, torn], lockstep=lockstep)


def test_worker_with_unknown_clock_has_its_own_parts() -> None:
    """A worker with an unknown clock has the parts of its own time, and no part of the path."""
    workers = [Session(f"worker:{number}", begin=0, called=10, end=100 + 50 * number) for number in range(2)]
    for number, session in enumerate(workers):
        session.run("tower0/forward", 20, 90 + 50 * number)
    breakdown = compute_step_breakdown([session.trace() for session in workers])
    assert_adds_up(breakdown)
    assert {part.location for part in breakdown.path} == {"worker:0"}
    assert breakdown.clock_error_s.keys() == {"worker:0"}
    forward_us = {name: round(1e6 * task.parts["forward"]) for name, task in breakdown.tasks.items()}
    assert forward_us == {"worker:0": 70, "worker:1": 120}


def test_schema_refuses_an_unknown_kind() -> None:
    """Schema and reader refuse an unknown kind of work in the path and in the errors."""
    data = compute_step_breakdown(load_real_traces("parameter_server")).to_json()
    for damage in ({"path": [{**data["path"][0], "kind": "sleep"}]}, {"error_s": {"sleep": 0.1}}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**data, **damage}, SCHEMA)
        with pytest.raises(ValidationError):
            StepBreakdown.from_json({**data, **damage})


@pytest.mark.parametrize("mode", MODES)
def test_real_steps_add_up(mode: str) -> None:
    """Path and tasks of real steps of each mode add up, fit the schema in fewer than 5,000 characters, and survive JSON."""
    breakdown = compute_step_breakdown(load_real_traces(mode), lockstep=LOCKSTEP[mode])
    assert_adds_up(breakdown)
    text = json.dumps(breakdown.to_json())
    jsonschema.validate(json.loads(text), SCHEMA)
    assert len(text) < 5000
    assert StepBreakdown.from_json(json.loads(text)) == breakdown


@pytest.mark.parametrize("mode", MODES)
def test_clocks_do_not_change_the_breakdown_of_real_steps(mode: str) -> None:
    """Real traces with clocks minutes apart have the same step breakdown."""
    off = {"ps:0": -180_000_000, "ps:1": 7, "worker:1": 300_000_001}
    traces = [shift_clocks(trace, off) for trace in load_real_traces(mode)]
    lockstep = LOCKSTEP[mode]
    assert compute_step_breakdown(traces, lockstep=lockstep) == compute_step_breakdown(
        load_real_traces(mode), lockstep=lockstep
    )


@pytest.mark.parametrize("mode", ["parameter_server", "distributed_replicated"])
def test_bytes_on_real_links_are_those_of_the_variables(mode: str) -> None:
    """Each real worker receives and sends the bytes of all variables once a step, within 1 %."""
    variables = sum(variable.size for variable in compute_outline(get_network(Spec(model="mnist", batch_size=16))).trained) * 4
    links = compute_step_breakdown(load_real_traces(mode)).links
    for worker in ("worker:0", "worker:1"):
        assert sum(link.size_bytes for link in links if link.destination == worker) == pytest.approx(variables, rel=0.01)
        assert sum(link.size_bytes for link in links if link.source == worker) == pytest.approx(variables, rel=0.01)
    assert {"dense0/weights", "small_pack0"} <= {name for link in links for name in link.variables}


def test_path_of_a_lone_process_is_its_own_time() -> None:
    """The path of a process with one worker has the seconds of its task for each kind, to 2 % of the step."""
    breakdown = compute_step_breakdown(load_real_traces("replicated"))
    path = {str(kind): sum(part.seconds for part in breakdown.path if part.kind == kind) for kind in KINDS}
    for kind, seconds in breakdown.tasks["worker:0"].parts.items():
        assert path[kind] == pytest.approx(seconds, abs=0.02 * breakdown.wall_s)
