"""Sessions, the latest first; and one of them as far as the history alone knows it. Pure."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_dtfperf.baselines.verdict import Verdict, gravest_first
from pytest_dtfperf.formats import NONE, counted, duration, minute
from pytest_dtfperf.history.rows import Row
from pytest_dtfperf.history.words import measurement_cells
from pytest_dtfperf.report.learning import Grid
from pytest_dtfperf.report.page.view import Fact, Standing
from pytest_dtfperf.report.site import names

ON_A_PAGE = 500
MOST_ROWS = 2000  # measurements of a session that has no folder any more


@dataclass(frozen=True)
class SessionRow:
    """A session in one line."""

    href: str
    name: str
    started: str
    cluster: str
    verdicts: Sequence[tuple[Standing, int]]
    took: str
    exit_code: str
    commit: str


@dataclass(frozen=True)
class SessionSummary:
    """A session without what its folder would say."""

    title: str
    why: str  # there is no more of it
    verdicts: Sequence[tuple[Standing, int]]
    facts: Sequence[Fact]
    table: Grid
    left_out: str


def make_session_row(row: Row) -> SessionRow:
    return SessionRow(
        href=names.make_session_page_name(row["id"]),
        name=row["id"],
        started=minute(row["started"]),
        cluster=row["cluster"],
        verdicts=_list_verdicts(row["verdicts"]),
        took=duration(row["wall_s"]) if row["wall_s"] is not None else "not over",
        exit_code=NONE if row["exit_code"] is None else str(row["exit_code"]),
        commit=(row["commit"] or NONE)[:12],
    )


def make_session_summary(row: Row, measured: Sequence[Row], why: str) -> SessionSummary:
    facts = [
        Fact("session", row["id"], is_code=True),
        Fact("command", shlex.join(map(str, row["command"])), is_code=True),
        Fact(
            "took", "it has not ended" if row["wall_s"] is None else f"{duration(row['wall_s'])}, exit code {row['exit_code']}"
        ),
        Fact("software", ", ".join(f"{name} {version}" for name, version in sorted(row["versions"].items()))),
        Fact("commit", row["commit"] or ""),
        Fact("its folder", row["folder"], is_code=True),
    ]
    headings = ("training", "images/sec", "runs", "efficiency", "baseline", "change", "verdict")
    left_out = len(measured) - MOST_ROWS
    return SessionSummary(
        title=f"Performance on {row['cluster']}, {minute(row['started'])} UTC",
        why=why,
        verdicts=_list_verdicts(row["verdicts"]),
        facts=[fact for fact in facts if fact.text],
        table=Grid(headings, [measurement_cells(each) for each in measured[:MOST_ROWS]]),
        left_out=f"{counted(left_out, 'more measurement')}: dtfperf history show {row['id']}" if left_out > 0 else "",
    )


def _list_verdicts(counts: Mapping[str, Any]) -> list[tuple[Standing, int]]:
    """The gravest first; a word of another version comes last."""
    known = sorted((Verdict(name) for name in counts if name in Verdict.__members__), key=gravest_first)
    strange = sorted(name for name in counts if name not in Verdict.__members__)
    return [(Standing.of(verdict), counts[verdict]) for verdict in known] + [
        (Standing(name, "none", len(Verdict)), counts[name]) for name in strange
    ]
