"""How far clocks are apart, from traces alone."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_dtfperf.explain.step_events import align_clocks
from tests.explain.made import MODES, Session, Times, parameter_server, real, shifted

lengths = st.integers(1, 10_000)
times = st.builds(Times, **dict.fromkeys(Times.__dataclass_fields__, lengths))
ahead = st.integers(-(10**12), 10**12)


@given(st.lists(times, min_size=1, max_size=4), ahead, st.lists(ahead, min_size=3, max_size=3))
@settings(deadline=None, max_examples=60)
def test_truth_is_within_the_stated_error(workers: list[Times], server: int, others: list[int]) -> None:
    """However far clocks are apart: what is found differs from the truth by no more than it says."""
    traces = parameter_server(workers)
    true = {"worker:0": 0, "ps:0": server, **{f"worker:{i + 1}": by for i, by in enumerate(others[: len(workers) - 1])}}
    clocks = align_clocks([shifted(trace, true) for trace in traces])
    assert clocks.ahead_us.keys() == true.keys()
    for task, by in true.items():
        assert abs(clocks.ahead_us[task] - by) <= clocks.error_us[task]


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode not in ("independent", "replicated")])
def test_real_tasks_of_one_host(mode: str) -> None:
    """Of tasks that had one clock, the stated error covers what is found."""
    clocks = align_clocks(real(mode))
    assert len(clocks.ahead_us) > 1
    assert all(abs(clocks.ahead_us[task]) <= error for task, error in clocks.error_us.items())


def test_real_parameter_servers_are_known_to_a_millisecond() -> None:
    """Three steps between two workers and two servers are enough for a millisecond."""
    assert max(align_clocks(real("parameter_server")).error_us.values()) < 2000


def test_what_is_known_from_elsewhere_is_kept() -> None:
    """Bounds that are given beside the trace hold, and make others tighter."""
    traces = parameter_server([Times(), Times()])
    known = {("worker:1", "worker:0"): 0, ("worker:0", "worker:1"): 0}
    clocks = align_clocks(traces, known)
    assert clocks.ahead_us["worker:1"] == clocks.error_us["worker:1"] == 0
    assert clocks.error_us["ps:0"] <= align_clocks(traces).error_us["ps:0"]


def test_tasks_that_never_met_have_no_common_clock() -> None:
    """A worker that nothing ties to the first one is not told in its time."""
    traces = [Session(f"worker:{i}", begin=0, called=1, end=9) for i in range(2)]
    for session in traces:
        session.run("tower0/forward", 2, 8)
    clocks = align_clocks([session.trace() for session in traces])
    assert not clocks.reads("worker:1")


def test_clock_that_was_set_is_found_with_a_larger_error() -> None:
    """Where bounds contradict each other, since a clock jumped between two steps, they are loosened until they do not."""
    still, jumped = parameter_server([Times()])[0], shifted(parameter_server([Times()])[0], {"ps:0": 50_000})
    torn = type(still)(still.task, still.operations, still.tensors, [*still.steps, *jumped.steps], still.queues)
    clocks = align_clocks([torn])
    assert 0 <= clocks.ahead_us["ps:0"] <= 50_000
    assert clocks.error_us["ps:0"] >= 24_000
