"""Validate the messages of hosts: the types of values, and limits of each host's output.

A validator checks a value and returns it in a safe form, or raises `ValidationError`. A host is disconnected after a message
that is invalid or does not fit the run, after too many lines that are not messages, or if it sends messages too fast.
"""

import ipaddress
import re
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pytest_dtfperf.codec import JsonData, ValidationError, format_short
from pytest_dtfperf.errors import quote_lines
from pytest_dtfperf.formats import printable, printable_bytes, printable_lines
from pytest_dtfperf.node import wire

Message = Mapping[str, Any]
Validate = Callable[[Any], Any]  # returns the value as it may be used; raises `ValidationError`
Table = Mapping[str, Validate]  # name of a message -> what is in it

MOST = 2**63 - 1  # the maximum of kernels' counters and of files' sizes
_LOG_CHARACTERS = 1 << 20  # agents send 256 KiB of each


class MessageError(ValueError):
    """A message of a host is invalid. The text continues a sentence that begins with the host."""


def validate_message(table: Table, message: Message, name: str = "event") -> dict[str, Any]:
    """Return the message, validated by the table's entry for its `name`. Raises `MessageError`."""
    name_given = message.get(name)
    kind = table.get(name_given) if isinstance(name_given, str) else None
    if kind is None:
        raise MessageError(f"sent an unknown message: {name} is {printable(format_short(name_given))}")
    try:
        found: dict[str, Any] = kind({key: value for key, value in message.items() if key != name})
    except ValidationError as error:
        raise MessageError(f"sent an invalid {name_given!r}: {describe_invalid(error)}") from None
    return {name: name_given, **found}


def describe_invalid(error: ValidationError) -> str:
    """Return the path of the value, the allowed values, and the value, with invisible characters escaped."""
    return printable(f"{error.path}{' ' * bool(error.path)}must be {error.allowed}, not {error.shown}")


def whole(least: int = 0, most: int = MOST) -> Validate:
    def kind(value: Any) -> Any:
        if type(value) is not int or not least <= value <= most:
            raise ValidationError(f"a whole number from {least} to {most}", value)
        return value

    return kind


def number(least: float = -1e18, most: float = 1e18) -> Validate:
    """Accept finite numbers. The default range is far above any seconds, bytes or images."""

    def kind(value: Any) -> Any:
        if type(value) not in (int, float) or not least <= value <= most:  # which NaN is not
            raise ValidationError(f"a number from {least:g} to {most:g}", value)
        return value

    return kind


def number_or(kind: Validate) -> Validate:
    """Accept a number, or a value of another kind."""
    any_number = number()
    return lambda value: any_number(value) if type(value) in (int, float) else kind(value)


def flag(value: Any) -> Any:
    if not isinstance(value, bool):
        raise ValidationError("true or false", value)
    return value


def text(most: int = 300) -> Validate:
    """Accept a string, and return it on one line."""

    def kind(value: Any) -> Any:
        if not isinstance(value, str) or len(value) > most:
            raise ValidationError(f"text of at most {most} characters", shorten_value(value))
        return printable(value)

    return kind


def lines(value: Any) -> Any:
    if not isinstance(value, str) or len(value) > _LOG_CHARACTERS:
        raise ValidationError(f"text of at most {_LOG_CHARACTERS} characters", shorten_value(value))
    return printable_lines(value)


def matching(pattern: str, what: str) -> Validate:
    """Accept strings of this form, which are used in names or commands unchanged."""
    form = re.compile(pattern, re.ASCII)  # once, not in each message

    def kind(value: Any) -> Any:
        if not isinstance(value, str) or not form.fullmatch(value):
            raise ValidationError(what, shorten_value(value))
        return value

    return kind


def optional(kind: Validate) -> Validate:
    return lambda value: None if value is None else kind(value)


def list_of(kind: Validate, most: int, *, least: int = 0, unique: bool = False) -> Validate:
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
            raise ValidationError("a list without duplicates", value)
        return found

    return each_of


def mapping(key: Validate, kind: Validate, most: int) -> Validate:
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


def record(kinds: Mapping[str, Validate], may: Mapping[str, Validate] = {}) -> Validate:
    """Accept an object with all keys of `kinds`, and optionally those of `may`."""

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
    """Return the value, or a description of its size if it is large."""
    return f"{type(value).__name__} of {len(value)}" if isinstance(value, (str, list, dict)) and len(value) > 60 else value


LINE_CHARACTERS = 16_384  # of a last line or a reason; agents send 8 KiB of last lines
STEPS = 400_000  # of one run: as many as a line can hold (`clusters/children.py`)

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
FOLDER = matching(r"[^\x00-\x1f\x7f]{1,4096}", "the path of a folder")
FROM = {"host": HOST}
OF_RUN = {**FROM, "run": RUN}
OF_TASK = {**OF_RUN, "task": TASK}
ENDED = {"code": optional(whole(0, 255)), "signal": optional(whole(1, 255)), "last_lines": LAST_LINES}


def data_of(cls: type[JsonData]) -> Validate:
    """Return the validator of an object of the data model, which makes its strings printable."""

    def kind(value: Any) -> Any:
        if not isinstance(value, dict):
            raise ValidationError("an object", shorten_value(value))
        return cls.from_json(_make_printable(value))

    return kind


def flat_data_of(cls: type[JsonData], name: str, kinds: Mapping[str, Validate]) -> Validate:
    """Return the validator of a message with the fields of an object beside other keys. The object is returned as `name`."""
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


def or_error(kind: Validate, also: Mapping[str, Validate] = {}) -> Validate:
    """Accept a value of this kind, or an object with the `error` that prevented it."""
    refused = record({"error": REASON, **FROM}, also)
    return lambda value: refused(value) if isinstance(value, dict) and value.get("error") is not None else kind(value)


def loss(value: Any) -> Any:
    """Accept any number, infinite and NaN included, as a training may diverge."""
    if type(value) is float or (type(value) is int and abs(value) <= MOST):
        return value
    raise ValidationError("a number", value)


def packed(most: int, what: str) -> Validate:
    """Accept base64, which is decoded where it is used."""
    return matching(rf"[0-9A-Za-z+/=]{{0,{most}}}", what)


def address(value: Any) -> Any:
    try:
        return str(ipaddress.ip_address(value if isinstance(value, str) else ""))
    except ValueError:
        raise ValidationError("an address", value) from None


MAX_LAST_LINES = 20  # lines
JUNK_BYTES = 1 << 20  # of lines of one host that are not messages: far more than a banner
# An agent sends a beat per second and four messages of progress for each task; after an interruption they arrive in a burst.
MESSAGES, MESSAGES_PER_S = 20_000, 1_000.0

# Messages that are sent once in a run, or once for each of its tasks.
_ONCE = ("reserved", "started", "exit", "state", "log", "ready", "timestamps", "trace", "report")


class MessageReceiver:
    """The receiver of all messages of a channel. `table` defines the valid messages."""

    def __init__(self, table: Table, hosts: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._table = table
        self._hosts = [_Host(clock()) for _ in range(hosts)]
        self._clock = clock
        self._run: str | None = None
        self._tasks: Mapping[str, int] = {}
        self._task_counts: Counter[int] = Counter()  # by host
        self._tunnel: int | None = None  # the host at its other end
        self._sent: set[tuple[Any, ...]] = set()

    def expect(self, run: str, tasks: Mapping[str, int], tunnel: int | None = None) -> None:
        """Start a run with these tasks, by host, and a tunnel to one host. Messages of other runs are ignored from now on."""
        self._run, self._tasks, self._tunnel, self._sent = run, tasks, tunnel, set()
        self._task_counts = Counter(tasks.values())

    def receive(self, host: int, line: bytes) -> Message | None:
        """Return the message in a line; None if it is to be ignored. Raises `MessageError`: the host must be disconnected."""
        try:
            decoded = wire.decode(line)
        except wire.WireError:
            self._hosts[host].note(line)
            return None
        if not self._is_of_tunnel(host, decoded):
            self._hosts[host].count(self._clock())
        message = validate_message(self._table, decoded)
        if message["host"] != host:
            raise MessageError(f"sent a message of another host, number {message['host']}, but is number {host}")
        if "run" in message:
            if message["run"] != self._run:
                return None  # a late message of an earlier run
            self._check(host, message)
        return message

    def last_lines(self, host: int) -> Sequence[str]:
        """Return the last lines that were not messages, in printable form."""
        return list(self._hosts[host].last_lines)

    def _is_of_tunnel(self, host: int, message: Message) -> bool:
        """Return whether a message belongs to the tunnel, whose other end limits their number."""
        return message.get("event") == "tunnel" and host == self._tunnel and message.get("run") == self._run

    def _check(self, host: int, message: Message) -> None:
        """Check what depends on the run. Raises `MessageError`."""
        event = message["event"]
        if event == "tunnel" and host != self._tunnel:
            raise MessageError("sent a message of a tunnel, but has none")
        for task in message.get("tasks", [message["task"]] if "task" in message else []):
            if self._tasks.get(task) != host:
                raise MessageError(f"sent a message about the task {task}, which is not its own")
        if event == "task" and message["kind"] == "report" and message["report"].name != message["task"]:
            raise MessageError(f"sent a report of {message['report'].name} as that of {message['task']}")
        if event == "reserved" and len(message["ports"]) != (wanted := self._task_counts[host]):
            raise MessageError(f"reserved {len(message['ports'])} ports instead of {wanted}")
        what = message["kind"] if event == "task" else event
        if what in _ONCE:
            key = (host, what, message.get("task"))
            if key in self._sent:
                raise MessageError(f"sent {what!r} twice" + (f" for {key[2]}" if key[2] else ""))
            self._sent.add(key)


class _Host:
    """The amount of data that one host has sent."""

    def __init__(self, now: float) -> None:
        self.last_lines: deque[str] = deque(maxlen=MAX_LAST_LINES)
        self._junk = 0
        self._may_send, self._counted = float(MESSAGES), now

    def note(self, line: bytes) -> None:
        self.last_lines.append(printable_bytes(line))
        self._junk += len(line) + 1
        if self._junk > JUNK_BYTES:
            raise MessageError(f"sent more than {JUNK_BYTES >> 20} MiB of lines that are not messages")

    def count(self, now: float) -> None:
        self._may_send = min(float(MESSAGES), self._may_send + MESSAGES_PER_S * (now - self._counted)) - 1
        self._counted = now
        if self._may_send < 0:
            raise MessageError(f"sent {MESSAGES} messages faster than {MESSAGES_PER_S:g} per second")


def format_given_up(host: str, why: str) -> str:
    """Return the message about a host that was disconnected for an invalid message."""
    return f"host {host} was disconnected because it {why}. Its agent has another version, is broken, or is another program"


def append_last_lines(what: str, lines: Sequence[str]) -> str:
    """Return a message about a host, followed by its last output."""
    return what + quote_lines(lines)
