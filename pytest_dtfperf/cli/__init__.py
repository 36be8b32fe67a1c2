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

One module per command, imported when it is called. Exit codes: `terms.ENDINGS`.
"""

import errno
import io
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext, suppress

from pytest_dtfperf.cli.options import CUT_OFF, FAILED, INTERRUPTED, USAGE
from pytest_dtfperf.cli.output import print_remark, reserve_stdout
from pytest_dtfperf.cli.parser import COMPLETING, make_parser
from pytest_dtfperf.errors import DtfPerfError, HistoryError, SessionFileError, UsageError
from pytest_dtfperf.formats import DEGRADE
from pytest_dtfperf.session.signals import leaving

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code. SIGTERM and SIGHUP end it as Ctrl-C does: partial files go, hosts are released."""
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # whose encoding need not have all that tasks print, and files are called
            with suppress(OSError):  # of a file that was put elsewhere Python wants to know the place, once it has done it
                stream.reconfigure(errors=DEGRADE)
    try:
        with leaving():
            return _run(arguments)
    except (UsageError, SessionFileError, HistoryError) as error:
        return _report_error(error, USAGE)
    except DtfPerfError as error:
        return _report_error(error, FAILED)
    except BrokenPipeError:  # `| head` has seen enough
        _forget_output()
        return CUT_OFF
    except KeyboardInterrupt as interrupt:
        return _report_error(f"interrupted {interrupt}".rstrip(), INTERRUPTED)
    except OSError as error:
        if error.filename is not None or error.errno not in NO_ROOM:
            raise
        _forget_output()
        return _report_error(f"what there is to say cannot be written: {error.strerror}", FAILED)


def _run(arguments: Sequence[str] | None) -> int:
    root = make_parser()
    if COMPLETING in os.environ:  # a shell asks: it is answered there, and no command is run
        import argcomplete

        argcomplete.autocomplete(root)
    try:
        args, unknown = root.parse_known_args(arguments)
        if unknown and not getattr(args, "passes_on", False):
            args.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
        args.passed_on = unknown
        with reserve_stdout() if getattr(args, "json", False) else nullcontext():
            code: int = args.run(args)
    finally:
        sys.stdout.flush()  # while its errors can still be told
    return code


def _open_closed_streams() -> None:
    """Open closed streams on /dev/null, so that no file that is opened later takes their place."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))  # noqa: SIM115  # to the end


def _forget_output() -> None:
    """Discard what Python still holds for stdout, so that it is not written again at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _report_error(error: object, code: int) -> int:
    print_remark(str(error))
    return code
