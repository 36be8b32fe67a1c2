"""The end of a session that trained: baselines are accepted, the session folder is completed, the table is shown.

Registered by the first perf test, in the process that writes to the terminal; xdist workers only release their hosts.
"""

import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import pytest

from pytest_dtfperf.compare.record import COMPARISONS_FILE
from pytest_dtfperf.errors import DtfPerfError
from pytest_dtfperf.formats import format_count
from pytest_dtfperf.history.enter import HistoryEntry
from pytest_dtfperf.plugin import installed_first, xdist
from pytest_dtfperf.plugin.adapter import SessionAdapter
from pytest_dtfperf.plugin.display import degrade
from pytest_dtfperf.plugin.outcome import format_skips, get_verdict
from pytest_dtfperf.records.record import Record
from pytest_dtfperf.records.session import SessionFolder
from pytest_dtfperf.records.stored import Budget, encode_record
from pytest_dtfperf.report import notes, terminal
from pytest_dtfperf.report.comparisons import TITLE, format_comparisons
from pytest_dtfperf.session.session import Completion

_SECTION = "pytest_dtfperf_report_section"


@dataclass(eq=False)  # pytest 8 keeps plugins in a set
class Ending:
    """The hooks of a session's end, and their shared values."""

    perf: SessionAdapter
    started_s: float = field(default_factory=time.monotonic)
    completion: Completion | None = None
    sections: Sequence[tuple[str, Sequence[str]]] = ()  # of other plugins and of conftest.py
    remarks: list[str] = field(default_factory=list)
    budget: Budget | None = None

    @pytest.hookimpl(trylast=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Degrade the terminal's encoding now: at pytest's start, when the plugin may begin, there was no terminal yet."""
        session.config.add_cleanup(degrade(session.config))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        with installed_first():
            self._finish(session, exitstatus)

    def _finish(self, session: pytest.Session, exitstatus: int) -> None:
        with self._reporting(session):
            self.perf.close()
        if xdist.is_worker(session.config):
            if self.perf.session.write_error:
                folder = self.perf.session.folder
                xdist.send_unwritten(
                    session.config, [encode_record(record).decode() for record in folder.unwritten], folder.write_errors
                )
            return
        if self.perf.session.has_measured:
            self._end(session, self.perf.session.folder)
        reporter = session.config.pluginmanager.getplugin("terminalreporter")
        is_known_to_pytest = exitstatus in list(pytest.ExitCode)  # at others, such as SIGTERM's, it prints no summary
        if reporter and not is_known_to_pytest:
            reporter.ensure_newline()
            self.pytest_terminal_summary(reporter)

    def _end(self, session: pytest.Session, folder: SessionFolder) -> None:
        """Take step by step, even after failures: in the end the table must be shown."""
        guard = partial(self._reporting, session)
        self.completion = completion = Completion(self.perf.session, self.perf.root, self.started_s, guard)
        completion.accept()
        accepted = completion.acceptance
        if accepted and (accepted.loosened_baselines or accepted.is_fruitless) and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED  # an unattended update must show the failure
        with guard():
            self.budget = folder.session.budget
            self.remarks += terminal.list_costs(folder.session.costs)
        completion.finish(int(session.exitstatus), _count_verdicts(session.config))
        gate = self._apply_gate(session, completion.remembered)
        sections = self._sections(session.config, completion.records)
        comparisons = [each.to_record() for each in self.perf.session.comparisons]
        self.sections = [(TITLE.lower(), format_comparisons(comparisons)), *sections] if comparisons else sections
        if comparisons:
            self.remarks.append(f"Comparisons: {folder.path / COMPARISONS_FILE}")
        completion.export(sections, comparisons)
        self.remarks += completion.remarks
        if folder.write_failure:
            self._report(session, folder.write_failure)
        self.remarks += [*completion.remembered.lines, *gate]
        if self.perf.session.time_budget:
            self.remarks += self.perf.session.time_budget.describe()

    def _apply_gate(self, session: pytest.Session, remembered: HistoryEntry) -> list[str]:
        """Fail the session for new changes over time, with --history-gate."""
        if not (remembered.new and self.perf.options.history_gate):
            return []
        session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED
        with self._reporting(session):
            self.perf.session.fail(int(session.exitstatus))
        return [f"--history-gate: {format_count(len(remembered.new), 'new change')} over time: this session fails"]

    def _sections(self, config: pytest.Config, records: Sequence[Record]) -> list[tuple[str, Sequence[str]]]:
        """Return the sections of other plugins and of conftest.py, in pytest's order; an error affects only its own section."""
        manager, found = config.pluginmanager, list[tuple[str, Sequence[str]]]()
        hooks = reversed(getattr(config.hook, _SECTION).get_hookimpls()) if records else ()
        each = [hook.plugin for hook in hooks if not (hook.wrapper or hook.hookwrapper)]
        for plugin in each:
            alone = manager.subset_hook_caller(_SECTION, [other for other in each if other is not plugin])
            try:
                found += [_make_section(*section) for section in alone(config=config, records=records) if section]
            # Foreign code: the table is shown all the same, and the session's exit code stays right.
            except (Exception, pytest.fail.Exception, pytest.skip.Exception) as error:
                name = manager.get_name(plugin)
                self.remarks.append(f"dtfperf: a report section of {name} failed: {type(error).__name__}: {error}")
        return found

    @contextmanager
    def _reporting(self, session: pytest.Session) -> Iterator[None]:
        """Turn an error at the session's end into a remark, so that the other steps are taken all the same."""
        try:
            yield
        except (DtfPerfError, OSError) as error:
            self._report(session, str(error))

    def _report(self, session: pytest.Session, remark: str) -> None:
        self.remarks.append(remark)
        session.exitstatus = max(session.exitstatus, pytest.ExitCode.INTERNAL_ERROR)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        acceptance = self.completion.acceptance if self.completion else None
        records = self.completion.records if self.completion else ()
        deselected = [f"{format_count(count, 'test')} deselected: {why}" for why, count in self.perf.deselected.items()]
        if not self.perf.options.dry_run:
            budget = self.perf.session.time_budget  # its own line names the tests that it left out
            deselected += format_skips(terminalreporter.stats.get("skipped", ()), budget.left_out if budget else ())
        if not records and not deselected and not self.remarks and not self.sections:
            return
        terminalreporter.section("distributed training performance")
        text = terminal.format_summary(
            records,
            self.completion.published if self.completion else (),
            width=terminalreporter._tw.fullwidth,
            colour=terminalreporter._tw.hasmarkup,
            verbose=terminalreporter.verbosity > 0,
            folder=self.perf.session.folder.path if records else None,
            accepted=notes.list_accepted_baselines(acceptance, records),
            budget=self.budget,
            next_steps=notes.list_next_steps(records, self.perf.session.command, self.perf.session.config.name),
            remarks=[*notes.list_acceptance_remarks(acceptance, records), *self.remarks, *deselected],
        )
        terminalreporter.write(text or "\n".join([*self.remarks, *deselected]) + "\n")
        for line in list_annotations(records, terminalreporter.config.rootpath, os.environ):
            terminalreporter.write_line(line)
        for title, lines in self.sections:
            terminalreporter.section(title)
            for line in lines:
                terminalreporter.write_line(line)


def list_annotations(records: Sequence[Record], root: Path, environment: Mapping[str, str]) -> list[str]:
    """Return a workflow command for each failed measurement in GitHub Actions, with paths in its workspace; else none."""
    if environment.get("GITHUB_ACTIONS") != "true":
        return []
    from pytest_dtfperf.report.export_formats import format_github_commands, list_findings

    folder = os.path.relpath(root, environment.get("GITHUB_WORKSPACE") or root)
    found = list_findings(records, root)
    return format_github_commands([replace(each, path=os.path.normpath(os.path.join(folder, each.path))) for each in found])


def _make_section(title: object, lines: Iterable[object]) -> tuple[str, Sequence[str]]:
    """Return a title and lines; a single text is split into lines."""
    return str(title), lines.splitlines() if isinstance(lines, str) else [str(line) for line in lines]


def _count_verdicts(config: pytest.Config) -> Counter[str] | None:
    """Return how many tests have each verdict, each test counted once; None if no reports are kept."""
    reporter = config.pluginmanager.getplugin("terminalreporter")
    if reporter is None:
        return None
    kept = [report for kind, reports in reporter.stats.items() if kind != "rerun" for report in reports]
    tests = [report for report in kept if type(report) is pytest.TestReport]  # not subtests', of another class
    tests.sort(key=lambda report: report.when == "call")  # an error after the test leaves its verdict
    found = {report.nodeid: get_verdict(report) for report in tests if report.when == "call" or report.failed}
    return Counter(filter(None, found.values()))
