"""What a session says at its end, and what a failing test says for itself. Values in, text out."""

import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from pytest_dtfperf.baselines.verdict import Verdict
from pytest_dtfperf.formats import NONE, change, counted, percent, rate
from pytest_dtfperf.printable import printable
from pytest_dtfperf.records import arithmetic
from pytest_dtfperf.records.record import Record, without_size
from pytest_dtfperf.report import limits
from pytest_dtfperf.report.accepted import Accepted
from pytest_dtfperf.report.causes import go_on, largest, why
from pytest_dtfperf.report.drawing import fit, note, render, table, total, widths
from pytest_dtfperf.report.learning import ABOUT_LEARNING, ABOUT_SCORES, Grid, learning, scores
from pytest_dtfperf.report.numbers import disturbed_note, footnote, rate_with_spread
from pytest_dtfperf.report.published import Published, nearest
from pytest_dtfperf.report.reasons import Reason, error_rates, how_to_accept, injected, reasons
from pytest_dtfperf.report.sweeps import ABOUT as ABOUT_SWEEPS
from pytest_dtfperf.report.sweeps import swept
from pytest_dtfperf.spec import labels

MOST_PUBLISHED = 2  # rows per model; the page has more
MOST_REASONS = 8  # of different ones, so that the table stays in sight; the page and the tests' own words have all
MOST_ACCEPTED = 6  # baselines, with the rates of the new ones

STYLES = {str(verdict): verdict.row.style for verdict in Verdict}


def summary(
    records: Sequence[Record],
    published: Sequence[Published] = (),
    *,
    width: int,
    colour: bool = False,
    verbose: bool = False,
    folder: Path | None = None,
    accepted: Sequence[Accepted] = (),
    remarks: Sequence[str] = (),
    budget: Mapping[str, float] | None = None,
) -> str:
    """What is not green and why, the table of what was measured, and what was written. Empty if nothing was measured.

    `verbose` adds what the session's page shows, too: what the numbers are, learning, scores, published results. `remarks` are
    further lines for the notes, such as the files that were written or why none were. `budget`: how many false alarms there may
    be, and how many tests share them.
    """
    if not records:
        return ""
    blocks = _before(records, width)
    blocks += ["", *_measured(records, width)] if blocks else _measured(records, width)
    blocks += [note(text, width) for text in disturbed_note(record.measurement for record in records)]
    blocks += _grids(swept(records), ABOUT_SWEEPS, width)
    blocks += _beneath(records, published, budget or {}, width) if verbose else []
    notes = [*_accepted(accepted, verbose), *remarks, *([f"Session folder: {folder}"] if folder else [])]
    if notes:
        blocks += ["", *(note(text, width) for text in notes)]
    return render(blocks, width, colour)


def _before(records: Sequence[Record], width: int) -> list[RenderableType]:
    """What is not green, with its reason."""
    found = reasons(records)
    blocks: list[RenderableType] = []
    for reason in found[:MOST_REASONS]:
        blocks += [
            _reason(reason, width),
            *(note(f"  {text}", width) for each in reason.records[:1] if (text := largest(each))),
        ]
    if left_out := found[MOST_REASONS:]:
        blocks.append(note(f"and {counted(len(left_out), 'reason')} more: see the tests, or report.html", width))
    slept = injected(records)
    blocks += [note(f"Injected slow-down (DTFPERF_SLOWDOWN): {text}", width) for text in slept]
    return blocks + [note(text, width) for text in how_to_accept(records)]


def _reason(reason: Reason, width: int) -> Text:
    text = note(str(reason), width)
    text.stylize(STYLES[reason.verdict], 0, len(reason.verdict))
    return text


def _beneath(
    records: Sequence[Record], published: Sequence[Published], budget: Mapping[str, float], width: int
) -> list[RenderableType]:
    """What the numbers are, what was learnt, what others have published, and how often a session errs."""
    texts = [
        footnote(record.measurement for record in records),
        *arithmetic.lines(r.measurement for r in records if r.is_valid),
        *limits.lines(records),
        *error_rates(records, budget),
    ]
    blocks: list[RenderableType] = [note(text, width) for text in texts]
    blocks += _grids(learning(records), ABOUT_LEARNING, width) + _grids(scores(records), ABOUT_SCORES, width)
    for model in sorted({record.spec.model for record in records}):
        blocks += _published(model, records, published, width)
    return blocks


def explain(
    record: Record,
    *,
    logs: Path | None = None,
    options: Sequence[str] = (),
    session: Path | None = None,
    rerun: Sequence[str] | None = None,
) -> str:
    """Why a test failed, in a few lines. `options` are those the session was started with that the test needs again, `session`
    is its folder; `rerun` is what measures it again where that is no test of pytest's.
    """
    measurement = record.measurement
    lines = {
        "measured": f"{rate_with_spread(measurement)} images/sec (runs: {', '.join(rate(r) for r in measurement.rates)})",
        "baseline": against(record) if record.baseline else "",
        "efficiency": percent(record.efficiency.value) if record.efficiency else "",
        "limit": limits.words(record),
        "why": why(record),
        "reason": record.reason or "",
        "hosts": ", ".join(measurement.hosts),
        "injected": ", ".join(injected([record])),
        "logs": str(logs) if logs else "",
        "rerun": shlex.join(rerun or ["pytest", *options, record.test]),
        "next": "     ".join(go_on(record, _short(session))) if session else "",
    }
    width = max(map(len, lines))
    title = f"{record.verdict or 'not judged'}: {record.spec.label}"
    return "\n".join([title, *(line for name, text in lines.items() for line in _named(name, text, width))])


def _named(name: str, text: str | Sequence[str], width: int) -> Iterator[str]:
    """A line under its name, or several; none where there is nothing to say."""
    lines = [text] if isinstance(text, str) else text
    for number, line in enumerate(line for line in lines if line):
        yield f"  {'' if number else name:{width}}  {line}"


def _short(path: Path) -> str:
    """As one would type it."""
    return shlex.quote(os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path))


def spent(costs: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the hosts have cost, in a line; nothing where none had a price."""
    if not costs:
        return []
    sources = sorted({f"{cost['price_source']}, {cost['price_date']}" for cost in costs})
    return [f"Spent on hosts, estimated: {sum(cost['usd'] for cost in costs):.2f} USD (price: {'; '.join(sources)})"]


def _measured(records: Sequence[Record], width: int) -> list[RenderableType]:
    """One table with whole labels if the width allows; else a table per kind of training, under its name."""
    label = labels(record.spec for record in records)
    kind = {spec: without_size(words) for spec, words in label.items()}
    ordered = sorted(records, key=lambda r: (r.spec.model, r.spec.batch_size, kind[r.spec], r.spec.gpus, r.spec.num_ps))
    limited: _LimitCell
    for limited in (limits.short, limits.number, None) if any(record.share_of_limit for record in records) else (None,):
        headings = ["spec", "images/sec", "efficiency", *(["of limit"] if limited else []), "baseline", "change", "verdict"]
        rows = [_cells(record, label[record.spec], limited) for record in ordered]
        columns = widths([headings, *rows])
        if total(columns) <= width:
            return [table(headings, rows, columns, styles=STYLES)]
        short = [_cells(record, f"  gpus={record.spec.gpus} num_ps={record.spec.num_ps}", limited) for record in ordered]
        columns = widths([headings, *short])
        if total(columns) <= width:
            break
    columns = fit(columns, width)
    blocks: list[RenderableType] = [table(headings, [], columns)]
    for words, group in groupby(zip(ordered, short, strict=True), key=lambda pair: kind[pair[0].spec]):
        cells = [cells for _, cells in group]
        blocks += [Text(printable(words), overflow="ellipsis", no_wrap=True), table([], cells, columns, styles=STYLES)]
    return blocks


_LimitCell = Callable[[Record], str] | None  # how the limit is told, as far as there is room for it


def _cells(record: Record, label: str, limited: _LimitCell) -> list[str]:
    return [
        label,
        rate_with_spread(record.measurement),
        percent(record.efficiency.value) if record.efficiency else NONE,
        *([limited(record)] if limited else []),
        rate(record.baseline.images_per_sec) if record.baseline else NONE,
        change(record.baseline.change) if record.baseline else NONE,
        standing(record),
    ]


def standing(record: Record) -> str:
    """Return the verdict, whether the measurement has become a baseline, and the attempt of a test that was run again."""
    verdict = record.verdict.when_accepted if record.verdict and record.accepted else record.verdict
    words = verdict or NONE
    return f"{words}, attempt {record.attempt}" if record.attempt > 1 else words


def _grids(grids: Iterable[Grid], about: str, width: int) -> list[RenderableType]:
    """Tables beneath each other, and what is to be said about all of them."""
    blocks: list[RenderableType] = []
    for grid in grids:
        columns = fit(widths([grid.headings, *grid.rows]), width, positions=[0])
        blocks += ["", table(grid.headings, grid.rows, columns, words=[0])]
    return [*blocks, note(about, width)] if blocks else []


def _published(model: str, records: Iterable[Record], published: Iterable[Published], width: int) -> list[RenderableType]:
    """The nearest rows. Their sources stand beside them where there is room, else beneath the table by number."""
    of_model = [row for row in published if row.model == model]
    if not of_model:
        return []
    measured = {record.spec for record in records if record.spec.model == model}
    chosen = nearest(of_model, measured, MOST_PUBLISHED)
    headings = [f"published: {model}", "devices", "images/sec", "efficiency", "source"]
    sources = list(dict.fromkeys(row.citation for row in chosen))
    rows = [_published_cells(row, row.name(measured), row.citation) for row in chosen]
    beneath: list[RenderableType] = []
    if total(widths([headings, *rows])) > width:
        rows = [_published_cells(row, row.name(measured), f"[{sources.index(row.citation) + 1}]") for row in chosen]
        beneath = [note(f"  [{number}] {source}", width) for number, source in enumerate(sources, start=1)]
    left_out = len(of_model) - len(chosen)
    more = [f"  and {left_out} more"] if left_out else []
    columns = fit(widths([headings, *rows]), width)
    rows = [[_cut(row, row.marks(measured), columns[0]), *cells[1:]] for row, cells in zip(chosen, rows, strict=True)]
    return ["", table(headings, rows, columns), *more, *beneath]


def _cut(row: Published, marks: str, width: int) -> str:
    """Its name within so many columns: rather less of the system than of how otherwise it was trained."""
    room = width - len(marks) - 2
    system = row.system if len(row.system) <= room else f"{row.system[: max(0, room - 1)]}…"
    return f"  {system}{marks}"


def _published_cells(row: Published, name: str, source: str) -> list[str]:
    efficiency = NONE if row.efficiency is None else percent(row.efficiency)
    return [f"  {name}", row.devices, rate(row.images_per_sec), efficiency, source]


def _accepted(accepted: Sequence[Accepted], verbose: bool) -> list[str]:
    """What has changed, always; of many that are new how many they are, for the table has their numbers."""
    if not accepted:
        return []
    shown = [entry for entry in accepted if verbose or len(accepted) <= MOST_ACCEPTED or entry.old is not None]
    new = len(accepted) - len(shown)
    counts = [f"  {new} new: their verdicts in the table say accepted"] if new else []
    return ["Baselines written, in images/sec:", *(f"  {entry}" for entry in shown), *counts]


def against(record: Record) -> str:
    """The baseline it was compared with, the change and its interval, the margin and the noise; of a record that has one."""
    assert record.baseline
    found = record.baseline
    between = "" if found.low is None or found.high is None else f", {change(found.low)} to {change(found.high)}"
    margin = "" if found.margin is None else f", margin {percent(found.margin)}"
    noise = "" if found.noise is None else f", noise {percent(found.noise)}"
    return f"{rate(found.images_per_sec)} images/sec ({change(found.change)}{between}{margin}{noise})"
