"""`dtfperf figures`: draw measurements, or the figures of the report of 2017."""

import argparse
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_dtfperf.cli.options import (
    DONE,
    FAILED,
    USAGE,
    Commands,
    Shape,
    add_command,
    add_json,
    complete_patterns,
    complete_session_ids,
    set_completer,
)
from pytest_dtfperf.cli.output import print_json, print_remark, write_file
from pytest_dtfperf.errors import UsageError, describe_unknown_name

if TYPE_CHECKING:
    from pytest_dtfperf.report.charts import NamedFigure
    from pytest_dtfperf.report.sources import StoredSession

TEXT = """\
Without SOURCE it draws Figures 5 to 11 of the report of 2017 (E. Bugliarello, CSCS) from the published rates of the package.
SOURCE is a session folder, a folder of session folders, or the file or URL of a history. For each machine, model and batch
size there is a figure of rates with speed-ups, and, as far as they were measured, of scaling, of the cost of real input, and
of rates by parameter servers and devices. For each measurement of the last session there is a figure of its steps, if SOURCE
is a folder.

    dtfperf figures --out=report-2017
    dtfperf figures perf_results --out=figures
    dtfperf figures history.sqlite model=inception3 'gpus=[248]' --out=figures --format=svg,png
    dtfperf figures perf_results --session=2026-01-31 --out=figures

The latest measurement of each spec is drawn. docs/figures.md shows the kinds.
"""
ENDS = {DONE: "drawn", FAILED: "there is no such measurement", USAGE: "wrong arguments, or a source that cannot be read"}
SHAPE: Shape = {"figures": [{"name": "what is drawn", "files": "a list of their paths"}]}
FORMATS = ("svg", "png")


def add_parser(commands: "Commands[argparse.ArgumentParser]") -> None:
    parser = add_command(commands, "figures", help="draw measurements", text=TEXT, ends=ENDS)
    text = "a session folder, a folder of session folders, or the file or URL of a history"
    parser.add_argument("source", nargs="?", metavar="SOURCE", help=text)
    text = "with SOURCE: select trainings; all must match, and values may contain *, ? and [...]"
    set_completer(parser.add_argument("pattern", nargs="*", metavar="FIELD=VALUE", help=text), complete_patterns)
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="the folder of the pictures")
    text = "with SOURCE: an id, a date, a commit, a version, or `last`; by default all"
    set_completer(parser.add_argument("--session", metavar="SESSION", help=text), complete_session_ids)
    parser.add_argument("--format", default="svg", metavar="svg|png|svg,png", help="by default svg")
    add_json(parser, SHAPE)
    parser.set_defaults(run=run_figures)


def run_figures(args: argparse.Namespace) -> int:
    if args.source is None and args.session:
        raise UsageError("--session goes with SOURCE: the figures of the report of 2017 are of no session")
    formats = args.format.split(",")
    for given in formats:
        if given not in FORMATS:
            raise UsageError(describe_unknown_name("format of a picture", given, FORMATS))
    try:
        figures = [_write_figure(drawing, args.out, formats) for drawing in _draw_figures(args)]
    except ImportError as exc:
        from pytest_dtfperf.report.session_exports import INSTALL

        raise UsageError(f"pictures are drawn by matplotlib: {exc}. {INSTALL}") from exc
    if args.json:
        print_json({"figures": figures})
    if not figures:
        print_remark("there is no measurement to draw.")
    return DONE if figures else FAILED


def _draw_figures(args: argparse.Namespace) -> "Iterable[NamedFigure]":
    if args.source is None:
        from pytest_dtfperf.report.figures import draw_report_figures

        return draw_report_figures()
    from pytest_dtfperf.report.figures import draw_session_figures
    from pytest_dtfperf.report.series import find_published_rates
    from pytest_dtfperf.report.sources import load_sessions, select_sessions

    sessions = [
        _select_records(stored, args.pattern)
        for stored in select_sessions(load_sessions(args.source, print_remark), args.session)
    ]
    published = find_published_rates(record for stored in sessions for record in stored.records)
    return draw_session_figures(sessions, published)


def _select_records(stored: "StoredSession", patterns: Sequence[str]) -> "StoredSession":
    from pytest_dtfperf.baselines.store import BaselinePattern

    pattern = BaselinePattern.parse(patterns) if patterns else None
    return replace(stored, records=[each for each in stored.records if not pattern or pattern.matches(each.spec.key)])


def _write_figure(drawing: "NamedFigure", folder: Path, formats: Sequence[str]) -> dict[str, object]:
    from pytest_dtfperf.report.charts import convert_to_png, convert_to_svg

    name = re.sub(r"[^\w.+=-]", "-", drawing.name)  # names of models and clusters are arbitrary
    files = {
        folder / f"{name}.{each}": (convert_to_svg if each == "svg" else convert_to_png)(drawing.figure) for each in formats
    }
    for path, content in files.items():
        write_file(path, content)
    return {"name": drawing.name, "files": [str(path) for path in files]}
