"""From the steps that an external command reports to the cluster's rate."""

from collections.abc import Sequence
from typing import Any

import pytest

from pytest_dtfperf.datamodel.host_state import Disturbance
from pytest_dtfperf.datamodel.measurement import Run
from pytest_dtfperf.datamodel.task_report import TaskReport
from pytest_dtfperf.errors import InvalidMeasurement
from pytest_dtfperf.launch.summary import check_repetition, summarise
from pytest_dtfperf.spec import Spec
from tests.records.host_states import BUSY


def report(index: int = 0, **changes: Any) -> TaskReport:
    """Four steps of 0.5 s with ten images each, and a second between them."""
    own = {"step_s": [0.5] * 4, "images": 40.0, "window_s": 3.0, "window_at_s": 5.0, "elapsed_s": 9.0, "num_devices": 1}
    return TaskReport(job="worker", index=index, **{**own, **changes})


def run_of(*reports: TaskReport, disturbances: Sequence[Disturbance] = (), **changes: Any) -> Run:
    spec = Spec(model="own", batch_size=0, gpus=len(reports), num_ps=1, command=("own",), **changes)
    hosts = {each.name: "n1" for each in reports}
    return summarise(spec, reports, hosts=hosts, launch_s={}, wall_s=10.0, disturbances=disturbances)


def test_the_rate_is_of_all_workers_images_and_the_chiefs_steps() -> None:
    """Eighty images in two seconds of steps are 40 images/sec: the second between the steps is in no rate."""
    run = run_of(report(0), report(1))
    assert (run.images_per_sec, run.elapsed_s) == (40, 2)
    assert run.step_s == {"worker:0": [0.5] * 4, "worker:1": [0.5] * 4}


def test_workers_that_do_not_wait_print_their_rate() -> None:
    """Nobody knows how long asynchronous workers have trained at the same time, so the pattern says the rate as ever."""
    reports = report(0, reported_rate="12.5"), report(1, reported_rate="13")
    assert run_of(*reports, cross_replica_sync=False).images_per_sec == 12.5
    with pytest.raises(InvalidMeasurement, match="3 devices trained where 2 were asked for"):
        run_of(reports[0], report(1, reported_rate="13", num_devices=2), cross_replica_sync=False)


def test_devices_of_programs_are_counted() -> None:
    """A program that has trained on fewer than were asked for, or on more, is no measurement of these."""
    with pytest.raises(InvalidMeasurement, match="3 devices trained where 2 were asked for"):
        run_of(report(0), report(1, num_devices=2))


def test_a_mean_is_printed() -> None:
    """Where the spec says how workers' rates become one, what they print counts, whatever steps they report."""
    reports = report(0, reported_rate="12"), report(1, reported_rate="14")
    assert run_of(*reports, rate_pattern="(x)", rate_of="mean").images_per_sec == 13


def test_a_printed_rate_beside_steps_is_compared() -> None:
    """A program that prints a rate and reports steps has the rate of its steps, if both can be true."""
    assert run_of(report(0, reported_rate="30"), report(1)).images_per_sec == 40
    assert run_of(report(0, reported_rate="79"), report(1)).images_per_sec == 40
    for printed in ("1.2k", "80", "20"):
        with pytest.raises(InvalidMeasurement, match=f"prints {printed} images/sec, and its steps make 40: 2 times as many"):
            run_of(report(0, reported_rate=printed), report(1))


@pytest.mark.parametrize("printed", ["40", None])
def test_a_pattern_beside_steps_is_refused(printed: str | None) -> None:
    """Which of two rates counts is not for us to choose."""
    with pytest.raises(
        InvalidMeasurement, match=r'steps, which make 40 .* and rate_pattern=r"rate: \(.\*\)" asks for a printed'
    ):
        run_of(report(0, reported_rate=printed), report(1), rate_pattern="rate: (.*)")


def test_workers_count_images_alike() -> None:
    """A chief that counts the images of all workers, and another its own, make no rate; a smaller last batch does."""
    with pytest.raises(InvalidMeasurement, match="worker:0 reports 20 images per step and device, and worker:1 10: images_per"):
        run_of(report(0, images=80.0), report(1))
    assert run_of(report(0), report(1, images=33.0)).images_per_sec == 36.5


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"impossible_steps": "step 3 took -1 s", "step_s": []}, "worker:1 reported impossible steps: step 3 took -1 s"),
        ({"step_s": []}, "worker:1 reported no steps, but others did"),
        ({"step_s": [0.5] * 3}, "worker:1 measured 3 steps, the chief 4"),
        ({"step_s": [0.5, 0.5, 0.5, -0.5]}, "a step took no time"),
        ({"images": 0.0}, "a step took no time or had no images"),
        ({"step_s": [1.0] * 4}, "steps of 4.000 s in a window of 3.000 s"),
        ({"window_s": 12.0}, "in a window of 12.000 s, and its program ran for 9.000 s"),
        ({"window_s": 3.3}, "those of worker:1 in one of 3.300 s"),
        ({"window_at_s": 6.0}, "begin 1.000 s apart: they have not stepped together"),
        ({"elapsed_s": 99.0}, "the whole run took 10.000 s by this machine's clock"),
    ],
)
def test_what_cannot_be_is_invalid(changes: dict[str, Any], words: str) -> None:
    """Reports that contradict themselves or the chief's make no rate, and the reason is given."""
    with pytest.raises(InvalidMeasurement, match=words):
        run_of(report(0), report(1, **changes))


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"window_s": 3.3}, "the chief's steps lie in a window of 3.000 s, those of worker:1 in one of 3.300 s"),
        ({"window_at_s": 6.0}, "the measured steps of worker:1 and of the chief begin 1.000 s apart"),
    ],
)
def test_a_disturbed_host_is_no_wrong_clock(changes: dict[str, Any], words: str) -> None:
    """Where others had a host's cores, a window that is not the chief's is one more disturbance, so that the run is made again;
    that steps are missing is no matter of cores."""
    found = run_of(report(0), report(1, **changes), disturbances=[BUSY]).disturbances
    assert [str(each) for each in found] == [str(BUSY), words]
    with pytest.raises(InvalidMeasurement, match="worker:1 measured 3 steps, the chief 4"):
        run_of(report(0), report(1, step_s=[0.5] * 3, **changes), disturbances=[BUSY])


LATE = {"window_at_s": 8.1}
SLOW = {"window_s": 5.9}
REPEATED: dict[str, tuple[dict[int, dict[str, Any]], dict[int, dict[str, Any]], str]] = {
    "it begins late": ({1: LATE}, {1: {"window_at_s": 8.05}}, "worker:1 .* by 3.050 s, and by 3.100 s in the run before"),
    "it takes twice as long": ({1: SLOW}, {1: {"window_s": 5.0}}, "worker:1 .* by 2.000 s, and by 2.900 s in the run before"),
    "first late, then slow": ({1: LATE}, {1: SLOW}, "worker:1 .* by 2.900 s, and by 3.100 s"),
    "of three one alone": ({2: LATE}, {2: LATE}, "worker:2 .* by 3.100 s, and by 3.100 s"),
    "another is late, too": ({2: LATE}, {1: SLOW, 2: LATE}, "worker:2 .* by 3.100 s"),
    "the chief is": ({0: LATE}, {0: LATE}, "worker:1 .* by 3.100 s"),
}


@pytest.mark.parametrize("case", REPEATED)
def test_what_repeats_is_no_disturbance(case: str) -> None:
    """A worker that is out of step in two runs in the same way makes the second one invalid, however busy its host was then."""
    first, second, words = REPEATED[case]
    before, again = (
        run_of(*(report(index, **changes.get(index, {})) for index in range(3)), disturbances=[BUSY])
        for changes in (first, second)
    )
    with pytest.raises(InvalidMeasurement, match=f"{words}.*: no other process does the same twice: they have not stepped"):
        check_repetition(Spec(model="own", command=("own",), batch_size=0), before, again)


@pytest.mark.parametrize(
    "first, second",
    [({1: LATE}, {}), ({}, {1: LATE}), ({1: LATE}, {2: LATE}), ({1: SLOW}, {1: {"window_s": 2.0, "step_s": [0.4] * 4}})],
    ids=["before", "now", "another", "the other way"],
)
def test_what_happens_once_may_be_a_disturbance(first: dict[int, Any], second: dict[int, Any]) -> None:
    """A worker that is out of step once, or in two directions, may have waited for other processes."""
    before, again = (
        run_of(*(report(index, **changes.get(index, {})) for index in range(3)), disturbances=[BUSY])
        for changes in (first, second)
    )
    check_repetition(Spec(model="own", command=("own",), batch_size=0), before, again)
