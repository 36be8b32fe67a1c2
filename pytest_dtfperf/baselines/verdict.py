"""Verdicts and their consequences, in one table.

The defaults of a judgement are here, too. The module imports nothing large, because every pytest with the plugin reads it.
"""

from dataclasses import dataclass
from typing import Literal

from pytest_dtfperf.row_enum import RowEnum

Outcome = Literal["pass", "warn", "fail", "error"]
Numbers = Literal["sound", "disturbed", "void"]
Acceptable = Literal["yes", "new", "with a reason", "no"]


@dataclass(frozen=True, kw_only=True)
class Row:
    """The consequences of one verdict."""

    when: str  # the condition for it, as text for docs/numbers.md
    outcome: Outcome  # of the test; "warn": it passes undecided, and fails under --strict-verdicts
    style: str  # in the terminal's table, in rich's syntax
    compared: bool = False  # it results from a test of rates, and may be a false alarm
    numbers: Numbers = "sound"  # anything but "sound" cannot be an anchor, a point in a figure, or compared with other nights
    history: bool = True  # whether the measurement enters history
    baseline: Acceptable  # "new": also with --update-baselines=new, because nothing comparable is stored
    alarms: bool = False  # bold in a report's first line
    says_why: bool = True  # reports show its reason; otherwise the table is enough
    accepted: str | None = None  # text in the table after acceptance; None: "<verdict>, accepted"


class Verdict(RowEnum):
    """The results of a comparison, the gravest first: of several, a measurement keeps that. A verdict is a row here."""

    row: Row

    REGRESSED = (
        "REGRESSED",
        Row(
            when="the rate is less than the baseline less the margin, with confidence; more runs agree than can be slow by "
            "chance, and the last one confirms it",
            outcome="fail",
            style="bold red",
            compared=True,
            baseline="with a reason",
            alarms=True,
        ),
    )
    INVALID = (
        "INVALID",
        Row(
            when="the numbers cannot be true",
            outcome="fail",
            style="bold red",
            numbers="void",
            history=False,
            baseline="no",
            alarms=True,
        ),
    )
    INFRASTRUCTURE = (
        "INFRASTRUCTURE",
        Row(
            when="the cluster failed: a host, an agent, a port",
            outcome="error",
            style="bold red",
            numbers="void",
            history=False,
            baseline="no",
            alarms=True,
        ),
    )
    TAINTED = (
        "TAINTED",
        Row(
            when="other load disturbed every run, and one more run, too",
            outcome="warn",
            style="yellow",
            numbers="disturbed",
            baseline="no",
            alarms=True,
        ),
    )
    ANCHOR = (
        "ANCHOR",
        Row(
            when="the efficiency changed because of its anchor, while the cluster did not change",
            outcome="warn",
            style="yellow",
            compared=True,
            baseline="yes",
            alarms=True,
        ),
    )
    INCONCLUSIVE = (
        "INCONCLUSIVE",
        Row(
            when="all runs are made and do not decide: the margin is within the interval of the rate, or too few runs confirm "
            "a loss; or there was no steady state; or the measurement that it was compared with is INVALID",
            outcome="warn",
            style="yellow",
            compared=True,
            baseline="no",
        ),
    )
    INCOMPARABLE = (
        "INCOMPARABLE",
        Row(
            when="the hardware, the graph or a major version differs from the stored baseline's "
            "([what must match](fingerprints.md#what-must-match)); the differences, the rate and its change are shown",
            outcome="warn",
            style="yellow",
            baseline="new",
        ),
    )
    NO_BASELINE = (
        "NO_BASELINE",
        Row(
            when="no baseline is stored for this spec on this system",
            outcome="warn",
            style="yellow",
            baseline="new",
            says_why=False,
            accepted="accepted",
        ),
    )
    IMPROVED = (
        "IMPROVED",
        Row(
            when="the rate is more than the baseline plus the margin, with confidence",
            outcome="pass",
            style="bold green",
            compared=True,
            baseline="yes",
            says_why=False,
            accepted="IMPROVED",
        ),
    )
    PASSED = (
        "PASSED",
        Row(
            when="the rate is at least the baseline less the margin, with confidence",
            outcome="pass",
            style="green",
            compared=True,
            baseline="yes",
            says_why=False,
            accepted="PASSED",
        ),
    )

    def outcome(self, strict: bool) -> Outcome:
        """Return the outcome of the test. `strict` is --strict-verdicts."""
        return "fail" if strict and self.row.outcome == "warn" else self.row.outcome

    def fails(self, strict: bool) -> bool:
        return self.outcome(strict) == "fail"

    @property
    def severity(self) -> int:
        """The rank of the verdict; 0 is the gravest."""
        return list(Verdict).index(self)

    @property
    def turns_red(self) -> bool:
        """Whether a comparison of rates fails its test, so that it may be one of the session's false alarms."""
        return self.row.compared and self.row.outcome == "fail"

    @property
    def asks_why(self) -> bool:
        """Whether there was a baseline and the result is bad: the hosts are examined while they are allocated."""
        return self.row.outcome != "pass" and not self.lacks_baseline

    @property
    def may_become_baseline(self) -> bool:
        """Whether a measurement with this verdict can be accepted at all; see `needs_reason`."""
        return self.row.baseline != "no"

    @property
    def needs_reason(self) -> bool:
        """Whether its acceptance needs a reason of the user."""
        return self.row.baseline == "with a reason"

    @property
    def lacks_baseline(self) -> bool:
        """Whether nothing comparable is stored, so that it is new."""
        return self.row.baseline == "new"

    @property
    def when_accepted(self) -> str:
        """The text in the table after its measurement has become a baseline."""
        return self.row.accepted or f"{self}, accepted"


def sort_by_severity(verdict: Verdict | None) -> int:
    """Return a sort key by severity; unjudged records come last."""
    return len(Verdict) if verdict is None else verdict.severity


MARGIN = 0.05  # largest loss of rate, as a fraction of the baseline
FALSE_ALARMS = 0.05  # of a whole session: probability that a test fails although no rate is worse than its margin allows
MISSED = 0.05  # of one check: probability that it passes where the rate is worse than the margin allows
EFFICIENCY = 0.70  # least, of a scaling test
MOST_EFFICIENT = 2.0  # devices that share caches may exceed n times the work of one, but never so much: 90 would mean 0.9
LEAST_RUNS = 2  # fewer have no spread, and so do not distinguish a change from noise
MOST_RUNS = 10  # close cases need so many
