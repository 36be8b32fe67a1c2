"""What has become longer from one step breakdown to another."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_dtfperf.datamodel.step_times import StepBreakdown
from pytest_dtfperf.explain.causes import compute_changes
from pytest_dtfperf.explain.step_breakdown import compute_step_breakdown
from tests.explain.made import MODES, Times, linked, parameter_server, real

times = st.builds(Times, **dict.fromkeys(Times.__dataclass_fields__, st.integers(1, 10_000)))
breakdowns = st.builds(compute_step_breakdown, st.builds(parameter_server, st.lists(times, min_size=1, max_size=3)))


@given(breakdowns, breakdowns)
@settings(deadline=None, max_examples=60)
def test_changes_add_up(before: StepBreakdown, after: StepBreakdown) -> None:
    """Whatever changed how: the changes add up to that of the step, and the other way round they have the other sign."""
    changes = compute_changes(before, after)
    assert sum(change.seconds for change in changes) == pytest.approx(after.wall_s - before.wall_s, abs=1e-5)
    back = {change.kind: -change.seconds for change in compute_changes(after, before)}
    assert back == pytest.approx({change.kind: change.seconds for change in changes})


@pytest.mark.parametrize("mode", MODES)
def test_nothing_changed(mode: str) -> None:
    """A training has not changed against itself."""
    breakdown = compute_step_breakdown(real(mode), lockstep=mode != "independent")
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
def test_largest_change_is_what_was_made_slower(slow: Times, kind: str, location: str) -> None:
    """One worker does one thing more slowly: that comes first, with that worker or its link."""
    changes = compute_changes(
        compute_step_breakdown(parameter_server([Times(), Times()])), compute_step_breakdown(parameter_server([Times(), slow]))
    )
    assert (changes[0].kind, changes[0].location) == (kind, location)


def test_slow_server_is_found() -> None:
    """A parameter server that takes longer to apply updates is where the time went."""
    workers = [Times(), Times()]
    changes = compute_changes(
        compute_step_breakdown(parameter_server(workers)), compute_step_breakdown(parameter_server(workers, apply=500))
    )
    assert (changes[0].kind, changes[0].location) == ("apply", "ps:0")
    assert changes[0].seconds == pytest.approx(470e-6)


def test_slow_link_of_a_real_training_is_found() -> None:
    """Where one worker's link was held to 500 Mbit/s, the step's change is that link's, both ways, and its rate is seen."""
    well, slow = compute_step_breakdown(linked("well")), compute_step_breakdown(linked("slow"))
    changes = {change.kind: change for change in compute_changes(well, slow)[:2]}
    assert {kind: change.location for kind, change in changes.items()} == {"send": "worker:1>ps:0", "receive": "ps:0>worker:1"}
    assert sum(change.seconds for change in changes.values()) > 0.9 * (slow.wall_s - well.wall_s) > 0.2
    rates = {(link.source, link.destination): link.bytes_per_s for link in slow.links}
    for ends in (("worker:1", "ps:0"), ("ps:0", "worker:1")):
        assert rates[ends] == pytest.approx(500e6 / 8, rel=0.1)
    assert max(slow.clock_error_s.values()) < 0.003
