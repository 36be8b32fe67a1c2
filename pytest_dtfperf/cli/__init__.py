"""dtfperf: what there is to do without pytest.

dtfperf init           a working start in a project: perf tests, their clusters, a job of the night
dtfperf clusters ...   what clusters.toml describes, and whether that can be used
dtfperf doctor         look at every host of a cluster: is it fit to be measured?
dtfperf run            measure trainings, and compare each with its baseline
dtfperf judge          judge a stored session again, offline
dtfperf explain        where the time of a step went in a stored session, offline
dtfperf nightly        one night of perf tests, and what it came to
dtfperf history ...    all sessions: list, compare, trends, since when a rate is another
dtfperf site           the same as a static site, with a page for each training and each session, and a feed of changes
dtfperf figures        rates, speed-ups, what input costs and steps as pictures; those of the report of 2017
dtfperf baselines ...  accepted measurements: can they be relied upon, how much do they scatter?
dtfperf slurm ...      the Slurm jobs that sessions of perf tests have left
dtfperf ec2 ...        the EC2 instances of perf tests: launch, look at, end, and what they cost
dtfperf launch         any program as parameter servers and workers on a cluster
dtfperf notebook       JupyterLab on a host of a cluster, in the browser here
dtfperf data ...       data sets and session folders, to S3 and back
dtfperf make-data      a made-up data set in the format of ImageNet, MNIST or CIFAR-10
dtfperf completion     what a shell needs to complete all this

One module per command, imported when it is called. Exit codes: 0 done; 1 it could not be done; 2 wrong arguments,
or a file that cannot be read.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module, metadata

from pytest_dtfperf.cli.terms import COMMANDS, CUT_OFF, FAILED, INTERRUPTED, USAGE
from pytest_dtfperf.errors import DtfPerfError, HistoryError, SessionFileError, UsageError

COMPLETING = "_ARGCOMPLETE"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="dtfperf",
        description="What there is to do besides running perf tests, which `pytest perf_tests --cluster=NAME` does.",
        epilog="Each command says more of itself: dtfperf COMMAND --help.",
    )
    parser.add_argument("--version", action="version", version=f"pytest-dtfperf {metadata.version('pytest-dtfperf')}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for module in COMMANDS:
        import_module(f"pytest_dtfperf.cli.{module}").add(commands)
    if COMPLETING in os.environ:  # a shell asks: it is answered there, and no command is run
        import argcomplete

        argcomplete.autocomplete(parser)
    args, unknown = parser.parse_known_args(arguments)
    if unknown and not getattr(args, "passes_on", False):
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    args.passed_on = unknown
    try:
        code: int = args.run(args)
        sys.stdout.flush()
    except (UsageError, SessionFileError, HistoryError) as error:
        return _report_error(error, USAGE)
    except DtfPerfError as error:
        return _report_error(error, FAILED)
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what Python still holds for it goes nowhere
        return CUT_OFF
    except KeyboardInterrupt:
        return _report_error("interrupted", INTERRUPTED)
    return code


def _report_error(error: object, code: int) -> int:
    print(f"dtfperf: {error}", file=sys.stderr)
    return code
