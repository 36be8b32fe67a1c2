"""The messages of agents (node/agent.py), and of the tasks that they forward."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from pytest_dtfperf import traces
from pytest_dtfperf.codec import JsonData, ValidationError, describe
from pytest_dtfperf.datamodel.fingerprint import HostFingerprint
from pytest_dtfperf.datamodel.host_state import MAX_CPUS, HostState
from pytest_dtfperf.datamodel.probes import Reading
from pytest_dtfperf.datamodel.task_report import TaskReport
from pytest_dtfperf.formats import printable_lines
from pytest_dtfperf.messages import (
    ADDRESSES,
    COUNT,
    HOST,
    LAST_LINES,
    LINE_CHARACTERS,
    MODEL,
    MOST_ITEMS,
    PID,
    PIDS,
    PORTS,
    REASON,
    SECONDS,
    SHORT_TEXT,
    TASK_PATTERN,
    TEXT,
    Message,
    MessageError,
    MessageTable,
    RunMessage,
    TaskMessage,
    check_unique,
    describe_parts,
    describe_pattern,
    describe_text,
)
from pytest_dtfperf.node.tunnel import CHUNK

_LOG_CHARACTERS = 1 << 20  # agents send 256 KiB of each
_BASE64 = "[0-9A-Za-z+/=]"
_STATE = describe_pattern("the letter of a process's state", "[A-Za-z]?")
_PACKED = describe_pattern("packed data in base64", f"{_BASE64}{{0,{traces.MOST_CHARACTERS}}}")


@dataclass(frozen=True, kw_only=True)
class InterfaceEntry(JsonData):
    """A network interface."""

    name: str = field(metadata=describe_pattern("the name of an interface", r"[^\s/]{1,15}"))
    addresses: Sequence[str] = field(metadata=ADDRESSES)
    kind: Literal["InfiniBand", "RoCE", "Ethernet"]
    gbps: float | None = field(metadata=describe(at_least=0, at_most=1e6))


@dataclass(frozen=True, kw_only=True)
class TaskEntry(JsonData):
    """A task's process in a sign of life."""

    pid: int = field(metadata=PID)
    state: str = field(metadata=_STATE)
    cpu_s: float = field(metadata=SECONDS)


@dataclass(frozen=True, kw_only=True)
class HelloMessage(Message):
    """The first message of an agent."""

    fingerprint: HostFingerprint = field(metadata=MODEL)
    pid: int = field(metadata=PID)
    cpus: Sequence[int] = field(
        metadata={**describe(at_least=0, at_most=MAX_CPUS - 1, min_size=1, max_size=MAX_CPUS), "convert": check_unique}
    )
    gpus: Sequence[str] = field(
        metadata={
            **describe_pattern("a GPU's number or UUID", "[0-9A-Za-z/.:-]{1,80}", max_size=256),
            "convert": check_unique,
        }
    )
    addresses: Sequence[str] = field(metadata=ADDRESSES)
    interfaces: Sequence[InterfaceEntry] = field(metadata=describe_parts())
    unguarded: str | None = field(metadata=REASON)
    boot: str = field(metadata=SHORT_TEXT)


@dataclass(frozen=True, kw_only=True)
class BeatMessage(RunMessage):
    """A sign of life of a host in a run."""

    tasks: Mapping[str, TaskEntry] = field(metadata=describe(key_pattern=TASK_PATTERN, max_size=MOST_ITEMS))
    zygote_state: str | None = field(metadata=_STATE)
    load: float = field(metadata=SECONDS)

    def list_tasks(self) -> Sequence[str]:
        return tuple(self.tasks)


@dataclass(frozen=True, kw_only=True)
class ReservedMessage(RunMessage):
    """The ports that a host has reserved."""

    once = "reserved"
    ports: Sequence[int] = field(metadata={**PORTS, "convert": check_unique})

    def check(self, num_tasks: int) -> None:
        if len(self.ports) != num_tasks:
            raise MessageError(f"reserved {len(self.ports)} ports instead of {num_tasks}")


@dataclass(frozen=True, kw_only=True)
class RefusedMessage(RunMessage):
    """The reason why a host cannot reserve ports."""

    reason: str = field(metadata=REASON)
    ports: Sequence[int] = field(metadata=PORTS)


@dataclass(frozen=True, kw_only=True)
class StartedMessage(TaskMessage):
    """A task's process exists."""

    once = "started"
    pid: int = field(metadata=PID)


@dataclass(frozen=True, kw_only=True)
class ProcessEnd(RunMessage):
    """The end of a process: its exit code, or the signal that killed it."""

    code: int | None = field(metadata=describe(at_least=0, at_most=255))
    signal: int | None = field(metadata=describe(at_least=1, at_most=255))
    last_lines: Sequence[str] = field(metadata=LAST_LINES)

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.code is None) == (self.signal is None):
            raise ValidationError("a number if signal is null, and null if it is not", self.code, "code")

    @property
    def status(self) -> int:
        """The exit code, or the negative number of the signal."""
        return self.code if self.code is not None else -(self.signal or 0)


@dataclass(frozen=True, kw_only=True)
class ExitMessage(TaskMessage, ProcessEnd):
    """The end of a task."""

    once = "exit"


@dataclass(frozen=True, kw_only=True)
class ZygoteDeathMessage(ProcessEnd):
    """The end of a zygote during a run."""


@dataclass(frozen=True, kw_only=True)
class StateMessage(RunMessage):
    """The state of a host in a run."""

    once = "state"
    state: HostState = field(metadata=MODEL)


@dataclass(frozen=True, kw_only=True)
class StoppedMessage(RunMessage):
    """All processes of a run have ended on a host."""

    survivors: Sequence[int] = field(metadata=PIDS)


@dataclass(frozen=True, kw_only=True)
class LogMessage(TaskMessage):
    """The log of a task."""

    once = "log"
    text: str = field(metadata=describe_text(_LOG_CHARACTERS, printable_lines))


@dataclass(frozen=True, kw_only=True)
class ForwardedMessage(TaskMessage):
    """A message that a task sent to its agent."""


@dataclass(frozen=True, kw_only=True)
class ReadyMessage(ForwardedMessage):
    """A task waits for the order to train."""

    once = "ready"


@dataclass(frozen=True, kw_only=True)
class ProgressMessage(ForwardedMessage):
    """The number of steps that a task has done."""

    step: int = field(metadata=COUNT)
    total_steps: int = field(metadata=COUNT)
    images_per_sec: float | None = field(default=None, metadata=SECONDS)


@dataclass(frozen=True, kw_only=True)
class OutputMessage(ForwardedMessage):
    """Lines of a program's output."""

    lines: Sequence[str] = field(metadata=describe_text(LINE_CHARACTERS, inner_sizes=(LINE_CHARACTERS,)))
    left_out: int = field(metadata=COUNT)


@dataclass(frozen=True, kw_only=True)
class MissingMessage(ForwardedMessage):
    """What a task needs and its host lacks."""

    what: Literal["module", "model", "data"]
    name: str = field(metadata=describe_pattern("a name", "[0-9A-Za-z_][0-9A-Za-z_.-]{0,99}"))


@dataclass(frozen=True, kw_only=True)
class PackedMessage(ForwardedMessage):
    """Packed data of a task's steps, or why there is none."""

    data: str | None = field(default=None, metadata=_PACKED)
    error: str | None = field(default=None, metadata=TEXT)


@dataclass(frozen=True, kw_only=True)
class TimestampsMessage(PackedMessage):
    """The timestamps of a task's steps."""

    once = "timestamps"


@dataclass(frozen=True, kw_only=True)
class TraceMessage(PackedMessage):
    """The trace of a task's steps."""

    once = "trace"


@dataclass(frozen=True, kw_only=True)
class ReportMessage(ForwardedMessage):
    """The report of a task."""

    once = "report"
    report: TaskReport = field(metadata={**describe(is_inline=True), "is_model": True})

    def check(self, num_tasks: int) -> None:
        if self.report.name != self.task:
            raise MessageError(f"sent a report of {self.report.name} as that of {self.task}")


@dataclass(frozen=True, kw_only=True)
class ReadingMessage(ForwardedMessage):
    """A reading of a task that probes its host (training/probing.py), or why there is none."""

    name: str = field(metadata=describe_pattern("the name of a reading", "[a-z0-9._]{1,60}"))
    reading: Reading | None = field(default=None, metadata=MODEL)
    error: str | None = field(default=None, metadata=REASON)


@dataclass(frozen=True, kw_only=True)
class FactsMessage(ForwardedMessage):
    """The limits, clocks and state of a host during a probe."""

    limits: Mapping[str, float | str] = field(
        metadata=describe_text(50, inner_sizes=(60,), key_pattern="(?s).{0,60}", at_least=-1e18, at_most=1e18)
    )
    clock_hz: float | None = field(metadata=describe(at_least=1, at_most=1e12))
    most_clock_hz: float | None = field(metadata=describe(at_least=1, at_most=1e12))
    state: HostState = field(metadata=MODEL)


@dataclass(frozen=True, kw_only=True)
class StreamEntry(JsonData):
    """A part of a stream."""

    bytes: int = field(metadata=describe(at_least=0, at_most=1 << 50))
    counted_s: float = field(metadata=describe(at_least=1e-3, at_most=1e6))


@dataclass(frozen=True, kw_only=True)
class StreamMessage(ForwardedMessage):
    """A stream to another host, or why there was none."""

    round: int = field(metadata=COUNT)
    to: int = field(metadata=HOST)
    parts: Sequence[StreamEntry] = field(metadata=describe(max_size=100))
    error: str | None = field(metadata=REASON)


@dataclass(frozen=True, kw_only=True)
class DoneMessage(ForwardedMessage):
    """The end of a phase of a probe."""

    phase: str = field(metadata=SHORT_TEXT)


@dataclass(frozen=True, kw_only=True)
class TunnelMessage(RunMessage):
    """A message of a tunnel's other end (node/tunnel.py)."""

    is_of_tunnel = True
    does: ClassVar[str]


@dataclass(frozen=True, kw_only=True)
class TunnelReady(TunnelMessage):
    """The program listens."""

    does = "ready"


@dataclass(frozen=True, kw_only=True)
class ConnectionMessage(TunnelMessage):
    """A message of a connection."""

    connection: int = field(metadata=COUNT)


@dataclass(frozen=True, kw_only=True)
class ConnectionData(ConnectionMessage):
    """Data of a connection."""

    does = "data"
    data: str = field(metadata=describe_pattern("base64 of one message", f"{_BASE64}{{0,{CHUNK * 4 // 3}}}"))


@dataclass(frozen=True, kw_only=True)
class ConnectionReceipt(ConnectionMessage):
    """The number of bytes that were passed on."""

    does = "took"
    bytes: int = field(metadata=COUNT)


@dataclass(frozen=True, kw_only=True)
class ConnectionEnd(ConnectionMessage):
    """No more data follows."""

    does = "end"


@dataclass(frozen=True, kw_only=True)
class ConnectionGone(ConnectionMessage):
    """No more messages follow."""

    does = "gone"


_TASK_MESSAGES: MessageTable[Message] = MessageTable(
    "kind",
    {
        "ready": ReadyMessage,
        "progress": ProgressMessage,
        "output": OutputMessage,
        "missing": MissingMessage,
        "timestamps": TimestampsMessage,
        "trace": TraceMessage,
        "report": ReportMessage,
        "reading": ReadingMessage,
        "facts": FactsMessage,
        "stream": StreamMessage,
        "done": DoneMessage,
    },
)
_TUNNEL_MESSAGES: MessageTable[Message] = MessageTable(
    "does",
    {
        TunnelReady.does: TunnelReady,
        ConnectionData.does: ConnectionData,
        ConnectionReceipt.does: ConnectionReceipt,
        ConnectionEnd.does: ConnectionEnd,
        ConnectionGone.does: ConnectionGone,
    },
)
AGENT: MessageTable[Message] = MessageTable(
    "event",
    {
        "hello": HelloMessage,
        "beat": BeatMessage,
        "reserved": ReservedMessage,
        "refused": RefusedMessage,
        "started": StartedMessage,
        "task": _TASK_MESSAGES,
        "exit": ExitMessage,
        "zygote_died": ZygoteDeathMessage,
        "state": StateMessage,
        "stopped": StoppedMessage,
        "log": LogMessage,
        "tunnel": _TUNNEL_MESSAGES,
    },
)
