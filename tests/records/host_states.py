"""States of hosts and disturbances with the few values that a test sets."""

from collections.abc import Mapping
from typing import Any

from pytest_dtfperf.datamodel.explanation import CauseKind
from pytest_dtfperf.datamodel.host_state import Disturbance, HostState

# As agents send it: two cores that worked for ten seconds on nothing but the run.
UNDISTURBED: Mapping[str, Any] = {
    "machine": "a21c0ae2",
    "cpus": "0-1",
    "cores": 2,
    "quota": False,
    "window_s": 10.0,
    "cpu": {"busy_s": 19.0, "own_s": 18.5, "controller_s": 0.2, "steal_s": 0.1, "waited_s": None, "limited_s": None},
    "load": {"before": 1.2, "after": 2.4},
    "memory": {"available_mib": {"before": 999, "after": 900}, "some_s": 0.1, "full_s": 0.0, "swapped_in_mib": 0},
    "clock_mhz": {"before": None, "after": None, "most": None},
    "throttled_s": None,
}


def make_state(**changes: Any) -> HostState:
    """Return the state of an undisturbed host with other values; those of an object replace its keys one by one."""
    state = {**UNDISTURBED}
    for name, value in changes.items():
        state[name] = {**state[name], **value} if isinstance(value, dict) else value
    return HostState.from_json(state)


ANOTHER_USER = Disturbance(message="another user")
BUSY = Disturbance(message="other processes used 1.6 of 2 cores for the length of the run", kind=CauseKind.OTHERS, host="n1")
