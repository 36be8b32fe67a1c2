"""The report of a session on the terminal, and the text of a failed test."""

import os
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set
from itertools import groupby
from pathlib import Path

from rich.console import RenderableType
from rich.text import Text

from pytest_dtfperf.baselines.judgement import Judgement
from pytest_dtfperf.baselines.verdict import Verdict
from pytest_dtfperf.clusters.protocol import Bill
from pytest_dtfperf.datamodel.measurement import SIMULATED
from pytest_dtfperf.formats import NONE, change, format_count, percent, printable, printable_lines, rate
from pytest_dtfperf.records import arithmetic
from pytest_dtfperf.records.record import Record, remove_size
from pytest_dtfperf.records.stored import Budget
from pytest_dtfperf.report import measurement_text
from pytest_dtfperf.report.explanations import format_largest_cause, list_explanation, list_next_commands
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
from pytest_dtfperf.report.notes import (
    AcceptedBaseline,
    VerdictReason,
    collect_reasons,
    list_error_rates,
    list_hints,
    list_injected_slowdowns,
    list_published_rates,
    suggest_accepting,
)
from pytest_dtfperf.report.series import PublishedPoint, find_nearest
from pytest_dtfperf.report.tables import (
    DEFAULT_COLUMNS,
    fit_columns,
    make_table,
    measure_columns,
    render,
    sum_widths,
    wrap_command,
    wrap_note,
    wrap_text,
)
from pytest_dtfperf.spec import labels

MAX_PUBLISHED = 2  # rows per model; the page has more
MAX_REASONS = 8  # different reasons, so that the table remains on the screen; the page and each test's failure have all
MAX_UNDECIDED = 2  # reasons if none makes the session fail
MAX_HINTS = 3  # the page has all
MAX_FIRST = 13  # rows of a session without any baseline, so that it fits on a screen of 80 x 40; the page has all
MAX_ACCEPTED = 6  # baselines, with the rates of the new ones

STYLES = {f"{verdict}{mark}": verdict.row.style for verdict in Verdict for mark in ("", f" {SIMULATED}")}


def format_summary(
    records: Sequence[Record],
    published: Sequence[PublishedPoint] = (),
    *,
    width: int,
    colour: bool = False,
    verbose: bool = False,
    folder: Path | None = None,
    accepted: Sequence[AcceptedBaseline] = (),
    remarks: Sequence[str] = (),
    budget: Budget | None = None,
    next_steps: Sequence[tuple[str, str]] = (),
) -> str:
    """Return the verdicts that are not green, the table of measurements, and remarks; empty without measurements.

    `verbose` adds details of the session's page: the meaning of numbers, learning, scores, published results. `remarks` are
    further lines for the notes, such as the files that were written or why none were. `budget`: the allowed number of false
    alarms, and the number of tests that share them. `next_steps`: commands that lead on, and their effects.
    """
    if not records:
        return ""
    shown = records if verbose else _select_rows(records)
    is_first = len(shown) < len(records)
    blocks = _make_verdict_blocks(records, width, is_next_shown=bool(next_steps), is_first=is_first, verbose=verbose)
    table = _make_measurement_blocks(shown, width, is_first=is_first)
    blocks += ["", *table] if blocks else table
    if is_first:
        rest = format_count(len(records) - len(shown), "measurement")
        blocks.append(wrap_note(f"and {rest} on fewer devices: see report.html, or -v", width))
    blocks += [wrap_note(text, width) for text in list_measurement_notes(record.measurement for record in records)]
    blocks += [wrap_note(text, width) for text in _shorten(list_hints(records), 1 if is_first else MAX_HINTS, "hint")]
    if not verbose:  # with -v there is a table of them
        blocks += [wrap_note(text, width) for text in _shorten(list_published_rates(records), MAX_HINTS, "published rate")]
    blocks += _make_grid_blocks(make_sweep_grids(records), ABOUT_SWEEPS, width)
    blocks += _make_detail_blocks(records, published, budget, width) if verbose else []
    blocks += _make_next_steps(next_steps, width)
    notes = [*_list_accepted(accepted, verbose), *remarks, *(_describe_folder(folder) if folder else [])]
    if notes:
        blocks += ["", *(wrap_note(text, width) for text in notes)]
    return render(blocks, width, colour)


def _shorten(texts: Sequence[str], most: int, noun: str) -> list[str]:
    """Return the first texts, and how many more there are."""
    left_out = len(texts) - most
    return [*texts[:most], *([f"and {format_count(left_out, noun)} more: see report.html"] if left_out > 0 else [])]


def _describe_folder(folder: Path) -> list[str]:
    """Return the number of tables and figures in the session folder, and where it is."""
    found = [(len(list(folder.glob("*.csv"))), "CSV file"), (len(list(folder.glob("figures/*.svg"))), "SVG file")]
    files = [format_count(count, noun) for count, noun in found if count]
    return [*([f"Written: {', '.join(files)}"] if files else []), f"Session folder: {folder}"]


def _make_next_steps(steps: Sequence[tuple[str, str]], width: int) -> list[RenderableType]:
    """Return the commands beside their effects, or above them if the width does not allow that."""
    if not steps:
        return []
    longest = max(len(command) for command, _ in steps)
    lines = ["", "Next:"]
    for command, purpose in steps:
        if 4 + longest + len(purpose) <= width:
            lines.append(f"  {command:{longest}}  {purpose}")
        else:
            lines += [f"  {line}" for line in wrap_command(command, width - 2)] + [f"      {purpose}"]
    return [Text(printable_lines("\n".join(lines)), no_wrap=True, overflow="ignore")]


def _make_verdict_blocks(
    records: Sequence[Record], width: int, *, is_next_shown: bool, is_first: bool, verbose: bool
) -> list[RenderableType]:
    """Return the verdicts that are not green, with their reasons; of a first session the number of undecided measurements."""
    found = collect_reasons(records)
    has_failed = any(reason.verdict.row.outcome in ("fail", "error") for reason in found)
    blocks: list[RenderableType] = []
    if is_first and found:
        blocks.append(wrap_note(_count_undecided(found), width))
        found = []
    shown = MAX_REASONS if has_failed or verbose else MAX_UNDECIDED
    for reason in found[:shown]:
        blocks += [
            _format_reason(reason, width),
            *(wrap_note(f"  {text}", width) for each in reason.records[:1] if (text := format_largest_cause(each))),
        ]
    if left_out := found[shown:]:
        blocks.append(wrap_note(f"and {format_count(len(left_out), 'reason')} more: see the tests, or report.html", width))
    slept = list_injected_slowdowns(records)
    blocks += [wrap_note(f"Injected slow-down (DTFPERF_SLOWDOWN): {text}", width) for text in slept]
    return blocks + [wrap_note(text, width) for text in suggest_accepting(records, is_next_shown=is_next_shown)]


def _count_undecided(reasons: Sequence[VerdictReason]) -> str:
    """Return how many measurements of a first session have each undecided verdict, and where to find the reasons."""
    counts: Counter[Verdict] = Counter()
    for reason in reasons:
        counts[reason.verdict] += len(reason.records)
    (verdict, count), *others = counts.items()
    parts = [f"{verdict}: {format_count(count, 'measurement')}", *(f"{each}: {number}" for each, number in others)]
    return f"{'; '.join(parts)}. Reasons: see report.html, or -v"


def _format_reason(reason: VerdictReason, width: int) -> Text:
    text = wrap_note(str(reason), width)
    text.stylize(STYLES[reason.verdict], 0, len(reason.verdict))
    return text


def _make_detail_blocks(
    records: Sequence[Record], published: Sequence[PublishedPoint], budget: Budget | None, width: int
) -> list[RenderableType]:
    """Return the meaning of the numbers, learning, published rates, and error rates."""
    texts = [
        format_footnote(record.measurement for record in records),
        *arithmetic.format_lines(r.measurement for r in records if r.is_valid),
        *measurement_text.list_limits(records),
        *list_error_rates(records, budget),
    ]
    blocks: list[RenderableType] = [wrap_note(text, width) for text in texts]
    blocks += _make_grid_blocks(make_learning_grids(records), ABOUT_LEARNING, width) + _make_grid_blocks(
        make_score_grids(records), ABOUT_SCORES, width
    )
    for model in sorted({record.spec.model for record in records}):
        blocks += _make_published_blocks(model, records, published, width)
    return blocks


def format_failure(
    record: Record,
    *,
    logs: Path | None = None,
    options: Sequence[str] = (),
    session: Path | None = None,
    rerun: Sequence[str] | None = None,
    width: int = DEFAULT_COLUMNS,
) -> str:
    """Return the reasons why a test failed, in a few lines.

    Args:
        record: The measurement that failed.
        logs: The folder of its logs.
        options: The options of the session that the test needs again.
        session: The session's folder.
        rerun: The command that measures it again, for a measurement that no test of pytest made.
        width: Columns of the terminal. Lines wrap between words, commands with a backslash.
    """
    measurement = record.measurement
    texts: dict[str, Sequence[str]] = {
        "measured": [f"{format_rate_with_spread(measurement)} images/sec (runs: {', '.join(map(rate, measurement.rates))})"],
        "baseline": [format_baseline(record.comparison)] if record.comparison else [],
        "efficiency": [percent(record.efficiency)] if record.efficiency else [],
        "limit": [measurement_text.format_limit(record)],
        "why": list_explanation(record),
        "reason": [record.reason or ""],
        "hosts": [", ".join(measurement.hosts)],
        "injected": [", ".join(list_injected_slowdowns([record]))],
        "logs": [str(logs) if logs else ""],
    }
    commands = {
        "rerun": [shlex.join(rerun or ["pytest", *options, record.test])],
        "next": list_next_commands(record, _shorten_path(session)) if session else [],
    }
    indent = 4 + max(map(len, texts))
    lines = [f"{record.verdict or 'not judged'}: {record.spec.label}"]
    for wrap, named in ((wrap_text, texts), (wrap_command, commands)):
        for name, each in named.items():
            wrapped = [line for text in each if text for line in wrap(text, width - indent)]
            heads = [f"  {name}", *[""] * len(wrapped)]
            lines += [f"{head:{indent}}{line}" for head, line in zip(heads, wrapped, strict=False)]
    return "\n".join(lines)


def _shorten_path(path: Path) -> str:
    """Return the path as a user would type it."""
    return shlex.quote(os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path))


def list_costs(costs: Sequence[Bill]) -> list[str]:
    """Return the cost of the hosts in a line; empty if none had a price."""
    if not costs:
        return []
    sources = sorted({f"{cost.price_source}, {cost.price_date}" for cost in costs})
    return [f"Spent on hosts, estimated: {sum(cost.usd for cost in costs):.2f} USD (price: {'; '.join(sources)})"]


def _select_rows(records: Sequence[Record]) -> Sequence[Record]:
    """Return `MAX_FIRST` records of a session without any baseline, or a few more; all records of another session.

    Left out are those with the fewest devices, of trainings that are also measured on more devices.
    """
    first = (Verdict.NO_BASELINE, Verdict.INCONCLUSIVE, Verdict.PASSED, Verdict.ANCHOR, Verdict.TAINTED)  # without baselines
    if any((record.verdict or Verdict.PASSED) not in first or record.accepted or record.baseline for record in records):
        return records
    label = labels(record.spec for record in records)
    most: dict[str, int] = {}
    for record in records:
        kind = remove_size(label[record.spec])
        most[kind] = max(most.get(kind, 0), record.spec.gpus)
    smaller = [record for record in records if record.spec.gpus < most[remove_size(label[record.spec])]]
    left_out = sorted(smaller, key=lambda record: record.spec.gpus)[: max(0, len(records) - MAX_FIRST)]
    return [record for record in records if not any(record is each for each in left_out)]


def _make_measurement_blocks(records: Sequence[Record], width: int, *, is_first: bool = False) -> list[RenderableType]:
    """Return one table with whole labels if the width allows, else a table per kind of training.

    Args:
        is_first: The session has no baseline and no failure, and many measurements: if the width does not allow all columns,
            leave out the verdict and the efficiency, and shorten the specs, instead of making more tables.
    """
    label = labels(record.spec for record in records)
    kind = {spec: remove_size(text) for spec, text in label.items()}
    ordered = sorted(records, key=lambda r: (r.spec.model, r.spec.batch_size, kind[r.spec], r.spec.gpus, r.spec.num_ps))
    formats: Sequence[_LimitFormat] = [measurement_text.format_limit_share, measurement_text.format_share_of_limit]
    for format_limit in formats:
        headings, rows = _drop_empty(_HEADINGS, [_make_cells(record, label[record.spec], format_limit) for record in ordered])
        columns = measure_columns([headings, *rows])
        if sum_widths(columns) <= width:
            return [make_table(headings, rows, columns, styles=STYLES)]
        if is_first:
            headings, rows = _drop_columns(headings, rows, {"verdict", "efficiency"})
            columns = fit_columns(measure_columns([headings, *rows]), width, positions=[0])
            if sum_widths(columns) <= width:
                return [make_table(headings, rows, columns, styles=STYLES)]
        sizes = [f"  gpus={record.spec.gpus} num_ps={record.spec.num_ps}" for record in ordered]
        cells = [_make_cells(record, size, format_limit) for record, size in zip(ordered, sizes, strict=True)]
        headings, short = _drop_empty(_HEADINGS, cells)
        columns = measure_columns([headings, *short])
        if sum_widths(columns) <= width:
            break
    columns = fit_columns(columns, width)
    blocks: list[RenderableType] = [make_table(headings, [], columns)]
    for title, group in groupby(zip(ordered, short, strict=True), key=lambda pair: kind[pair[0].spec]):
        cells = [cells for _, cells in group]
        blocks += [Text(printable(title), overflow="ellipsis", no_wrap=True), make_table([], cells, columns, styles=STYLES)]
    return blocks


_HEADINGS = ("spec", "images/sec", "efficiency", "baseline", "change", "verdict", "of limit")
_ALWAYS = frozenset({"spec", "images/sec", "verdict"})
_LimitFormat = Callable[[Record], str]


def _make_cells(record: Record, label: str, format_limit: _LimitFormat) -> list[str]:
    return [
        label,
        format_rate_with_spread(record.measurement),
        percent(record.efficiency) if record.efficiency else NONE,
        rate(record.baseline) if record.baseline else NONE,
        change(record.change) if record.change is not None else NONE,
        format_verdict(record),
        format_limit(record),
    ]


def _drop_empty(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> tuple[list[str], list[list[str]]]:
    """Return the columns in which some row has a value."""
    kept = [at for at, name in enumerate(headings) if name in _ALWAYS or any(row[at] != NONE for row in rows)]
    return [headings[at] for at in kept], [[row[at] for at in kept] for row in rows]


def _drop_columns(headings: Sequence[str], rows: Sequence[Sequence[str]], names: Set[str]) -> tuple[list[str], list[list[str]]]:
    """Return the table without these columns."""
    kept = [at for at, name in enumerate(headings) if name not in names]
    return [headings[at] for at in kept], [[row[at] for at in kept] for row in rows]


def format_verdict(record: Record) -> str:
    """Return the verdict, whether the measurement has become a baseline or is simulated, and the attempt of a repeated test."""
    verdict = record.verdict.when_accepted if record.verdict and record.accepted else record.verdict
    mark = f" {SIMULATED}" if record.measurement.fingerprint.is_simulated else ""
    attempt = f", attempt {record.attempt}" if record.attempt > 1 else ""
    return f"{verdict or NONE}{mark}{attempt}"


def _make_grid_blocks(grids: Iterable[Grid], note: str, width: int) -> list[RenderableType]:
    """Return tables below each other, and the note about all of them."""
    blocks: list[RenderableType] = []
    for grid in grids:
        columns = fit_columns(measure_columns([grid.headings, *grid.rows]), width, positions=[0])
        blocks += ["", make_table(grid.headings, grid.rows, columns, text_columns=[0])]
    return [*blocks, wrap_note(note, width)] if blocks else []


def _make_published_blocks(
    model: str, records: Iterable[Record], published: Iterable[PublishedPoint], width: int
) -> list[RenderableType]:
    """Return the nearest rows, with their sources beside them, or below by number if there is no room."""
    of_model = [row for row in published if row.model == model]
    if not of_model:
        return []
    measured = {record.spec for record in records if record.spec.model == model}
    chosen = find_nearest(of_model, measured, MAX_PUBLISHED)
    headings = [f"published: {model}", "devices", "images/sec", "efficiency", "source"]
    sources = list(dict.fromkeys(row.citation for row in chosen))
    rows = [_make_published_cells(row, row.name(measured), row.citation) for row in chosen]
    beneath: list[RenderableType] = []
    if sum_widths(measure_columns([headings, *rows])) > width:
        rows = [_make_published_cells(row, row.name(measured), f"[{sources.index(row.citation) + 1}]") for row in chosen]
        beneath = [wrap_note(f"  [{number}] {source}", width) for number, source in enumerate(sources, start=1)]
    left_out = len(of_model) - len(chosen)
    more = [f"  and {left_out} more"] if left_out else []
    columns = fit_columns(measure_columns([headings, *rows]), width)
    rows = [[_shorten_name(row, row.marks(measured), columns[0]), *cells[1:]] for row, cells in zip(chosen, rows, strict=True)]
    return ["", make_table(headings, rows, columns), *more, *beneath]


def _shorten_name(row: PublishedPoint, marks: str, width: int) -> str:
    """Return a published row's name within `width` columns; the system is cut before the options."""
    room = width - len(marks) - 2
    system = row.system if len(row.system) <= room else f"{row.system[: max(0, room - 1)]}…"
    return f"  {system}{marks}"


def _make_published_cells(row: PublishedPoint, name: str, source: str) -> list[str]:
    efficiency = NONE if row.efficiency is None else percent(row.efficiency)
    return [f"  {name}", row.devices, rate(row.images_per_sec), efficiency, source]


def _list_accepted(accepted: Sequence[AcceptedBaseline], verbose: bool) -> list[str]:
    """Return changed baselines, and of many new ones the count, as the table has their numbers."""
    if not accepted:
        return []
    shown = [entry for entry in accepted if verbose or len(accepted) <= MAX_ACCEPTED or entry.old is not None]
    new = len(accepted) - len(shown)
    counts = [f"  {new} new: their verdicts in the table show accepted"] if new else []
    return ["Baselines written, in images/sec:", *(f"  {entry}" for entry in shown), *counts]


def format_baseline(found: Judgement) -> str:
    """Return the baseline of a comparison that has a change, with interval, margin and noise."""
    assert found.baseline_rate is not None
    assert found.change is not None
    between = "" if found.low is None or found.high is None else f", {change(found.low)} to {change(found.high)}"
    margin = "" if found.margin is None else f", margin {percent(found.margin)}"
    noise = "" if found.noise is None else f", noise {percent(found.noise)}"
    return f"{rate(found.baseline_rate)} images/sec ({change(found.change)}{between}{margin}{noise})"
