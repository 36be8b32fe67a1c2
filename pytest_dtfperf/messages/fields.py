"""What several messages hold: who speaks of what, and values of our own that no kind in general covers. Pure."""

import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pytest_dtfperf.messages.kinds import (
    MOST,
    Kind,
    Misfit,
    listed,
    matching,
    number,
    optional,
    record,
    sized,
    text,
    whole,
)

LINE_CHARACTERS = 16_384  # of a last line or a reason, a page of text; agents send 8 KiB of last lines
STEPS = 400_000  # of one run: what a line can hold (`clusters/pipes.py`)
CPUS = 1 << 16

COUNT = whole()
PID = whole(1, 2**31)
HOST = whole(0, 1 << 20)
PORT = whole(1, 65535)
SECONDS = number(0)
REASON = text(LINE_CHARACTERS)
LAST_LINES = listed(text(LINE_CHARACTERS), 100)
RUN = matching(r"[0-9A-Za-z_.-]{1,64}", "the id of a run")
TASK = matching(r"[a-z]{1,16}:\d{1,6}", "the name of a task")
STATE = matching(r"[A-Za-z]?", "the letter of a process's state")
GPU = matching(r"[0-9A-Za-z/.:-]{1,80}", "a GPU's number or UUID")
SPAN = optional(listed(number(), 2, least=2))
FOLDER = matching(r"[^\x00-\x1f\x7f]{1,4096}", "the path of a folder")
FROM = {"host": HOST}
OF_RUN = {**FROM, "run": RUN}
OF_TASK = {**OF_RUN, "task": TASK}
ENDED = {"code": optional(whole(0, 255)), "signal": optional(whole(1, 255)), "last_lines": LAST_LINES}


def or_error(kind: Kind, also: Mapping[str, Kind] = {}) -> Kind:
    """The answer, or why there is none."""
    refused = record({"error": REASON, **FROM}, also)
    return lambda value: refused(value) if isinstance(value, dict) and value.get("error") is not None else kind(value)


def loss(value: Any) -> Any:
    """May be infinite or no number: then the training is at fault, and is told so."""
    if type(value) is float or (type(value) is int and abs(value) <= MOST):
        return value
    raise Misfit("a number", value)


def packed(most: int, what: str) -> Kind:
    """What is taken apart where it is used: base64."""
    return matching(rf"[0-9A-Za-z+/=]{{0,{most}}}", what)


def cpu_ranges(value: Any) -> Any:
    """`0-3,8`, as the kernel writes it: nobody may name more cores than there are."""
    found = re.fullmatch(r"(\d{1,5}(-\d{1,5})?(,\d{1,5}(-\d{1,5})?)*)?", value, re.ASCII) if isinstance(value, str) else None
    if not found or not _are_few_enough([part.split("-") for part in value.split(",") if part]):
        raise Misfit('ranges of cores such as "0-3,8"', sized(value))
    return value


def _are_few_enough(ranges: Iterable[Sequence[str]]) -> bool:
    """Whether they count upwards, and to no more cores than there can be, before anybody counts them one by one."""
    sizes = [int(ends[-1]) - int(ends[0]) + 1 for ends in ranges]
    return min(sizes, default=1) > 0 and sum(sizes) <= CPUS


def address(value: Any) -> Any:
    try:
        return str(ipaddress.ip_address(value if isinstance(value, str) else ""))
    except ValueError:
        raise Misfit("an address", value) from None
