"""The command `dtfperf`, which works without pytest.

Each command has a module, which is imported when the command is called. `dtfperf --help` lists the commands, and `options.py`
has their exit codes.
"""

import errno
import io
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext, suppress

from pytest_dtfperf.cli.options import COMPLETING, CUT_OFF, FAILED, INTERRUPTED, NOT_JUDGED, USAGE, make_parser
from pytest_dtfperf.cli.output import print_remark, reserve_stdout
from pytest_dtfperf.errors import DtfPerfError, HistoryError, SessionFileError, UsageError
from pytest_dtfperf.formats import DEGRADE
from pytest_dtfperf.session.signals import raise_exit

JUDGING = (["qualify"], ["isolate"])  # commands of which exit code 1, as of a traceback, means a slow host
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # of an output that is full or broken


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code.

    SIGTERM and SIGHUP end it like Ctrl-C: it deletes partial files and releases hosts.
    """
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # its encoding may lack characters in the output of tasks or in file names
            with suppress(OSError):  # it reads the position of a redirected file, which may fail
                stream.reconfigure(errors=DEGRADE)
    try:
        with raise_exit():
            return _run(arguments)
    except (UsageError, SessionFileError, HistoryError) as error:
        return _report_error(error, USAGE)
    except DtfPerfError as error:
        return _report_error(error, FAILED)
    except ImportError as error:
        if list(sys.argv[1:] if arguments is None else arguments)[:1] not in JUDGING:
            raise
        return _report_error(f"not judged: this installation is damaged: {error}", NOT_JUDGED)
    except BrokenPipeError:  # the reader, such as `head`, has ended
        _forget_output()
        return CUT_OFF
    except KeyboardInterrupt as interrupt:
        return _report_error(f"interrupted {interrupt}".rstrip(), INTERRUPTED)
    except OSError as error:
        if error.filename is not None or error.errno not in NO_ROOM:
            raise
        _forget_output()
        return _report_error(f"the output cannot be written: {error.strerror}", FAILED)


def _run(arguments: Sequence[str] | None) -> int:
    root = make_parser()
    if COMPLETING in os.environ:  # a shell asks for completions: answer, and run no command
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
        sys.stdout.flush()  # while its errors can still be reported
    return code


def _open_closed_streams() -> None:
    """Open closed streams on /dev/null, so that no file that is opened later gets their descriptors."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))  # noqa: SIM115  # open until exit


def _forget_output() -> None:
    """Discard the buffer of stdout, so that it is not written again at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _report_error(error: object, code: int) -> int:
    print_remark(str(error))
    return code
