"""The progress display: on pytest's own terminal, on a line of its own. The controller shows that of xdist's workers."""

import io
import os
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any, TextIO, cast

import pytest

from pytest_dtfperf.formats import DEGRADE
from pytest_dtfperf.plugin import xdist
from pytest_dtfperf.report.progress import NARROW, Progress, cut, wrap_line
from pytest_dtfperf.report.time_estimates import Outlook


class Display:
    """The progress of one process, and in a controller that of its workers. Its hooks note which test is running."""

    def __init__(
        self, config: pytest.Config, *, tests: Callable[[], Sequence[str]], expected_s: Callable[[str], float | None]
    ) -> None:
        """Note the source of the display.

        Args:
            tests: returns the node ids of the displayed tests.
            expected_s: returns how long a test may take, if known.
        """
        self._config = config
        self._tests = tests
        self._expected_s = expected_s
        self._held = ExitStack()
        self._outlook: Outlook | None = None
        self._running: dict[str, str] = {}  # worker -> test; this process has an empty name
        self._is_quiet = getattr(config.option, "verbose", 0) < 0  # absent without a terminal
        self._has_sent_tests = False
        self._names: frozenset[str] = frozenset()
        self.progress = self._get_progress()

    def _get_test_names(self) -> frozenset[str]:
        self._names = self._names or frozenset(self._tests())
        return self._names

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        if item.nodeid not in self._get_test_names():
            return (yield)
        self._get_event("begun", item.nodeid)
        try:
            return (yield)
        finally:
            self._get_event("ended", item.nodeid)

    def show_worker_event(self, worker: str, kind: str, text: str) -> None:
        """Show a worker's message about its tests. Called in a controller."""
        reporter = self._config.pluginmanager.getplugin("terminalreporter")
        if kind == "line":
            if reporter is None:
                return
            where = self._get_location(worker)
            self._end_line()
            if self._is_quiet:
                lines = [cut(" ".join(filter(None, [worker, where, text])), reporter._tw.fullwidth)]
            else:
                lines = wrap_line(": ".join(filter(None, [worker, where, text])), reporter._tw.fullwidth)
            for line in lines:
                reporter._tw.line(line)
        else:
            self._note(worker, kind, text)

    def close(self) -> None:
        self._held.close()

    def _get_event(self, kind: str, test: str) -> None:
        if xdist.is_worker(self._config):
            tests = () if self._has_sent_tests else self._tests()  # sending thousands of names for each test would take time
            self._has_sent_tests = True
            xdist.send_progress(self._config, kind, test, tests)
        else:
            self._note("", kind, test)

    def _note(self, worker: str, kind: str, test: str) -> None:
        self._running[worker] = test
        outlook = self._outlook = self._outlook or Outlook(self._tests(), self._expected_s, time.monotonic)
        outlook.workers = len(self._running)
        outlook.begin_test(test) if kind == "begun" else outlook.end_test(test)

    def _get_location(self, worker: str = "") -> str:
        if self._outlook is None or worker not in self._running:
            return ""
        test = self._running[worker]
        return self._outlook.place(test) if self._is_quiet else self._outlook.describe_progress(test)

    def _get_progress(self) -> Progress:
        if xdist.is_worker(self._config):
            room = NARROW - len("gw10 1000/1000 ") if self._is_quiet else None  # the controller puts that before it
            return Progress(cast("TextIO", _Relay(self._config)), is_terminal=False, is_quiet=self._is_quiet, width=room)
        reporter = self._config.pluginmanager.getplugin("terminalreporter")
        terminal = self._open_terminal(reporter and reporter._tw._file)
        if terminal is None:
            return Progress(io.StringIO(), is_terminal=False)
        progress = Progress(
            terminal,
            is_terminal=terminal.isatty(),
            width=reporter._tw.fullwidth,
            fresh_line=self._end_line,
            where=self._get_location,
            is_quiet=self._is_quiet,
        )
        self._held.callback(progress.close)
        return progress

    def _open_terminal(self, file: Any) -> TextIO | None:
        """Return a descriptor of its own for pytest's output: capture redirects the common one while tests run."""
        with self._suspend_capture():
            try:
                encoding = file.encoding or "utf-8"
                return self._held.enter_context(open(os.dup(file.fileno()), "w", encoding=encoding, errors=DEGRADE))
            except (AttributeError, OSError):  # no reporter, or one that writes into memory
                return None

    def _end_line(self) -> None:
        """End the line that pytest has begun, by pytest's own writer, which knows its position."""
        reporter = self._config.pluginmanager.getplugin("terminalreporter")
        with self._suspend_capture():
            if reporter._tw.width_of_current_line:
                reporter._tw.line()
            if reporter.currentfspath == -2:  # xdist's request for a new line, which has been written
                reporter.currentfspath = None
            reporter._tw.flush()

    def _suspend_capture(self) -> AbstractContextManager[object]:
        capture: Any = self._config.pluginmanager.getplugin("capturemanager")
        return capture.global_and_fixture_disabled() if capture else nullcontext()


def degrade(config: pytest.Config) -> Callable[[], None]:
    """Let pytest's terminal replace characters that its encoding lacks, and return a function that undoes that.

    Otherwise pytest escapes the whole text, ends of lines included.
    """
    reporter = config.pluginmanager.getplugin("terminalreporter")
    file = reporter and reporter._tw._file
    if not isinstance(file, io.TextIOWrapper) or file.errors != "strict":
        return lambda: None

    def restore() -> None:
        if not file.closed:
            file.reconfigure(errors="strict")

    file.reconfigure(errors=DEGRADE)
    return restore


class _Relay(io.TextIOBase):
    """A worker's terminal, which sends whole lines to the controller."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def write(self, text: str) -> int:
        for line in text.splitlines():
            xdist.send_progress(self._config, "line", line)
        return len(text)
