"""The campaign of injected causes: what is drawn, and how an answer is held against what was done."""

import pytest

from benchmarks.cases import Case, Told, drawn, line_of, matrix, summary
from benchmarks.injected import INJECTED
from pytest_dtfperf.datamodel.explanation import CauseKind

PS1 = ("parameter_server", 1, 2)
PS2 = ("parameter_server", 2, 2)


def told(injected: str, named: str, location: str = "", *, layout: tuple[str, int, int] = PS2, seconds: float = 0.1) -> Told:
    return Told(Case(*layout, injected, 0.5), then_s=0.2, now_s=0.3, named=named, location=location, seconds=seconds)


def test_a_shorter_campaign_is_the_beginning_of_a_longer_one() -> None:
    """Cases come from a seed, 250 have all that can be injected, and servers' causes only where there are servers."""
    cases = drawn(250)
    assert drawn(40) == cases[:40]
    assert {case.injected for case in cases} == set(INJECTED)
    assert [case for case in cases if INJECTED[case.injected].servers and not case.num_ps] == []
    assert 30 <= sum(case.injected == "nothing" for case in cases) <= 70


def test_what_is_injected_has_a_name_that_explanations_have() -> None:
    """Every kind that a injected cause may be called is one that `explain` gives."""
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
def test_a_link_is_named_by_its_task_or_host(location: str, layout: tuple[str, int, int], there: bool) -> None:
    """Where a cause was injected is the task, or its host; beside one server a worker's link and that pair are the same."""
    assert told("worker's link", "link", location, layout=layout).is_there is there


@pytest.mark.parametrize(
    ("location", "layout", "there"), [("worker:1", PS1, True), ("worker:1", PS2, False), ("ps:0", PS1, False)]
)
def test_a_pair_is_named_by_its_worker_if_that_has_no_other(location: str, layout: tuple[str, int, int], there: bool) -> None:
    """Where one pair was slowed down, its worker is that pair beside one server alone; the server has other workers."""
    assert told("one pair", "link", location, layout=layout).is_there is there


def test_what_made_no_difference_says_nothing() -> None:
    """A case in which the step became less than a tenth longer is left out, but for those with nothing injected."""
    weak = Told(Case(*PS1, "packing off", 0.5), 0.2, 0.21, "", "", 0.0)
    assert not weak.counts
    assert Told(Case(*PS1, "nothing", 0.5), 0.2, 0.21, "", "", 0.0).counts


def test_the_matrix_and_its_summary() -> None:
    """Each injected cause has a line: what it was called, how often that was right, and whether the seconds were."""
    answers = [
        told("sleeping worker", "straggler", "worker:1"),
        told("sleeping worker", "straggler", "worker:1", seconds=0.05),
        told("sleeping worker", "link", "worker:1"),
        told("nothing", ""),
        told("nothing", "host"),
    ]
    assert matrix(answers).splitlines() == [
        "| Injected | Cases | no cause | host | link | straggler | Right kind | And location | Seconds within 20 % |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
        "| nothing | 2 | 1 | 1 |  |  | 1 | 1 |  |",
        "| sleeping worker | 3 |  |  | 1 | 2 | 2 | 2 | 1 of 2 |",
    ]
    assert list(summary(answers)) == [
        "right kind: 2 of 3 (66.7%)",
        "right location, of those: 2 of 2 (100.0%)",
        "seconds within 20 %, of those: 1 of 2 (50.0%)",
        "no injection and no cause: 1 of 2 (50.0%)",
        "  parameter_server: right kind 2 of 3 (66.7%)",
        ("left out: 0 with a step less than 10 % longer, 0 with a disturbance, 0 without an end"),
    ]


def test_a_case_is_a_line() -> None:
    """What was done, how much longer a step became, and what was said of it, as soon as it is known."""
    answer = told("sleeping worker", "straggler", "worker:1", layout=PS1)
    assert line_of(answer) == "sleeping worker    parameter_server 1+2 +50%: straggler worker:1 100 of 100 ms: right"
