"""`dtfperf nightly`: one night of perf tests."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_dtfperf.cli.terms import Commands, add_command
from pytest_dtfperf.errors import UsageError

if TYPE_CHECKING:
    from pytest_dtfperf.nightly.night import Night

TEXT = """\
One night of perf tests: runs them on a cluster, keeps their session folder, sums it up, and ends with the right exit code.

    dtfperf nightly --cluster=daint --results=$HOME/nightly --deadline=120
    dtfperf nightly --cluster=local --results=nights --deadline=30 --tests=more_tests -k mnist --history-gate

Runs `pytest perf_tests` in the current folder, with the Python that this program is run with. What it does not know it hands
on to pytest. Exit codes:

      0   all tests passed                              4   wrong options (also pytest's)
      1   regressions, or other failed tests            5   nothing was collected (pytest's)
      2   pytest was interrupted                       75   another night holds this cluster: its holder is named
      3   pytest itself broke                         124   the deadline passed, and pytest was ended
    128+N signal N ended this program (143: SIGTERM) or pytest

docs/nightly.md has the rest: cron, Slurm, GitHub Actions.
"""
WRONG_OPTIONS = 4  # as pytest has it: 2 would say that it was interrupted


def add(commands: "Commands[argparse.ArgumentParser]") -> None:
    parser = add_command(commands, "nightly", help="one night of perf tests, and what it came to", text=TEXT)
    parser.allow_abbrev = False  # what is no option of ours is one of pytest's
    parser.add_argument("--cluster", metavar="NAME", help="where to train")
    parser.add_argument("--results", metavar="DIR", type=Path, help="where session folders are kept")
    parser.add_argument("--deadline", metavar="MINUTES", help="the night ends then, whatever goes on")
    parser.add_argument("--tests", metavar="DIR", action="append", help="what to run, once for each; perf_tests")
    parser.add_argument("--baselines", metavar="DIR", type=Path, help="accepted measurements to compare with")
    parser.add_argument("--history", metavar="FILE|URL|never", help="the database of all nights; history.sqlite in --results")
    parser.add_argument("--keep", metavar="N", help="remove all but the last N session folders of this cluster")
    parser.add_argument("--fail-on-loss", action="store_true", help="exit code 1 where a rate without a baseline is slower")
    parser.add_argument("--site", metavar="DIR", type=Path, help="make the site of the history there: dtfperf site")
    parser.set_defaults(run=run, passes_on=True)


def run(args: argparse.Namespace) -> int:
    from pytest_dtfperf.nightly.night import carry_out

    try:
        night = _night(args)
    except UsageError as error:
        print(f"nightly: {error}", file=sys.stderr)
        return WRONG_OPTIONS
    return carry_out(night)


def _night(args: argparse.Namespace) -> "Night":
    from pytest_dtfperf.nightly.night import Night

    missing = [f"--{name}" for name in ("cluster", "results", "deadline") if not getattr(args, name)]
    if missing:
        raise UsageError(f"{', '.join(missing)} must be given: dtfperf nightly --help")
    if not all(c.isalnum() or c in "._-" for c in args.cluster):
        raise UsageError(f"--cluster must be a name of letters, digits, '.', '_' and '-', not {args.cluster!r}")
    return Night(
        cluster=args.cluster,
        results=args.results,
        deadline_s=60 * _minutes(args.deadline),
        tests=args.tests or ["perf_tests"],
        baselines=args.baselines,
        history=args.history,
        keep=_keep(args.keep),
        fail_on_loss=args.fail_on_loss,
        site=args.site,
        pytest=args.passed_on,
    )


def _minutes(text: str) -> float:
    try:
        minutes = float(text)
    except ValueError:
        minutes = 0.0
    if not 0 < minutes < float("inf"):
        raise UsageError(f"--deadline must be a number of minutes above 0, not {text!r}")
    return minutes


def _keep(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isascii() or not text.isdecimal() or not int(text):
        raise UsageError(f"--keep must be at least 1, not {text!r}")
    return int(text)
