"""JUnit XML: a cluster that failed is an error there, too, and why a training is slower stands in `system-out`.

pytest knows errors of setup and teardown only, and writes what tests print where it was told to.
"""

import xml.etree.ElementTree as ET

import pytest

from pytest_dtfperf.plugin.outcome import verdict_of, why_of
from pytest_dtfperf.printable import printable_lines


class JunitErrors:
    """Makes errors of failures whose verdict is one, INFRASTRUCTURE for one, once pytest's own plugin has written them, and
    adds why a training is slower.

    Registered where an XML file was asked for.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        words = why_of(report)
        if report.when != "call" or not (words or _is_error(report)):
            return
        from _pytest.junitxml import xml_key  # pytest offers no public way to what it is about to write

        xml = self._config.stash.get(xml_key, None)  # an xdist worker has none
        if xml is None:
            return
        reporter = xml.node_reporter(report)
        if words:
            output = ET.Element("system-out")
            output.text = printable_lines(words)  # XML may not hold what a terminal obeys
            reporter.append(output)
        for node in reporter.nodes if report.failed and _is_error(report) else ():
            if node.tag == "failure":
                node.tag = "error"
                xml.stats["failure"] -= 1
                xml.stats["error"] += 1


def _is_error(report: pytest.TestReport) -> bool:
    verdict = verdict_of(report)
    return verdict is not None and verdict.outcome(strict=False) == "error"
