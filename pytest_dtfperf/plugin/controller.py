"""pytest-xdist's controller: it names the session, shows what its workers tell, accepts and shows what they have measured.

The hooks are optional: without xdist nobody calls them.
"""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from pytest_dtfperf.plugin import begin
from pytest_dtfperf.plugin.xdist import NOTED, PROBLEM, PROGRESS, SESSION, UNWRITTEN, USED, session_id


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
    perf = begin.state(node.config)
    perf.tests = perf.tests or tests
    perf.display.relayed(node.gateway.id, kind, text)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Called in the controller when a worker has ended: one that trained leaves something to accept and to show."""
    from pytest_dtfperf.records.record import Record

    output = getattr(node, "workeroutput", {})
    if PROBLEM in output:
        raise pytest.UsageError(output[PROBLEM])
    if output.get(USED):
        perf = begin.state(node.config)
        if dry_run := begin.dry_run(node.config):
            dry_run.take_over(output.get(NOTED, ()))
        if why := output.get(UNWRITTEN):
            perf.bench.folder.take_over([Record.from_json(json.loads(line)) for line in why["lines"]], why["why"])
