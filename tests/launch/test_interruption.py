"""Tests of the end of an interrupted run on hosts that do not confirm it, in virtual time."""

from pathlib import Path
from typing import Any

import pytest

from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.clusters.placement import HostView
from pytest_dtfperf.clusters.protocol import AllocationClock
from pytest_dtfperf.launch.agents import POLL_S, VIRTUAL_POLL_S, Agents
from pytest_dtfperf.launch.run_controller import MeasuredRun
from pytest_dtfperf.simulated.agents import VirtualClock
from pytest_dtfperf.spec import Spec


class SilentAgents(Agents):
    """Agents that accept all orders and send nothing."""

    def __init__(self, clock: AllocationClock) -> None:
        self.hosts = [HostView(name, "10.0.0.1", (0, 1), ()) for name in ("a", "b")]
        self.clock = clock

    def order(self, order: str, **data: Any) -> None:
        pass

    def expect(self, *args: Any) -> None:
        pass

    def wait_for_event(self, timeout_s: float) -> None:
        if isinstance(self.clock, VirtualClock):
            self.clock.now_s += timeout_s


class DelayedClock(AllocationClock):
    """A clock of its own that is not virtual."""

    def __call__(self) -> float:
        return super().__call__() - 60.0


@pytest.mark.parametrize(
    ("clock", "poll_s"), [(AllocationClock(), POLL_S), (DelayedClock(), POLL_S), (VirtualClock(), VIRTUAL_POLL_S)]
)
def test_deadlines_are_checked_rarely_on_virtual_clocks_only(clock: AllocationClock, poll_s: float) -> None:
    """Deadlines are checked at the usual interval on any clock that is not virtual."""
    assert SilentAgents(clock).poll_s == poll_s


@pytest.mark.parametrize("is_aborted", [True, False])
def test_aborted_run_waits_for_no_host(is_aborted: bool, tmp_path: Path) -> None:
    """A run that is interrupted waits for its hosts up to a limit, and does not wait at all after a second interruption."""
    clock, config = VirtualClock(), ClusterConfig(name="lab", backend="ssh", devices_per_host=1)
    run = MeasuredRun(
        SilentAgents(clock),
        config,
        Spec(model="trivial", gpus=2, variable_update="parameter_server", num_ps=1, batch_size=2),
        injected_slowdowns={},
        on_progress=lambda task, step, total_steps, images_per_sec: None,
        checkpoint=None,
        explain=False,
        timestamped=(True,),
        without=(),
        is_cancelled=lambda: True,
        is_aborted=lambda: is_aborted,
    )
    run.stop()
    run.write_logs(tmp_path)
    assert (clock.now_s == 0.0) == is_aborted
    assert not run.all_quiet
