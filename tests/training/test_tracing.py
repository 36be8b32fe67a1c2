"""Steps traced after the measured ones, by real tasks in all modes."""

import dataclasses
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pytest_dtfperf.datamodel.task_report import TaskReport
from pytest_dtfperf.explain.step_breakdown import compute_step_breakdown
from pytest_dtfperf.spec import VARIABLE_UPDATES, Spec, VariableUpdate
from pytest_dtfperf.traces import TaskTrace, unpack_trace
from tests.training.conftest import RunTasks, RunTraining, driver, orders_of, report_of
from tests.training.programs import run_program

TRACED = 3

# The options of a training of two devices: in every mode, and for parameter_server also with others.
WAYS: dict[str, dict[str, int | bool]] = {
    **{
        mode: {"num_ps": int(row.parameter_servers), "cross_replica_sync": row.synchronous}
        for mode, row in VARIABLE_UPDATES.items()
        if row.requires is None
    },
    "parameter_server": {"num_ps": 2},
    "parameter_server, asynchronous": {"num_ps": 1, "cross_replica_sync": False},
    "parameter_server, staged": {"num_ps": 1, "staged_vars": True},
}


class Run(NamedTuple):
    """A training with traced steps."""

    spec: Spec
    workers: int
    reports: list[TaskReport]
    traces: list[TaskTrace]


def row_of(way: str) -> VariableUpdate:
    return VARIABLE_UPDATES[way.partition(",")[0]]


@pytest.fixture(scope="module")
def runs(run_tasks: RunTasks, tiny: Spec) -> Callable[[str], Run]:
    """Return a function that makes one training for each way."""

    @cache
    def run_mode(way: str) -> Run:
        spec = tiny.replace(variable_update=way.partition(",")[0], gpus=2, **WAYS[way])
        workers = 1 if spec.mode.one_process else 2
        return Run(spec, workers, *measure_with_traces(run_tasks, spec, workers))

    return run_mode


@pytest.fixture
def run(request: pytest.FixtureRequest, runs: Callable[[str], Run]) -> Run:
    """The training in one of them, however many tests look at it."""
    return runs(request.param)


def make_traces(run_tasks: RunTasks, spec: Spec, workers: int, **order: Any) -> list[TaskTrace]:
    """The traces of a training."""
    _, traces = measure_with_traces(run_tasks, spec, workers, **order)
    return traces


def measure_with_traces(
    run_tasks: RunTasks, spec: Spec, workers: int, *, traced_steps: int = TRACED, **order: Any
) -> tuple[list[TaskReport], list[TaskTrace]]:
    """Measure, and return the reports and the traces."""
    with orders_of(spec, workers=workers, traced_steps=traced_steps, **order) as orders:
        outcomes = run_tasks(orders)
    assert [outcome["code"] for outcome in outcomes] == [0] * len(outcomes), [o["events"][-1:] for o in outcomes]
    reports = [report_of(outcome) for outcome in outcomes]
    stepping = [report for report in reports if report.step_s]
    assert {len(report.step_s) for report in stepping} == {spec.steps}
    return reports, [
        unpack_trace(event["data"]) for outcome in outcomes for event in outcome["events"] if event["kind"] == "trace"
    ]


@pytest.mark.parametrize("servers_host, waits", [("localhost", True), ("127.0.0.1", False)], ids=["between hosts", "on one"])
def test_large_gradients_go_up_in_turn_between_hosts(run_tasks: RunTasks, tiny: Spec, servers_host: str, waits: bool) -> None:
    """distributed_replicated cuts what a server has, 12.8 MB of mnist in three. Between hosts each piece of a gradient waits at
    its worker until the one behind it has arrived, on one host none does; what is pushed and fetched is the same.
    """
    large = tiny.replace(model="mnist", batch_size=1, steps=1)
    spec = large.replace(variable_update="distributed_replicated", gpus=2, num_ps=1, variable_placement="split")
    for trace in make_traces(run_tasks, spec, 2, servers_host=servers_host, traced_steps=1):
        piece_of = {
            operation.name: trace.queues[operation.inputs[0]].partition("/gradient of")[0].rpartition("/")[2]
            for operation in trace.operations
            if operation.type == "QueueEnqueueV2"
            and (queue := trace.queues[operation.inputs[0]]).startswith("dense0/weights")
            and "gradient of" in queue
        }
        assert set(piece_of.values()) == {"part1of3", "part2of3", "part3of3"}
        arrived = [each.rpartition("_S")[0] for operation in trace.operations for each in operation.inputs]
        awaited = {piece_of[name] for name in arrived if name in piece_of}
        assert awaited == ({"part3of3", "part2of3"} if waits else set())


@pytest.mark.parametrize("servers_host, waits", [("localhost", True), ("127.0.0.1", False)], ids=["between hosts", "on one"])
def test_last_values_wait_for_the_first_between_hosts(run_tasks: RunTasks, tiny: Spec, servers_host: str, waits: bool) -> None:
    """parameter_server sends mnist's convolutions and the halves of its large layer, with which servers begin, at once. Between
    hosts the last layer waits on its servers until the convolutions' values have come; on one host nothing waits.
    """
    spec = tiny.replace(
        model="mnist", batch_size=1, steps=1, variable_update="parameter_server", gpus=2, num_ps=2, variable_placement="split"
    )
    for trace in make_traces(run_tasks, spec, 2, servers_host=servers_host, traced_steps=1):
        variables = {each.name: each.inputs[0] for each in trace.operations if each.type == "ReadVariableOp"}
        held_back = {
            variables[operation.inputs[0]]
            for operation in trace.operations
            if operation.inputs and operation.inputs[0] in variables and any("awaited" in each for each in operation.inputs)
        }
        fetched = {each.name: each.inputs[0].rpartition("_S")[0] for each in trace.operations if each.type == "Identity"}
        awaited = {
            variables[fetched[name]] for each in trace.operations if each.name == "tower0/awaited" for name in each.inputs
        }
        assert held_back == ({"dense1/weights", "dense1/bias"} if waits else set())
        assert awaited == ({"small_pack0", "conv1/weights"} if waits else set())


@pytest.mark.campaign(part=2)
@pytest.mark.parametrize("data", ["python-queue", "python-dataset"])
def test_taking_the_next_batch_is_input(run_tasks: RunTasks, tiny: Spec, data: str) -> None:
    """The time to get the next batch from a Python queue or pipeline is input, and not waiting."""
    spec = tiny.replace(model="mnist", variable_update="independent", gpus=1, data=data)
    (task,) = compute_step_breakdown(make_traces(run_tasks, spec, 1), lockstep=False).tasks.values()
    assert task.parts["input"] > 0
    assert not task.parts.get("wait")


def assert_graph_is_reported(run: Run) -> None:
    """Assert that each worker that computes reports its graph, and all workers their settings."""
    computes = {report.name for report in run.reports if report.graph}
    assert computes == {f"worker:{i}" for i in range(1 if run.spec.mode.single_session else run.workers)}
    (chief,) = (report for report in run.reports if report.name == "worker:0")
    assert chief.graph
    assert chief.graph.operations["Conv2D"] >= 1
    assert all(report.settings["intra_op_parallelism_threads"] == "1" for report in run.reports)


@pytest.mark.campaign(part=2)  # the modes have one engine
@pytest.mark.parametrize("run", [way for way in WAYS if row_of(way).engine == VariableUpdate.engine], indirect=True)
def test_steps_are_traced_after_the_measured_ones(run: Run) -> None:
    """Every session sends its trace and its graph. Its breakdown adds up, with forward and backward in every worker; no
    measured value changes.
    """
    assert_graph_is_reported(run)
    sessions = 1 if run.spec.mode.single_session else run.workers
    assert [trace.task for trace in run.traces] == [f"worker:{i}" for i in range(sessions)]
    assert all(len(trace.steps) == TRACED for trace in run.traces)
    breakdown = compute_step_breakdown(run.traces, lockstep=run.spec.in_lockstep or run.spec.mode.single_session)
    assert sum(part.seconds for part in breakdown.path) == pytest.approx(breakdown.wall_s, abs=1e-5)
    for task, of_task in breakdown.tasks.items():
        assert sum(of_task.parts.values()) == pytest.approx(of_task.wall_s, abs=1e-5)
        assert not task.startswith("worker") or {"forward", "backward"} <= of_task.parts.keys()


@pytest.mark.parametrize(
    "run, others",
    [("mirrored", {"reduce"}), ("multi_worker_mirrored", {"reduce"}), ("parameter_server_v2", {"receive"})],
    indirect=["run"],
)
def test_strategies_are_profiled(run: Run, others: set[str]) -> None:
    """The traces of TensorFlow 2's strategies have each worker's times without edges, their graphs are reported, and measured
    values do not change."""
    assert_graph_is_reported(run)
    assert [trace.task for trace in run.traces] == [f"worker:{i}" for i in range(run.workers)]
    assert sum(len(trace.steps) for trace in run.traces) == TRACED * run.workers
    assert not any(trace.edges for trace in run.traces)
    for task, breakdown in compute_step_breakdown(run.traces, lockstep=False).tasks.items():
        assert sum(breakdown.parts.values()) == pytest.approx(breakdown.wall_s, abs=1e-5)
        assert {"forward", "backward", *others} <= breakdown.parts.keys(), task


@pytest.mark.campaign(part=9)  # one function adds the timestamps to the graphs of all modes but those of strategies
@pytest.mark.parametrize("run", [way for way in WAYS if way in VARIABLE_UPDATES], indirect=True)
def test_another_run_computes_the_same(run_training: RunTraining, run: Run) -> None:
    """Each worker's graph is the same in a run without timestamps and traces."""
    again = run_training(run.spec, workers=run.workers, timestamped=(False,))
    assert {report.name: report.graph for report in run.reports} == {report.name: report.graph for report in again}


@pytest.mark.campaign(part=3)
@pytest.mark.parametrize(
    "mode, wire", [("parameter_server", "fp32"), ("parameter_server", "bf16"), ("distributed_replicated", "bf16")]
)
def test_parts_of_variables_are_named_in_links(run_tasks: RunTasks, tiny: Spec, mode: str, wire: str) -> None:
    """A transferred part of a variable has the variable's name and the part's number, in each direction."""
    spec = tiny.replace(variable_update=mode, gpus=2, num_ps=2, variable_placement="split", wire_precision=wire)
    breakdown = compute_step_breakdown(make_traces(run_tasks, spec, workers=2))
    named = {(each.source.split(":")[0], name) for each in breakdown.links for name in each.variables}
    for source in ("ps", "worker"):
        parts = {name for job, name in named if job == source and name.startswith("dense0/weights/part")}
        assert len(parts) > 1, named


def test_injected_sleep_is_python(run_tasks: RunTasks, tiny: Spec) -> None:
    """A worker that sleeps before each step has the critical path's Python; the other waits for it."""
    spec = tiny.replace(gpus=2, num_ps=1)
    with orders_of(spec, workers=2, sleep_s={"worker:1": 0.3}, traced_steps=TRACED) as orders:
        outcomes = run_tasks(orders)
    packed = [event["data"] for outcome in outcomes for event in outcome["events"] if event["kind"] == "trace"]
    breakdown = compute_step_breakdown([unpack_trace(each) for each in packed])
    # Not the longest part: another program may have kept the server from its core for longer.
    assert ("python", "worker:1") in {(part.kind, part.location) for part in breakdown.path}
    assert breakdown.tasks["worker:1"].parts["python"] >= 0.3  # a sleep is never shorter than it was asked to be
    assert breakdown.tasks["worker:0"].parts["wait"] > 0


def test_no_step_is_traced_by_default(run_tasks: RunTasks, tiny: Spec) -> None:
    """A task without a request for traces sends none."""
    with orders_of(tiny, workers=1) as orders:
        (outcome,) = run_tasks([dataclasses.replace(order) for order in orders])
    assert "trace" not in {event["kind"] for event in outcome["events"]}


def test_missing_traced_steps_of_a_worker_time_out(tiny: Spec, tmp_path: Path) -> None:
    """A worker that makes no more steps is waited for until a time limit, and all workers send their reports."""
    spec = tiny.replace(gpus=2, num_ps=1, warmup_steps=1)
    with driver(tmp_path / "log", PATIENCE_S="1") as run_tasks, orders_of(spec, workers=2, traced_steps=TRACED) as orders:
        server, chief, other = orders
        outcomes = run_tasks([server, chief, dataclasses.replace(other, traced_steps=1)])
    assert [outcome["code"] for outcome in outcomes] == [0, 0, 0]
    assert [len(report_of(outcome).step_s) for outcome in outcomes[1:]] == [spec.steps, spec.steps]
    (trace,) = [event for event in outcomes[1]["events"] if event["kind"] == "trace"]
    assert trace["error"].startswith("DeadlineExceededError")


FAILS = """
from types import SimpleNamespace
from pytest_dtfperf.training.task import _trace
def trace(*_):
    raise RuntimeError("no account\\nof it")
order = SimpleNamespace(spec=SimpleNamespace(warmup_steps=1, steps=2))
_trace(order, SimpleNamespace(trace=trace), SimpleNamespace(send=lambda kind, **data: print(kind, data)), slowest_s=1.0)
"""


def test_trace_that_fails_is_one_line(tmp_path: Path) -> None:
    """A failed trace is one line in the log and in the event, and does not end the task."""
    assert run_program(tmp_path / "log", "-c", FAILS).splitlines() == [
        "no trace: RuntimeError: no account",
        "trace {'error': 'RuntimeError: no account'}",
    ]
