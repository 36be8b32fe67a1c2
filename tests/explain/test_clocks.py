"""Tests of differences between clocks, from traces alone."""

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_dtfperf.explain.step_events import align_clocks, number_clocks
from pytest_dtfperf.traces import TaskTrace
from tests.explain.made import MODES, Session, Times, load_real_traces, make_training, shift_clocks

lengths = st.integers(1, 10_000)
times = st.builds(Times, **dict.fromkeys(Times.__dataclass_fields__, lengths))
ahead = st.integers(-(10**12), 10**12)


@given(st.lists(times, min_size=1, max_size=4), ahead, st.lists(ahead, min_size=3, max_size=3))
def test_clock_difference_is_within_the_stated_error(workers: list[Times], server: int, others: list[int]) -> None:
    """Clock differences of any size are found within the stated error."""
    traces = make_training(workers)
    true = {"worker:0": 0, "ps:0": server, **{f"worker:{i + 1}": by for i, by in enumerate(others[: len(workers) - 1])}}
    clocks = align_clocks([shift_clocks(trace, true) for trace in traces])
    assert clocks.ahead_us.keys() == true.keys()
    for task, by in true.items():
        assert abs(clocks.ahead_us[task] - by) <= clocks.error_us[task]


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode not in ("independent", "replicated")])
def test_real_tasks_of_one_clock_differ_by_less_than_the_error(mode: str) -> None:
    """The differences that are found of real tasks with one clock are within the stated error."""
    clocks = align_clocks(load_real_traces(mode))
    assert len(clocks.ahead_us) > 1
    assert all(abs(clocks.ahead_us[task]) <= error for task, error in clocks.error_us.items())


def test_real_parameter_servers_have_small_clock_errors() -> None:
    """Three steps between two real workers and two servers give clock errors below two milliseconds."""
    assert max(align_clocks(load_real_traces("parameter_server")).error_us.values()) < 2000


def test_given_clock_bounds_are_kept() -> None:
    """Given bounds of clocks hold, and do not widen the errors of others."""
    traces = make_training([Times(), Times()])
    known = {("worker:1", "worker:0"): 0, ("worker:0", "worker:1"): 0}
    clocks = align_clocks(traces, known)
    assert clocks.ahead_us["worker:1"] == clocks.error_us["worker:1"] == 0
    assert clocks.error_us["ps:0"] <= align_clocks(traces).error_us["ps:0"]


def test_tasks_of_one_host_have_one_clock() -> None:
    """Clocks are numbered by host, since the time to compare all of them grows with the cube of their number."""
    hosts = {f"{job}:{number}": number % 4 for number in range(32) for job in ("worker", "ps")}
    known = {pair: 0 for pair in permutations(hosts, 2) if hosts[pair[0]] == hosts[pair[1]]}
    assert number_clocks(list(hosts), known) == hosts
    assert list(number_clocks(list(hosts), {}).values()) == list(range(64))
    assert number_clocks(["worker:0", "worker:1"], {("worker:0", "worker:1"): 0}) == {"worker:0": 0, "worker:1": 1}


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 50), st.integers(51, 99)), min_size=2, max_size=7),
    st.lists(ahead, min_size=3, max_size=3),
)
def test_exchange_bounds_clocks_as_all_pairs_of_tasks_do(parts: list[tuple[int, int, int]], offsets: list[int]) -> None:
    """An all-reduce gives the clocks that follow from the end and the begin of each pair of its tasks."""
    hosts = {f"worker:{number}": host for number, (host, _, _) in enumerate(parts)}
    times = {
        f"worker:{number}": (begin + offsets[host], end + offsets[host]) for number, (host, begin, end) in enumerate(parts)
    }
    pairs = list(permutations(hosts, 2))
    known = {(one, other): 0 for one, other in pairs if hosts[one] == hosts[other]}
    bounds = {(one, other): times[one][1] - times[other][0] for one, other in pairs if hosts[one] != hosts[other]}
    alike, exchanged = (
        [make_exchange(worker, kind, *times[worker]) for worker in hosts] for kind in ("MatMul", "CollectiveReduceV2")
    )
    assert align_clocks(exchanged, known) == align_clocks(alike, {**known, **bounds})


def make_exchange(worker: str, kind: str, begin: int, end: int) -> TaskTrace:
    session = Session(worker, begin=begin - 5, called=begin - 1, end=end + 1)
    session.run("reduce", begin, end, kind=kind)
    return session.trace(steps=1)


def test_contradiction_on_one_clock_has_a_larger_error() -> None:
    """Tasks of one host that contradict each other by 20 microseconds in an all-reduce have an error of at least as much."""
    known = {("worker:0", "worker:1"): 0, ("worker:1", "worker:0"): 0}
    parts = {"worker:0": (5, 10), "worker:1": (30, 60)}
    traces = [make_exchange(worker, "CollectiveReduceV2", *at) for worker, at in parts.items()]
    assert align_clocks(traces, known).error_us == {"worker:0": 32, "worker:1": 32}


def test_tasks_without_exchange_have_no_common_clock() -> None:
    """The clock of a worker that exchanged nothing with the first one is unknown."""
    traces = [Session(f"worker:{i}", begin=0, called=1, end=9) for i in range(2)]
    for session in traces:
        session.run("tower0/forward", 2, 8)
    clocks = align_clocks([session.trace() for session in traces])
    assert not clocks.reads("worker:1")


def test_clock_that_jumps_has_a_larger_error() -> None:
    """A clock that jumps by 50 ms between two steps is placed between both values, with an error of about half the jump."""
    still, jumped = make_training([Times()])[0], shift_clocks(make_training([Times()])[0], {"ps:0": 50_000})
    torn = type(still)(still.task, still.operations, still.tensors, [*still.steps, *jumped.steps], still.queues)
    clocks = align_clocks([torn])
    assert 0 <= clocks.ahead_us["ps:0"] <= 50_000
    assert clocks.error_us["ps:0"] >= 24_000
