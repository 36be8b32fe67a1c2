"""The messages of other programs on hosts than agents.

They are checkups of the doctor (node/checkup.py), fetch processes (staging/on_host.py), and supervisors of SSH hosts
(node/boot.py, node/supervisor.py, and the shell of clusters/ssh/bootstrap.py).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_dtfperf.codec import JsonData, ValidationError, describe
from pytest_dtfperf.datamodel.host_state import MAX_CPUS
from pytest_dtfperf.messages import (
    ADDRESSES,
    COUNT,
    HOST,
    LAST_LINES,
    MOST,
    MOST_ITEMS,
    PATH,
    PIDS,
    PORT,
    PORTS,
    REASON,
    SECONDS,
    SHORT_TEXT,
    TEXT,
    Message,
    MessageError,
    MessageTable,
    ProgramMessage,
    TypeChoice,
    describe_parts,
    describe_pattern,
    describe_text,
    format_invalid,
)
from pytest_dtfperf.messages.agent import InterfaceEntry

_CLOCK_S = describe(at_least=0, at_most=1e12)
_CORES = describe(at_least=1, at_most=MAX_CPUS)
_HOSTS = describe(at_least=0, at_most=1 << 20, max_size=1 << 16)
_GPUS = describe(at_least=0, at_most=1024)


# Checkups


@dataclass(frozen=True, kw_only=True)
class CheckupHello(Message):
    """The first message of a checkup."""


@dataclass(frozen=True, kw_only=True)
class CheckupBeat(Message):
    """A sign of life of a checkup."""


@dataclass(frozen=True, kw_only=True)
class CheckupFailure(Message):
    """The error that prevented an answer."""

    error: str = field(metadata=REASON)


@dataclass(frozen=True, kw_only=True)
class TrialFailure(CheckupFailure):
    """The error that prevented the import of TensorFlow."""

    last_lines: Sequence[str] = field(default=(), metadata=LAST_LINES)


@dataclass(frozen=True, kw_only=True)
class LinkFailure(CheckupFailure):
    """The error that prevented the measurement of a link."""

    to: int | None = field(default=None, metadata=HOST)


@dataclass(frozen=True, kw_only=True)
class ClockAnswer(Message):
    """The times on a host's clock at which an order arrived and its answer left."""

    round: int = field(metadata=COUNT)
    arrived_s: float = field(metadata=_CLOCK_S)
    left_s: float = field(metadata=_CLOCK_S)


@dataclass(frozen=True, kw_only=True)
class GpuEntry(JsonData):
    """A GPU."""

    name: str = field(metadata=TEXT)
    memory_mib: int = field(metadata=COUNT)


@dataclass(frozen=True, kw_only=True)
class DiskEntry(JsonData):
    """The space in a folder."""

    what: str = field(metadata=SHORT_TEXT)
    folder: str = field(metadata=PATH)
    free_bytes: int = field(metadata=COUNT)
    total_bytes: int = field(metadata=COUNT)


@dataclass(frozen=True, kw_only=True)
class FactsAnswer(Message):
    """The hardware, software and state of a host."""

    hostname: str = field(metadata=TEXT)
    addresses: Sequence[str] = field(metadata=ADDRESSES)
    interfaces: Sequence[InterfaceEntry] = field(metadata=describe_parts(MOST_ITEMS))
    python: str = field(metadata=SHORT_TEXT)
    executable: str = field(metadata=PATH)
    tensorflow: str | None = field(metadata=SHORT_TEXT)
    cores: int = field(metadata=_CORES)
    machine_cores: int = field(metadata=_CORES)
    load: float = field(metadata=SECONDS)
    memory_bytes: int = field(metadata=COUNT)
    gpus: Sequence[GpuEntry] | None = field(metadata=describe_parts(256))
    gpus_error: str | None = field(metadata=REASON)
    disks: Sequence[DiskEntry] = field(metadata=describe_parts(100))
    unisolated: str | None = field(metadata=REASON)
    unguarded: str | None = field(metadata=REASON)


@dataclass(frozen=True, kw_only=True)
class WriteAnswer(Message):
    """A host has written its file."""


@dataclass(frozen=True, kw_only=True)
class FilesAnswer(Message):
    """The hosts with files that a host sees."""

    sees: Sequence[int] = field(metadata=_HOSTS)


@dataclass(frozen=True, kw_only=True)
class RemoveAnswer(Message):
    """A host has removed its file."""


@dataclass(frozen=True, kw_only=True)
class ListenAnswer(Message):
    """The ports on which a host listens."""

    ports: Sequence[int] = field(metadata=PORTS)
    taken: Sequence[int] = field(metadata=describe(at_least=0, at_most=65535, max_size=MOST_ITEMS))
    has_address: bool


@dataclass(frozen=True, kw_only=True)
class PortEntry(JsonData):
    """An attempt to connect to a port of another host."""

    to: int = field(metadata=HOST)
    port: int = field(metadata=PORT)
    error: str | None = field(metadata=REASON)


@dataclass(frozen=True, kw_only=True)
class ReachAnswer(Message):
    """The attempts to connect to other hosts."""

    reached: Sequence[PortEntry] = field(metadata=describe_parts(1 << 20))


@dataclass(frozen=True, kw_only=True)
class TrialAnswer(Message):
    """The result of importing TensorFlow."""

    version: str = field(metadata=SHORT_TEXT)
    gpus: int = field(metadata=_GPUS)
    import_s: float = field(metadata=SECONDS)


@dataclass(frozen=True, kw_only=True)
class LinkAnswer(Message):
    """The measurement of a link to another host."""

    to: int = field(metadata=HOST)
    round_trip_s: float = field(metadata=SECONDS)
    echoes: int = field(metadata=COUNT)
    bytes: int = field(metadata=COUNT)
    counted_s: float = field(metadata=SECONDS)


def _allow_failure(answer: type[Message], failure: type[CheckupFailure] = CheckupFailure) -> TypeChoice[Message]:
    """Return the choice between an answer and the error that prevented it."""
    return TypeChoice(lambda message: answer if message.get("error") is None else failure)


CHECKUP: MessageTable[Message] = MessageTable(
    "event",
    {
        "hello": CheckupHello,
        "beat": CheckupBeat,
        "clock": ClockAnswer,
        "facts": _allow_failure(FactsAnswer),
        "write": _allow_failure(WriteAnswer),
        "list_files": _allow_failure(FilesAnswer),
        "remove": _allow_failure(RemoveAnswer),
        "listen": _allow_failure(ListenAnswer),
        "reach": _allow_failure(ReachAnswer),
        "trial": _allow_failure(TrialAnswer, TrialFailure),
        "measure": _allow_failure(LinkAnswer, LinkFailure),
    },
)


# Fetch processes


@dataclass(frozen=True, kw_only=True)
class FetchHello(Message):
    """The first message of a fetch process."""


@dataclass(frozen=True, kw_only=True)
class FetchProgress(Message):
    """The bytes of complete files, the bytes that have moved, and whether another process fetches the same."""

    bytes: int = field(metadata=COUNT)
    moved: int = field(metadata=COUNT)
    waiting: bool


@dataclass(frozen=True, kw_only=True)
class FetchEnd(Message):
    """All files are in a folder."""

    folder: str = field(metadata=describe_pattern("the path of a folder", r"[^\x00-\x1f\x7f]{1,4096}"))
    fetched: int = field(metadata=COUNT)
    bytes: int = field(metadata=COUNT)


@dataclass(frozen=True, kw_only=True)
class FetchFailure(Message):
    """The reason why files cannot be fetched."""

    reason: str = field(metadata=REASON)


FETCH: MessageTable[Message] = MessageTable(
    "event", {"hello": FetchHello, "progress": FetchProgress, "staged": FetchEnd, "failed": FetchFailure}
)


# Supervisors


@dataclass(frozen=True, kw_only=True)
class PythonStep(ProgramMessage):
    """The interpreter runs."""


@dataclass(frozen=True, kw_only=True)
class SetupStep(ProgramMessage):
    """A line of the setup runs."""

    line: int = field(metadata=describe(at_least=1, at_most=MOST))


@dataclass(frozen=True, kw_only=True)
class BundleStep(ProgramMessage):
    """The host waits for the code that runs on hosts."""


@dataclass(frozen=True, kw_only=True)
class EnvironmentStep(ProgramMessage):
    """The environment is made."""

    doing: str = field(metadata=TEXT)


@dataclass(frozen=True, kw_only=True)
class ReadyStep(ProgramMessage):
    """The supervisor waits for an order."""


@dataclass(frozen=True, kw_only=True)
class HostSurvey(ReadyStep):
    """The supervisor waits for an order, and describes its host, as requested."""

    hostname: str = field(metadata=describe_pattern("the name of a host", "[0-9A-Za-z._-]{1,255}"))
    addresses: Sequence[str] = field(metadata=ADDRESSES)
    reached_at: str = field(metadata=describe_pattern("an address", "[0-9A-Za-z_:.%-]{0,255}"))
    left: Mapping[str, Sequence[str]] = field(
        metadata=describe_text(MOST_ITEMS, inner_sizes=(1 << 16, 300), key_pattern="(?s).{0,300}")
    )


@dataclass(frozen=True, kw_only=True)
class StartedStep(ProgramMessage):
    """The command runs."""


@dataclass(frozen=True, kw_only=True)
class SweptStep(ProgramMessage):
    """Earlier sessions have ended."""

    survivors: Sequence[int] = field(metadata=PIDS)


@dataclass(frozen=True, kw_only=True)
class SetupFailure(ProgramMessage):
    """A line of the setup has failed."""

    line: int = field(metadata=describe(at_least=1, at_most=MOST))
    code: int = field(metadata=describe(at_least=0, at_most=255))


@dataclass(frozen=True, kw_only=True)
class PythonFailure(ProgramMessage):
    """There is no interpreter."""


@dataclass(frozen=True, kw_only=True)
class VersionFailure(ProgramMessage):
    """The interpreter is too old."""

    version: str = field(metadata=SHORT_TEXT)


@dataclass(frozen=True, kw_only=True)
class BundleFailure(ProgramMessage):
    """The code that runs on hosts cannot be kept."""

    why: str = field(metadata=REASON)


@dataclass(frozen=True, kw_only=True)
class FolderFailure(ProgramMessage):
    """A folder is missing."""

    folder: str = field(metadata=PATH)
    why: str = field(metadata=REASON)


@dataclass(frozen=True, kw_only=True)
class EnvironmentFailure(ProgramMessage):
    """The environment cannot be made."""

    why: str = field(metadata=REASON)
    hint: str = field(metadata=REASON)


@dataclass(frozen=True, kw_only=True)
class ProgramFailure(ProgramMessage):
    """The program of the command is missing."""

    program: str = field(metadata=PATH)


SupervisorFailure = (
    SetupFailure | PythonFailure | VersionFailure | BundleFailure | FolderFailure | EnvironmentFailure | ProgramFailure
)


@dataclass(frozen=True, kw_only=True)
class SupervisorEnd(ProgramMessage):
    """The command has ended, with an exit code if it ended by itself."""

    ended: int | None = field(metadata=describe(at_least=-255, at_most=255))
    survivors: Sequence[int] = field(metadata=PIDS)


_STEPS: MessageTable[ProgramMessage] = MessageTable(
    "at",
    {
        "python": PythonStep,
        "setup": SetupStep,
        "bundle": BundleStep,
        "environment": EnvironmentStep,
        "ready": TypeChoice(lambda message: HostSurvey if message else ReadyStep),
        "started": StartedStep,
        "swept": SweptStep,
    },
)
_FAILURES: MessageTable[ProgramMessage] = MessageTable(
    "failed",
    {
        "setup": SetupFailure,
        "python": PythonFailure,
        "version": VersionFailure,
        "bundle": BundleFailure,
        "folder": FolderFailure,
        "environment": EnvironmentFailure,
        "program": ProgramFailure,
    },
)


def parse_supervisor_message(message: Mapping[str, Any]) -> ProgramMessage:
    """Return a supervisor's validated message: its step, a failure, or the end of its command. Raises `MessageError`."""
    for table in (_STEPS, _FAILURES):
        if table.key in message:
            return table.parse(message)
    try:
        return SupervisorEnd.from_json(message)
    except ValidationError as error:
        raise MessageError(f"sent an unknown message: {format_invalid(error)}") from None
