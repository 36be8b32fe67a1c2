"""The timestamps of events in each measured step of a worker, as plain numbers: stamps.

Made on the hosts in every run (`training/stamping.py`), sent as JSON, and converted to worker timings in
`explain/worker_timings.py`.

    begin ---- python ----> called -------> variables there -------> last gradient there -------> end

All times of one worker's step are on one clock, and whole microseconds.
"""

import base64
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

MOST_CHARACTERS = 8 << 20  # of packed stamps: half of the maximum of a line
MOST_STEPS = 400_000  # of one worker, as in a report
_MOST_BYTES = 32 << 20  # of their JSON: five numbers for each of 400,000 steps
_MOST_US = 10**13  # four months: more than any step takes

Column = Sequence[int | None]  # a number for each step; None: unknown


class InvalidStamps(ValueError):
    """The stamps are invalid: the text follows "the stamps"."""


@dataclass(frozen=True, kw_only=True)
class Stamps:
    """The measured steps of one worker, in their order. Columns are equally long."""

    worker: str  # "worker:0"
    python_us: Column  # from the step's begin until the call of its session
    variables_us: Column  # from there until all values of its variables had arrived
    gradients_us: Column  # from there, too: until its last gradient was computed
    end_us: Column  # from there, too: until the session returned
    cpu_us: Column  # user and system time of its process in the step
    between_us: Column = ()  # of a program that reports only begin and end: from the previous step's end to its begin

    def __len__(self) -> int:
        return len(self.python_us)

    def to_json(self) -> dict[str, Any]:
        columns = (*COLUMNS, *(["between_us"] if self.between_us else []))
        return {"worker": self.worker, **{name: list(getattr(self, name)) for name in columns}}

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """Read and validate stamps, which may come from a broken or malicious host. Raises `InvalidStamps`."""
        if not isinstance(data, dict) or set(data) - {"between_us"} != {"worker", *COLUMNS}:
            raise InvalidStamps(f"have keys other than worker, {', '.join(COLUMNS)}")
        if not isinstance(data["worker"], str):
            raise InvalidStamps("have a worker's name that is no text")
        columns = [name for name in data if name != "worker"]
        found = cls(worker=data["worker"], **{name: _column(data[name], name) for name in columns})
        if len({len(data[name]) for name in columns}) != 1:
            raise InvalidStamps("have columns of different lengths")
        for row in zip(found.variables_us, found.gradients_us, found.end_us, strict=True):
            known = [each for each in row if each is not None]
            if known != sorted(known):
                raise InvalidStamps("go back in time")
        return found


COLUMNS = ("python_us", "variables_us", "gradients_us", "end_us", "cpu_us")


def _column(value: Any, name: str) -> list[int | None]:
    if not isinstance(value, list) or len(value) > MOST_STEPS:
        raise InvalidStamps(f"have {name} that are no list of at most {MOST_STEPS}")
    if not all(each is None or (type(each) is int and 0 <= each <= _MOST_US) for each in value):
        raise InvalidStamps(f"have {name} that are no whole microseconds")
    return value


def pack(stamps: Sequence[Stamps]) -> str:
    """Return stamps as text for a message. Raises `InvalidStamps` if they are too large for one."""
    text = json.dumps([each.to_json() for each in stamps], separators=(",", ":"))
    packed = base64.b64encode(zlib.compress(text.encode())).decode()
    if len(text) > _MOST_BYTES or len(packed) > MOST_CHARACTERS:
        raise InvalidStamps("are too many to be sent")
    return packed


def unpack(text: str) -> list[Stamps]:
    """Return the packed stamps. Raises `InvalidStamps`; a small text cannot expand beyond the limits of stamps."""
    try:
        unzip = zlib.decompressobj()
        data = json.loads(unzip.decompress(base64.b64decode(text, validate=True), _MOST_BYTES))
        if not unzip.eof or not isinstance(data, list):
            raise InvalidStamps("are cut off, or no list")
        return [Stamps.from_json(each) for each in data]
    except InvalidStamps:
        raise
    except (ValueError, zlib.error, RecursionError) as exc:
        raise InvalidStamps("cannot be unpacked") from exc
