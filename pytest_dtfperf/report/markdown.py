"""A session as Markdown, for the summary of a night."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from urllib.parse import quote

from pytest_dtfperf.baselines.verdict import Verdict, sort_by_severity
from pytest_dtfperf.formats import NONE, change, percent, printable_lines, rate
from pytest_dtfperf.records import arithmetic
from pytest_dtfperf.records.record import Record, select_latest
from pytest_dtfperf.records.session import SessionFolder
from pytest_dtfperf.report import measurement_text
from pytest_dtfperf.report.comparisons import TITLE, list_notes, load_comparisons, make_comparison_grid
from pytest_dtfperf.report.explanations import list_explanation, list_next_commands
from pytest_dtfperf.report.measurement_text import (
    ABOUT_LEARNING,
    ABOUT_SCORES,
    Grid,
    format_footnote,
    format_rate_with_spread,
    list_measurement_notes,
    make_learning_grids,
    make_score_grids,
    make_sweep_grids,
)
from pytest_dtfperf.report.measurement_text import ABOUT_SWEEPS as ABOUT_SWEEPS
from pytest_dtfperf.report.notes import list_hints, suggest_accepting
from pytest_dtfperf.report.terminal import format_verdict
from pytest_dtfperf.spec import Spec, labels


def format_markdown_summary(folder: SessionFolder, previous: SessionFolder | None = None, *, outcome: str = "") -> str:
    """Return counts of verdicts, a table with the gravest first, and the details of the grave ones.

    `previous` is a session to compare rates with, spec by spec; `outcome` one sentence on the end of the job. Raises
    `SessionFileError`.
    """
    session, records, comparisons = folder.session, folder.measurements(), load_comparisons(folder)
    before = {record.spec: record for record in select_latest(previous.measurements())} if previous else {}
    started = datetime.fromisoformat(session.started)
    lines = [f"# Performance on {session.cluster}, {started:%Y-%m-%d %H:%M} UTC", ""]
    lines += [f"{outcome}\n"] if outcome else []
    lines += [_format_counts(session.verdicts, session.wall_s), ""]
    if comparisons:
        lines += [f"## {TITLE}", "", *_format_grid(make_comparison_grid(comparisons)), ""]
        lines += [*(f"- {_escape_markdown(text)}" for text in list_notes(comparisons)), ""]
    if records:
        ordered = sorted(records, key=lambda record: sort_by_severity(record.verdict))
        measurements = [record.measurement for record in records]
        lines += [*_format_table(ordered, before, previous), "", f"{format_footnote(measurements)}.", ""]
        lines += [each for text in list_measurement_notes(measurements) for each in (f"{text}.", "")]
        lines += [
            f"{_escape_markdown(text)}\n" for text in arithmetic.format_lines(r.measurement for r in records if r.is_valid)
        ]
        lines += [f"{_escape_markdown(text)}\n" for text in measurement_text.list_limits(records)]
        lines += _format_grids(make_sweep_grids(records), ABOUT_SWEEPS)
        lines += _format_grids(make_learning_grids(records), ABOUT_LEARNING)
        lines += _format_grids(make_score_grids(records), ABOUT_SCORES)
        lines += [f"{_escape_markdown(text)}\n" for text in list_hints(records)]
        lines += [f"{note}\n" for note in suggest_accepting(records)]
        for record in ordered:
            lines += (
                _format_details(record, folder)
                if record.verdict and record.verdict.row.says_why and not record.accepted
                else []
            )
    if previous:
        lines += [f"Previous session: `{previous.id}`", ""]
    lines += [f"Session: `{folder.id}`, started as `{' '.join(session.command)}`"]
    return printable_lines("\n".join(lines)) + "\n"


def _format_counts(verdicts: Mapping[Verdict, int], wall_s: float | None) -> str:
    found = sorted(verdicts, key=sort_by_severity)
    counts = [f"{verdicts[name]} {name}" for name in found] or ["no verdicts"]
    if any(verdict.row.alarms for verdict in found):
        counts[0] = f"**{counts[0]}**"
    ended = f" in {_format_duration(wall_s)}" if wall_s is not None else "; the session was ended before it could finish"
    return ", ".join(counts) + ended


def _format_table(records: Iterable[Record], before: dict[Spec, Record], previous: SessionFolder | None) -> list[str]:
    records = list(records)
    limited = ["of limit"] if any(record.share_of_limit for record in records) else []
    compared = ["previous"] if previous else []
    headings = ["verdict", "spec", "images/sec", "efficiency", *limited, "baseline", "change", *compared]
    rows = []
    label = labels(record.spec for record in records)
    for record in records:
        cells = [
            format_verdict(record) if record.verdict else "not judged",
            f"`{label[record.spec]}`",
            format_rate_with_spread(record.measurement),
            percent(record.efficiency) if record.efficiency else NONE,
            *([measurement_text.format_limit_share(record)] if limited else []),
            rate(record.baseline) if record.baseline else NONE,
            change(record.change) if record.change is not None else NONE,
        ]
        rows.append(cells + ([_format_change_since(record, before.get(record.spec))] if previous else []))
    alignment = [":--", ":--", *("--:" for _ in headings[2:])]
    return [_format_row(headings), _format_row(alignment), *map(_format_row, rows)]


def _format_grids(grids: Iterable[Grid], note: str) -> list[str]:
    lines: list[str] = []
    for grid in grids:
        lines += [*_format_grid(grid), ""]
    return [*lines, f"{note}.", ""] if lines else []


def _format_grid(grid: Grid) -> list[str]:
    alignment = [":--", *("--:" for _ in grid.headings[1:])]
    return [_format_row(grid.headings), _format_row(alignment), *map(_format_row, grid.rows)]


def _format_change_since(record: Record, before: Record | None) -> str:
    if before is None:
        return NONE
    return f"{rate(before.images_per_sec)} ({change(record.images_per_sec / before.images_per_sec - 1)})"


def _format_details(record: Record, folder: SessionFolder) -> list[str]:
    logs = folder.logs_of(record.test)
    lines = [
        f"### {record.verdict}: {record.spec.label}",
        "",
        f"- test: `{record.test}`",
        f"- reason: {_escape_markdown(record.reason or '')}",
    ]
    lines += [
        f"- why: {_escape_markdown(text)}" if number == 0 else f"  - {_escape_markdown(text)}"
        for number, text in enumerate(list_explanation(record))
    ]
    lines += [f"- next: `{command}`" for command in list_next_commands(record, f"{folder.path.parent.name}/{folder.id}")]
    lines.append(f"- hosts: {', '.join(record.measurement.hosts)}")
    for task, sleep_s in sorted(record.measurement.injected_slowdowns.items()):
        lines.append(f"- injected slow-down: {task} slept {sleep_s:g} s in every step")
    if logs.is_dir():
        relative = logs.relative_to(folder.path).as_posix()
        lines.append(f"- logs: [{relative}]({quote(relative)})")
    return [*lines, ""]


def _format_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(_escape_markdown, cells))} |"


def _escape_markdown(text: str) -> str:
    """Return the text on one line, without characters that end a cell or begin HTML."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def _format_duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
