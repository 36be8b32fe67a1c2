"""`dtfperf data` and `dtfperf make-data`: copy data sets and session folders to and from S3, and generate data sets."""

import argparse
import importlib.util
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_dtfperf.cli.options import (
    DONE,
    FAILED,
    USAGE,
    Commands,
    add_command,
    add_group,
    add_json,
    is_colour_wanted,
    is_terminal,
)
from pytest_dtfperf.cli.output import print_json, print_remark
from pytest_dtfperf.errors import DataError, UsageError
from pytest_dtfperf.formats import format_count
from pytest_dtfperf.node.module_command import make_module_command

if TYPE_CHECKING:
    from pytest_dtfperf.staging.bucket import Bucket
    from pytest_dtfperf.staging.transfer import TransferResult


DATA = """\
Copy data sets and session folders to and from S3.

    dtfperf data push /data/imagenet s3://perf-data/imagenet
    dtfperf data pull s3://perf-data/imagenet /data/imagenet
"""
PUSH = """\
Upload a file, or all files of a folder, to s3://BUCKET/PREFIX: a data set, or a session folder of perf_results/.

Files that are there with the same content are not sent again, so an interrupted upload can simply be repeated. Large files
are sent in parts. Each file is encrypted, and its checksum is compared with that of S3. The command warns of a public bucket.
Credentials are those of all AWS tools: AWS_PROFILE, ~/.aws, the role of an instance.

    dtfperf data push perf_results/20260131T021503Z-9f3c1a s3://perf-data/sessions/20260131T021503Z-9f3c1a
    dtfperf data push /data/imagenet s3://perf-data/imagenet --json
"""
PULL = """\
Download all files of s3://BUCKET/PREFIX into a folder.

Files that are here with the same content are not downloaded again. A file gets its name when its checksum is verified.
Credentials are those of all AWS tools: AWS_PROFILE, ~/.aws, the role of an instance.

    dtfperf data pull s3://perf-data/imagenet /data/imagenet
"""
DATA_ENDS = {FAILED: "the command failed", USAGE: "wrong arguments, or boto3 is not installed"}
DATA_SHAPE = {
    "from": "a path or s3://BUCKET/PREFIX",
    "to": "likewise",
    "files": "number of files",
    "bytes": "of all files",
    "moved": "number of copied files; the others were there already",
    "unverified": "names of files without a checksum in S3 that this machine can verify",
}
_MB = 1e6
_URL = re.compile(r"s3:|[A-Za-z][A-Za-z0-9+.-]*://")  # ./s3:... names a folder
_MAX_NAMED = 3  # a message names so many files


def add_data_parsers(commands: "Commands[argparse.ArgumentParser]") -> None:
    data = add_group(commands, "data", help="copy data sets and session folders to and from S3", text=DATA)
    push = add_command(data, "push", help="upload a file or folder to S3", text=PUSH, ends=DATA_ENDS)
    push.add_argument("local", metavar="LOCAL", help="a file or folder")
    push.add_argument("url", metavar="URL", help="s3://BUCKET/PREFIX")
    add_json(push, DATA_SHAPE)
    push.set_defaults(run=run_push)
    pull = add_command(data, "pull", help="download all files of a prefix in S3", text=PULL, ends=DATA_ENDS)
    pull.add_argument("local", metavar="LOCAL", help="a folder; both arguments may be in any order")
    pull.add_argument("url", metavar="URL", help="s3://BUCKET/PREFIX")
    add_json(pull, DATA_SHAPE)
    pull.set_defaults(run=run_pull)


def add_parser(commands: "Commands[argparse.ArgumentParser]") -> None:
    add_data_parsers(commands)
    add_make_data_parser(commands)


def run_push(args: argparse.Namespace) -> int:
    local = _parse_path(args.local, "push uploads from this machine: dtfperf data push LOCAL s3://BUCKET/PREFIX")
    bucket = _open_bucket(args.url)
    from pytest_dtfperf.staging import transfer

    with _show_progress(f"to {bucket.location}") as show:
        done = transfer.push(bucket, local, show=show)
    _report_transfer(args, done, str(local), str(bucket.location), "sent", "there")
    return DONE


def run_pull(args: argparse.Namespace) -> int:
    given, url = (args.url, args.local) if args.local.startswith("s3:") else (args.local, args.url)
    local = _parse_path(given, "pull fetches to this machine: dtfperf data pull s3://BUCKET/PREFIX LOCAL")
    bucket = _open_bucket(url)
    from pytest_dtfperf.staging import transfer

    with _show_progress(f"from {bucket.location}") as show:
        done = transfer.pull(bucket, local, show=show)
    _report_transfer(args, done, str(bucket.location), str(local), "fetched", "here")
    return DONE


def _parse_path(given: str, usage: str) -> Path:
    """Return a local path. Raises `UsageError` for a URL, which would become the name of a folder."""
    if _URL.match(given):
        raise UsageError(f"{given!r} is a URL, where a file or folder of this machine must be. {usage}")
    return Path(given)


def _open_bucket(url: str) -> "Bucket":
    """Return the bucket; print a warning if it is public."""
    try:
        from pytest_dtfperf.staging.bucket import Bucket
    except ModuleNotFoundError as exc:
        raise UsageError(f'S3 needs {exc.name}, which is not installed: pip install "pytest-dtfperf[ec2]"') from exc
    bucket = Bucket.open(url)
    for warning in bucket.warnings:
        print_remark(f"warning: {warning}")
    return bucket


@contextmanager
def _show_progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar on a terminal only."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    console = Console(
        stderr=True, markup=False, force_terminal=is_terminal(sys.stderr), no_color=not is_colour_wanted(sys.stderr)
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(what)
        yield lambda done, total_bytes: progress.update(task, completed=done, total=total_bytes)


def _report_transfer(args: argparse.Namespace, done: "TransferResult", origin: str, goal: str, moved: str, there: str) -> None:
    files = format_count(done.files, "file")
    if args.json:
        of_files = {"files": done.files, "bytes": done.bytes, "moved": done.sent, "unverified": list(done.unverified)}
        print_json({"from": origin, "to": goal, **of_files})
    else:
        size, were = f"{done.bytes / _MB:.1f} MB", done.files - done.sent
        print(f"dtfperf: {origin} -> {goal}: {files}, {size}; {done.sent} {moved}, {were} were {there}.")
    if done.unverified:
        some = ", ".join(done.unverified[:_MAX_NAMED]) + ", ..." * (len(done.unverified) > _MAX_NAMED)
        print_remark(f"warning: S3 has no checksum that can be verified here of {some}")


MAKE_DATA = """\
Generate a data set in the original's format, to measure training from files without the original data.

  imagenet   train-00000-of-00008, validation-00000-of-00001: TFRecord files of JPEGs, as data=imagenet reads them
  mnist      four idx files, as data=mnist reads them
  cifar10    data_batch_1.bin to data_batch_5.bin and test_batch.bin, as data=cifar10 reads them

Each class has a pattern, so that a network can learn it. The same arguments generate the same images. The folder gets its
name when it is complete.

    dtfperf make-data mnist --out=/data/mnist
    dtfperf make-data imagenet --out=/data/imagenet --images=4096 --shards=16 --json
"""
MAKE_DATA_ENDS = {FAILED: "the command failed", USAGE: "wrong arguments, or a required package is not installed"}
MAKE_DATA_SHAPE = {
    "folder": "the new one",
    "data": "the data set with the same format",
    "made": "a description of the contents",
    "bytes": "of all its files",
}
_SIZE = re.compile(r"([1-9]\d*)x([1-9]\d*)")
_NEEDS = {"imagenet": "tensorflow", "mnist": "numpy", "cifar10": "numpy"}  # tensorflow brings numpy, too


def add_make_data_parser(commands: "Commands[argparse.ArgumentParser]") -> None:
    make = add_command(
        commands,
        "make-data",
        help="generate a data set in the format of ImageNet, MNIST or CIFAR-10",
        text=MAKE_DATA,
        ends=MAKE_DATA_ENDS,
    )
    make.add_argument("data", choices=tuple(_NEEDS), help="the data set with the format to write")
    make.add_argument("--out", type=Path, required=True, metavar="DIR", help="the new folder")
    make.add_argument("--images", type=int, default=1024, metavar="N", help="number of training images (default: 1024)")
    make.add_argument("--test-images", type=int, metavar="N", help="number of validation images (default: a tenth of --images)")
    make.add_argument("--seed", type=int, default=1234, metavar="N", help="seed of the images (default: 1234)")
    only = make.add_argument_group("for imagenet")
    only.add_argument("--shards", type=int, metavar="N", help="number of training files (default: 8); the original has 1024")
    only.add_argument("--classes", type=int, metavar="N", help="number of classes (default: 1000)")
    only.add_argument("--size", metavar="WIDTHxHEIGHT", help="size of the images (default: 400x350, about the original's mean)")
    add_json(make, MAKE_DATA_SHAPE)
    make.set_defaults(run=run_make_data)


def run_make_data(args: argparse.Namespace) -> int:
    wanted = _read_request(args)
    if importlib.util.find_spec(_NEEDS[args.data]) is None:
        raise UsageError(
            f"make-data {args.data} needs {_NEEDS[args.data]}, which is not installed: "
            'pip install "pytest-dtfperf[tensorflow]", or run this where training runs'
        )
    with _make_folder(args.out) as folder:
        made = _make_in_subprocess({**wanted, "data": args.data, "out": str(folder)})
        size = sum(path.stat().st_size for path in folder.iterdir())
    if args.json:
        print_json({"folder": str(args.out), "data": args.data, "made": made, "bytes": size})
    else:
        print(f"dtfperf: {args.out}: {made}, {size / 1e6:.1f} MB")
    return DONE


def _read_request(args: argparse.Namespace) -> dict[str, Any]:
    """Read the options. Raises `UsageError` for impossible numbers, and for options that the format does not have."""
    test_images = max(1, args.images // 10) if args.test_images is None else args.test_images
    of_all = {"images": args.images, "test_images": test_images, "seed": args.seed}
    given = {name: getattr(args, name) for name in ("shards", "classes", "size") if getattr(args, name) is not None}
    if args.data != "imagenet":
        if given:
            raise UsageError(f"--{next(iter(given))} means nothing to {args.data}: it is only for imagenet")
        return _count_images(of_all, least_images=5 if args.data == "cifar10" else 1)
    size = _SIZE.fullmatch(given.get("size", "400x350"))
    if not size:
        raise UsageError(f"--size must be WIDTHxHEIGHT, like 400x350, not {args.size!r}")
    shards = given.get("shards", min(8, args.images))
    of_all |= {"shards": shards, "test_shards": min(test_images, max(1, shards // 8)), "classes": given.get("classes", 1000)}
    return {**_count_images(of_all, least_images=shards), "width": int(size[1]), "height": int(size[2])}


def _count_images(counts: dict[str, int], least_images: int) -> dict[str, Any]:
    least = {"images": max(1, least_images), "seed": 0}
    for name, value in counts.items():
        if value < least.get(name, 1):
            raise UsageError(f"--{name.replace('_', '-')} must be at least {least.get(name, 1)}, not {value}")
    if counts.get("classes", 1) > 1000:
        raise UsageError(f"--classes must be at most 1000, as many as ImageNet has, not {counts['classes']}")
    return counts


@contextmanager
def _make_folder(out: Path) -> Iterator[Path]:
    """Yield a folder beside `out` that takes its name at the end, or is removed after an error."""
    if out.exists() and (not out.is_dir() or any(out.iterdir()) or out.samefile(Path.cwd())):
        raise UsageError(f"{out} exists already. Name a new folder, or remove it first.")
    goal = out.resolve()  # replaces an empty folder, not a link to it
    folder = goal.with_name(f".{goal.name}.{secrets.token_hex(8)}")  # named before it is made: Ctrl-C may come in between
    try:
        goal.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir()
        yield folder
        os.replace(folder, goal)
    except OSError as exc:
        raise DataError(f"{out} cannot be made: {exc}") from exc
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _make_in_subprocess(wanted: dict[str, Any]) -> str:
    """Generate the data in a subprocess, because this process never imports TensorFlow, and return a description."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TF_CPP_MIN_LOG_LEVEL": "2"}
    maker = subprocess.Popen(
        make_module_command(sys.executable, "pytest_dtfperf.training.making"),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip
    with maker:
        try:
            output, errors = maker.communicate(json.dumps(wanted))
        finally:
            maker.kill()
            maker.wait()  # `with` does not wait after Ctrl-C, and a process that still writes would prevent the removal
    if maker.returncode:
        last = errors.strip().splitlines() or [f"it ended with exit code {maker.returncode}"]
        raise DataError(f"{wanted['data']} could not be made: {last[-1]}")
    return output.strip()
