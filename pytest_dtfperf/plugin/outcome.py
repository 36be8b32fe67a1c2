"""Pass a verdict from a test to its report as a user property, which xdist and JUnit XML transfer, too.

pytest's JUnit XML has errors only for setup and teardown. Without this module, a failed cluster would be a failure of the test.
"""

from collections import Counter
from collections.abc import Container, Iterable
from typing import TYPE_CHECKING

import pytest

from pytest_dtfperf.formats import format_count

if TYPE_CHECKING:
    from pytest_dtfperf.baselines.verdict import Verdict

VERDICT = "dtfperf_verdict"
ACCEPTED = "dtfperf_accepted"  # the test's measurement becomes the baseline, so that no finding is left
WHY = "dtfperf_why"  # the cause of a slower training, if known
COMPARISON = "dtfperf_comparison"  # with --ab: each variant against the reference
UNDECIDED = "undecided"  # a category of tests in pytest's summary, beside passed ones
DRY_RUN = "dry run"  # reason for skipping a test that would have read a result
TRAINED = pytest.StashKey[bool]()  # of an item: whether it has called `train`
SKIPPED = "dtfperf_skipped"  # why a perf test was not run


def get_verdict(report: pytest.CollectReport | pytest.TestReport) -> "Verdict | None":
    """Return the gravest verdict of a test, as its measurement has it; of a failed test the last one, which ended it."""
    found = [str(value) for name, value in getattr(report, "user_properties", ()) if name == VERDICT]
    if not found:
        return None
    from pytest_dtfperf.baselines.verdict import Verdict, sort_by_severity

    return Verdict(found[-1]) if report.failed else min(map(Verdict, found), key=sort_by_severity)


def get_reason(report: pytest.CollectReport | pytest.TestReport) -> str:
    """Return the cause of a slower training, by the last judgement with an explanation; empty if there is none."""
    found = [str(value) for name, value in getattr(report, "user_properties", ()) if name == WHY]
    return found[-1] if found else ""


def is_accepted(report: pytest.CollectReport | pytest.TestReport) -> bool:
    return any(name == ACCEPTED for name, _ in getattr(report, "user_properties", ()))


def forget_verdict(item: pytest.Item) -> None:
    """Remove the verdict of an earlier attempt. Called before a test is run."""
    item.user_properties[:] = [pair for pair in item.user_properties if pair[0] not in (VERDICT, ACCEPTED, WHY, COMPARISON)]


def note_skip(report: pytest.TestReport) -> None:
    """Note why a perf test was skipped."""
    reason = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
    report.user_properties.append((SKIPPED, reason.removeprefix("Skipped: ")))


def find_line(item: pytest.Item, excinfo: pytest.ExceptionInfo[BaseException]) -> str:
    """Return file and line of the test that raised an error, in pytest's form; empty if none is in the test."""
    lines = [entry.lineno + 1 for entry in excinfo.traceback if str(entry.path) == str(item.path)]
    return f"{item.nodeid.partition('::')[0]}:{lines[-1]}" if lines else ""


def format_skips(reports: Iterable[object], excluded: Container[str] = ()) -> list[str]:
    """Return a line for each reason, with how many perf tests were skipped for it.

    Args:
        reports: Those of skipped tests.
        excluded: Ids of tests that another line names, which are not counted.
    """
    unnamed = (report for report in reports if getattr(report, "nodeid", "") not in excluded)
    noted = (pair for report in unnamed for pair in getattr(report, "user_properties", ()))
    counts = Counter(str(value) for name, value in noted if name == SKIPPED)
    return [f"{format_count(count, 'test')} skipped: {why}" for why, count in counts.items()]


class JunitErrors:
    """Turns failures into errors in JUnit XML for verdicts such as INFRASTRUCTURE, and adds the cause of a slower training.

    Registered if an XML file is written, after pytest's own plugin.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        why = get_reason(report)
        if report.when != "call" or not (why or _is_error(report)):
            return
        import xml.etree.ElementTree as ET  # late: a run without such a file needs none of this

        from _pytest.junitxml import xml_key  # pytest has no public interface to the XML before it is written

        from pytest_dtfperf.formats import printable_lines

        xml = self._config.stash.get(xml_key, None)  # an xdist worker has none
        if xml is None:
            return
        reporter = xml.node_reporter(report)
        if why:
            output = ET.Element("system-out")
            output.text = printable_lines(why)  # XML may not contain control characters
            reporter.append(output)
        for node in reporter.nodes if report.failed and _is_error(report) else ():
            if node.tag == "failure":
                node.tag = "error"
                xml.stats["failure"] -= 1
                xml.stats["error"] += 1


def _is_error(report: pytest.TestReport) -> bool:
    verdict = get_verdict(report)
    return verdict is not None and verdict.outcome(strict=False) == "error"
