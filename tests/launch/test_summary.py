"""From reports to a rate, and what makes a measurement invalid."""

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


def report(index: int = 0, **changes: Any) -> TaskReport:
    """A worker that took 0.5 s for each of four steps."""
    output = {
        "step_s": [0.5] * 4,
        "elapsed_s": 2.0,
        "loss": [1.0] * 4,
        "num_devices": 1,
        "bytes_sent": 100,
        "bytes_received": 90,
    }
    return TaskReport(job="worker", index=index, **{**output, **changes})


def ps() -> TaskReport:
    return TaskReport(job="ps", index=0, startup_s={"server": 0.3}, peak_rss_bytes=5)


def run_of(*reports: TaskReport, spec: Spec = SPEC, hosts: dict[str, str] | None = None, **more: Any) -> Run:
    hosts_of = hosts or {each.name: "n1" for each in reports}
    return summarise(spec, reports, hosts=hosts_of, launch_s={"fork": 0.1}, wall_s=5.0, **more)


def test_rate_is_the_clusters_on_the_chiefs_clock() -> None:
    """Two devices of ten images make four steps in two seconds: 40 images/sec, and not a sum of the workers' rates."""
    assert run_of(report(0), report(1), ps()).images_per_sec == 40


def test_order_of_reports_does_not_matter() -> None:
    """The chief is worker 0, independent of the order of reports."""
    chief, other = report(0), report(1, step_s=[0.505] * 4, elapsed_s=2.02)
    assert run_of(other, ps(), chief) == run_of(chief, other, ps())


GRAPH = StepGraph(hash="0123456789ab", operations={"Conv2D": 3, "Relu": 1})
OTHERS = StepGraph(hash="ba9876543210", operations={"Conv2D": 2})


def test_the_program_is_what_all_workers_compute() -> None:
    """A lone worker's graph is the run's; of several it is theirs together, whichever of the others has which."""
    alone = run_of(report(0, num_devices=2, graph=GRAPH, settings={"a": "1"}), ps())
    assert alone.program.to_json() == {
        "graph": GRAPH.hash,
        "operations": GRAPH.operations,
        "settings": {"ps": {}, "worker": {"a": "1"}},
    }
    reports = [report(0, graph=GRAPH), report(1, graph=OTHERS), ps()]
    assert run_of(*reports).program == run_of(*reversed(reports)).program
    assert run_of(*reports).program.operations == {"Conv2D": 5, "Relu": 1}
    assert run_of(*reports).program.graph not in (GRAPH.hash, OTHERS.hash)
    exchanged = run_of(report(0, graph=OTHERS), report(1, graph=GRAPH), ps())
    assert exchanged.program.graph != run_of(*reports).program.graph  # the chief does what no other does


def test_an_external_command_has_no_graph() -> None:
    """Reports without a graph make a run with an unknown program; in a record it is only in the fingerprint."""
    assert run_of(report(0), report(1), ps()).program == TrainedProgram()
    assert "program" not in run_of(report(0, graph=GRAPH), report(1, graph=OTHERS)).to_json()


INVALID: dict[str, tuple[list[TaskReport], str]] = {
    "no chief": ([report(1)], "worker:0, sent no report"),
    "a device is missing": ([report(0)], "1 devices trained where 2 were asked for"),
    "a step is missing": ([report(0), report(1, step_s=[0.5] * 3)], "worker:1 measured 3 steps, 4 were asked for"),
    "a loss is missing": ([report(0), report(1, loss=[1.0] * 3)], "worker:1 measured"),
    "a loss is no number": ([report(0, loss=[1.0, 1.0, float("nan"), 1.0]), report(1)], "loss of measured step 3 is nan"),
    "a loss is infinite": ([report(0), report(1, loss=[float("inf")] * 4)], "worker:1: the loss of measured step 1 is inf"),
    "time stood still": ([report(0), report(1, step_s=[0.5, 0.0, 1.0, 0.5])], "a step took no time"),
    "a step that never ended": ([report(0), report(1, step_s=[0.5, float("inf"), 0.5, 0.5])], "worker:1: a step took no time"),
    "clocks disagree": ([report(0), report(1, step_s=[0.54] * 4)], "2.000 s, the steps of worker:1 add up to 2.160 s"),
    "the chief disagrees with itself": ([report(0, elapsed_s=2.1), report(1)], "steps of worker:0"),
    "the chief's clock stood still": ([report(0, elapsed_s=0.0), report(1)], "worker:0: a step took no time"),
    "longer than the whole run": (
        [report(0, step_s=[20.0] * 4, elapsed_s=80.0), report(1, step_s=[20.0] * 4)],
        "the chief measured 80.000 s, but the whole run took 5.000 s",
    ),
}


@pytest.mark.parametrize("case", INVALID)
def test_numbers_that_cannot_be_true_are_refused(case: str) -> None:
    """A report that contradicts the spec, arithmetic or another report makes the run invalid, and the message names it."""
    reports, words = INVALID[case]
    with pytest.raises(InvalidMeasurement, match=words):
        run_of(*reports, ps())


def test_of_one_session_the_chief_alone_steps() -> None:
    """If one session computes on all workers, the others have no steps, and none is missing."""
    spec = SPEC.but(variable_update="distributed_all_reduce", num_ps=0)
    lent = report(1, step_s=[], loss=[], elapsed_s=0.0)
    run = run_of(report(0), lent, spec=spec)
    assert (run.images_per_sec, run.step_s) == (40, {"worker:0": [0.5] * 4})
    with pytest.raises(InvalidMeasurement, match="worker:0 measured 3 steps, 4 were asked for"):
        run_of(report(0, step_s=[0.5] * 3), lent, spec=spec)


def test_who_has_learnt_enough_trains_no_longer() -> None:
    """With a target the chief's steps are as many as it took; all workers must have made so many, and the rate is of these."""
    learning = {"stop_at_top_1_accuracy": 0.9, "eval_during_training_every_n_steps": 2}
    spec = SPEC.but(model="mnist", data="mnist", data_dir="/data", **learning)
    chief, other = (report(index, step_s=[0.5] * 2, loss=[1.0] * 2, elapsed_s=1.0) for index in (0, 1))
    assert run_of(chief, other, ps(), spec=spec).images_per_sec == 40
    with pytest.raises(InvalidMeasurement, match="worker:1 measured 4 steps, 2 were asked for"):
        run_of(chief, report(1), ps(), spec=spec)


def test_accuracy_is_the_last_evaluations() -> None:
    """Of several evaluations the last one is the run's accuracy, and all are kept; without any there is none."""
    evaluations = [
        Evaluation(step=step, trained_s=1.0, score=Score(images=9, loss=1.0, total_loss=1.0, top_1=top_1, top_5=1.0))
        for step, top_1 in ((2, 0.5), (4, 0.8))
    ]
    run = run_of(report(0, evaluations=evaluations), report(1), ps())
    assert (run.accuracy, run.evaluations) == (0.8, evaluations)
    assert run_of(report(0), report(1), ps()).accuracy is None


def test_why_a_run_is_not_explained_is_told_of_both() -> None:
    """A run without step breakdown and worker timings has a reason for each."""
    run = run_of(report(0), report(1), ps(), explained=(None, "no trace"), scored=(None, "no timestamps"))
    assert (run.step_breakdown, run.worker_timings, run.unexplained) == (None, None, "no trace; no timestamps")


def test_the_last_step_may_end_a_quarter_later_elsewhere() -> None:
    """In a window of few long steps, another worker's last may end a quarter of one later: no clock is wrong."""
    late = report(1, step_s=[0.5, 0.5, 0.5, 0.62])
    assert run_of(report(0), late, ps()).images_per_sec == 40


def test_values_may_reach_a_worker_when_the_others_have_begun_their_next_step() -> None:
    """Where a step ends with each worker's own values, a slow link to one makes its last end nearly a whole step later."""
    spec = SPEC.but(variable_update="distributed_replicated")
    late = report(1, step_s=[0.5, 0.5, 0.5, 0.9])
    assert run_of(report(0), late, ps(), spec=spec).images_per_sec == 40
    later = report(1, step_s=[0.5, 0.5, 0.5, 1.1])
    with pytest.raises(InvalidMeasurement, match=r"2.000 s, the steps of worker:1 add up to 2.600 s"):
        run_of(report(0), later, ps(), spec=spec)


def test_every_window_has_a_last_step() -> None:
    """With evaluations between them there are several windows, each of which may end a quarter of a step later elsewhere."""
    spec = SPEC.but(model="mnist", data="mnist", data_dir="/data", steps=8, eval_during_training_every_n_steps=2)
    chief = report(0, step_s=[0.5] * 8, loss=[1.0] * 8, elapsed_s=4.0)
    late = report(1, step_s=[0.5, 0.6] * 4, loss=[1.0] * 8)
    assert run_of(chief, late, ps(), spec=spec).images_per_sec == 40
    later = report(1, step_s=[0.5, 0.7] * 4, loss=[1.0] * 8)
    with pytest.raises(InvalidMeasurement, match=r"4.000 s, the steps of worker:1 add up to 4.800 s"):
        run_of(chief, later, ps(), spec=spec)


@pytest.mark.parametrize("step_s", [0.491, 0.509])
def test_clocks_may_differ_within_two_percent(step_s: float) -> None:
    """Workers' clocks may differ from the chief's by less than 2 %."""
    assert run_of(report(0), report(1, step_s=[step_s] * 4), ps()).images_per_sec == 40


def test_the_chiefs_clock_may_differ_from_its_steps_within_two_percent() -> None:
    """Of a long window it may be off by more seconds than of a short one."""
    reports = (report(index, step_s=[10.0] * 4, elapsed_s=40.7) for index in (0, 1))
    assert run_of(*reports, ps()).elapsed_s == 40.7


def test_a_worker_may_be_off_its_core_at_the_edges() -> None:
    """What a busy host did to a window of two short steps, 0.087 s by the chief and 0.131 s by the other, is no wrong clock."""
    chief, other = (
        report(0, step_s=[0.04, 0.047], loss=[1.0, 1.0], elapsed_s=0.087),
        report(1, step_s=[0.084, 0.047], loss=[1.0, 1.0]),
    )
    assert run_of(chief, other, ps(), spec=SPEC.but(steps=2)).elapsed_s == 0.087


def test_a_disturbed_host_is_no_wrong_clock() -> None:
    """Where others had a host's cores, a worker that fits the chief's clock badly is one more disturbance of a run that does
    not count anyway, and no failure; that the chief contradicts itself is one all the same."""
    chief, other = report(0), report(1, step_s=[0.98, 0.5, 0.5, 0.5])
    found = run_of(chief, other, ps(), disturbances=[BUSY]).disturbances
    assert [str(each) for each in found] == [
        str(BUSY),
        "the chief measured 2.000 s, the steps of worker:1 add up to 2.480 s: more than 2% apart",
    ]
    with pytest.raises(InvalidMeasurement, match=r"steps of worker:0 .* one clock or count is wrong"):
        run_of(report(0, elapsed_s=2.5), other, ps(), disturbances=[BUSY])


@pytest.mark.parametrize("host", ["n1", "n2"], ids=["the chief's", "the worker's"])
def test_who_shares_a_host_may_have_waited_for_the_others(host: str) -> None:
    """Where it is no disturbance that others are at work, a worker is off its core for no longer than they have had cores
    there: then its run is disturbed, and made again; what is off by more is INVALID, as is a chief that contradicts itself."""
    chief, other = report(0), report(1, step_s=[0.98, 0.5, 0.5, 0.5])
    hosts = {"ps:0": "n3", "worker:0": "n1", "worker:1": "n2"}
    words = "the chief measured 2.000 s, the steps of worker:1 add up to 2.480 s: more than 2% apart"
    found = run_of(chief, other, ps(), hosts=hosts, others_s={"n1": 0.0, "n2": 0.0, "n3": 0.0, host: 0.5}).disturbances
    assert [str(each) for each in found] == [f"{words}, while others used 0.5 s of cores of {host}"]
    for others_s in ({host: 0.4}, {"n3": 2.0}, {}):
        with pytest.raises(InvalidMeasurement, match=rf"{words}, so one clock or count is wrong"):
            run_of(chief, other, ps(), hosts=hosts, others_s=others_s)
    with pytest.raises(InvalidMeasurement, match=r"steps of worker:0 .* one clock or count is wrong"):
        run_of(report(0, elapsed_s=2.5), other, ps(), hosts=hosts, others_s={host: 2.0})


@pytest.mark.parametrize("host", ["n1", "n2"], ids=["on one host", "on two hosts"])
@pytest.mark.parametrize("others", [{"disturbances": [BUSY]}, {"others_s": {"n1": 2.0}}], ids=str)
def test_a_worker_that_is_apart_twice_has_no_disturbance(host: str, others: dict[str, Any]) -> None:
    """What excuses a worker once, on hosts for one session and on shared ones, does not excuse it again."""
    hosts = {"ps:0": "n1", "worker:0": "n1", "worker:1": host}
    first, again, well = (
        run_of(report(0), report(1, step_s=[last_s, 0.5, 0.5, 0.5]), ps(), hosts=hosts, **others) for last_s in (0.98, 0.9, 0.5)
    )
    assert (first.out_of_step, again.out_of_step, well.out_of_step) == ({"worker:1": 0.48}, {"worker:1": 0.4}, {})
    check_repetition(SPEC, well, again)
    check_repetition(SPEC, first, well)
    words = (
        r"worker:1 was out of step with the chief by 0.400 s, and by 0.480 s in the run before: .* one clock or count is wrong"
    )
    with pytest.raises(InvalidMeasurement, match=words):
        check_repetition(SPEC, first, again)


ASYNCHRONOUS = SPEC.but(cross_replica_sync=False)


def test_a_window_that_closes_when_all_are_done_is_no_wrong_clock() -> None:
    """Without synchronisation the chief's window ends when all have told that they are done: what that takes on a busy host,
    40 ms of 1.2 s, contradicts none of its steps, though it is the slowest; what takes a third longer does."""
    chief = report(0, step_s=[0.3] * 4, elapsed_s=1.24)
    assert run_of(chief, report(1, step_s=[0.29] * 4), ps(), spec=ASYNCHRONOUS).elapsed_s == 1.24
    with pytest.raises(InvalidMeasurement, match=r"1.600 s, the steps of worker:0 add up to 1.200 s"):
        run_of(report(0, step_s=[0.3] * 4, elapsed_s=1.6), report(1, step_s=[0.29] * 4), ps(), spec=ASYNCHRONOUS)


def test_a_disturbed_window_that_closes_late_is_made_again() -> None:
    """Where others had a host's cores, a window that has waited for workers which had none is one more disturbance, so that
    the run is made again; whoever is the slowest, the chief or another."""
    for chief_s, other_s, slowest in ((0.3, 0.29, "worker:0"), (0.29, 0.3, "worker:1")):
        chief, other = report(0, step_s=[chief_s] * 4, elapsed_s=1.6), report(1, step_s=[other_s] * 4)
        found = run_of(chief, other, ps(), spec=ASYNCHRONOUS, disturbances=[BUSY]).disturbances
        assert [str(each) for each in found] == [
            str(BUSY),
            f"the chief measured 1.600 s, the steps of {slowest} add up to 1.200 s: more than 2% apart",
        ]


def test_asynchronous_workers_end_when_they_are_done() -> None:
    """Without synchronisation only the slowest worker must fill the window; a faster one may be done before."""
    spec = SPEC.but(cross_replica_sync=False)
    assert run_of(report(0), report(1, step_s=[0.2] * 4), ps(), spec=spec).images_per_sec == 40


def test_a_hosts_bytes_count_once() -> None:
    """Counters are the host's, so of two workers on one host one counts, and of two on two hosts both do. A host of parameter
    servers alone counts nothing: they know of no measured window."""
    workers = [report(0), report(1)]
    assert run_of(*workers).bytes_sent == 100
    assert run_of(*workers, ps(), hosts={"ps:0": "n3", "worker:0": "n1", "worker:1": "n2"}).bytes_sent == 200


def test_how_many_devices_each_worker_had_is_told() -> None:
    """Of six in processes of four the last has two."""
    run = run_of(report(0, num_devices=4), report(1, num_devices=2), ps(), spec=SPEC.but(gpus=6))
    assert run.task_devices == {"worker:0": 4, "worker:1": 2}


def test_where_and_what_it_was_is_kept() -> None:
    """Hosts, cores and what the hosts have seen are the run's, and of an own model what records have of it."""
    network = NetworkFacts(image_shape=(8, 8, 3), classes=5, parameters=9, trained_parameters=8, variables={"w": (2, 4)})
    hosts = {"ps:0": "n2", "worker:0": "n1", "worker:1": "n2"}
    threads, state = {"worker:0": 2, "worker:1": 1, "ps:0": 1}, {"n1": make_state()}
    run = run_of(report(0, network=network), report(1), ps(), hosts=hosts, threads=threads, state=state)
    assert (run.hosts, run.task_hosts, run.task_threads, run.state) == (["n2", "n1"], hosts, threads, state)
    assert run.network == replace(network, variables={})
    assert run_of(report(0), report(1), ps()).network is None


def test_start_up_is_the_slowest_tasks() -> None:
    """Each phase is that of its slowest task, beside the launcher's own."""
    assert run_of(report(0, startup_s={"server": 0.2, "build": 1.0}), report(1), ps()).startup_s == {
        "fork": 0.1,
        "server": 0.3,
        "build": 1.0,
    }
