"""How many parameter servers sweeps have found best, in the form of the 2017 report's tables, and what was tried. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any

from pytest_dtfperf.formats import NONE, percent, rate
from pytest_dtfperf.records.record import Record, latest_of_each_spec
from pytest_dtfperf.report.learning import Grid

ABOUT_SWEEPS = (
    "num_ps is the fastest of those tried; short: images/sec of the short runs that came before, by number of servers"
)


def make_sweep_grids(records: Iterable[Record]) -> list[Grid]:
    """One table with a row for each sweep, smallest first; none where nothing was swept."""
    found = [record for record in latest_of_each_spec(records) if record.sweep]
    ordered = sorted(found, key=lambda r: (r.spec.model, r.spec.batch_size, r.spec.variable_update, r.spec.gpus))
    headings = ("parameter servers", "gpus", "num_ps", "of", "images/sec", "efficiency", "short")
    return [Grid(headings, [_make_sweep_row(record) for record in ordered])] if ordered else []


def _make_sweep_row(record: Record) -> list[str]:
    assert record.sweep
    spec = record.spec
    return [
        f"{spec.model} b{spec.batch_size} {spec.variable_update}",
        str(spec.gpus),
        str(spec.num_ps),
        str(record.sweep["most"]),
        rate(record.images_per_sec),
        percent(record.efficiency.value) if record.efficiency else NONE,
        _format_short_runs(record.sweep) or NONE,
    ]


def _format_short_runs(sweep: Mapping[str, Any]) -> str:
    """`1: 95.2, 2: 98.1`: of each count its longest run."""
    longest: dict[int, tuple[int, float]] = {}
    for name, found in sweep["tried"].items():
        count, steps = (int(part.split()[0]) for part in name.split(", "))
        longest[count] = max(longest.get(count, (0, 0.0)), (steps, found))
    return ", ".join(f"{count}: {rate(found)}" for count, (_, found) in sorted(longest.items()))
