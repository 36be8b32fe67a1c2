"""The messages between pytest-xdist's controller and workers, which train in turn and write into one session folder."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

SESSION = "dtfperf_session"  # key in workerinput: the session's id
USED = "dtfperf_used"  # key in workeroutput: this worker has had a perf test
NOTED = "dtfperf_noted"  # key in workeroutput: the notes of a dry run
PROBLEM_KEY = "dtfperf_problem"  # key in workeroutput: why nothing can be run
PROGRESS = "dtfperf_progress"  # key in workerinput, and name of an event: the worker's progress is shown
UNWRITTEN = "dtfperf_unwritten"  # key in workeroutput: this worker's measurements that it could not write
SESSION_ID = pytest.StashKey[str]()
PR_SET_PDEATHSIG = 1


def is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


def get_session_id(config: pytest.Config) -> str:
    """Return the session's id, which all its processes share."""
    if is_worker(config):
        given: dict[str, str] = getattr(config, "workerinput", {})
        return given[SESSION]
    if SESSION_ID not in config.stash:
        from pytest_dtfperf.records.session import FOLDER_NAME, ID_VARIABLE, new_session_id

        given_id = os.environ.pop(ID_VARIABLE, "")  # not for the pytest that a test may start
        config.stash[SESSION_ID] = given_id if FOLDER_NAME.fullmatch(given_id) else new_session_id()
    return config.stash[SESSION_ID]


def send_progress(config: pytest.Config, kind: str, text: str, tests: Sequence[str] = ()) -> None:
    """Send a "line" to be shown, or the test that is "begun" or "ended"; with the first, all `tests`. Called in a worker."""
    if not getattr(config, "workerinput", {}).get(PROGRESS):
        return
    for plugin in config.pluginmanager.get_plugins():
        if hasattr(plugin, "sendevent"):
            plugin.sendevent(PROGRESS, kind=kind, text=text, tests=list(tests))


def refuse(config: pytest.Config, items: list[pytest.Item], why: str) -> None:
    """End the session before any test; a worker runs nothing, and the controller ends the session."""
    if not is_worker(config):
        raise pytest.UsageError(why)
    getattr(config, "workeroutput", {})[PROBLEM_KEY] = why
    items.clear()


def send_notes(config: pytest.Config, notes: Sequence[Mapping[str, Any]]) -> None:
    """Send a worker's notes of a dry run to the controller, which shows them."""
    if is_worker(config):
        getattr(config, "workeroutput", {})[NOTED] = notes


def send_unwritten(config: pytest.Config, lines: Sequence[str], why: str) -> None:
    """Send the lines of measurements.jsonl that a worker could not write to the controller, which shows them."""
    getattr(config, "workeroutput", {})[UNWRITTEN] = {"lines": lines, "why": why}


def note_perf_test(config: pytest.Config) -> None:
    """Report that a worker has a perf test, and let the kernel end the worker if the controller is killed.

    Called for the first perf test.
    """
    if is_worker(config):
        import ctypes  # late: most runs of pytest need neither
        import signal

        getattr(config, "workeroutput", {})[USED] = True
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
