"""What a comparison says, and what follows from each answer."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pytest_dtfperf.stats.comparison import Estimate

Outcome = Literal["pass", "warn", "fail", "error"]


class Verdict(StrEnum):
    """The answers a comparison can give. What follows from each stands in one table below."""

    PASSED = "PASSED"  # not worse than the margin allows
    IMPROVED = "IMPROVED"  # better than the margin
    REGRESSED = "REGRESSED"  # worse than the margin
    ANCHOR = "ANCHOR"  # the 1-device run that efficiency is divided by has moved, not the cluster
    INCONCLUSIVE = "INCONCLUSIVE"  # the repeats are spent, and the margin still lies within what the rate may be
    NO_BASELINE = "NO_BASELINE"  # nothing is stored for this spec on this system
    INCOMPARABLE = "INCOMPARABLE"  # what is stored was measured on something else
    INVALID = "INVALID"  # the numbers cannot be true
    TAINTED = "TAINTED"  # the host was disturbed while it measured
    INFRASTRUCTURE = "INFRASTRUCTURE"  # the place failed, not the training

    def outcome(self, strict: bool) -> Outcome:
        """What becomes of the test. `strict` is --strict-verdicts."""
        rule = _RULES[self]
        return "fail" if strict and rule.outcome == "warn" else rule.outcome

    def fails(self, strict: bool) -> bool:
        return self.outcome(strict) == "fail"

    @property
    def enters_history(self) -> bool:
        return _RULES[self].history

    @property
    def may_become_baseline(self) -> bool:
        """Whether a measurement so judged can be accepted at all; see `needs_reason`."""
        return _RULES[self].baseline != "no"

    @property
    def needs_reason(self) -> bool:
        """Whether somebody must say why before it is accepted."""
        return _RULES[self].baseline == "with a reason"


@dataclass(frozen=True)
class _Rule:
    outcome: Outcome
    history: bool
    baseline: Literal["yes", "with a reason", "no"]


_RULES: Mapping[Verdict, _Rule] = {
    Verdict.PASSED: _Rule("pass", history=True, baseline="yes"),
    Verdict.IMPROVED: _Rule("pass", history=True, baseline="yes"),
    Verdict.REGRESSED: _Rule("fail", history=True, baseline="with a reason"),
    Verdict.ANCHOR: _Rule("warn", history=True, baseline="yes"),
    Verdict.INCONCLUSIVE: _Rule("warn", history=True, baseline="no"),
    Verdict.NO_BASELINE: _Rule("warn", history=True, baseline="yes"),
    Verdict.INCOMPARABLE: _Rule("warn", history=True, baseline="yes"),
    Verdict.INVALID: _Rule("fail", history=False, baseline="no"),
    Verdict.TAINTED: _Rule("warn", history=True, baseline="no"),
    Verdict.INFRASTRUCTURE: _Rule("error", history=False, baseline="no"),
}


@dataclass(frozen=True)
class Judgement:
    """A verdict with its grounds. Numbers are None where the verdict rests on none."""

    verdict: Verdict
    reason: str  # one line, for people
    change: float | None = None  # (measured - baseline) / baseline, of the geometric means over runs
    baseline_rate: float | None = None  # images/sec it was compared with
    value: float | None = None  # the efficiency, overhead or accuracy that was judged, as a part of 1
    estimate: "Estimate | None" = None  # of the ratio of rates that decided

    @property
    def needs_runs(self) -> bool:
        """Whether further runs may decide what these have not."""
        return self.estimate is not None and str(self.estimate.answer) in ("open", "unconfirmed")
