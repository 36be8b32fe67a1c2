"""All messages from hosts: how they are declared and checked, and what a host may send line by line.

A host may be broken, of another version, or malicious. Each message is a dataclass, and the metadata of its fields (codec.py)
is the only declaration from which it is checked: unknown and missing keys are refused, and values of another type, outside
their range or of too large a size. Then its texts are made printable. Texts of the data model are made printable before their
check, because files have the same limits. `MessageReceiver` also checks what depends on the run, such as the host of a task. It
refuses too many lines that are not messages, and messages that come too fast.

`agent.py` has the messages of agents, and `programs.py` those of the other programs.
"""

import ipaddress
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache, partial
from typing import Any, ClassVar, Generic, Self, TypeVar

from pytest_dtfperf.codec import JsonData, ValidationError, describe, format_short
from pytest_dtfperf.errors import quote_lines
from pytest_dtfperf.formats import printable, printable_bytes
from pytest_dtfperf.node import wire

Metadata = Mapping[str, Any]

MOST = 2**63 - 1  # the maximum of kernels' counters and of files' sizes
LINE_CHARACTERS = 16_384  # of a last line or a reason; agents send 8 KiB of last lines
MOST_ITEMS = 4096  # of addresses, interfaces, ports and tasks of a host


class MessageError(ValueError):
    """A message of a host is invalid. The text continues a sentence that begins with the host."""


# Values


def make_printable(value: Any, convert: Callable[[str], str] = printable) -> Any:
    """Return JSON data with invisible characters escaped in all texts, keys included."""
    if isinstance(value, str):
        return convert(value)
    if isinstance(value, dict):
        return {convert(key): make_printable(each, convert) for key, each in value.items()}
    return [make_printable(each, convert) for each in value] if isinstance(value, list | tuple) else value


def _normalise_addresses(values: Sequence[str]) -> Sequence[str]:
    found = []
    for index, each in enumerate(values):
        try:
            found.append(str(ipaddress.ip_address(each)))
        except ValueError:
            raise ValidationError("an address", each, str(index)) from None
    return found


def check_unique(values: Sequence[Any]) -> Sequence[Any]:
    if len(set(values)) < len(values):
        raise ValidationError("a list without duplicates", values)
    return values


def _convert_parts(parts: Sequence[JsonData] | None) -> Sequence[JsonData] | None:
    for index, each in enumerate(parts or ()):
        try:
            _convert_fields(each)
        except ValidationError as error:
            raise error.prepend(index) from None
    return parts


def describe_text(max_size: int = 300, convert: Callable[[str], str] = printable, **limits: Any) -> Metadata:
    """Return the metadata of text for display: its size is that before invisible characters are escaped."""
    return {**describe(max_size=max_size, **limits), "convert": partial(make_printable, convert=convert)}


def describe_parts(max_size: int = MOST_ITEMS) -> Metadata:
    """Return the metadata of a list of objects with text for display or with addresses."""
    return {**describe(max_size=max_size), "convert": _convert_parts}


def describe_pattern(form: str, pattern: str, **limits: Any) -> Metadata:
    """Return the metadata of texts of this form, which are used in names or commands unchanged."""
    return describe(form=form, pattern=pattern, **limits)


TASK_PATTERN = "[a-z]{1,16}:[0-9]{1,6}"
COUNT = describe(at_least=0, at_most=MOST)
SECONDS = describe(at_least=0, at_most=1e18)  # far above any
PID = describe(at_least=1, at_most=2**31)
PIDS = describe(at_least=1, at_most=2**31, max_size=1 << 16)
HOST = describe(at_least=0, at_most=1 << 20)
PORT = describe(at_least=1, at_most=65535)
PORTS = describe(at_least=1, at_most=65535, max_size=MOST_ITEMS)
TEXT, SHORT_TEXT, PATH = describe_text(), describe_text(60), describe_text(4096)
REASON = describe_text(LINE_CHARACTERS)
LAST_LINES = describe_text(100, inner_sizes=(LINE_CHARACTERS,))
ADDRESSES: Metadata = {
    **describe_pattern("an address", "[0-9A-Fa-f:.]{1,45}(%[!-.0-~]{1,15})?", max_size=MOST_ITEMS),
    "convert": _normalise_addresses,
}
MODEL: Metadata = {**describe(), "is_model": True}  # of an object of the data model


# Bases


@cache
def _list_converters(cls: Any) -> Sequence[tuple[str, Callable[[Any], Any]]]:
    return [(each.name, each.metadata["convert"]) for each in fields(cls) if "convert" in each.metadata]


def _convert_fields(part: Any) -> None:
    """Replace the values of a new object by their safe forms."""
    for name, convert in _list_converters(type(part)):  # type: ignore[arg-type]  # mypy asks instances of it for __hash__
        try:
            object.__setattr__(part, name, convert(getattr(part, name)))
        except ValidationError as error:
            raise error.prepend(name) from None


@cache
def _list_own_keys(cls: Any) -> frozenset[str]:
    """Return the keys of a message, without those of the data model."""
    return frozenset(each.name for each in fields(cls) if not each.metadata.get("is_model"))


@dataclass(frozen=True, kw_only=True)
class ProgramMessage(JsonData):
    """A message of a program on a host."""

    def __post_init__(self) -> None:
        _convert_fields(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        own = _list_own_keys(cls)  # type: ignore[arg-type]  # likewise
        try:
            return super().from_json({key: value if key in own else make_printable(value) for key, value in data.items()})
        except RecursionError:
            raise ValidationError("less deeply nested", data) from None


@dataclass(frozen=True, kw_only=True)
class Message(ProgramMessage):
    """A message of a program that sends its host's number."""

    host: int = field(metadata=HOST)


@dataclass(frozen=True, kw_only=True)
class RunMessage(Message):
    """A message of a run."""

    run: str = field(metadata=describe_pattern("the id of a run", "[0-9A-Za-z_.-]{1,64}"))

    once: ClassVar[str] = ""  # the name of a message that is sent once in a run, or once for each of its tasks
    is_of_tunnel: ClassVar[bool] = False  # its other end limits the number of its messages

    def list_tasks(self) -> Sequence[str]:
        """Return the tasks that it is about."""
        return ()

    def check(self, num_tasks: int) -> None:
        """Raise `MessageError` if it does not fit a run that has so many tasks on its host."""


@dataclass(frozen=True, kw_only=True)
class TaskMessage(RunMessage):
    """A message of or about a task."""

    task: str = field(metadata=describe_pattern("the name of a task", TASK_PATTERN))

    def list_tasks(self) -> Sequence[str]:
        return (self.task,)


AnyMessage = TypeVar("AnyMessage", bound=ProgramMessage)


@dataclass(frozen=True)
class TypeChoice(Generic[AnyMessage]):
    """The choice of a message's type by its other keys."""

    choose: Callable[[Mapping[str, Any]], type[AnyMessage]]


@dataclass(frozen=True)
class MessageTable(Generic[AnyMessage]):
    """The types of a program's messages, by the value of a key."""

    key: str
    types: "Mapping[str, type[AnyMessage] | TypeChoice[AnyMessage] | MessageTable[AnyMessage]]"

    def parse(self, message: Mapping[str, Any]) -> AnyMessage:
        """Return the validated message. Raises `MessageError`."""
        name = message.get(self.key)
        kind = self.types.get(name) if isinstance(name, str) else None
        if kind is None:
            raise MessageError(f"sent an unknown message: {self.key} is {printable(format_short(name))}")
        others = {key: value for key, value in message.items() if key != self.key}
        if isinstance(kind, MessageTable):
            return kind.parse(others)
        try:
            return (kind.choose(others) if isinstance(kind, TypeChoice) else kind).from_json(others)
        except ValidationError as error:
            raise MessageError(f"sent an invalid {name!r}: {format_invalid(error)}") from None


def format_invalid(error: ValidationError) -> str:
    """Return the path of the value, the allowed values, and the value, with invisible characters escaped."""
    return printable(f"{error.path}{' ' * bool(error.path)}must be {error.allowed}, not {error.shown}")


# Receiving

MAX_LAST_LINES = 20  # lines
JUNK_BYTES = 1 << 20  # of lines of one host that are not messages: far more than a banner
# An agent sends a beat per second and four messages of progress for each task; after an interruption they arrive in a burst.
MESSAGES, MESSAGES_PER_S = 20_000, 1_000.0


class MessageReceiver:
    """The receiver of all messages of a channel. `table` has their types."""

    def __init__(self, table: MessageTable[Message], hosts: int, clock: Callable[[], float] = time.monotonic) -> None:
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
        message = self._table.parse(decoded)
        if message.host != host:
            raise MessageError(f"sent a message of another host, number {message.host}, but is number {host}")
        if isinstance(message, RunMessage):
            if message.run != self._run:
                return None  # a late message of an earlier run
            self._check(message)
        return message

    def last_lines(self, host: int) -> Sequence[str]:
        """Return the last lines that were not messages, in printable form."""
        return list(self._hosts[host].last_lines)

    def _is_of_tunnel(self, host: int, decoded: Mapping[str, Any]) -> bool:
        """Return whether a message belongs to the tunnel, which limits their number itself."""
        return decoded.get("event") == "tunnel" and host == self._tunnel and decoded.get("run") == self._run

    def _check(self, message: RunMessage) -> None:
        """Check what depends on the run. Raises `MessageError`."""
        if message.is_of_tunnel and message.host != self._tunnel:
            raise MessageError("sent a message of a tunnel, but has none")
        tasks = message.list_tasks()
        for task in tasks:
            if self._tasks.get(task) != message.host:
                raise MessageError(f"sent a message about the task {task}, which is not its own")
        message.check(self._task_counts[message.host])
        if message.once:
            key = (message.host, message.once, *tasks)
            if key in self._sent:
                raise MessageError(f"sent {message.once!r} twice{''.join(f' for {task}' for task in tasks)}")
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
