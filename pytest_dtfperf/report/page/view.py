"""The view of a session's page. Numbers are formatted here, as templates compute nothing."""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from pytest_dtfperf.baselines.verdict import Verdict
from pytest_dtfperf.formats import NONE
from pytest_dtfperf.report.grids import Grid


@dataclass(frozen=True)
class Standing:
    """A verdict for display: its name, and a shape and a colour by the effect on the test."""

    text: str
    outcome: str  # pass, warn, fail, error, or none
    order: int  # the gravest is 0

    @classmethod
    def of(cls, verdict: Verdict | None, text: str = "") -> "Standing":
        if verdict is None:
            return cls("not judged", "none", len(Verdict))
        return cls(text or str(verdict), verdict.row.outcome, verdict.severity)


@dataclass(frozen=True)
class Fact:
    """A name with its description."""

    name: str
    text: str
    is_code: bool = False


@dataclass(frozen=True)
class StepPart:
    """Seconds of one kind of work on a step's critical path."""

    kind: str
    seconds: float


@dataclass(frozen=True)
class Bar:
    """One step, as a stack of its parts."""

    name: str
    text: str  # its duration
    drawing: Markup


@dataclass(frozen=True)
class StepsView:
    """The breakdown of a step, beside the baseline's if that is known."""

    of: str  # of the steps
    bars: Sequence[Bar]
    kinds: Sequence[str]  # kinds of parts, in the bars' order
    table: Grid


@dataclass(frozen=True)
class CauseRow:
    """One cause of a longer step."""

    message: str
    seconds: str
    share: str
    width: float  # percent of the largest
    confidence: str
    evidence: Sequence[str]
    next: str | None


@dataclass(frozen=True)
class Causes:
    """The causes of a longer step, and the unexplained rest."""

    rows: Sequence[CauseRow]
    change: str
    unexplained: str
    notes: Sequence[str]
    command: str  # shows the whole explanation


@dataclass(frozen=True)
class Workers:
    """The numbers of each task, and the traffic of the hosts."""

    title: str
    table: Grid
    notes: Sequence[str]


@dataclass(frozen=True)
class Earlier:
    """The same training in earlier sessions."""

    drawing: Markup
    summary: str
    change: str  # the last one; empty if none is known
    table: Grid


@dataclass(frozen=True)
class TaskLog:
    """The end of one task's log."""

    name: str  # of the file, relative to the session's folder
    lines: Sequence[str]
    left_out: int  # bytes before these lines


@dataclass(frozen=True, kw_only=True)
class Card:
    """One measurement."""

    anchor: str  # id of its element
    standing: Standing
    label: str
    test: str
    rate: str
    rate_value: float
    efficiency: str
    efficiency_value: float | None
    of_limit: str
    baseline: str
    baseline_value: float | None
    change: str
    change_value: float | None
    interval: Markup | None
    past: Earlier | None
    facts: Sequence[Fact]
    causes: Causes | None
    no_causes: str  # reason for missing causes, if some were requested
    steps: StepsView | None
    no_steps: str  # reason for a missing step breakdown, if one was requested
    workers: Workers | None
    differences: Sequence[str] | None  # against the baseline's fingerprint; None: there is no baseline
    command: str
    logs: Sequence[TaskLog]

    @property
    def is_green(self) -> bool:
        return self.standing.outcome == "pass"


@dataclass(frozen=True)
class ReasonView:
    """The reason of a verdict that is not green."""

    standing: Standing
    message: str
    cards: Sequence[Card]


@dataclass(frozen=True)
class WithoutMeasurement:
    """A test with logs but without a measurement."""

    name: str  # of its folder
    logs: Sequence[TaskLog]


@dataclass(frozen=True)
class Section:
    """Tables with their notes."""

    title: str
    anchor: str
    tables: Sequence[Grid]
    notes: Sequence[str]
    classes: str = ""  # of its tables: " w5" if the fifth column has text
    lines: Sequence[str] = ()  # preformatted text


@dataclass(frozen=True, kw_only=True)
class Page:
    """A session."""

    title: str
    standing: Standing  # the gravest
    counts: Sequence[tuple[Standing, int]]  # of tests, the gravest first
    ended: str
    facts: Sequence[Fact]
    why: Sequence[ReasonView]
    how: Sequence[str]  # commands that lead on
    cards: Sequence[Card]  # the gravest first
    measured: str  # how many comparisons and measurements
    brief: str  # note on shortened cards; empty if there are none
    without_measurement: Sequence[WithoutMeasurement]
    sections: Sequence[Section]
    legend: Sequence[str]
    verdicts: Sequence[tuple[Standing, str]]  # verdicts on this page, and their conditions
    remarks: Sequence[str]

    @property
    def has_limits(self) -> bool:
        return any(card.of_limit != NONE for card in self.cards)

    @property
    def has_history(self) -> bool:
        return any(card.past for card in self.cards)

    @property
    def has_intervals(self) -> bool:
        return any(card.interval for card in self.cards)
