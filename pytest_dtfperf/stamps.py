"""When what was there in each measured step of a worker, as plain numbers: stamps.

Made on the hosts in every run (`training/stamping.py`), comes back as JSON, becomes scores of workers in
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

MOST_CHARACTERS = 8 << 20  # of packed stamps: half of what a line may hold
MOST_STEPS = 400_000  # of one worker, as in a report
_MOST_BYTES = 32 << 20  # of their JSON: five numbers for each of 400,000 steps
_MOST_US = 10**13  # four months: no step takes longer

Column = Sequence[int | None]  # a number for each step; None: not known


class InvalidStamps(ValueError):
    """They cannot be: the text goes on after "the stamps"."""


@dataclass(frozen=True, kw_only=True)
class Stamps:
    """One worker's measured steps, in their order. Columns are equally long."""

    worker: str  # "worker:0"
    python_us: Column  # from the step's begin until its session was asked
    variables_us: Column  # from there until all values of its variables were there
    gradients_us: Column  # from there, too: until its last gradient was there
    end_us: Column  # from there, too: until the session had answered
    cpu_us: Column  # user and system time of its process in the step
    between_us: Column = ()  # of a program that tells begin and end alone: from the end of the step before until its begin

    def __len__(self) -> int:
        return len(self.python_us)

    def to_json(self) -> dict[str, Any]:
        columns = (*COLUMNS, *(["between_us"] if self.between_us else []))
        return {"worker": self.worker, **{name: list(getattr(self, name)) for name in columns}}

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """Raises `InvalidStamps`: it may come from a host that is broken or means ill."""
        if not isinstance(data, dict) or set(data) - {"between_us"} != {"worker", *COLUMNS}:
            raise InvalidStamps(f"have keys other than worker, {', '.join(COLUMNS)}")
        if not isinstance(data["worker"], str):
            raise InvalidStamps("are of a worker whose name is no text")
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
    """Stamps as text that a message can hold. Raises `InvalidStamps` if they are too many for that."""
    text = json.dumps([each.to_json() for each in stamps], separators=(",", ":"))
    packed = base64.b64encode(zlib.compress(text.encode())).decode()
    if len(text) > _MOST_BYTES or len(packed) > MOST_CHARACTERS:
        raise InvalidStamps("are too many to be sent")
    return packed


def unpack(text: str) -> list[Stamps]:
    """What was packed. Raises `InvalidStamps`, and makes no more of a small text than stamps may be."""
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
