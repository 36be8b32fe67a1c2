"""`dtfperf nightly`: run one night of perf tests."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_dtfperf.cli.options import (
    DONE,
    FAILED,
    USAGE,
    Commands,
    Shape,
    add_command,
    add_json,
    complete_cluster_names,
    set_completer,
)
from pytest_dtfperf.cli.output import print_json
from pytest_dtfperf.cli.project import find_configured_history
from pytest_dtfperf.errors import UsageError
from pytest_dtfperf.history.where import FILE, VARIABLE

if TYPE_CHECKING:
    from pytest_dtfperf.nightly.night import Night, NightResult

TEXT = """\
Run the perf tests of one night on a cluster, keep the session folder, write a summary, and return pytest's exit code.

    dtfperf nightly --cluster=daint --results=$HOME/nightly --deadline=120
    dtfperf nightly --cluster=local --results=nights --deadline=30 --tests=more_tests -k mnist --history-gate

It runs `pytest perf_tests` in the current folder with the Python of this program. Other arguments go to pytest.
docs/nightly.md describes cron, Slurm, GitHub Actions and GitLab.
"""
WRONG_OPTIONS = 4  # as in pytest, where 2 means an interruption
ENDS = {
    DONE: "all tests passed",
    FAILED: "regressions or other failed tests; a loss with --fail-on-loss; a change with --history-gate",
    USAGE: "pytest was interrupted",
    3: "pytest had an internal error",
    WRONG_OPTIONS: "wrong options, also of pytest",
    5: "no tests were collected",
    75: "another night uses this cluster; its process is named",
    124: "the deadline passed, and pytest was ended",
}
SHAPE: Shape = {
    "cluster": "the cluster",
    "exit_code": "as this program's",
    "outcome": "the meaning of the exit code",
    "session": "the session folder; null: nothing was measured",
    "losses": [
        {
            "label": "of the training",
            "baseline": "images/sec in the earlier session",
            "current": "images/sec in this night",
            "session": "that was faster",
            "replaced": "a list: differences of the graph and the framework since that session",
        }
    ],
    "site": "the result of building the site; null: none was requested",
    "notified": "a list: a line for each receiver of an alert; empty if nothing was new",
    "metrics": "a list: a line for each target of metrics",
}


def add_parser(commands: "Commands[argparse.ArgumentParser]") -> None:
    parser = add_command(commands, "nightly", help="run one night of perf tests, and summarise it", text=TEXT, ends=ENDS)
    parser.allow_abbrev = False  # unknown options belong to pytest
    set_completer(parser.add_argument("--cluster", metavar="NAME", help="a cluster of clusters.toml"), complete_cluster_names)
    parser.add_argument("--results", metavar="DIR", type=Path, help="the folder of session folders")
    parser.add_argument("--deadline", metavar="MINUTES", help="pytest is ended after so many minutes")
    parser.add_argument("--tests", metavar="DIR", action="append", help="tests to run; can be repeated; by default perf_tests")
    parser.add_argument("--baselines", metavar="DIR", type=Path, help="the folder of baselines")
    text = f"the database of all nights; by default that of {VARIABLE} or the project's dtfperf_history, or {FILE} in --results"
    parser.add_argument("--history", metavar="FILE|URL|never", help=text)
    parser.add_argument("--keep", metavar="N", help="remove all but the last N session folders of this cluster")
    parser.add_argument(
        "--fail-on-loss", action="store_true", help="exit code 1 if a rate without a baseline is slower than in earlier nights"
    )
    parser.add_argument("--site", metavar="DIR", type=Path, help="write the site of the history there, as dtfperf site does")
    text = "send new problems to a webhook or by mail; can be repeated"
    parser.add_argument("--notify", metavar="URL", action="append", default=[], help=text)
    text = "write the night's metrics for Prometheus to FILE.prom, or send them to a Pushgateway; can be repeated"
    parser.add_argument("--metrics", metavar="FILE|URL", action="append", default=[], help=text)
    add_json(parser, SHAPE)
    parser.set_defaults(run=run_nightly, passes_on=True, wrong_arguments=WRONG_OPTIONS)


def run_nightly(args: argparse.Namespace) -> int:
    from pytest_dtfperf.nightly.night import LOCKED, run_night

    try:
        night = _make_night(args)
        done = run_night(night, output=sys.stderr if args.json else None)
    except UsageError as error:
        print(f"nightly: {error}", file=sys.stderr)
        return WRONG_OPTIONS
    if args.json and done.code != LOCKED:
        print_json(_make_json(done, night.cluster))
    return done.code


def _make_json(done: "NightResult", cluster: str) -> dict[str, Any]:
    found = [(each.found, each.session) for each in done.losses]
    losses = [
        {
            "label": one.label,
            "baseline": one.baseline,
            "current": one.current,
            "session": session,
            "replaced": list(one.replaced),
        }
        for one, session in found
    ]
    session = str(done.session) if done.session else None
    outcome = {"exit_code": done.code, "outcome": done.outcome, "session": session}
    return {
        "cluster": cluster,
        **outcome,
        "losses": losses,
        "site": done.site,
        "notified": list(done.notified),
        "metrics": list(done.metrics),
    }


def _make_night(args: argparse.Namespace) -> "Night":
    from pytest_dtfperf.nightly import notify
    from pytest_dtfperf.nightly.night import Night
    from pytest_dtfperf.report.metrics_targets import list_targets

    missing = [f"--{name}" for name in ("cluster", "results", "deadline") if not getattr(args, name)]
    if missing:
        raise UsageError(f"{', '.join(missing)} must be given: dtfperf nightly --help")
    if not all(c.isalnum() or c in "._-" for c in args.cluster):
        raise UsageError(f"--cluster must be a name of letters, digits, '.', '_' and '-', not {args.cluster!r}")
    tests = args.tests or ["perf_tests"]
    return Night(
        cluster=args.cluster,
        results=args.results,
        deadline_s=60 * _parse_minutes(args.deadline),
        tests=tests,
        baselines=args.baselines,
        history=args.history,
        project_history=find_configured_history(start=_find_common_folder(tests)),
        keep=_parse_keep(args.keep),
        fail_on_loss=args.fail_on_loss,
        site=args.site,
        receivers=[notify.parse_receiver(text) for text in [*args.notify, *os.environ.get(notify.VARIABLE, "").split()]],
        targets=list_targets(args.metrics),
        pytest=args.passed_on,
    )


def _find_common_folder(tests: Sequence[str]) -> Path:
    """Return the folder in which pytest first searches its configuration."""
    return Path(os.path.commonpath([os.path.abspath(each.partition("::")[0]) for each in tests]))


def _parse_minutes(text: str) -> float:
    try:
        minutes = float(text)
    except ValueError:
        minutes = 0.0
    if not 0 < minutes < float("inf"):
        raise UsageError(f"--deadline must be a number of minutes above 0, not {text!r}")
    return minutes


def _parse_keep(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isascii() or not text.isdecimal() or not int(text):
        raise UsageError(f"--keep must be at least 1, not {text!r}")
    return int(text)
