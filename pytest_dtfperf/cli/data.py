"""`dtfperf data push` and `dtfperf data pull`: data sets and session folders, to S3 and back."""

import argparse
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_dtfperf.cli.output import print_json, say
from pytest_dtfperf.cli.terms import DONE, FAILED, USAGE, Commands, add_command, add_group, add_json, colour, is_terminal
from pytest_dtfperf.errors import UsageError
from pytest_dtfperf.formats import counted

if TYPE_CHECKING:
    from pytest_dtfperf.staging.bucket import Bucket
    from pytest_dtfperf.staging.transfer import Done

TEXT = """\
Data sets and session folders, to S3 and back.

    dtfperf data push /data/imagenet s3://perf-data/imagenet
    dtfperf data pull s3://perf-data/imagenet /data/imagenet
"""
PUSH = """\
Uploads a file, or all files below a folder, to s3://BUCKET/PREFIX: a data set, or a session folder of perf_results/.

Files that are there with the same content are not sent again, so that a push which was broken off is simply repeated. Large
files travel in parts. Each is encrypted, and afterwards compared with what S3 has received. A public bucket is warned of.
Credentials are found as by every AWS tool: AWS_PROFILE, ~/.aws, an instance's role.

    dtfperf data push perf_results/20260131T021503Z-9f3c1a s3://perf-data/sessions/20260131T021503Z-9f3c1a
    dtfperf data push /data/imagenet s3://perf-data/imagenet --json
"""
PULL = """\
Fetches all files below s3://BUCKET/PREFIX into a folder.

Files that are here with the same content are not fetched again. A file appears under its name once its checksum is right.
Credentials are found as by every AWS tool: AWS_PROFILE, ~/.aws, an instance's role.

    dtfperf data pull s3://perf-data/imagenet /data/imagenet
"""
ENDS = {FAILED: "it could not be done", USAGE: "wrong arguments, or boto3 is not installed"}
SHAPE = {
    "from": "a path or s3://BUCKET/PREFIX",
    "to": "likewise",
    "files": "how many there are",
    "bytes": "of all files",
    "moved": "how many files were sent or fetched; the others were there already",
    "unverified": "names of those that S3 knows no checksum of which can be verified here",
}
_MB = 1e6
_URL = re.compile(r"s3:|[A-Za-z][A-Za-z0-9+.-]*://")  # what is a folder all the same is ./s3:...
_NAMED = 3  # of many files, some are named


def add(commands: "Commands[argparse.ArgumentParser]") -> None:
    data = add_group(commands, "data", help="data sets and session folders, to S3 and back", text=TEXT)
    push = add_command(data, "push", help="upload a file or folder to S3", text=PUSH, ends=ENDS)
    push.add_argument("local", metavar="LOCAL", help="a file or folder")
    push.add_argument("url", metavar="URL", help="s3://BUCKET/PREFIX")
    add_json(push, SHAPE)
    push.set_defaults(run=_push)
    pull = add_command(data, "pull", help="fetch what lies below a prefix in S3", text=PULL, ends=ENDS)
    pull.add_argument("local", metavar="LOCAL", help="a folder; the two may also stand the other way round")
    pull.add_argument("url", metavar="URL", help="s3://BUCKET/PREFIX")
    add_json(pull, SHAPE)
    pull.set_defaults(run=_pull)


def _push(args: argparse.Namespace) -> int:
    local = _path(args.local, "push uploads from this machine: dtfperf data push LOCAL s3://BUCKET/PREFIX")
    bucket = _open(args.url)
    from pytest_dtfperf.staging import transfer

    with _progress(f"to {bucket.location}") as show:
        done = transfer.push(bucket, local, show=show)
    _report(args, done, str(local), str(bucket.location), "sent", "there")
    return DONE


def _pull(args: argparse.Namespace) -> int:
    given, url = (args.url, args.local) if args.local.startswith("s3:") else (args.local, args.url)
    local = _path(given, "pull fetches to this machine: dtfperf data pull s3://BUCKET/PREFIX LOCAL")
    bucket = _open(url)
    from pytest_dtfperf.staging import transfer

    with _progress(f"from {bucket.location}") as show:
        done = transfer.pull(bucket, local, show=show)
    _report(args, done, str(bucket.location), str(local), "fetched", "here")
    return DONE


def _path(given: str, usage: str) -> Path:
    """What is to be a file or folder here. Raises `UsageError` for a URL, which would be taken for a folder's name."""
    if _URL.match(given):
        raise UsageError(f"{given!r} is a URL, where a file or folder of this machine must be. {usage}")
    return Path(given)


def _open(url: str) -> "Bucket":
    """The bucket, with a word of warning if everybody can read it."""
    try:
        from pytest_dtfperf.staging.bucket import Bucket
    except ModuleNotFoundError as exc:
        raise UsageError(f'S3 needs {exc.name}, which is not installed: pip install "pytest-dtfperf[ec2]"') from exc
    bucket = Bucket.open(url)
    for warning in bucket.warnings:
        say(f"warning: {warning}")
    return bucket


@contextmanager
def _progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal, nothing elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    console = Console(stderr=True, markup=False, force_terminal=is_terminal(sys.stderr), no_color=not colour(sys.stderr))
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(what)
        yield lambda done, of: progress.update(task, completed=done, total=of)


def _report(args: argparse.Namespace, done: "Done", origin: str, goal: str, moved: str, there: str) -> None:
    files = counted(done.files, "file")
    if args.json:
        of_files = {"files": done.files, "bytes": done.bytes, "moved": done.sent, "unverified": list(done.unverified)}
        print_json({"from": origin, "to": goal, **of_files})
    else:
        size, were = f"{done.bytes / _MB:.1f} MB", done.files - done.sent
        print(f"dtfperf: {origin} -> {goal}: {files}, {size}; {done.sent} {moved}, {were} were {there}.")
    if done.unverified:
        some = ", ".join(done.unverified[:_NAMED]) + ", ..." * (len(done.unverified) > _NAMED)
        say(f"warning: S3 knows no checksum that can be verified here of {some}")
