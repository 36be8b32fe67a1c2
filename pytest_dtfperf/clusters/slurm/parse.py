"""Parse what squeue, scontrol and sacct of Slurm 20.11 to 24.11 print. Starts nothing.

A job's name and comment may contain anything: blanks, `|`, `=`, new lines, even text that looks like a field. So squeue and
sacct are asked to put control characters between fields, and scontrol's KEY=VALUE are read only where Slurm writes.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from pytest_dtfperf.clusters import file
from pytest_dtfperf.clusters.file import HostListError
from pytest_dtfperf.formats import printable

_RECORD, _FIELD = "\x1e", "\x1f"  # ASCII's own separators of records and fields

# Id, user, state, reason, nodes, (expected) start, time limit, comment, name.
SQUEUE_FORMAT = _RECORD + _FIELD.join(("%i", "%u", "%T", "%r", "%N", "%S", "%l", "%k", "%j"))
SACCT_FORMAT = "JobID,User,State,ExitCode,Reason,NodeList,Start,Timelimit,Comment,JobName"
SACCT_DELIMITER = _FIELD  # for --delimiter

_NOTHING = ("", "(null)", "None", "None assigned", "N/A", "n/a", "Unknown", "NONE")
_SHOWN = 200  # characters of an answer that an error quotes


class ParseError(ValueError):
    """A command of Slurm printed text that this version cannot parse."""

    def __init__(self, command: str, text: str) -> None:
        shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
        super().__init__(f"cannot read what {command} printed: {shown!r}")


@dataclass(frozen=True)
class SlurmJob:
    """A job as one of Slurm's commands shows it. Fields that the command lacks have their defaults."""

    id: str  # "17"; "17_3": a task of an array; "17+1": a part of a heterogeneous job
    name: str
    user: str
    state: str  # Slurm's name: PENDING, RUNNING, ...
    reason: str  # why it waits, or has ended; empty if Slurm gives none
    nodes: tuple[str, ...]  # in Slurm's order
    exit_code: int = 0
    signal: int = 0
    start: float | None = None  # seconds since 1970; for a waiting job, the estimate, if there is one
    comment: str = ""
    failed_node: str | None = None
    time_limit: str = ""
    cancelled_by: str | None = None  # a user id


def parse_squeue(text: str) -> list[SlurmJob]:
    """Parse the output of `squeue --noheader --format=SQUEUE_FORMAT`. It has no exit codes."""
    before, *records = text.split(_RECORD)
    if before.strip():
        raise ParseError("squeue", before)
    return [_parse_squeue_job(record.removesuffix("\n")) for record in records]


def _parse_squeue_job(record: str) -> SlurmJob:
    fields = record.split(_FIELD)
    if len(fields) != SQUEUE_FORMAT.count(_FIELD) + 1:
        raise ParseError("squeue", record)
    job_id, user, state, reason, nodes, start, time_limit, comment, name = fields
    return SlurmJob(
        id=job_id,
        name=name,
        user=user,
        state=_parse_state("squeue", state, record),
        reason=printable(_drop_placeholder(reason)),
        nodes=_parse_nodes("squeue", nodes, record),
        start=_parse_time("squeue", start, record),
        comment=_drop_placeholder(comment),
        time_limit=time_limit,
    )


# The beginning of a line of `scontrol --oneliner show job`; names and comments may contain new lines.
_SCONTROL_JOB = re.compile(r"^JobId=\d+ (?:\w+=\S+ ){0,4}?JobName=", re.MULTILINE)
_SCONTROL_PARTS = re.compile(
    r"JobId=(?P<id>\d+) (?P<part_of>(?:\w+=\S+ )*?)JobName=(?P<name>.*?) "
    r"UserId=(?P<user>[^ (]+)\(\d+\) (?P<fields>GroupId=\S+ .*?) Command=(?P<rest>.*)",
    re.DOTALL,
)
_SCONTROL_FIELD = re.compile(r"(?:^| )([\w/:]+)=(\S*)")
# A comment ends with a blank. In the answer for a batch job, the last of these keys are Slurm's.
_SCONTROL_BATCH_COMMENT = re.compile(r" Comment=(.*)  StdErr=.* StdIn=", re.DOTALL)
_SCONTROL_COMMENT = re.compile(r" Comment=(.*?) (?= \w+[=:]|\s*$)", re.DOTALL)


def parse_scontrol(text: str) -> list[SlurmJob]:
    """Parse the output of `scontrol --oneliner show job`."""
    return [_parse_scontrol_job(record) for record in _split_scontrol(text)]


def _split_scontrol(text: str) -> Iterator[str]:
    if text.strip() in ("", "No jobs in the system"):
        return
    starts = [match.start() for match in _SCONTROL_JOB.finditer(text)]
    if text[: starts[0] if starts else None].strip():
        raise ParseError("scontrol", text)
    for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
        yield text[start:end].rstrip("\n")


def _parse_scontrol_job(record: str) -> SlurmJob:
    parts = _SCONTROL_PARTS.match(record)
    if not parts:
        raise ParseError("scontrol", record)
    fields = dict(reversed(_SCONTROL_FIELD.findall(parts["fields"])))  # reversed: the first occurrence of a name counts
    exit_code, signal = _parse_exit("scontrol", fields.get("ExitCode", "0:0"), record)
    comment = _SCONTROL_BATCH_COMMENT.search(parts["rest"]) or _SCONTROL_COMMENT.search(parts["rest"])
    return SlurmJob(
        id=_parse_scontrol_id(parts["id"], dict(_SCONTROL_FIELD.findall(parts["part_of"]))),
        name=parts["name"],
        user=parts["user"],
        state=_parse_state("scontrol", fields.get("JobState", ""), record),
        reason=printable(_drop_placeholder(fields.get("Reason", "")).replace("_", " ")),  # Slurm replaces blanks by underscores
        nodes=_parse_nodes("scontrol", fields.get("NodeList", ""), record),
        exit_code=exit_code,
        signal=signal,
        start=_parse_time("scontrol", fields.get("StartTime", ""), record),
        comment=comment[1] if comment else "",
        failed_node=fields.get("FailedNode"),
        time_limit=fields.get("TimeLimit", ""),
    )


def _parse_scontrol_id(number: str, part_of: dict[str, str]) -> str:
    """Return the id in squeue's form."""
    if "ArrayTaskId" in part_of:
        tasks = part_of["ArrayTaskId"]
        return f"{part_of['ArrayJobId']}_{tasks if tasks.isdigit() else f'[{tasks}]'}"
    if "HetJobOffset" in part_of:
        return f"{part_of['HetJobId']}+{part_of['HetJobOffset']}"
    return number


def parse_sacct(text: str) -> list[SlurmJob]:
    """Parse jobs, without steps, from `sacct --parsable2 --noheader --delimiter=... --format=SACCT_FORMAT`."""
    jobs = [_parse_sacct_job(record) for record in _split_sacct(text)]
    return [job for job in jobs if "." not in job.id]


def _split_sacct(text: str) -> Iterator[str]:
    record = ""
    for line in text.splitlines(keepends=True):
        if _FIELD in line and record.count(_FIELD) >= SACCT_FORMAT.count(","):
            yield record.removesuffix("\n")
            record = ""
        record += line
    if record.strip():
        yield record.removesuffix("\n")


def _parse_sacct_job(record: str) -> SlurmJob:
    fields = record.split(_FIELD)
    if len(fields) != SACCT_FORMAT.count(",") + 1:
        raise ParseError("sacct", record)
    job_id, user, state, exit_code, reason, nodes, start, time_limit, comment, name = fields
    state, _, cancelled_by = state.partition(" by ")
    code, signal = _parse_exit("sacct", exit_code, record)
    return SlurmJob(
        id=job_id,
        name=name,
        user=user,
        state=_parse_state("sacct", state, record),
        reason=printable(_drop_placeholder(reason)) if state == "PENDING" else "",  # of its wait, also after its end
        nodes=_parse_nodes("sacct", nodes, record),
        exit_code=code,
        signal=signal,
        start=_parse_time("sacct", start, record),
        comment=comment,
        time_limit=time_limit,
        cancelled_by=cancelled_by or None,
    )


# Node, state, cores, memory, generic resources, features, partition with a star after the default one, reason of its state.
SINFO_FORMAT = _FIELD.join(("%N", "%T", "%c", "%m", "%G", "%f", "%P", "%E"))
# State of nodes that get no job. Draining nodes end their last jobs.
_UNAVAILABLE = ("down", "drain", "drained", "draining", "error", "fail", "failing", "maint", "reserved", "unknown")
_MARKS = "*~#!%$@^-+"  # behind a state, as `down*`; the star: the node does not respond


@dataclass(frozen=True)
class SlurmNode:
    """A node as sinfo shows it."""

    name: str
    state: str  # without marks, `idle`
    responds: bool
    cores: str  # as sinfo has it: of several nodes in one line it may be `36+`
    memory_mib: str
    gres: str
    features: str
    partition: str
    is_default: bool  # whether its partition is the default one
    reason: str  # of its state, as the administrator has given it; empty without one

    @property
    def is_available(self) -> bool:
        """Whether the node gets jobs. Nodes of a reservation get those of that reservation alone."""
        return self.responds and self.state not in _UNAVAILABLE

    @property
    def hardware(self) -> str:
        """`36 cores, 64000 MiB, gpu:p100:1`."""
        return ", ".join(filter(None, [f"{self.cores} cores", f"{self.memory_mib} MiB", _drop_placeholder(self.gres)]))

    @property
    def kind(self) -> str:
        """`36 cores, 64000 MiB, gpu:p100:1, mc`: hardware and features."""
        return ", ".join(filter(None, [self.hardware, _drop_placeholder(self.features)]))

    def __str__(self) -> str:
        state = self.state if self.responds else f"{self.state}, not responding"
        return f"{self.name} ({state}: {self.reason})" if self.reason else f"{self.name} ({state})"


def parse_sinfo(text: str) -> list[SlurmNode]:
    """Parse the output of `sinfo --Node --noheader --format=SINFO_FORMAT`: a line for each node and partition."""
    return [_parse_sinfo_node(line) for line in text.splitlines() if line.strip()]


def _parse_sinfo_node(line: str) -> SlurmNode:
    fields = line.split(_FIELD, SINFO_FORMAT.count(_FIELD))
    if len(fields) != SINFO_FORMAT.count(_FIELD) + 1:
        raise ParseError("sinfo", line)
    name, state, cores, memory, gres, features, partition, reason = map(str.strip, fields)
    return SlurmNode(
        name=name,
        state=state.rstrip(_MARKS),
        responds="*" not in state[len(state.rstrip(_MARKS)) :],
        cores=cores,
        memory_mib=memory,
        gres=gres,
        features=features,
        partition=partition.removesuffix("*"),
        is_default=partition.endswith("*"),
        reason="" if reason.lower() == "none" else printable(_drop_placeholder(reason)),
    )


_NUMBER = re.compile(r"[0-9]{1,12}")  # only ASCII digits, and few enough for an integer
_LEAF = re.compile(r"^SwitchName=(\S+) Level=0 .*?\bNodes=(\S*)", re.MULTILINE)


def parse_topology(text: str) -> dict[str, str]:
    """Return the leaf switch of every node from `scontrol show topology`; empty if there are no switches."""
    return {node: switch for switch, nodes in _LEAF.findall(text) for node in expand_hostlist(nodes)}


def expand_hostlist(hostlist: str) -> tuple[str, ...]:
    """Expand a list of hosts like `scontrol show hostnames`, but without Slurm; empty for Slurm's placeholders."""
    if hostlist in _NOTHING:
        return ()
    try:
        return file.expand_hostlist(hostlist)
    except HostListError as exc:
        raise ParseError("Slurm as a list of hosts", hostlist) from exc


def _drop_placeholder(text: str) -> str:
    return "" if text in _NOTHING else text


def _parse_state(command: str, word: str, record: str) -> str:
    if not re.fullmatch(r"[A-Z_]+", word):
        raise ParseError(command, record)
    return word


def _parse_exit(command: str, text: str, record: str) -> tuple[int, int]:
    code, colon, signal = text.partition(":")
    if not (colon and _NUMBER.fullmatch(code) and _NUMBER.fullmatch(signal)):
        raise ParseError(command, record)
    return int(code), int(signal)


def _parse_time(command: str, text: str, record: str) -> float | None:
    """Return seconds since 1970 from Slurm's output: such seconds (SLURM_TIME_FORMAT=%s), or local time in ISO 8601."""
    if text in _NOTHING:
        return None
    if _NUMBER.fullmatch(text):
        return float(text)
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise ParseError(command, record) from None


def _parse_nodes(command: str, hostlist: str, record: str) -> tuple[str, ...]:
    try:
        return expand_hostlist(hostlist)
    except ParseError:
        raise ParseError(command, record) from None
