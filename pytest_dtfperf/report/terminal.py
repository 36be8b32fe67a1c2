"""What a session says at its end, and what a failing test says for itself. Values in, text out."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from pytest_dtfperf.baselines.verdict import Verdict, gravest_first
from pytest_dtfperf.formats import NONE, change, percent, rate
from pytest_dtfperf.printable import printable
from pytest_dtfperf.records import arithmetic
from pytest_dtfperf.records.record import Record
from pytest_dtfperf.report.drawing import fit, note, render, table, total, widths
from pytest_dtfperf.report.learning import ABOUT_LEARNING, ABOUT_SCORES, Grid, learning, scores
from pytest_dtfperf.report.numbers import footnote, rate_with_spread
from pytest_dtfperf.report.published import Published, nearest

MOST_PUBLISHED = 6  # rows per model: one of each system that published a scaling table, and no more to scroll past

COMPARED = ("baseline", "published", "efficiency", "overhead")  # checks that rest on rates
STYLES = {str(verdict): verdict.row.style for verdict in Verdict}


@dataclass(frozen=True)
class Accepted:
    """A baseline that --update-baselines wrote. `old` is None where there was none."""

    label: str
    old: float | None  # images/sec
    new: float

    def __str__(self) -> str:
        if self.old is None:
            return f"{self.label}: new, {rate(self.new)}"
        return f"{self.label}: {rate(self.old)} -> {rate(self.new)} ({change(self.new / self.old - 1)})"


def summary(
    records: Sequence[Record],
    published: Sequence[Published] = (),
    *,
    width: int,
    colour: bool = False,
    folder: Path | None = None,
    accepted: Sequence[Accepted] = (),
    remarks: Sequence[str] = (),
    budget: Mapping[str, float] | None = None,
) -> str:
    """The table of what was measured, the published results beneath it, and how to go on. Empty if nothing was measured.

    `remarks` are further lines for the notes, such as the files that were written or why none were. `budget`: how many false
    alarms there may be, and how many tests share them.
    """
    if not records:
        return ""
    beneath = [
        footnote(record.measurement for record in records),
        *arithmetic.lines(r.measurement for r in records if r.is_valid),
    ]
    blocks = [*_measured(records, width), *(note(text, width) for text in beneath)]
    blocks += _grids(learning(records), ABOUT_LEARNING, width) + _grids(scores(records), ABOUT_SCORES, width)
    for model in sorted({record.spec.model for record in records}):
        blocks += _published(model, records, published, width)
    notes = [*_notes(records), *_error_rates(records, budget or {}), *_accepted(accepted), *remarks]
    if folder:
        notes.append(f"Session folder: {folder}")
    if notes:
        blocks += ["", *(note(text, width) for text in notes)]
    return render(blocks, width, colour)


def explain(record: Record, *, logs: Path | None = None, options: Sequence[str] = ()) -> str:
    """Why a test failed, in a few lines. `options` are those the session was started with that the test needs again."""
    measurement = record.measurement
    lines = {
        "measured": f"{rate_with_spread(measurement)} images/sec (runs: {', '.join(rate(r) for r in measurement.rates)})",
        "baseline": _against(record) if record.baseline else "",
        "efficiency": percent(record.efficiency.value) if record.efficiency else "",
        "reason": record.reason or "",
        "hosts": ", ".join(measurement.hosts),
        "injected": _injected(record),
        "logs": str(logs) if logs else "",
        "rerun": f"pytest {shlex.join([*options, record.test])}",
    }
    width = max(map(len, lines))
    title = f"{record.verdict or 'not judged'}: {record.spec.label}"
    return "\n".join([title, *(f"  {name:{width}}  {text}" for name, text in lines.items() if text)])


def spent(costs: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the hosts have cost, in a line; nothing where none had a price."""
    if not costs:
        return []
    sources = sorted({f"{cost['price_source']}, {cost['price_date']}" for cost in costs})
    return [f"Spent on hosts, estimated: {sum(cost['usd'] for cost in costs):.2f} USD (price: {'; '.join(sources)})"]


def _measured(records: Sequence[Record], width: int) -> list[RenderableType]:
    """One table with whole labels if the width allows; else a table per kind of training, under its name."""
    ordered = sorted(records, key=lambda r: (r.spec.model, r.spec.batch_size, r.kind, r.spec.gpus, r.spec.num_ps))
    headings = ["spec", "images/sec", "efficiency", "baseline", "change", "verdict"]
    rows = [_cells(record, record.spec.label) for record in ordered]
    columns = widths([headings, *rows])
    if total(columns) <= width:
        return [table(headings, rows, columns, styles=STYLES)]
    short = [_cells(record, f"  gpus={record.spec.gpus} num_ps={record.spec.num_ps}") for record in ordered]
    columns = fit(widths([headings, *short]), width)
    blocks: list[RenderableType] = [table(headings, [], columns)]
    for kind, group in groupby(zip(ordered, short, strict=True), key=lambda pair: pair[0].kind):
        cells = [cells for _, cells in group]
        blocks += [Text(printable(kind), overflow="ellipsis", no_wrap=True), table([], cells, columns, styles=STYLES)]
    return blocks


def _cells(record: Record, label: str) -> list[str]:
    return [
        label,
        rate_with_spread(record.measurement),
        percent(record.efficiency.value) if record.efficiency else NONE,
        rate(record.baseline.images_per_sec) if record.baseline else NONE,
        change(record.baseline.change) if record.baseline else NONE,
        standing(record),
    ]


def standing(record: Record) -> str:
    """The verdict, and that the measurement has become a baseline where it had none to be compared with, or was worse."""
    if record.verdict is None:
        return NONE
    return record.verdict.when_accepted if record.accepted else record.verdict


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


def how_to_accept(records: Iterable[Record]) -> list[str]:
    """A line for measurements that there was nothing to compare with; none if there are no such.

    Those on hosts that were not what was asked for can be no baselines.
    """
    new = sum(_lacks_baseline(record) and not record.measurement.misplaced for record in records)
    if not new:
        return []
    missing = f"{new} measurement{'s have' if new > 1 else ' has'} no baseline to be compared with."
    return [f"{missing} Accept what this machine measures: the same command with --update-baselines=new"]


def _lacks_baseline(record: Record) -> bool:
    """Whether it was to be compared with one and could not be: another check may be INCOMPARABLE for its own reasons."""
    verdicts = {check.verdict for check in record.checks if check.kind == "baseline"} if record.checks else {record.verdict}
    return any(verdict and verdict.lacks_baseline for verdict in verdicts) and not record.accepted


def _notes(records: Sequence[Record]) -> list[str]:
    injected = sorted({_injected(record) for record in records} - {""})
    return [
        *_undecided(records),
        *how_to_accept(records),
        *(f"Injected slow-down (DTFPERF_SLOWDOWN): {text}" for text in injected),
    ]


def _error_rates(records: Iterable[Record], budget: Mapping[str, float]) -> list[str]:
    """How often such a session says REGRESSED of what is not; nothing where nothing was compared."""
    compared = any(check.kind in COMPARED and check.verdict.row.compared for record in records for check in record.checks)
    if not compared or not budget.get("tests"):
        return []
    tests = int(budget["tests"])
    share = f", a budget shared by {tests} tests" if tests > 1 else ""
    part = percent(budget["false_alarms"])
    rule = f"at most {part} of such sessions turn red where no rate is worse than its margin allows{share}"
    return [f"False alarms: {rule}. What is REGRESSED, one more run has confirmed."]


def _undecided(records: Iterable[Record]) -> list[str]:
    """Why, the gravest first, and once for all that have the same reason. Tests that failed have said so themselves."""
    reasons: dict[tuple[Verdict, str], list[Record]] = {}
    for record in sorted(records, key=lambda record: gravest_first(record.verdict)):
        verdict = record.verdict
        if verdict and verdict.row.outcome == "warn" and verdict.row.says_why and record.reason and not record.accepted:
            reasons.setdefault((verdict, record.reason), []).append(record)
    return [_why(verdict, reason, found) for (verdict, reason), found in reasons.items()]


def _why(verdict: str, reason: str, records: Sequence[Record]) -> str:
    if len(records) > 1:
        return f"{verdict} ({len(records)} measurements): {reason}"
    label = records[0].spec.label
    return f"{verdict}: {reason}" if label in reason else f"{verdict}: {label}: {reason}"


def _accepted(accepted: Sequence[Accepted]) -> list[str]:
    return ["Baselines written, in images/sec:", *(f"  {entry}" for entry in accepted)] if accepted else []


def _injected(record: Record) -> str:
    injected = record.measurement.injected_slowdowns
    return ", ".join(f"{task} slept {sleep_s:g} s in every step" for task, sleep_s in sorted(injected.items()))


def _against(record: Record) -> str:
    assert record.baseline
    found = record.baseline
    between = "" if found.low is None or found.high is None else f", {change(found.low)} to {change(found.high)}"
    margin = "" if found.margin is None else f", margin {percent(found.margin)}"
    noise = "" if found.noise is None else f", noise {percent(found.noise)}"
    return f"{rate(found.images_per_sec)} images/sec ({change(found.change)}{between}{margin}{noise})"
