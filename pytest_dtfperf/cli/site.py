"""`dtfperf site`: write a history as a static site."""

import argparse
import re
from dataclasses import asdict
from pathlib import Path

from pytest_dtfperf.cli.history_data import add_history, open_history
from pytest_dtfperf.cli.options import DONE, FAILED, USAGE, Commands, add_command, add_json, find_results_folder
from pytest_dtfperf.cli.output import print_json
from pytest_dtfperf.errors import UsageError
from pytest_dtfperf.formats import format_count, printable

TEXT = """\
Write a static site of a history: all systems with their trainings, a page for each training (rates over time, intervals,
baselines, changes), a page for each session (the content of report.html, if its folder exists), and a feed of changes. If the
folder has the site already, only changed pages are written.

    dtfperf site --out=public
    dtfperf site --out=public --history=postgresql://perf@db/perf --url=https://example.org/perf
    python -m http.server --directory public           # or open public/index.html

--url is the address of the site. Feeds then have absolute links, which some readers need.
"""
NOT_MADE = "wrong arguments, a folder that is not a site's, or a history that cannot be read"
ENDS = {DONE: "made", FAILED: "the site could not be written", USAGE: NOT_MADE}
SHAPE = {
    "written": "a list of pages' paths below the folder",
    "kept": "a list of unchanged pages",
    "removed": "a list of removed pages",
    "bytes": "of all pages",
    "largest": "bytes of the largest page",
}


def add_parser(commands: "Commands[argparse.ArgumentParser]") -> None:
    parser = add_command(commands, "site", help="write the history as a static site", text=TEXT, ends=ENDS)
    parser.add_argument(
        "--out", required=True, type=Path, metavar="DIR", help="the folder: a new one, or that of an earlier call"
    )
    parser.add_argument("--url", default="", metavar="URL", help="the address of the site, as https://example.org/perf")
    parser.add_argument("--title", metavar="TEXT", help="the title of the site")
    add_history(parser)
    add_json(parser, SHAPE)
    parser.set_defaults(run=run_site)


def run_site(args: argparse.Namespace) -> int:
    from pytest_dtfperf.history.watching import load_history
    from pytest_dtfperf.report.site.build import TITLE, build_site

    if args.url and not re.fullmatch(r"https?://[^\s<>\"']+", args.url):
        raise UsageError(f"--url takes an address that begins with https:// or http://, not {args.url!r}")
    found = load_history(open_history(args))
    built = build_site(found, args.out, results=find_results_folder(args), url=args.url, title=args.title or TITLE)
    if args.json:
        print_json(asdict(built))
        return DONE
    removed = f", {len(built.removed)} removed" if built.removed else ""
    begin = printable(str(args.out / "index.html"))
    print(
        f"dtfperf: {format_count(len(found.sessions), 'session')} in "
        f"{format_count(len(built.written) + len(built.kept), 'page')}: "
        f"{len(built.written)} written, {len(built.kept)} unchanged{removed}. Begin at {begin}"
    )
    return DONE
