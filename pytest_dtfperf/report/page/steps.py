"""Where a step's time goes, and why it takes longer: what records keep of both, in the page's words. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pytest_dtfperf.explain.anatomy import Anatomy
from pytest_dtfperf.explain.causes import Explanation
from pytest_dtfperf.explain.difference import difference
from pytest_dtfperf.explain.kinds import KINDS
from pytest_dtfperf.explain.words import ms, signed_ms
from pytest_dtfperf.formats import NONE, change_in_ms, counted, in_ms, percent
from pytest_dtfperf.plain import Plain
from pytest_dtfperf.report.learning import Grid
from pytest_dtfperf.report.page.figures import draw_stack
from pytest_dtfperf.report.page.view import Bar, CauseRow, Causes, Part, Steps

T = TypeVar("T", bound=Plain)


def make_steps(now: Anatomy, then: Anatomy | None) -> Steps | None:
    """None of a step that took no time at all, which nothing can be a part of."""
    whole_s = max(now.wall_s, then.wall_s if then else 0.0)
    if whole_s <= 0:
        return None
    named = [("this session", now), *([("baseline", then)] if then else [])]
    bars = [_make_bar(name, anatomy, whole_s) for name, anatomy in named]
    found = {part.kind for _, anatomy in named for part in make_parts(anatomy)}
    return Steps(
        f"mean of {counted(now.steps, 'traced step')}",
        bars,
        [kind for kind in KINDS if kind in found],
        _make_comparison_grid(then, now) if then else _make_path_grid(now),
    )


def make_parts(anatomy: Anatomy) -> list[Part]:
    """By kind, in the order that all bars have."""
    sums: Counter[str] = Counter()
    for part in anatomy.parts:
        sums[part.kind] += part.seconds  # type: ignore[assignment]  # typeshed: whole numbers
    return [Part(kind, sums[kind]) for kind in KINDS if sums[kind] > 0]


def _make_bar(name: str, anatomy: Anatomy, whole_s: float) -> Bar:
    length = f"{in_ms(anatomy.wall_s)} ms"
    return Bar(
        name, length, draw_stack(make_parts(anatomy), whole_s, f"A step of {name}, {length}; its parts stand in the table below")
    )


def _make_path_grid(anatomy: Anatomy) -> Grid:
    rows = [[part.kind, in_ms(part.seconds), percent(part.seconds / anatomy.wall_s)] for part in make_parts(anatomy)]
    return Grid((_describe_scope(anatomy), "ms", "share"), [*rows, ["the step", in_ms(anatomy.wall_s), ""]])


def _describe_scope(anatomy: Anatomy) -> str:
    return "on the critical path" if anatomy.path else "of the slowest worker"


def _make_comparison_grid(then: Anatomy, now: Anatomy) -> Grid:
    rows = [
        [change.kind, in_ms(change.before_s), in_ms(change.after_s), change_in_ms(change.seconds), change.location or NONE]
        for change in difference(then, now)
    ]
    rows.append(["the step", in_ms(then.wall_s), in_ms(now.wall_s), change_in_ms(now.wall_s - then.wall_s), ""])
    return Grid((_describe_scope(now), "ms then", "ms now", "change", "most of it"), rows)


def make_causes(explanation: Explanation, command: str) -> Causes:
    """Return them as the page shows them. `command` shows all of it."""
    against = f", against {explanation.against}" if explanation.against not in ("", "its baseline") else ""
    largest = max((abs(cause.seconds) for cause in explanation.causes), default=0.0)
    return Causes(
        rows=[
            CauseRow(
                words=cause.words,
                seconds=f"{signed_ms(cause.seconds)} ms",
                share=percent(cause.share),
                width=round(100 * abs(cause.seconds) / largest, 1) if largest else 0.0,
                confidence=cause.confidence,
                evidence=list(cause.evidence),
                next=cause.next,
            )
            for cause in explanation.causes
        ],
        change=f"{ms(explanation.step_s)} ms instead of {ms(explanation.baseline_step_s)} ms{against}",
        unexplained=f"{signed_ms(explanation.unexplained_s)} ms",
        notes=list(explanation.notes),
        command=command,
    )


def find_latest_anatomy(anatomies: Sequence[Any]) -> Anatomy | None:
    """The last that can be read."""
    return next((found for data in reversed(anatomies) if (found := decode(Anatomy, data))), None)


def decode(kind: type[T], data: Any) -> T | None:
    """As it is, or as records keep it in plain values; None where there is none, or where this version cannot read it."""
    if not isinstance(data, Mapping):
        return data if isinstance(data, kind) else None
    try:
        return kind.from_json(data)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None  # of another version: the page does without
