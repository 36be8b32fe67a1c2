"""`dtfperf make-data`: data sets made up in their original formats."""

import argparse
import importlib.util
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pytest_dtfperf.cli.output import print_json
from pytest_dtfperf.cli.terms import DONE, FAILED, USAGE, Commands, add_command, add_json
from pytest_dtfperf.errors import DataError, UsageError
from pytest_dtfperf.node.module_command import module_command

TEXT = """\
Makes a data set of generated pictures in the original's format, so that training from files can be tried and measured anywhere.

  imagenet   train-00000-of-00008, validation-00000-of-00001: TFRecord files of JPEGs, as data=imagenet reads them
  mnist      four idx files, as data=mnist reads them
  cifar10    data_batch_1.bin to data_batch_5.bin and test_batch.bin, as data=cifar10 reads them

Each class has a pattern, so that a network can learn them. The same arguments make the same pictures. The folder appears once
all is in it.

    dtfperf make-data mnist --out=/data/mnist
    dtfperf make-data imagenet --out=/data/imagenet --images=4096 --shards=16 --json
"""
ENDS = {FAILED: "it could not be done", USAGE: "wrong arguments, or what it needs is not installed"}
SHAPE = {"folder": "the new one", "data": "whose format", "made": "what is in it, in words", "bytes": "of all its files"}
_SIZE = re.compile(r"([1-9]\d*)x([1-9]\d*)")
_NEEDS = {"imagenet": "tensorflow", "mnist": "numpy", "cifar10": "numpy"}  # which brings numpy, too


def add(commands: "Commands[argparse.ArgumentParser]") -> None:
    make = add_command(
        commands, "make-data", help="a made-up data set in ImageNet's, MNIST's or CIFAR-10's format", text=TEXT, ends=ENDS
    )
    make.add_argument("data", choices=tuple(_NEEDS), help="whose format")
    make.add_argument("--out", type=Path, required=True, metavar="DIR", help="the new folder")
    make.add_argument("--images", type=int, default=1024, metavar="N", help="to train on (default: 1024)")
    make.add_argument("--test-images", type=int, metavar="N", help="to be asked about (default: a tenth of --images)")
    make.add_argument("--seed", type=int, default=1234, metavar="N", help="another makes other pictures (default: 1234)")
    only = make.add_argument_group("for imagenet")
    only.add_argument("--shards", type=int, metavar="N", help="files to train on (default: 8); the original has 1024")
    only.add_argument("--classes", type=int, metavar="N", help="1 to N are in it (default: 1000)")
    only.add_argument("--size", metavar="WIDTHxHEIGHT", help="of the pictures (default: 400x350, about the original's mean)")
    add_json(make, SHAPE)
    make.set_defaults(run=_make)


def _make(args: argparse.Namespace) -> int:
    wanted = _wanted(args)
    if importlib.util.find_spec(_NEEDS[args.data]) is None:
        raise UsageError(
            f"make-data {args.data} needs {_NEEDS[args.data]}, which is not installed: "
            'pip install "pytest-dtfperf[tensorflow]", or run this where training runs'
        )
    with _appearing(args.out) as folder:
        made = _made({**wanted, "data": args.data, "out": str(folder)})
        size = sum(path.stat().st_size for path in folder.iterdir())
    if args.json:
        print_json({"folder": str(args.out), "data": args.data, "made": made, "bytes": size})
    else:
        print(f"dtfperf: {args.out}: {made}, {size / 1e6:.1f} MB")
    return DONE


def _wanted(args: argparse.Namespace) -> dict[str, Any]:
    """Raises `UsageError` for numbers that cannot be, and for options that mean nothing to a format."""
    test_images = max(1, args.images // 10) if args.test_images is None else args.test_images
    of_all = {"images": args.images, "test_images": test_images, "seed": args.seed}
    given = {name: getattr(args, name) for name in ("shards", "classes", "size") if getattr(args, name) is not None}
    if args.data != "imagenet":
        if given:
            raise UsageError(f"--{next(iter(given))} means nothing to {args.data}: it is for imagenet")
        return _counted(of_all, least_images=5 if args.data == "cifar10" else 1)
    size = _SIZE.fullmatch(given.get("size", "400x350"))
    if not size:
        raise UsageError(f"--size must be WIDTHxHEIGHT, like 400x350, not {args.size!r}")
    shards = given.get("shards", min(8, args.images))
    of_all |= {"shards": shards, "test_shards": min(test_images, max(1, shards // 8)), "classes": given.get("classes", 1000)}
    return {**_counted(of_all, least_images=shards), "width": int(size[1]), "height": int(size[2])}


def _counted(counts: dict[str, int], least_images: int) -> dict[str, Any]:
    least = {"images": max(1, least_images), "seed": 0}
    for name, value in counts.items():
        if value < least.get(name, 1):
            raise UsageError(f"--{name.replace('_', '-')} must be at least {least.get(name, 1)}, not {value}")
    if counts.get("classes", 1) > 1000:
        raise UsageError(f"--classes must be at most 1000, as many as ImageNet has, not {counts['classes']}")
    return counts


@contextmanager
def _appearing(out: Path) -> Iterator[Path]:
    """A folder beside `out` that takes its name once all has gone well, and is removed otherwise."""
    if out.exists() and (not out.is_dir() or any(out.iterdir()) or out.samefile(Path.cwd())):
        raise UsageError(f"{out} is there already. Name a new folder, or remove it first.")
    goal = out.resolve()  # an empty folder is replaced, not a link to it
    folder = goal.with_name(f".{goal.name}.{secrets.token_hex(8)}")  # named before it is made: a Ctrl-C may come in between
    try:
        goal.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir()
        yield folder
        os.replace(folder, goal)
    except OSError as exc:
        raise DataError(f"{out} cannot be made: {exc}") from exc
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _made(wanted: dict[str, Any]) -> str:
    """In a process of its own: this one never imports TensorFlow. Returns what was made, in words."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TF_CPP_MIN_LOG_LEVEL": "2"}
    maker = subprocess.Popen(
        module_command(sys.executable, "pytest_dtfperf.training.making"),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip
    with maker:
        try:
            output, errors = maker.communicate(json.dumps(wanted))
        finally:
            maker.kill()
            maker.wait()  # `with` does not wait after a Ctrl-C, and what still writes cannot be removed
    if maker.returncode:
        last = errors.strip().splitlines() or [f"it ended with exit code {maker.returncode}"]
        raise DataError(f"{wanted['data']} could not be made: {last[-1]}")
    return output.strip()
