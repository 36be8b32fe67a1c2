"""pytest-xdist: its workers train in turn and write into one session folder; the controller names it, accepts and shows.

The hooks are optional: without xdist nobody calls them.
"""

import ctypes
import json
import signal
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

SESSION = "dtfperf_session"  # key in workerinput: the session's id
USED = "dtfperf_used"  # key in workeroutput: this worker has seen a perf test
NOTED = "dtfperf_noted"  # key in workeroutput: what a dry run has noted there
PROBLEM = "dtfperf_problem"  # key in workeroutput: why nothing can be run
PROGRESS = "dtfperf_progress"  # key in workerinput, and name of an event: what a worker tells of its progress is shown
UNWRITTEN = "dtfperf_unwritten"  # key in workeroutput: what this worker has measured and could not write
SESSION_ID = pytest.StashKey[str]()
PR_SET_PDEATHSIG = 1


def is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


def session_id(config: pytest.Config) -> str:
    """One for all processes of a session."""
    if is_worker(config):
        given: dict[str, str] = getattr(config, "workerinput", {})
        return given[SESSION]
    if SESSION_ID not in config.stash:
        from pytest_dtfperf.session_id import new_session_id

        config.stash[SESSION_ID] = new_session_id()
    return config.stash[SESSION_ID]


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Called in the controller, before a worker starts."""
    node.workerinput[SESSION] = session_id(node.config)
    _relay(node)


def _relay(node: Any) -> None:
    """Let what a worker tells of its progress through to the controller's main thread, which alone writes to the terminal.

    xdist has no public way for a message of a plugin while tests run. Where it has not this one, nothing is told.
    """
    distributed = node.config.pluginmanager.getplugin("dsession")
    receive, pass_on = getattr(node, "process_from_remote", None), getattr(node, "notify_inproc", None)
    if distributed is None or receive is None or pass_on is None:
        return

    def received(event: Any) -> None:
        if isinstance(event, tuple) and event[0] == PROGRESS:
            pass_on(PROGRESS, node=node, **event[1])
        else:
            receive(event)

    node.process_from_remote = received
    setattr(distributed, f"worker_{PROGRESS}", _show)
    node.workerinput[PROGRESS] = True


def _show(node: Any, kind: str, text: str, tests: Sequence[str]) -> None:
    from pytest_dtfperf.plugin.hooks import state

    perf = state(node.config)
    perf.tests = perf.tests or tests
    perf.display.relayed(node.gateway.id, kind, text)


def tell(config: pytest.Config, kind: str, text: str, tests: Sequence[str] = ()) -> None:
    """Called in a worker: "line" to be shown, or the name of a test that is "begun" or "ended", of all `tests`."""
    if not getattr(config, "workerinput", {}).get(PROGRESS):
        return
    for plugin in config.pluginmanager.get_plugins():
        if hasattr(plugin, "sendevent"):
            plugin.sendevent(PROGRESS, kind=kind, text=text, tests=list(tests))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Called in the controller when a worker has ended: one that trained leaves something to accept and to show."""
    from pytest_dtfperf.plugin.hooks import state
    from pytest_dtfperf.report.record import Record

    said = getattr(node, "workeroutput", {})
    if PROBLEM in said:
        raise pytest.UsageError(said[PROBLEM])
    if said.get(USED):
        perf = state(node.config)
        if perf.rehearsal:
            perf.rehearsal.take_over(said.get(NOTED, ()))
        if why := said.get(UNWRITTEN):
            perf.folder.take_over([Record.from_json(json.loads(line)) for line in why["lines"]], why["why"])


def refuse(config: pytest.Config, items: list[pytest.Item], why: str) -> None:
    """End the session before a test is run. A worker cannot: it runs nothing, and has the controller do so."""
    if not is_worker(config):
        raise pytest.UsageError(why)
    getattr(config, "workeroutput", {})[PROBLEM] = why
    items.clear()


def hand_over(config: pytest.Config, noted: Sequence[Mapping[str, Any]]) -> None:
    """Called at the end of a dry run: a worker's notes are shown by the controller."""
    if is_worker(config):
        getattr(config, "workeroutput", {})[NOTED] = noted


def hand_over_unwritten(config: pytest.Config, lines: Sequence[str], why: str) -> None:
    """Called at the end of a worker that could not write these lines of measurements.jsonl: the controller shows them."""
    getattr(config, "workeroutput", {})[UNWRITTEN] = {"lines": lines, "why": why}


def join(config: pytest.Config) -> None:
    """Called when the first perf test is seen. A worker tells the controller, and will end its training if that is killed.

    By itself it would go on to the test's end.
    """
    if is_worker(config):
        getattr(config, "workeroutput", {})[USED] = True
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
