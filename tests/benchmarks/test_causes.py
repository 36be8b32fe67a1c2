"""Tests of the campaign of injected causes: which cases are drawn, and how an answer is compared with the injected cause."""

import pytest

from benchmarks.cases import Case, CaseResult, draw_cases, format_line, matrix, summary
from benchmarks.injected import INJECTED
from pytest_dtfperf.datamodel.explanation import CauseKind

PS1 = ("parameter_server", 1, 2)
PS2 = ("parameter_server", 2, 2)


def make_answer(
    injected: str, cause_kind: str, location: str = "", *, layout: tuple[str, int, int] = PS2, seconds: float = 0.1
) -> CaseResult:
    return CaseResult(Case(*layout, injected, 0.5), 0.2, 0.3, cause_kind, location, seconds)


def test_shorter_campaign_is_the_beginning_of_a_longer_one() -> None:
    """Of 250 cases the first 40 are those of a campaign of 40, each cause occurs, and causes of servers occur only with
    servers."""
    cases = draw_cases(250)
    assert draw_cases(40) == cases[:40]
    assert {case.injected for case in cases} == set(INJECTED)
    assert [case for case in cases if INJECTED[case.injected].servers and not case.num_ps] == []
    assert 30 <= sum(case.injected == "nothing" for case in cases) <= 70


def test_injected_causes_have_kinds_of_explain() -> None:
    """Each kind of an injected cause is a kind of `explain`."""
    assert {kind for injected in INJECTED.values() for kind in injected.kinds} <= set(CauseKind)


@pytest.mark.parametrize(
    ("location", "layout", "there"),
    [
        ("worker:1", PS2, True),
        ("m4", PS2, True),  # its host
        ("m3", PS2, False),
        ("ps:0>worker:1", PS2, False),  # one pair of several is not the link
        ("ps:0>worker:1", PS1, True),  # the only one is
        ("worker:0>worker:1", ("distributed_all_reduce", 0, 2), True),
        ("", PS2, False),
    ],
)
def test_link_location_is_its_task_or_host(location: str, layout: tuple[str, int, int], there: bool) -> None:
    """The location of a worker's link is right if it names the task, its host, or the only pair of tasks."""
    assert make_answer("worker's link", "link", location, layout=layout).is_there is there


@pytest.mark.parametrize(
    ("location", "layout", "there"), [("worker:1", PS1, True), ("worker:1", PS2, False), ("ps:0", PS1, False)]
)
def test_pair_location_is_its_worker_beside_one_server(location: str, layout: tuple[str, int, int], there: bool) -> None:
    """The location of one pair is right if it names the worker and there is one server, and wrong if it names a server."""
    assert make_answer("one pair", "link", location, layout=layout).is_there is there


def test_case_with_too_small_an_increase_does_not_count() -> None:
    """A case with an injected cause and a step 5 % longer does not count, and one without an injected cause does."""
    weak = CaseResult(Case(*PS1, "packing off", 0.5), baseline_s=0.2, current_s=0.21, cause_kind="", location="", seconds=0.0)
    assert not weak.counts
    assert CaseResult(Case(*PS1, "nothing", 0.5), 0.2, 0.21, "", "", 0.0).counts


def test_matrix_and_summary_count_answers() -> None:
    """Each injected cause has a row with the kinds in its answers, how many were right, and how many seconds were right."""
    answers = [
        make_answer("sleeping worker", "straggler", "worker:1"),
        make_answer("sleeping worker", "straggler", "worker:1", seconds=0.05),
        make_answer("sleeping worker", "link", "worker:1"),
        make_answer("nothing", ""),
        make_answer("nothing", "host"),
    ]
    assert matrix(answers).splitlines() == [
        "| Injected | Cases | no cause | host | link | straggler | Right kind | And location | Seconds within 20 % |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
        "| nothing | 2 | 1 | 1 |  |  | 1 | 1 |  |",
        "| sleeping worker | 3 |  |  | 1 | 2 | 2 | 2 | 1 of 2 |",
    ]
    assert list(summary(answers)) == [
        "right kind: 2 of 3 (66.7 %)",
        "right location, of those: 2 of 2 (100.0 %)",
        "seconds within 20 %, of those: 1 of 2 (50.0 %)",
        "no injection and no cause: 1 of 2 (50.0 %)",
        "  parameter_server: right kind 2 of 3 (66.7 %)",
        ("left out: 0 with a step less than 10 % longer, 0 with a disturbance, 0 without an end"),
    ]


def test_case_is_printed_in_one_line() -> None:
    """The line of a case has its cause, layout, increase and answer."""
    answer = make_answer("sleeping worker", "straggler", "worker:1", layout=PS1)
    assert format_line(answer) == "sleeping worker    parameter_server 1+2 +50%: straggler worker:1 100 of 100 ms: right"
