"""Tables of all messages from hosts, by the program that sends them.

The programs are agents (node/agent.py), checkups of the doctor (node/checkup.py), fetch processes (staging/on_host.py),
and supervisors of SSH hosts (node/boot.py, node/supervisor.py, and the shell of clusters/ssh/bootstrap.py).
"""

from typing import Any

from pytest_dtfperf import traces
from pytest_dtfperf.codec import ValidationError
from pytest_dtfperf.datamodel.fingerprint import HostFingerprint
from pytest_dtfperf.datamodel.host_state import MAX_CPUS, HostState
from pytest_dtfperf.datamodel.probes import Reading
from pytest_dtfperf.datamodel.task_report import TaskReport
from pytest_dtfperf.messages.received import (
    COUNT,
    ENDED,
    FOLDER,
    FROM,
    GPU,
    HOST,
    LAST_LINES,
    LINE_CHARACTERS,
    OF_RUN,
    OF_TASK,
    PID,
    PORT,
    REASON,
    SECONDS,
    STATE,
    TASK,
    Message,
    MessageError,
    Table,
    address,
    data_of,
    describe_invalid,
    flag,
    flat_data_of,
    lines,
    list_of,
    mapping,
    matching,
    number,
    number_or,
    optional,
    or_error,
    packed,
    record,
    text,
    validate_message,
    whole,
)
from pytest_dtfperf.node.tunnel import CHUNK

_CLOCK = optional(number(1, 1e12))
_PART = record({"bytes": whole(0, 1 << 50), "counted_s": number(1e-3, 1e6)})
_TASK_SAYS: Table = {
    "ready": record(OF_TASK),
    "progress": record({**OF_TASK, "step": COUNT, "of": COUNT}, may={"images_per_sec": optional(SECONDS)}),
    "output": record({**OF_TASK, "lines": list_of(text(LINE_CHARACTERS), LINE_CHARACTERS), "left_out": COUNT}),
    "missing": record(
        {
            **OF_TASK,
            "what": matching("module|model|data", "a kind of what a host may lack"),
            "name": matching(r"\w[\w.-]{0,99}", "a name"),
        }
    ),
    "timestamps": record(OF_TASK, may={"data": packed(traces.MOST_CHARACTERS, "packed timestamps"), "error": text()}),
    "trace": record(OF_TASK, may={"data": packed(traces.MOST_CHARACTERS, "a packed trace"), "error": text()}),
    "report": flat_data_of(TaskReport, "report", OF_TASK),
    # Of a task that probes its host: training/probing.py.
    "reading": record(
        {**OF_TASK, "name": matching(r"[a-z0-9._]{1,60}", "the name of a reading")},
        may={"reading": optional(data_of(Reading)), "error": optional(REASON)},
    ),
    "facts": record(
        {
            **OF_TASK,
            "limits": mapping(text(60), number_or(text(60)), 50),
            "clock_hz": _CLOCK,
            "most_clock_hz": _CLOCK,
            "state": data_of(HostState),
        }
    ),
    "stream": record({**OF_TASK, "round": COUNT, "to": HOST, "parts": list_of(_PART, 100), "error": optional(REASON)}),
    "done": record({**OF_TASK, "phase": text(60)}),
}


def _of_task(value: Any) -> Any:
    return validate_message(_TASK_SAYS, value, "kind")


_OF_CONNECTION = {**OF_RUN, "connection": COUNT}
_TUNNEL_DOES: Table = {
    "ready": record(OF_RUN),
    "data": record({**_OF_CONNECTION, "data": packed(CHUNK * 4 // 3, "base64 of one message")}),
    "took": record({**_OF_CONNECTION, "bytes": COUNT}),
    "end": record(_OF_CONNECTION),
    "gone": record(_OF_CONNECTION),
}


def _of_tunnel(value: Any) -> Any:
    return validate_message(_TUNNEL_DOES, value, "does")


_INTERFACE = record(
    {
        "name": matching(r"[^\s/]{1,15}", "the name of an interface"),
        "addresses": list_of(address, 4096),
        "kind": matching("InfiniBand|RoCE|Ethernet", "a kind of network"),
        "gbps": optional(number(0, 1e6)),
    }
)

AGENT: Table = {
    "hello": record(
        {
            **FROM,
            "fingerprint": data_of(HostFingerprint),
            "pid": PID,
            "cpus": list_of(whole(0, MAX_CPUS - 1), MAX_CPUS, least=1, unique=True),
            "gpus": list_of(GPU, 256, unique=True),
            "addresses": list_of(address, 4096),
            "interfaces": list_of(_INTERFACE, 4096),
            "unguarded": optional(REASON),
            "boot": text(60),
        }
    ),
    "beat": record(
        {
            **OF_RUN,
            "tasks": mapping(TASK, record({"pid": PID, "state": STATE, "cpu_s": SECONDS}), 4096),
            "zygote_state": optional(STATE),
            "load": SECONDS,
        }
    ),
    "reserved": record({**OF_RUN, "ports": list_of(PORT, 4096, unique=True)}),
    "refused": record({**OF_RUN, "reason": REASON, "ports": list_of(PORT, 4096)}),
    "started": record({**OF_TASK, "pid": PID}),
    "task": _of_task,
    "exit": record({**OF_TASK, **ENDED}),
    "zygote_died": record({**OF_RUN, **ENDED}),
    "state": record({**OF_RUN, "state": data_of(HostState)}),
    "stopped": record({**OF_RUN, "survivors": list_of(PID, 1 << 16)}),
    "log": record({**OF_TASK, "text": lines}),
    "tunnel": _of_tunnel,
}


_REACHED = record({"to": HOST, "port": PORT, "error": optional(REASON)})
_DISK = record({"what": text(60), "folder": text(4096), "free_bytes": COUNT, "total_bytes": COUNT})

CHECKUP: Table = {
    "hello": record(FROM),
    "beat": record(FROM),
    "clock": record({**FROM, "round": COUNT, "arrived_s": number(0, 1e12), "left_s": number(0, 1e12)}),
    "facts": or_error(
        record(
            {
                **FROM,
                "hostname": text(),
                "addresses": list_of(address, 4096),
                "interfaces": list_of(_INTERFACE, 4096),
                "python": text(60),
                "executable": text(4096),
                "tensorflow": optional(text(60)),
                "cores": whole(1, MAX_CPUS),
                "machine_cores": whole(1, MAX_CPUS),
                "load": SECONDS,
                "memory_bytes": COUNT,
                "gpus": optional(list_of(record({"name": text(), "memory_mib": COUNT}), 256)),
                "gpus_error": optional(REASON),
                "disks": list_of(_DISK, 100),
                "unisolated": optional(REASON),
                "unguarded": optional(REASON),
            }
        )
    ),
    "write": or_error(record(FROM)),
    "list_files": or_error(record({**FROM, "sees": list_of(HOST, 1 << 16)})),
    "remove": or_error(record(FROM)),
    "listen": or_error(
        record({**FROM, "ports": list_of(PORT, 4096), "taken": list_of(whole(0, 65535), 4096), "has_address": flag})
    ),
    "reach": or_error(record({**FROM, "reached": list_of(_REACHED, 1 << 20)})),
    "trial": or_error(
        record({**FROM, "version": text(60), "gpus": whole(0, 1024), "import_s": SECONDS}), also={"last_lines": LAST_LINES}
    ),
    "measure": or_error(
        record({**FROM, "to": HOST, "round_trip_s": SECONDS, "echoes": COUNT, "bytes": COUNT, "counted_s": SECONDS}),
        also={"to": HOST},
    ),
}


FETCH: Table = {
    "hello": record(FROM),
    "progress": record({**FROM, "bytes": COUNT, "moved": COUNT, "waiting": flag}),
    "staged": record({**FROM, "folder": FOLDER, "fetched": COUNT, "bytes": COUNT}),
    "failed": record({**FROM, "reason": REASON}),
}


_SURVEY = {
    "hostname": matching(r"[0-9A-Za-z._-]{1,255}", "the name of a host"),
    "addresses": list_of(address, 4096),
    "reached_at": matching(r"[0-9A-Fa-f:.%\w-]{0,255}", "an address"),
    "left": mapping(text(), list_of(text(), 1 << 16), 4096),
}
_SUPERVISOR_AT: Table = {
    "python": record({}),
    "setup": record({"line": whole(1)}),
    "bundle": record({}),
    "environment": record({"doing": text()}),
    "ready": lambda value: record(_SURVEY if value else {})(value),
    "started": record({}),
    "swept": record({"survivors": list_of(PID, 1 << 16)}),
}
_SUPERVISOR_FAILED: Table = {
    "setup": record({"line": whole(1), "code": whole(0, 255)}),
    "python": record({}),
    "version": record({"version": text(60)}),
    "bundle": record({"why": REASON}),
    "folder": record({"folder": text(4096), "why": REASON}),
    "environment": record({"why": REASON, "hint": REASON}),
    "program": record({"program": text(4096)}),
}
_SUPERVISOR_ENDED = record({"ended": optional(whole(-255, 255)), "survivors": list_of(PID, 1 << 16)})


def parse_supervisor_message(message: Message) -> Message:
    """Return a supervisor's validated message: its step, a failure, or the end of its command. Raises `MessageError`."""
    for name, table in (("at", _SUPERVISOR_AT), ("failed", _SUPERVISOR_FAILED)):
        if name in message:
            return validate_message(table, message, name)
    try:
        ended: Message = _SUPERVISOR_ENDED(message)
    except ValidationError as error:
        raise MessageError(f"sent an unknown message: {describe_invalid(error)}") from None
    return ended
