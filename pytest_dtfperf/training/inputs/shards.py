"""The files of ImageNet's original layout, and what is wrong with one. Needs no TensorFlow."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_dtfperf.errors import SpecError
from pytest_dtfperf.training.inputs.formats import candidates, folder_found, names_in
from pytest_dtfperf.training.inputs.share import Share
from pytest_dtfperf.training.inputs.tfrecord import TFRecord, records

MOST_LANES = 256  # open files of a lone process
WALKED_BYTES = 1 << 30  # so much is looked through before training, from header to header; of more, each file's first record
_NAME = re.compile(r"(?P<part>[a-z]+)-(?P<number>\d{5})-of-(?P<of>\d{5})(?P<end>\.tfrecords?)?")


def find(folder: Path, part: str) -> list[Path]:
    """Return all shards of "train" or "validation", in their order.

    They are in the folder or in one of the part's name below it (`train/`), and may end in .tfrecord or .tfrecords. Raises
    `SpecError` if there are none, or not all of one set.
    """
    for each in candidates(folder, (part,)):
        matches = [match for name in names_in(each) if (match := _NAME.fullmatch(name)) and match["part"] == part]
        if matches:
            return _whole_set(each, part, matches)
    raise SpecError(
        f"{folder} has no shards, where files like {part}-00000-of-01024 of one set are needed.{folder_found(folder, (part,))} "
        "Set data_dir to a folder with ImageNet in TFRecord files, or make one: dtfperf make-data imagenet --out DIR"
    )


def _whole_set(folder: Path, part: str, matches: Sequence[re.Match[str]]) -> list[Path]:
    sets = sorted({match["of"] + (match["end"] or "") for match in matches})
    if len(sets) > 1:
        raise SpecError(
            f"{folder} has shards of several sets, of {', '.join(sets)}, where files like {part}-00000-of-01024 of one set are "
            "needed. Remove the files of all sets but one."
        )
    of, end = int(matches[0]["of"]), matches[0]["end"] or ""
    names = [f"{part}-{number:05}-of-{of:05}{end}" for number in range(of)]
    missing = sorted({*names} - {match[0] for match in matches})
    if missing:
        raise SpecError(f"{folder} lacks {', '.join(missing[:3])}{', ...' * (len(missing) > 3)}: fetch or make the set again")
    return [folder / name for name in names]


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
