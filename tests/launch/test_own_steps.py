"""Tests of the cluster's rate from the steps that an external command reports."""

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


def make_report(index: int = 0, **changes: Any) -> TaskReport:
    """Make a report of four steps of 0.5 s with ten images each, and time between them."""
    own = {"step_s": [0.5] * 4, "images": 40.0, "window_s": 3.0, "window_at_s": 5.0, "elapsed_s": 9.0, "num_devices": 1}
    return TaskReport(job="worker", index=index, **{**own, **changes})


def make_run(*reports: TaskReport, disturbances: Sequence[Disturbance] = (), **changes: Any) -> Run:
    spec = Spec(model="own", batch_size=0, gpus=len(reports), num_ps=1, command=("own",), **changes)
    hosts = {each.name: "n1" for each in reports}
    return summarise(spec, reports, hosts=hosts, launch_s={}, wall_s=10.0, disturbances=disturbances)


def test_rate_is_all_images_over_the_chief_s_steps() -> None:
    """Eighty images in two seconds of steps are 40 images/sec, and the time between steps does not count."""
    run = make_run(make_report(0), make_report(1))
    assert (run.images_per_sec, run.elapsed_s) == (40, 2)
    assert run.step_s == {"worker:0": [0.5] * 4, "worker:1": [0.5] * 4}


def test_asynchronous_workers_have_their_printed_rate() -> None:
    """Asynchronous workers have the printed rate, and the number of devices is checked."""
    reports = make_report(0, reported_rate="12.5"), make_report(1, reported_rate="13")
    assert make_run(*reports, cross_replica_sync=False).images_per_sec == 12.5
    with pytest.raises(InvalidMeasurement, match="3 devices trained where 2 were asked for"):
        make_run(reports[0], make_report(1, reported_rate="13", num_devices=2), cross_replica_sync=False)


def test_wrong_number_of_devices_is_invalid() -> None:
    """A program that trained on more devices than requested is invalid."""
    with pytest.raises(InvalidMeasurement, match="3 devices trained where 2 were asked for"):
        make_run(make_report(0), make_report(1, num_devices=2))


def test_requested_mean_is_of_printed_rates() -> None:
    """If the spec requests a mean of rates, the printed rates count."""
    reports = make_report(0, reported_rate="12"), make_report(1, reported_rate="14")
    assert make_run(*reports, rate_pattern="(x)", rate_of="mean").images_per_sec == 13


def test_printed_rate_is_compared_with_the_steps() -> None:
    """A printed rate beside reported steps is ignored if it is less than twice or more than half of theirs, and otherwise
    invalid."""
    assert make_run(make_report(0, reported_rate="30"), make_report(1)).images_per_sec == 40
    assert make_run(make_report(0, reported_rate="79"), make_report(1)).images_per_sec == 40
    for printed in ("1.2k", "80", "20"):
        with pytest.raises(InvalidMeasurement, match=f"prints {printed} images/sec, and its steps make 40: 2 times as many"):
            make_run(make_report(0, reported_rate=printed), make_report(1))


@pytest.mark.parametrize("printed", ["40", None])
def test_pattern_beside_steps_is_refused(printed: str | None) -> None:
    """A spec with a pattern for rates is refused if the program reports steps."""
    with pytest.raises(
        InvalidMeasurement, match=r'steps, which make 40 .* and rate_pattern=r"rate: \(.\*\)" asks for a printed'
    ):
        make_run(make_report(0, reported_rate=printed), make_report(1), rate_pattern="rate: (.*)")


def test_workers_must_count_images_equally() -> None:
    """Workers with different images for each step are invalid, except for a smaller last batch."""
    with pytest.raises(InvalidMeasurement, match="worker:0 reports 20 images per step and device, and worker:1 10: images_per"):
        make_run(make_report(0, images=80.0), make_report(1))
    assert make_run(make_report(0), make_report(1, images=33.0)).images_per_sec == 36.5


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
def test_contradicting_report_is_invalid(changes: dict[str, Any], words: str) -> None:
    """A report that contradicts itself or the chief's is invalid, with the reason."""
    with pytest.raises(InvalidMeasurement, match=words):
        make_run(make_report(0), make_report(1, **changes))


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"window_s": 3.3}, "the chief's steps lie in a window of 3.000 s, those of worker:1 in one of 3.300 s"),
        ({"window_at_s": 6.0}, "the measured steps of worker:1 and of the chief begin 1.000 s apart"),
    ],
)
def test_window_on_a_disturbed_host_is_a_disturbance(changes: dict[str, Any], words: str) -> None:
    """On a disturbed host a window other than the chief's is a disturbance, and missing steps are still invalid."""
    found = make_run(make_report(0), make_report(1, **changes), disturbances=[BUSY]).disturbances
    assert [str(each) for each in found] == [str(BUSY), words]
    with pytest.raises(InvalidMeasurement, match="worker:1 measured 3 steps, the chief 4"):
        make_run(make_report(0), make_report(1, step_s=[0.5] * 3, **changes), disturbances=[BUSY])


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
def test_worker_out_of_step_twice_is_invalid(case: str) -> None:
    """A worker that is out of step in the same way in two runs makes the second one invalid, also on a busy host."""
    first, second, words = REPEATED[case]
    before, again = (
        make_run(*(make_report(index, **changes.get(index, {})) for index in range(3)), disturbances=[BUSY])
        for changes in (first, second)
    )
    with pytest.raises(InvalidMeasurement, match=f"{words}.*: no other process does the same twice: they have not stepped"):
        check_repetition(Spec(model="own", command=("own",), batch_size=0), before, again)


@pytest.mark.parametrize(
    "first, second",
    [({1: LATE}, {}), ({}, {1: LATE}), ({1: LATE}, {2: LATE}), ({1: SLOW}, {1: {"window_s": 2.0, "step_s": [0.4] * 4}})],
    ids=["before", "now", "another", "the other way"],
)
def test_worker_out_of_step_once_is_accepted(first: dict[int, Any], second: dict[int, Any]) -> None:
    """A worker that is out of step once, or in two directions, is accepted on a busy host."""
    before, again = (
        make_run(*(make_report(index, **changes.get(index, {})) for index in range(3)), disturbances=[BUSY])
        for changes in (first, second)
    )
    check_repetition(Spec(model="own", command=("own",), batch_size=0), before, again)
