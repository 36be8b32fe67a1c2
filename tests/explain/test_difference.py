"""Tests of the changes from one step breakdown to another."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_dtfperf.datamodel.step_times import StepBreakdown
from pytest_dtfperf.explain.causes import compute_changes
from pytest_dtfperf.explain.step_breakdown import compute_step_breakdown
from tests.explain.made import MODES, Times, load_linked_traces, load_real_traces, make_training

times = st.builds(Times, **dict.fromkeys(Times.__dataclass_fields__, st.integers(1, 10_000)))
breakdowns = st.builds(compute_step_breakdown, st.builds(make_training, st.lists(times, min_size=1, max_size=3)))


@given(breakdowns, breakdowns)
def test_changes_add_up_to_the_step(before: StepBreakdown, after: StepBreakdown) -> None:
    """Changes add up to the change of the step, and have the opposite sign in the opposite direction."""
    changes = compute_changes(before, after)
    assert sum(change.seconds for change in changes) == pytest.approx(after.wall_s - before.wall_s, abs=1e-5)
    back = {change.kind: -change.seconds for change in compute_changes(after, before)}
    assert back == pytest.approx({change.kind: change.seconds for change in changes})


@pytest.mark.parametrize("mode", MODES)
def test_training_compared_with_itself_has_no_changes(mode: str) -> None:
    """A training compared with itself has changes of zero without a location."""
    breakdown = compute_step_breakdown(load_real_traces(mode), lockstep=mode != "independent")
    assert all(change.seconds == 0 and change.location is None for change in compute_changes(breakdown, breakdown))


@pytest.mark.parametrize(
    "slow, kind, location",
    [
        (Times(receive=900), "receive", "ps:0>worker:1"),
        (Times(send=900), "send", "worker:1>ps:0"),
        (Times(forward=900), "forward", "worker:1"),
        (Times(backward=900), "backward", "worker:1"),
        (Times(python=900), "python", "worker:1"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_largest_change_is_the_slowed_part(slow: Times, kind: str, location: str) -> None:
    """If one worker does one thing more slowly, the first change is of this kind at this worker or its link."""
    changes = compute_changes(
        compute_step_breakdown(make_training([Times(), Times()])), compute_step_breakdown(make_training([Times(), slow]))
    )
    assert (changes[0].kind, changes[0].location) == (kind, location)


def test_slow_server_is_the_largest_change() -> None:
    """Longer updates of a parameter server are the first change, at this server, with their seconds."""
    workers = [Times(), Times()]
    changes = compute_changes(
        compute_step_breakdown(make_training(workers)), compute_step_breakdown(make_training(workers, apply=500))
    )
    assert (changes[0].kind, changes[0].location) == ("apply", "ps:0")
    assert changes[0].seconds == pytest.approx(470e-6)


def test_slow_link_of_a_real_training_is_the_largest_change() -> None:
    """The link of a real training that was limited to 500 Mbit/s has nearly all of the change, in both directions, and this
    rate."""
    well, slow = compute_step_breakdown(load_linked_traces("well")), compute_step_breakdown(load_linked_traces("slow"))
    changes = {change.kind: change for change in compute_changes(well, slow)[:2]}
    assert {kind: change.location for kind, change in changes.items()} == {"send": "worker:1>ps:0", "receive": "ps:0>worker:1"}
    assert sum(change.seconds for change in changes.values()) > 0.9 * (slow.wall_s - well.wall_s) > 0.2
    rates = {(link.source, link.destination): link.bytes_per_s for link in slow.links}
    for ends in (("worker:1", "ps:0"), ("ps:0", "worker:1")):
        assert rates[ends] == pytest.approx(500e6 / 8, rel=0.1)
    assert max(slow.clock_error_s.values()) < 0.003
