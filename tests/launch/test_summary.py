"""Tests of the rate from reports, and of invalid measurements."""

from dataclasses import replace
from typing import Any

import pytest

from pytest_dtfperf.datamodel.fingerprint import TrainedProgram
from pytest_dtfperf.datamodel.measurement import Run
from pytest_dtfperf.datamodel.task_report import Evaluation, NetworkFacts, Score, StepGraph, TaskReport
from pytest_dtfperf.errors import InvalidMeasurement
from pytest_dtfperf.launch.summary import check_repetition, summarise
from pytest_dtfperf.spec import Spec
from tests.records.host_states import BUSY, make_state

SPEC = Spec(model="trivial", batch_size=10, gpus=2, num_ps=1, steps=4)


def make_report(index: int = 0, **changes: Any) -> TaskReport:
    """Make the report of a worker with four steps of 0.5 s."""
    output = {
        "step_s": [0.5] * 4,
        "elapsed_s": 2.0,
        "loss": [1.0] * 4,
        "num_devices": 1,
        "bytes_sent": 100,
        "bytes_received": 90,
    }
    return TaskReport(job="worker", index=index, **{**output, **changes})


def make_server_report() -> TaskReport:
    return TaskReport(job="ps", index=0, startup_s={"server": 0.3}, peak_rss_bytes=5)


def make_run(*reports: TaskReport, spec: Spec = SPEC, hosts: dict[str, str] | None = None, **more: Any) -> Run:
    hosts_of = hosts or {each.name: "n1" for each in reports}
    return summarise(spec, reports, hosts=hosts_of, launch_s={"fork": 0.1}, wall_s=5.0, **more)


def test_rate_is_all_images_on_the_chief_s_clock() -> None:
    """Two devices with ten images and four steps in two seconds have 40 images/sec."""
    assert make_run(make_report(0), make_report(1), make_server_report()).images_per_sec == 40


def test_order_of_reports_does_not_change_the_run() -> None:
    """The run is the same with its reports in another order."""
    chief, other = make_report(0), make_report(1, step_s=[0.505] * 4, elapsed_s=2.02)
    assert make_run(other, make_server_report(), chief) == make_run(chief, other, make_server_report())


GRAPH = StepGraph(hash="0123456789ab", operations={"Conv2D": 3, "Relu": 1})
OTHERS = StepGraph(hash="ba9876543210", operations={"Conv2D": 2})


def test_program_has_the_graphs_of_all_workers() -> None:
    """A single worker's graph is the run's, several workers have a common one, and the chief's counts apart."""
    alone = make_run(make_report(0, num_devices=2, graph=GRAPH, settings={"a": "1"}), make_server_report())
    assert alone.program.to_json() == {
        "graph": GRAPH.hash,
        "operations": GRAPH.operations,
        "settings": {"ps": {}, "worker": {"a": "1"}},
    }
    reports = [make_report(0, graph=GRAPH), make_report(1, graph=OTHERS), make_server_report()]
    assert make_run(*reports).program == make_run(*reversed(reports)).program
    assert make_run(*reports).program.operations == {"Conv2D": 5, "Relu": 1}
    assert make_run(*reports).program.graph not in (GRAPH.hash, OTHERS.hash)
    exchanged = make_run(make_report(0, graph=OTHERS), make_report(1, graph=GRAPH), make_server_report())
    assert exchanged.program.graph != make_run(*reports).program.graph  # the chief does what no other does


def test_reports_without_graphs_have_an_unknown_program() -> None:
    """Reports without a graph make a run with an unknown program, and a run's JSON has no program."""
    assert make_run(make_report(0), make_report(1), make_server_report()).program == TrainedProgram()
    assert "program" not in make_run(make_report(0, graph=GRAPH), make_report(1, graph=OTHERS)).to_json()


INVALID: dict[str, tuple[list[TaskReport], str]] = {
    "no chief": ([make_report(1)], "worker:0, sent no report"),
    "a device is missing": ([make_report(0)], "1 devices trained where 2 were asked for"),
    "a step is missing": ([make_report(0), make_report(1, step_s=[0.5] * 3)], "worker:1 measured 3 steps, 4 were asked for"),
    "a loss is missing": ([make_report(0), make_report(1, loss=[1.0] * 3)], "worker:1 measured"),
    "a loss is no number": (
        [make_report(0, loss=[1.0, 1.0, float("nan"), 1.0]), make_report(1)],
        "loss of measured step 3 is nan",
    ),
    "a loss is infinite": (
        [make_report(0), make_report(1, loss=[float("inf")] * 4)],
        "worker:1: the loss of measured step 1 is inf",
    ),
    "time stood still": ([make_report(0), make_report(1, step_s=[0.5, 0.0, 1.0, 0.5])], "a step took no time"),
    "a step that never ended": (
        [make_report(0), make_report(1, step_s=[0.5, float("inf"), 0.5, 0.5])],
        "worker:1: a step took no time",
    ),
    "clocks disagree": (
        [make_report(0), make_report(1, step_s=[0.54] * 4)],
        "2.000 s, the steps of worker:1 add up to 2.160 s",
    ),
    "the chief disagrees with itself": ([make_report(0, elapsed_s=2.1), make_report(1)], "steps of worker:0"),
    "the chief's clock stood still": ([make_report(0, elapsed_s=0.0), make_report(1)], "worker:0: a step took no time"),
    "longer than the whole run": (
        [make_report(0, step_s=[20.0] * 4, elapsed_s=80.0), make_report(1, step_s=[20.0] * 4)],
        "the chief measured 80.000 s, but the whole run took 5.000 s",
    ),
}


@pytest.mark.parametrize("case", INVALID)
def test_contradicting_report_is_invalid(case: str) -> None:
    """A report that contradicts the spec, arithmetic or another report is invalid, and the message names it."""
    reports, words = INVALID[case]
    with pytest.raises(InvalidMeasurement, match=words):
        make_run(*reports, make_server_report())


def test_one_session_has_steps_of_the_chief_alone() -> None:
    """If one session computes on all workers, the others need no steps, and missing steps of the chief are invalid."""
    spec = SPEC.replace(variable_update="distributed_all_reduce", num_ps=0)
    passive = make_report(1, step_s=[], loss=[], elapsed_s=0.0)
    run = make_run(make_report(0), passive, spec=spec)
    assert (run.images_per_sec, run.step_s) == (40, {"worker:0": [0.5] * 4})
    with pytest.raises(InvalidMeasurement, match="worker:0 measured 3 steps, 4 were asked for"):
        make_run(make_report(0, step_s=[0.5] * 3), passive, spec=spec)


def test_training_with_a_target_has_the_chief_s_steps() -> None:
    """With a target the number of steps is the chief's, and another number is invalid."""
    learning = {"stop_at_top_1_accuracy": 0.9, "eval_during_training_every_n_steps": 2}
    spec = SPEC.replace(model="mnist", data="mnist", data_dir="/data", **learning)
    chief, other = (make_report(index, step_s=[0.5] * 2, loss=[1.0] * 2, elapsed_s=1.0) for index in (0, 1))
    assert make_run(chief, other, make_server_report(), spec=spec).images_per_sec == 40
    with pytest.raises(InvalidMeasurement, match="worker:1 measured 4 steps, 2 were asked for"):
        make_run(chief, make_report(1), make_server_report(), spec=spec)


def test_accuracy_is_that_of_the_last_evaluation() -> None:
    """The accuracy is that of the last evaluation, all evaluations are kept, and without any there is none."""
    evaluations = [
        Evaluation(step=step, trained_s=1.0, score=Score(images=9, loss=1.0, total_loss=1.0, top_1=top_1, top_5=1.0))
        for step, top_1 in ((2, 0.5), (4, 0.8))
    ]
    run = make_run(make_report(0, evaluations=evaluations), make_report(1), make_server_report())
    assert (run.accuracy, run.evaluations) == (0.8, evaluations)
    assert make_run(make_report(0), make_report(1), make_server_report()).accuracy is None


def test_run_without_breakdown_and_timings_has_both_reasons() -> None:
    """A run without step breakdown and worker timings has a reason for each."""
    run = make_run(
        make_report(0), make_report(1), make_server_report(), explained=(None, "no trace"), scored=(None, "no timestamps")
    )
    assert (run.step_breakdown, run.worker_timings, run.unexplained) == (None, None, "no trace; no timestamps")


def test_last_step_may_end_a_quarter_later() -> None:
    """The last step of another worker may end a quarter of a step later."""
    late = make_report(1, step_s=[0.5, 0.5, 0.5, 0.62])
    assert make_run(make_report(0), late, make_server_report()).images_per_sec == 40


def test_last_values_may_arrive_a_step_later() -> None:
    """If a step ends with each worker's own values, the last step may end nearly a whole step later, and not more."""
    spec = SPEC.replace(variable_update="distributed_replicated")
    late = make_report(1, step_s=[0.5, 0.5, 0.5, 0.9])
    assert make_run(make_report(0), late, make_server_report(), spec=spec).images_per_sec == 40
    later = make_report(1, step_s=[0.5, 0.5, 0.5, 1.1])
    with pytest.raises(InvalidMeasurement, match=r"2.000 s, the steps of worker:1 add up to 2.600 s"):
        make_run(make_report(0), later, make_server_report(), spec=spec)


def test_every_window_has_a_last_step() -> None:
    """With evaluations between them, each of several windows may end a quarter of a step later, and not more."""
    spec = SPEC.replace(model="mnist", data="mnist", data_dir="/data", steps=8, eval_during_training_every_n_steps=2)
    chief = make_report(0, step_s=[0.5] * 8, loss=[1.0] * 8, elapsed_s=4.0)
    late = make_report(1, step_s=[0.5, 0.6] * 4, loss=[1.0] * 8)
    assert make_run(chief, late, make_server_report(), spec=spec).images_per_sec == 40
    later = make_report(1, step_s=[0.5, 0.7] * 4, loss=[1.0] * 8)
    with pytest.raises(InvalidMeasurement, match=r"4.000 s, the steps of worker:1 add up to 4.800 s"):
        make_run(chief, later, make_server_report(), spec=spec)


@pytest.mark.parametrize("step_s", [0.491, 0.509])
def test_clocks_may_differ_within_two_percent(step_s: float) -> None:
    """A worker's clock may differ from the chief's by less than 2 %."""
    assert make_run(make_report(0), make_report(1, step_s=[step_s] * 4), make_server_report()).images_per_sec == 40


def test_chief_s_window_may_differ_from_its_steps_within_two_percent() -> None:
    """A long window may differ from its steps by less than 2 %."""
    reports = (make_report(index, step_s=[10.0] * 4, elapsed_s=40.7) for index in (0, 1))
    assert make_run(*reports, make_server_report()).elapsed_s == 40.7


def test_short_window_may_differ_by_milliseconds() -> None:
    """Two short steps that take 0.044 s longer on another worker are accepted."""
    chief, other = (
        make_report(0, step_s=[0.04, 0.047], loss=[1.0, 1.0], elapsed_s=0.087),
        make_report(1, step_s=[0.084, 0.047], loss=[1.0, 1.0]),
    )
    assert make_run(chief, other, make_server_report(), spec=SPEC.replace(steps=2)).elapsed_s == 0.087


def test_worker_on_a_disturbed_host_is_a_disturbance() -> None:
    """On a disturbed host a worker that does not fit the chief's clock is a disturbance, and a chief that contradicts itself is
    invalid."""
    chief, other = make_report(0), make_report(1, step_s=[0.98, 0.5, 0.5, 0.5])
    found = make_run(chief, other, make_server_report(), disturbances=[BUSY]).disturbances
    assert [str(each) for each in found] == [
        str(BUSY),
        "the chief measured 2.000 s, the steps of worker:1 add up to 2.480 s: more than 2 % apart",
    ]
    with pytest.raises(InvalidMeasurement, match=r"steps of worker:0 .* one clock or count is wrong"):
        make_run(make_report(0, elapsed_s=2.5), other, make_server_report(), disturbances=[BUSY])


@pytest.mark.parametrize("host", ["n1", "n2"], ids=["the chief's", "the worker's"])
def test_worker_on_a_shared_host_may_wait_for_other_processes(host: str) -> None:
    """On shared hosts a worker may be off by as much as other processes used cores there, which is a disturbance. More is
    invalid, and so is a chief that contradicts itself."""
    chief, other = make_report(0), make_report(1, step_s=[0.98, 0.5, 0.5, 0.5])
    hosts = {"ps:0": "n3", "worker:0": "n1", "worker:1": "n2"}
    words = "the chief measured 2.000 s, the steps of worker:1 add up to 2.480 s: more than 2 % apart"
    found = make_run(
        chief, other, make_server_report(), hosts=hosts, others_s={"n1": 0.0, "n2": 0.0, "n3": 0.0, host: 0.5}
    ).disturbances
    assert [str(each) for each in found] == [f"{words}, while others used 0.5 s of cores of {host}"]
    for others_s in ({host: 0.4}, {"n3": 2.0}, {}):
        with pytest.raises(InvalidMeasurement, match=rf"{words}, so one clock or count is wrong"):
            make_run(chief, other, make_server_report(), hosts=hosts, others_s=others_s)
    with pytest.raises(InvalidMeasurement, match=r"steps of worker:0 .* one clock or count is wrong"):
        make_run(make_report(0, elapsed_s=2.5), other, make_server_report(), hosts=hosts, others_s={host: 2.0})


@pytest.mark.parametrize("host", ["n1", "n2"], ids=["on one host", "on two hosts"])
@pytest.mark.parametrize("others", [{"disturbances": [BUSY]}, {"others_s": {"n1": 2.0}}], ids=str)
def test_worker_out_of_step_twice_is_invalid(host: str, others: dict[str, Any]) -> None:
    """A worker that is out of step in two runs is invalid, on hosts for one session and on shared ones."""
    hosts = {"ps:0": "n1", "worker:0": "n1", "worker:1": host}
    first, again, well = (
        make_run(make_report(0), make_report(1, step_s=[last_s, 0.5, 0.5, 0.5]), make_server_report(), hosts=hosts, **others)
        for last_s in (0.98, 0.9, 0.5)
    )
    assert (first.out_of_step, again.out_of_step, well.out_of_step) == ({"worker:1": 0.48}, {"worker:1": 0.4}, {})
    check_repetition(SPEC, well, again)
    check_repetition(SPEC, first, well)
    words = (
        r"worker:1 was out of step with the chief by 0.400 s, and by 0.480 s in the run before: .* one clock or count is wrong"
    )
    with pytest.raises(InvalidMeasurement, match=words):
        check_repetition(SPEC, first, again)


ASYNCHRONOUS = SPEC.replace(cross_replica_sync=False)


def test_asynchronous_window_may_close_later() -> None:
    """Without synchronisation the chief's window may be 40 ms longer than its steps, and not a third."""
    chief = make_report(0, step_s=[0.3] * 4, elapsed_s=1.24)
    assert make_run(chief, make_report(1, step_s=[0.29] * 4), make_server_report(), spec=ASYNCHRONOUS).elapsed_s == 1.24
    with pytest.raises(InvalidMeasurement, match=r"1.600 s, the steps of worker:0 add up to 1.200 s"):
        make_run(
            make_report(0, step_s=[0.3] * 4, elapsed_s=1.6),
            make_report(1, step_s=[0.29] * 4),
            make_server_report(),
            spec=ASYNCHRONOUS,
        )


def test_late_window_on_a_disturbed_host_is_a_disturbance() -> None:
    """On a disturbed host a window that closes late is a disturbance, if the chief or another worker is the slowest."""
    for chief_s, other_s, slowest in ((0.3, 0.29, "worker:0"), (0.29, 0.3, "worker:1")):
        chief, other = make_report(0, step_s=[chief_s] * 4, elapsed_s=1.6), make_report(1, step_s=[other_s] * 4)
        found = make_run(chief, other, make_server_report(), spec=ASYNCHRONOUS, disturbances=[BUSY]).disturbances
        assert [str(each) for each in found] == [
            str(BUSY),
            f"the chief measured 1.600 s, the steps of {slowest} add up to 1.200 s: more than 2 % apart",
        ]


def test_asynchronous_worker_may_end_early() -> None:
    """Without synchronisation only the slowest worker must fill the window."""
    spec = SPEC.replace(cross_replica_sync=False)
    assert make_run(make_report(0), make_report(1, step_s=[0.2] * 4), make_server_report(), spec=spec).images_per_sec == 40


def test_bytes_of_a_host_count_once() -> None:
    """The bytes of two workers on one host count once, those on two hosts both, and those of a server's host never."""
    workers = [make_report(0), make_report(1)]
    assert make_run(*workers).bytes_sent == 100
    assert make_run(*workers, make_server_report(), hosts={"ps:0": "n3", "worker:0": "n1", "worker:1": "n2"}).bytes_sent == 200


def test_run_has_the_devices_of_each_worker() -> None:
    """A run has the number of devices of each worker."""
    run = make_run(
        make_report(0, num_devices=4), make_report(1, num_devices=2), make_server_report(), spec=SPEC.replace(gpus=6)
    )
    assert run.task_devices == {"worker:0": 4, "worker:1": 2}


def test_run_has_hosts_threads_state_and_network() -> None:
    """A run has its hosts, threads, states of hosts, and the network of an own model without its variables."""
    network = NetworkFacts(image_shape=(8, 8, 3), classes=5, parameters=9, trained_parameters=8, variables={"w": (2, 4)})
    hosts = {"ps:0": "n2", "worker:0": "n1", "worker:1": "n2"}
    threads, state = {"worker:0": 2, "worker:1": 1, "ps:0": 1}, {"n1": make_state()}
    run = make_run(
        make_report(0, network=network), make_report(1), make_server_report(), hosts=hosts, threads=threads, state=state
    )
    assert (run.hosts, run.task_hosts, run.task_threads, run.state) == (["n2", "n1"], hosts, threads, state)
    assert run.network == replace(network, variables={})
    assert make_run(make_report(0), make_report(1), make_server_report()).network is None


def test_startup_phase_is_that_of_the_slowest_task() -> None:
    """Each phase is that of its slowest task, beside the launcher's own."""
    assert make_run(
        make_report(0, startup_s={"server": 0.2, "build": 1.0}), make_report(1), make_server_report()
    ).startup_s == {
        "fork": 0.1,
        "server": 0.3,
        "build": 1.0,
    }
