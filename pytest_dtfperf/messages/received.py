"""Validate the messages of hosts: the shapes of values, and what a host may send line by line.

A kind checks one value and returns it as it may be used, or raises what it must be. A host is disconnected once it has sent a
message that has a wrong shape or makes no sense in the run, more of other lines than any host prints by mistake, or messages
faster than any host has reason to.
"""

import ipaddress
import re
import reprlib
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pytest_dtfperf.codec import JsonData, ValidationError
from pytest_dtfperf.errors import quoted_lines
from pytest_dtfperf.formats import printable, printable_bytes, printable_lines
from pytest_dtfperf.node import wire

Message = Mapping[str, Any]
Kind = Callable[[Any], Any]  # returns the value as it may be used; raises `ValidationError`
Table = Mapping[str, Kind]  # name of a message -> what is in it

MOST = 2**63 - 1  # of whatever is counted: files and counters of kernels go no further
_LOG_CHARACTERS = 1 << 20  # agents send 256 KiB of each


class MessageError(ValueError):
    """What a host has sent cannot be used; the text goes on after "it" or the host's name."""


def fit(table: Table, message: Message, name: str = "event") -> dict[str, Any]:
    """Return the message, as the table entry of its `name` allows it. Raises `MessageError`."""
    name_given = message.get(name)
    kind = table.get(name_given) if isinstance(name_given, str) else None
    if kind is None:
        raise MessageError(f"sent a message that nobody knows: {name} is {_show_value(name_given)}")
    try:
        found: dict[str, Any] = kind({key: value for key, value in message.items() if key != name})
    except ValidationError as error:
        raise MessageError(f"sent a {name_given!r} that cannot be: {describe_invalid(error)}") from None
    return {name: name_given, **found}


def describe_invalid(error: ValidationError) -> str:
    """Return where a value is in its message, what it must be, and what it is, with invisible characters escaped."""
    return printable(f"{error.path}{' ' * bool(error.path)}must be {error.allowed}, not {error.shown}")


def _show_value(value: Any) -> str:
    short = reprlib.Repr()
    short.maxstring = short.maxother = 60
    return printable(short.repr(value))


def whole(least: int = 0, most: int = MOST) -> Kind:
    def kind(value: Any) -> Any:
        if type(value) is not int or not least <= value <= most:
            raise ValidationError(f"a whole number from {least} to {most}", value)
        return value

    return kind


def number(least: float = -1e18, most: float = 1e18) -> Kind:
    """Finite. Whatever counts seconds, bytes or images stays far below."""

    def kind(value: Any) -> Any:
        if type(value) not in (int, float) or not least <= value <= most:  # which NaN is not
            raise ValidationError(f"a number from {least:g} to {most:g}", value)
        return value

    return kind


def number_or(kind: Kind) -> Kind:
    """A number, or something of another kind."""
    any_number = number()
    return lambda value: any_number(value) if type(value) in (int, float) else kind(value)


def flag(value: Any) -> Any:
    if not isinstance(value, bool):
        raise ValidationError("true or false", value)
    return value


def text(most: int = 300) -> Kind:
    """One line of it."""

    def kind(value: Any) -> Any:
        if not isinstance(value, str) or len(value) > most:
            raise ValidationError(f"text of at most {most} characters", shorten_value(value))
        return printable(value)

    return kind


def lines(value: Any) -> Any:
    if not isinstance(value, str) or len(value) > _LOG_CHARACTERS:
        raise ValidationError(f"text of at most {_LOG_CHARACTERS} characters", shorten_value(value))
    return printable_lines(value)


def matching(pattern: str, what: str) -> Kind:
    """Text of that form, which goes into names or commands as it is."""

    def kind(value: Any) -> Any:
        if not isinstance(value, str) or not re.fullmatch(pattern, value, re.ASCII):
            raise ValidationError(what, shorten_value(value))
        return value

    return kind


def optional(kind: Kind) -> Kind:
    return lambda value: None if value is None else kind(value)


def list_of(kind: Kind, most: int, *, least: int = 0, unique: bool = False) -> Kind:
    def each_of(value: Any) -> Any:
        if not isinstance(value, list) or not least <= len(value) <= most:
            raise ValidationError(f"a list of {least} to {most}", shorten_value(value))
        found = []
        for at, each in enumerate(value):
            try:
                found.append(kind(each))
            except ValidationError as error:
                raise error.below(at) from None
        if unique and len(set(found)) < len(found):
            raise ValidationError("a list in which nothing stands twice", value)
        return found

    return each_of


def mapping(key: Kind, kind: Kind, most: int) -> Kind:
    def all_of(value: Any) -> Any:
        if not isinstance(value, dict) or len(value) > most:
            raise ValidationError(f"an object of at most {most} keys", shorten_value(value))
        found = {}
        for name, each in value.items():
            try:
                found[key(name)] = kind(each)
            except ValidationError as error:
                raise error.below(name) from None
        return found

    return all_of


def record(kinds: Mapping[str, Kind], may: Mapping[str, Kind] = {}) -> Kind:
    """All of these keys, and perhaps those that there `may` be."""

    def all_of(value: Any) -> Any:
        if not isinstance(value, dict):
            raise ValidationError("an object", value)
        if missing := kinds.keys() - value.keys():
            raise ValidationError("there", None).below(min(missing))
        if unknown := value.keys() - kinds.keys() - may.keys():
            raise ValidationError(f"one of {', '.join([*kinds, *may]) or 'none'}", min(unknown)).below("key")
        found = {}
        for name, each in value.items():
            try:
                found[name] = (kinds.get(name) or may[name])(each)
            except ValidationError as error:
                raise error.below(name) from None
        return found

    return all_of


def shorten_value(value: Any) -> Any:
    """Return a value, or the size of a large one."""
    return f"{type(value).__name__} of {len(value)}" if isinstance(value, (str, list, dict)) and len(value) > 60 else value


LINE_CHARACTERS = 16_384  # of a last line or a reason, a page of text; agents send 8 KiB of last lines
STEPS = 400_000  # of one run: what a line can hold (`clusters/pipes.py`)
CPUS = 1 << 16

COUNT = whole()
PID = whole(1, 2**31)
HOST = whole(0, 1 << 20)
PORT = whole(1, 65535)
SECONDS = number(0)
REASON = text(LINE_CHARACTERS)
LAST_LINES = list_of(text(LINE_CHARACTERS), 100)
RUN = matching(r"[0-9A-Za-z_.-]{1,64}", "the id of a run")
TASK = matching(r"[a-z]{1,16}:\d{1,6}", "the name of a task")
STATE = matching(r"[A-Za-z]?", "the letter of a process's state")
GPU = matching(r"[0-9A-Za-z/.:-]{1,80}", "a GPU's number or UUID")
SPAN = optional(list_of(number(), 2, least=2))
FOLDER = matching(r"[^\x00-\x1f\x7f]{1,4096}", "the path of a folder")
FROM = {"host": HOST}
OF_RUN = {**FROM, "run": RUN}
OF_TASK = {**OF_RUN, "task": TASK}
ENDED = {"code": optional(whole(0, 255)), "signal": optional(whole(1, 255)), "last_lines": LAST_LINES}


def data_of(cls: type[JsonData]) -> Kind:
    """Return the check of an object of the data model: its codec validates it, after its texts are made printable."""

    def kind(value: Any) -> Any:
        if not isinstance(value, dict):
            raise ValidationError("an object", shorten_value(value))
        return cls.from_json(_make_printable(value))

    return kind


def flat_data_of(cls: type[JsonData], name: str, kinds: Mapping[str, Kind]) -> Kind:
    """Return the check of a message in which the fields of an object stand beside other keys; the object gets this name."""
    others, of_data = record(kinds), data_of(cls)

    def kind(value: Any) -> Any:
        if not isinstance(value, dict):
            raise ValidationError("an object", value)
        beside = others({key: each for key, each in value.items() if key in kinds})
        return {**beside, name: of_data({key: each for key, each in value.items() if key not in kinds})}

    return kind


def _make_printable(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable(key): _make_printable(each) for key, each in value.items()}
    return [_make_printable(each) for each in value] if isinstance(value, list) else value


def or_error(kind: Kind, also: Mapping[str, Kind] = {}) -> Kind:
    """The answer, or why there is none."""
    refused = record({"error": REASON, **FROM}, also)
    return lambda value: refused(value) if isinstance(value, dict) and value.get("error") is not None else kind(value)


def loss(value: Any) -> Any:
    """Accept a number that may be infinite or NaN: then the training is at fault, and its error is shown."""
    if type(value) is float or (type(value) is int and abs(value) <= MOST):
        return value
    raise ValidationError("a number", value)


def packed(most: int, what: str) -> Kind:
    """What is taken apart where it is used: base64."""
    return matching(rf"[0-9A-Za-z+/=]{{0,{most}}}", what)


def cpu_ranges(value: Any) -> Any:
    """Accept `0-3,8`, as the kernel writes it, with no more cores than there can be."""
    found = re.fullmatch(r"(\d{1,5}(-\d{1,5})?(,\d{1,5}(-\d{1,5})?)*)?", value, re.ASCII) if isinstance(value, str) else None
    if not found or not _are_few_enough([part.split("-") for part in value.split(",") if part]):
        raise ValidationError('ranges of cores such as "0-3,8"', shorten_value(value))
    return value


def _are_few_enough(ranges: Iterable[Sequence[str]]) -> bool:
    """Whether they count upwards, and to no more cores than there can be, before anybody counts them one by one."""
    sizes = [int(ends[-1]) - int(ends[0]) + 1 for ends in ranges]
    return min(sizes, default=1) > 0 and sum(sizes) <= CPUS


def address(value: Any) -> Any:
    try:
        return str(ipaddress.ip_address(value if isinstance(value, str) else ""))
    except ValueError:
        raise ValidationError("an address", value) from None


MAX_LAST_LINES = 20  # lines
JUNK_BYTES = 1 << 20  # of lines that are no messages, from one host: a banner has a page, a stuck program's log would have more
# An agent sends a beat a second and four signs of progress for each of its tasks; what it could not send comes at once later.
MESSAGES, MESSAGES_PER_S = 20_000, 1_000.0

# What is sent once in a run, or once of each task of it.
_ONCE = ("reserved", "started", "exit", "state", "log", "ready", "timestamps", "trace", "report")


class MessageReceiver:
    """All hosts of one channel. `table` defines what they may send."""

    def __init__(self, table: Table, hosts: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._table = table
        self._hosts = [_Host(clock()) for _ in range(hosts)]
        self._clock = clock
        self._run: str | None = None
        self._tasks: Mapping[str, int] = {}
        self._tunnel: int | None = None  # the host at the other end of one
        self._sent: set[tuple[Any, ...]] = set()

    def expect(self, run: str, tasks: Mapping[str, int], tunnel: int | None = None) -> None:
        """From now on it is this run, of these tasks on these hosts, and of a tunnel to one: what comes of others is late and
        not heard.
        """
        self._run, self._tasks, self._tunnel, self._sent = run, tasks, tunnel, set()

    def receive(self, host: int, line: bytes) -> Message | None:
        """The message that it is; None where it is none that matters. Raises `MessageError`: then the host is not to be heard
        again.
        """
        try:
            decoded = wire.decode(line)
        except wire.WireError:
            self._hosts[host].note(line)
            return None
        if not self._is_carried(host, decoded):
            self._hosts[host].count(self._clock())
        message = fit(self._table, decoded)
        if message["host"] != host:
            raise MessageError(f"spoke for another host, number {message['host']}, and is number {host}")
        if "run" in message:
            if message["run"] != self._run:
                return None  # a late word of an earlier run
            self._check(host, message)
        return message

    def last_lines(self, host: int) -> Sequence[str]:
        """Return the last lines that were no messages, fit to be shown."""
        return list(self._hosts[host].last_lines)

    def _is_carried(self, host: int, message: Message) -> bool:
        """Return whether it is a tunnel's: of those there are no more than its other end lets come."""
        return message.get("event") == "tunnel" and host == self._tunnel and message.get("run") == self._run

    def _check(self, host: int, message: Message) -> None:
        """Check what depends on the run. Raises `MessageError`."""
        event = message["event"]
        if event == "tunnel" and host != self._tunnel:
            raise MessageError("spoke of a tunnel, and has none")
        for task in message.get("tasks", [message["task"]] if "task" in message else []):
            if self._tasks.get(task) != host:
                raise MessageError(f"spoke of the task {task}, which is none of its own")
        if event == "task" and message["kind"] == "report" and message["report"].name != message["task"]:
            raise MessageError(f"sent a report of {message['report'].name} as that of {message['task']}")
        if event == "reserved" and len(message["ports"]) != (wanted := sum(each == host for each in self._tasks.values())):
            raise MessageError(f"reserved {len(message['ports'])} ports, and was asked for {wanted}")
        what = message["kind"] if event == "task" else event
        if what in _ONCE:
            key = (host, what, message.get("task"))
            if key in self._sent:
                raise MessageError(f"said {what!r} twice" + (f" of {key[2]}" if key[2] else ""))
            self._sent.add(key)


class _Host:
    """How much one host has sent."""

    def __init__(self, now: float) -> None:
        self.last_lines: deque[str] = deque(maxlen=MAX_LAST_LINES)
        self._junk = 0
        self._may_send, self._counted = float(MESSAGES), now

    def note(self, line: bytes) -> None:
        self.last_lines.append(printable_bytes(line))
        self._junk += len(line) + 1
        if self._junk > JUNK_BYTES:
            raise MessageError(f"sent more than {JUNK_BYTES >> 20} MiB of lines that are no messages")

    def count(self, now: float) -> None:
        self._may_send = min(float(MESSAGES), self._may_send + MESSAGES_PER_S * (now - self._counted)) - 1
        self._counted = now
        if self._may_send < 0:
            raise MessageError(f"sent {MESSAGES} messages faster than {MESSAGES_PER_S:g} a second")


def given_up(host: str, why: str) -> str:
    """Return why nothing is heard of a host any more that has sent what cannot be used."""
    return f"host {host} was given up, for it {why}. Its agent is of another version, broken, or somebody else's"


def with_last_lines(what: str, lines: Sequence[str]) -> str:
    """Return what happened to a host, and beneath it its last output."""
    return what + quoted_lines(lines)
