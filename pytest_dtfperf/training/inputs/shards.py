"""The files of ImageNet's original layout, and what is wrong with one. Needs no TensorFlow."""

import math
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_dtfperf.errors import SpecError
from pytest_dtfperf.training.inputs.share import Share
from pytest_dtfperf.training.inputs.tfrecord import TFRecord, records

MOST_LANES = 256  # open files of a lone process
WALKED_BYTES = 1 << 30  # so much is looked through before training, from header to header; of more, each file's first record
_NAME = re.compile(r"(?P<part>[a-z]+)-(?P<number>\d{5})-of-(?P<of>\d{5})")


def find(folder: Path, part: str) -> list[Path]:
    """All shards of "train" or "validation". Raises `SpecError` if there are none, or not all of one set."""
    found = {name: folder / name for name in _names(folder) if (match := _NAME.fullmatch(name)) and match["part"] == part}
    counts = {name.rpartition("-")[2] for name in found}
    if len(counts) != 1:
        raise SpecError(
            f"{folder} has {'shards of several sets, of ' + ', '.join(sorted(counts)) if counts else 'no shards'}, where files "
            f"like {part}-00000-of-01024 of one set are needed. Set data_dir to a folder with ImageNet in TFRecord files, or "
            "make one: dtfperf make-data imagenet --out DIR"
        )
    of = int(counts.pop())
    names = [f"{part}-{number:05}-of-{of:05}" for number in range(of)]
    missing = [name for name in names if name not in found]
    if missing:
        raise SpecError(f"{folder} lacks {', '.join(missing[:3])}{', ...' * (len(missing) > 3)}: fetch or make the set again")
    return [found[name] for name in names]


def _names(folder: Path) -> list[str]:
    """Of what is in it: nothing, where it is not there."""
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []
    except OSError as exc:
        raise SpecError(f"{folder} cannot be read: {exc.strerror}") from exc


@dataclass(frozen=True)
class Reading:
    """What a tower reads: some lanes in turn, and of that every so manieth record.

    The shards are dealt out to lanes, their number depending on nothing but how many shards there are. The sequence of all
    images takes one from each lane in turn. So with as many shards as towers, or a multiple, a tower reads its own lanes
    alone, and whoever takes part, each step sees what a lone process would see. Lanes whose shards hold fewer images begin
    their next pass earlier than others: by one image in a thousand in the original set.
    """

    lanes: Sequence[Sequence[int]]  # shards by number
    every: int
    first: int


def reading(shards: int, share: Share) -> Reading:
    lanes = next(lanes for lanes in range(min(shards, MOST_LANES), 0, -1) if shards % lanes == 0)
    apart = math.gcd(lanes, share.towers)
    mine = [range(lane, shards, lanes) for lane in range(share.tower % apart, lanes, apart)]
    return Reading(mine, every=share.towers // apart, first=share.tower // apart)


def check_shards(shards: Sequence[Path]) -> None:
    """Raises `DataError` if a shard is empty, cut short, or something else, as far as can be told in little time."""
    whole = sum(map(_size, shards)) <= WALKED_BYTES
    for path in shards:
        for _ in records(path):
            if not whole:
                break


def _size(path: Path) -> int:
    """0 of one that cannot be read, of which `records` says why."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def all_records(shards: Sequence[Path]) -> Iterator[tuple[Path, TFRecord]]:
    for path in shards:
        for record in records(path):
            yield path, record
