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
Makes a static site of a history: all systems with their trainings, a page for each training (rates over time, intervals,
baselines, changes) and for each session (what report.html has, where its folder is still there), and changes as a feed. Called
again with the same folder it writes only what has changed.

    dtfperf site --out=public
    dtfperf site --out=public --history=postgresql://perf@db/perf --url=https://example.org/perf
    python -m http.server --directory public           # or open public/index.html

--url is where the site will be: feeds then have whole links, which some readers need.
"""
NOT_MADE = "wrong arguments, a folder that is not a site's, or a history that cannot be read"
ENDS = {DONE: "made", FAILED: "it could not be made", USAGE: NOT_MADE}
SHAPE = {
    "written": "a list of pages' paths below the folder",
    "kept": "those that were as they should be",
    "removed": "those that were of the site, and no longer are",
    "bytes": "of all pages",
    "largest": "bytes of the largest page",
}


def add_parser(commands: "Commands[argparse.ArgumentParser]") -> None:
    parser = add_command(commands, "site", help="a history as a static site", text=TEXT, ends=ENDS)
    parser.add_argument(
        "--out", required=True, type=Path, metavar="DIR", help="its folder: a new one, or one that it was made in"
    )
    parser.add_argument("--url", default="", metavar="URL", help="where it will be, such as https://example.org/perf")
    parser.add_argument("--title", metavar="TEXT", help="what stands above it")
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
        f"{len(built.written)} written, {len(built.kept)} as they were{removed}. Begin at {begin}"
    )
    return DONE
