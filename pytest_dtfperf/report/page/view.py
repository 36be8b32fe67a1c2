"""The view of a session's page. Numbers are formatted here, as templates compute nothing."""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from pytest_dtfperf.baselines.verdict import Verdict
from pytest_dtfperf.formats import NONE
from pytest_dtfperf.report.grids import Grid


@dataclass(frozen=True)
class Standing:
    """A verdict as it is shown: by its word, a shape and a colour, the last two by what becomes of the test."""

    words: str
    outcome: str  # pass, warn, fail, error, or none
    order: int  # the gravest is 0

    @classmethod
    def of(cls, verdict: Verdict | None, words: str = "") -> "Standing":
        if verdict is None:
            return cls("not judged", "none", len(Verdict))
        return cls(words or str(verdict), verdict.row.outcome, verdict.severity)


@dataclass(frozen=True)
class Fact:
    """A name, and what there is to say under it."""

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
    text: str  # its length
    drawing: Markup


@dataclass(frozen=True)
class StepsView:
    """The anatomy of a step, beside the baseline's where that is known."""

    of: str  # which steps
    bars: Sequence[Bar]
    kinds: Sequence[str]  # that the bars have, in their order
    table: Grid


@dataclass(frozen=True)
class CauseRow:
    """One cause of a longer step."""

    words: str
    seconds: str
    share: str
    width: float  # percent of the largest
    confidence: str
    evidence: Sequence[str]
    next: str | None


@dataclass(frozen=True)
class Causes:
    """Why a step takes longer, and how much of that nothing explains."""

    rows: Sequence[CauseRow]
    change: str
    unexplained: str
    notes: Sequence[str]
    command: str  # that shows all of it


@dataclass(frozen=True)
class Workers:
    """Each task's own numbers, and what the hosts moved."""

    title: str
    table: Grid
    notes: Sequence[str]


@dataclass(frozen=True)
class Earlier:
    """The same training in earlier sessions."""

    drawing: Markup
    words: str
    change: str  # the last one; nothing: none is known
    table: Grid


@dataclass(frozen=True)
class TaskLog:
    """What one task said last."""

    name: str  # of the file, below the session's folder
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
    no_causes: str  # why there are none, where some were looked for
    steps: StepsView | None
    no_steps: str  # why there is no anatomy, where one was asked for
    workers: Workers | None
    differences: Sequence[str] | None  # against the baseline's fingerprint; None: there is no baseline
    command: str
    logs: Sequence[TaskLog]

    @property
    def is_green(self) -> bool:
        return self.standing.outcome == "pass"


@dataclass(frozen=True)
class ReasonView:
    """A reason that something is not green."""

    standing: Standing
    words: str
    cards: Sequence[Card]


@dataclass(frozen=True)
class WithoutMeasurement:
    """A test that has left logs and no measurement."""

    name: str  # of its folder
    logs: Sequence[TaskLog]


@dataclass(frozen=True)
class Section:
    """Tables with what is to be said of them."""

    title: str
    anchor: str
    tables: Sequence[Grid]
    notes: Sequence[str]
    classes: str = ""  # of its tables: " w5", where the fifth column is words
    lines: Sequence[str] = ()  # as they were printed, where others wrote them


@dataclass(frozen=True, kw_only=True)
class Page:
    """A session."""

    title: str
    standing: Standing  # the gravest
    counts: Sequence[tuple[Standing, int]]  # of tests, the gravest first
    ended: str
    facts: Sequence[Fact]
    why: Sequence[ReasonView]
    how: Sequence[str]  # to go on
    cards: Sequence[Card]  # the gravest first
    brief: str  # what is left out of some; nothing: nothing is
    without_measurement: Sequence[WithoutMeasurement]
    sections: Sequence[Section]
    legend: Sequence[str]
    verdicts: Sequence[tuple[Standing, str]]  # those on this page, and when they are given
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
