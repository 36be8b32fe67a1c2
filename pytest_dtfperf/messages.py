"""Every message that may come from a host: the one place that says what is in it, and holds what came against that. Pure.

A host may be broken, of another version, or somebody's who means ill. What it sends is used only when it is here: the name, all
keys and no others, types, sizes, finite numbers; texts come out `printable`. The shapes are as shallow as they are written
here, so that nothing that is nested any deeper passes. What makes sense only in a conversation, such as whose task it is, is
checked where that is known: `launch/hearing.py`.
"""

import ipaddress
import re
import reprlib
from collections.abc import Callable, Mapping
from typing import Any

from pytest_dtfperf.printable import printable, printable_lines

Message = Mapping[str, Any]
Kind = Callable[[Any], Any]  # gives the value as it may be used; raises `_Misfit`
Table = Mapping[str, Kind]  # name of a message -> what is in it

_MOST = 2**63 - 1  # of whatever is counted: files and counters of kernels go no further
_LOG_CHARACTERS = 1 << 20  # agents send 256 KiB of each
_LINE_CHARACTERS = 16_384  # of a last line or a reason, a page of text; agents send 8 KiB of last lines
_STEPS = 400_000  # of one run: what a line can hold (`clusters/pipes.py`)
_CPUS = 1 << 16


class MessageError(ValueError):
    """What a host has sent cannot be used; the text goes on after "it" or the host's name."""


class _Misfit(Exception):
    """A value is not what it must be."""

    def __init__(self, must: str, value: Any) -> None:
        super().__init__(must)
        self.must = f"must be {must}, not {_shown(value)}"
        self.path = ""

    def below(self, step: object) -> "_Misfit":
        self.path = f"{printable(str(step))[:40]}{'.' * bool(self.path)}{self.path}"
        return self


def fit(table: Table, message: Message, name: str = "event") -> dict[str, Any]:
    """The message, whose `name` says which of the table's it is, as it may be used. Raises `MessageError`."""
    said = message.get(name)
    kind = table.get(said) if isinstance(said, str) else None
    if kind is None:
        raise MessageError(f"sent a message that nobody knows: {name} is {_shown(said)}")
    try:
        found: dict[str, Any] = kind({key: value for key, value in message.items() if key != name})
    except _Misfit as misfit:
        raise MessageError(f"sent a {said!r} that cannot be: {misfit.path}{' ' * bool(misfit.path)}{misfit.must}") from None
    return {name: said, **found}


def _shown(value: Any) -> str:
    short = reprlib.Repr()
    short.maxstring = short.maxother = 60
    return printable(short.repr(value))


# Kinds of values


def whole(least: int = 0, most: int = _MOST) -> Kind:
    def kind(value: Any) -> Any:
        if type(value) is not int or not least <= value <= most:
            raise _Misfit(f"a whole number from {least} to {most}", value)
        return value

    return kind


def number(least: float = -1e18, most: float = 1e18) -> Kind:
    """Finite. Whatever counts seconds, bytes or images stays far below."""

    def kind(value: Any) -> Any:
        if type(value) not in (int, float) or not least <= value <= most:  # which NaN is not
            raise _Misfit(f"a number from {least:g} to {most:g}", value)
        return value

    return kind


def _loss(value: Any) -> Any:
    """May be infinite or no number: then the training is at fault, and is told so."""
    if type(value) is float or (type(value) is int and abs(value) <= _MOST):
        return value
    raise _Misfit("a number", value)


def _flag(value: Any) -> Any:
    if not isinstance(value, bool):
        raise _Misfit("true or false", value)
    return value


def text(most: int = 300) -> Kind:
    """One line of it."""

    def kind(value: Any) -> Any:
        if not isinstance(value, str) or len(value) > most:
            raise _Misfit(f"text of at most {most} characters", _sized(value))
        return printable(value)

    return kind


def _lines(value: Any) -> Any:
    if not isinstance(value, str) or len(value) > _LOG_CHARACTERS:
        raise _Misfit(f"text of at most {_LOG_CHARACTERS} characters", _sized(value))
    return printable_lines(value)


def matching(pattern: str, what: str) -> Kind:
    """Text of that form, which goes into names or commands as it is."""

    def kind(value: Any) -> Any:
        if not isinstance(value, str) or not re.fullmatch(pattern, value, re.ASCII):
            raise _Misfit(what, _sized(value))
        return value

    return kind


def optional(kind: Kind) -> Kind:
    return lambda value: None if value is None else kind(value)


def listed(kind: Kind, most: int, *, least: int = 0, unique: bool = False) -> Kind:
    def each_of(value: Any) -> Any:
        if not isinstance(value, list) or not least <= len(value) <= most:
            raise _Misfit(f"a list of {least} to {most}", _sized(value))
        found = []
        for at, each in enumerate(value):
            try:
                found.append(kind(each))
            except _Misfit as misfit:
                raise misfit.below(at) from None
        if unique and len(set(found)) < len(found):
            raise _Misfit("a list in which nothing stands twice", value)
        return found

    return each_of


def mapping(key: Kind, kind: Kind, most: int) -> Kind:
    def all_of(value: Any) -> Any:
        if not isinstance(value, dict) or len(value) > most:
            raise _Misfit(f"an object of at most {most} keys", _sized(value))
        found = {}
        for name, each in value.items():
            try:
                found[key(name)] = kind(each)
            except _Misfit as misfit:
                raise misfit.below(name) from None
        return found

    return all_of


def record(kinds: Mapping[str, Kind], may: Mapping[str, Kind] = {}) -> Kind:
    """All of these keys, and perhaps those that there `may` be."""

    def all_of(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _Misfit("an object", value)
        if missing := kinds.keys() - value.keys():
            raise _Misfit("there", None).below(min(missing))
        if unknown := value.keys() - kinds.keys() - may.keys():
            raise _Misfit(f"one of {', '.join([*kinds, *may]) or 'none'}", min(unknown)).below("key")
        found = {}
        for name, each in value.items():
            try:
                found[name] = (kinds.get(name) or may[name])(each)
            except _Misfit as misfit:
                raise misfit.below(name) from None
        return found

    return all_of


def or_error(kind: Kind, also: Mapping[str, Kind] = {}) -> Kind:
    """The answer, or why there is none."""
    refused = record({"error": _REASON, **_FROM}, also)
    return lambda value: refused(value) if isinstance(value, dict) and value.get("error") is not None else kind(value)


def _sized(value: Any) -> Any:
    """Of something large, how large it is."""
    return f"{type(value).__name__} of {len(value)}" if isinstance(value, (str, list, dict)) and len(value) > 60 else value


def _cpu_ranges(value: Any) -> Any:
    """`0-3,8`, as the kernel writes it: nobody may name more cores than there are."""
    found = re.fullmatch(r"(\d{1,5}(-\d{1,5})?(,\d{1,5}(-\d{1,5})?)*)?", value, re.ASCII) if isinstance(value, str) else None
    if not found or len(value) > 4 * _CPUS:
        raise _Misfit('ranges of cores such as "0-3,8"', _sized(value))
    return value


def _address(value: Any) -> Any:
    try:
        return str(ipaddress.ip_address(value if isinstance(value, str) else ""))
    except ValueError:
        raise _Misfit("an address", value) from None


def _during(value: Any) -> Any:
    found = record(
        {
            "looks": _COUNT,
            "reasons": mapping(text(60), _COUNT, 64),
            "sm_mhz": _SPAN,
            "memory_mhz": _SPAN,
            "temperature_c": _SPAN,
            "power_w": _SPAN,
        }
    )(value)
    for why, count in found["reasons"].items():
        if count > found["looks"]:
            raise _Misfit(f"at most {found['looks']}, of so many looks", count).below(why).below("reasons")
    return found


_COUNT = whole()
_PID = whole(1, 2**31)
_HOST = whole(0, 1 << 20)
_PORT = whole(1, 65535)
_SECONDS = number(0)
_REASON = text(_LINE_CHARACTERS)
_LAST_LINES = listed(text(_LINE_CHARACTERS), 100)
_RUN = matching(r"[0-9A-Za-z_.-]{1,64}", "the id of a run")
_TASK = matching(r"[a-z]{1,16}:\d{1,6}", "the name of a task")
_STATE = matching(r"[A-Za-z]?", "the letter of a process's state")
_GPU = matching(r"[0-9A-Za-z/.:-]{1,80}", "a GPU's number or UUID")
_SPAN = optional(listed(number(), 2, least=2))
_FOLDER = matching(r"[^\x00-\x1f\x7f]{1,4096}", "the path of a folder")
_FROM = {"host": _HOST}
_OF_RUN = {**_FROM, "run": _RUN}
_OF_TASK = {**_OF_RUN, "task": _TASK}
_ENDED = {"code": optional(whole(0, 255)), "signal": optional(whole(1, 255)), "last_lines": _LAST_LINES}

# What agents say: node/agent.py


_SYSTEM = record(
    {
        "hardware": record(
            {
                "cpu": text(),
                "cores": optional(whole(1, _CPUS)),
                "memory_gib": whole(0, 1 << 30),
                "interconnect": optional(text()),
                "gpus": listed(record({"name": text(), "memory_gib": whole(0, 1 << 20)}), 256),
            }
        ),
        "software": record(
            {
                "python": text(60),
                "tensorflow": optional(text(60)),
                "cuda": optional(text(60)),
                "kernel": text(),
                "driver": optional(text(60)),
            }
        ),
        "state": record({"load": _SECONDS, "governor": optional(text(60))}),
    }
)
_BEFORE_AFTER = {"before": optional(number()), "after": optional(number())}
_READING = {
    "index": _GPU,
    "uuid": text(100),
    **dict.fromkeys(
        (
            "sm_mhz",
            "sm_max_mhz",
            "memory_mhz",
            "memory_max_mhz",
            "ecc_uncorrected",
            "temperature_c",
            "power_w",
            "utilisation",
        ),
        optional(number()),
    ),
    "reasons": optional(listed(text(60), 64)),
}
_USER = record({"pid": whole(), "name": text(_LINE_CHARACTERS), "memory_mib": optional(number())})
_HOST_STATE = record(
    {
        "machine": text(60),
        "cpus": _cpu_ranges,
        "cores": whole(0, _CPUS),
        "quota": _flag,
        "window_s": _SECONDS,
        "cpu": record(dict.fromkeys(("busy_s", "own_s", "controller_s", "steal_s"), _SECONDS)),
        "load": record({"before": _SECONDS, "after": _SECONDS}),
        "memory": record(
            {
                "available_mib": record(_BEFORE_AFTER),
                "some_s": optional(_SECONDS),
                "full_s": optional(_SECONDS),
                "swapped_in_mib": optional(_COUNT),
            }
        ),
        "clock_mhz": record({**_BEFORE_AFTER, "most": optional(number())}),
        "throttled_s": optional(number()),
    },
    may={
        "gpus": listed(
            record(
                {
                    "index": _GPU,
                    "before": optional(record({}, may=_READING)),
                    "after": optional(record({}, may=_READING)),
                    "others": listed(_USER, 4096),
                    "during": _during,
                }
            ),
            256,
        )
    },
)
_SCORE = record({"images": _COUNT, "loss": _loss, "total_loss": _loss, "top_1": number(0, 1), "top_5": number(0, 1)})
_GRAPH = {"hash": matching("[0-9a-f]{8,128}", "a hash"), "operations": mapping(text(), _COUNT, 4096)}
_REPORT = record(
    {**_OF_TASK, "job": matching("[a-z]{1,16}", "a kind of task"), "index": whole(0, 999_999)},
    may={
        "num_devices": whole(0, _CPUS),
        "step_s": listed(_SECONDS, _STEPS),
        "elapsed_s": _SECONDS,
        "loss": listed(_loss, _STEPS),
        "startup_s": mapping(text(60), _SECONDS, 100),
        "bytes_sent": _COUNT,
        "bytes_received": _COUNT,
        "peak_rss_bytes": _COUNT,
        "cpu_s": _SECONDS,
        "devices": listed(text(), _CPUS),
        "looks": listed(record({"step": _COUNT, "trained_s": _SECONDS, "score": _SCORE}), _STEPS),
        "variable_bytes": mapping(text(), _COUNT, _CPUS),
        "said": optional(text(_LINE_CHARACTERS)),
        "last_lines": _LAST_LINES,
        "graph": lambda value: record(_GRAPH if value else {})(value),
        "settings": mapping(text(), text(_LINE_CHARACTERS), 4096),
    },
)
_TASK_SAYS: Table = {
    "ready": record(_OF_TASK),
    "progress": record({**_OF_TASK, "step": _COUNT, "of": _COUNT}, may={"images_per_sec": optional(_SECONDS)}),
    "missing": record({**_OF_TASK, "module": matching(r"\w[\w.-]{0,99}", "a module's name")}),
    "report": _REPORT,
}


def _of_task(value: Any) -> Any:
    return fit(_TASK_SAYS, value, "kind")


AGENT: Table = {
    "hello": record(
        {
            **_FROM,
            "fingerprint": _SYSTEM,
            "pid": _PID,
            "cpus": listed(whole(0, _CPUS - 1), _CPUS, least=1, unique=True),
            "gpus": listed(_GPU, 256, unique=True),
            "addresses": listed(_address, 4096),
            "unguarded": optional(_REASON),
        }
    ),
    "beat": record(
        {
            **_OF_RUN,
            "tasks": mapping(_TASK, record({"pid": _PID, "state": _STATE, "cpu_s": _SECONDS}), 4096),
            "zygote_state": optional(_STATE),
            "load": _SECONDS,
        }
    ),
    "reserved": record({**_OF_RUN, "ports": listed(_PORT, 4096, unique=True)}),
    "refused": record({**_OF_RUN, "reason": _REASON, "ports": listed(_PORT, 4096)}),
    "started": record({**_OF_TASK, "pid": _PID}),
    "task": _of_task,
    "exit": record({**_OF_TASK, **_ENDED}),
    "zygote_died": record({**_OF_RUN, **_ENDED}),
    "state": record({**_OF_RUN, "state": _HOST_STATE}),
    "stopped": record({**_OF_RUN, "survivors": listed(_PID, 1 << 16)}),
    "log": record({**_OF_TASK, "text": _lines}),
}

# What those say that bring data to hosts: node/fetch.py

FETCH: Table = {
    "hello": record(_FROM),
    "progress": record({**_FROM, "bytes": _COUNT, "moved": _COUNT, "waiting": _flag}),
    "staged": record({**_FROM, "folder": _FOLDER, "fetched": _COUNT, "bytes": _COUNT}),
    "failed": record({**_FROM, "words": _REASON}),
}

# What hosts answer the doctor: node/checkup.py

_REACHED = record({"to": _HOST, "port": _PORT, "error": optional(_REASON)})
_DISK = record({"what": text(60), "folder": text(4096), "free_bytes": _COUNT, "total_bytes": _COUNT})

CHECKUP: Table = {
    "hello": record(_FROM),
    "beat": record(_FROM),
    "clock": record({**_FROM, "round": _COUNT, "arrived_s": number(0, 1e12), "left_s": number(0, 1e12)}),
    "facts": or_error(
        record(
            {
                **_FROM,
                "hostname": text(),
                "addresses": listed(_address, 4096),
                "python": text(60),
                "executable": text(4096),
                "tensorflow": optional(text(60)),
                "cores": whole(1, _CPUS),
                "machine_cores": whole(1, _CPUS),
                "load": _SECONDS,
                "memory_bytes": _COUNT,
                "gpus": optional(listed(record({"name": text(), "memory_mib": _COUNT}), 256)),
                "gpus_error": optional(_REASON),
                "disks": listed(_DISK, 100),
                "unisolated": optional(_REASON),
                "unguarded": optional(_REASON),
            }
        )
    ),
    "write": or_error(record(_FROM)),
    "look": or_error(record({**_FROM, "sees": listed(_HOST, 1 << 16)})),
    "remove": or_error(record(_FROM)),
    "listen": or_error(
        record({**_FROM, "ports": listed(_PORT, 4096), "taken": listed(whole(0, 65535), 4096), "has_address": _flag})
    ),
    "reach": or_error(record({**_FROM, "reached": listed(_REACHED, 1 << 20)})),
    "trial": or_error(
        record({**_FROM, "version": text(60), "gpus": whole(0, 1024), "import_s": _SECONDS}), also={"words": _LAST_LINES}
    ),
    "measure": or_error(
        record({**_FROM, "to": _HOST, "round_trip_s": _SECONDS, "echoes": _COUNT, "bytes": _COUNT, "counted_s": _SECONDS}),
        also={"to": _HOST},
    ),
}

# What the warden of a host that SSH reaches says: node/boot.py, node/warden.py, and the shell of clusters/ssh/prelude.py

_SURVEY = {
    "hostname": matching(r"[0-9A-Za-z._-]{1,255}", "the name of a host"),
    "addresses": listed(_address, 4096),
    "reached_at": matching(r"[0-9A-Fa-f:.%\w-]{0,255}", "an address"),
    "left": mapping(text(), listed(text(), 1 << 16), 4096),
}
_WARDEN_AT: Table = {
    "python": record({}),
    "setup": record({"line": whole(1)}),
    "parcel": record({}),
    "environment": record({"doing": text()}),
    "ready": lambda value: record(_SURVEY if value else {})(value),
    "started": record({}),
    "swept": record({"survivors": listed(_PID, 1 << 16)}),
}
_WARDEN_FAILED: Table = {
    "setup": record({"line": whole(1), "code": whole(0, 255)}),
    "python": record({}),
    "version": record({"version": text(60)}),
    "parcel": record({"why": _REASON}),
    "environment": record({"why": _REASON, "hint": _REASON}),
    "program": record({"program": text(4096)}),
}
_WARDEN_ENDED = record({"ended": optional(whole(-255, 255)), "late": _flag, "survivors": listed(_PID, 1 << 16)})


def of_warden(words: Message) -> Message:
    """What a warden is at, what has failed, or how what it watched over has ended. Raises `MessageError`."""
    for name, table in (("at", _WARDEN_AT), ("failed", _WARDEN_FAILED)):
        if name in words:
            return fit(table, words, name)
    try:
        ended: Message = _WARDEN_ENDED(words)
    except _Misfit as misfit:
        raise MessageError(f"sent words that nobody knows: {misfit.path} {misfit.must}") from None
    return ended
