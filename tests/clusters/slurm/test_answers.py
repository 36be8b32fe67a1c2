"""Reading the output of Slurm's commands: transcripts of three versions, texts of users, lists of hosts, damage."""

import random
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime

import pytest

from pytest_dtfperf.clusters.slurm import parse
from pytest_dtfperf.clusters.slurm.parse import ParseError, SlurmJob, expand_hostlist
from tests.clusters.slurm.record import COMMENT, NAME, TRANSCRIPTS
from tests.clusters.slurm.site import Site

VERSIONS = ("20.11", "22.05", "24.11")
READERS: Mapping[str, Callable[[str], list[SlurmJob]]] = {
    "squeue": parse.parse_squeue,
    "scontrol": parse.parse_scontrol,
    "sacct": parse.parse_sacct,
}
LISTS = 50

each_version = pytest.mark.parametrize("version", VERSIONS)
each_reader = pytest.mark.parametrize("command", READERS)
both_of_now = pytest.mark.parametrize("command", ["squeue", "scontrol"])  # sacct has ended jobs

# Scenario: state, nodes, and the reason; None where it depends on the moment or the version.
STATES: Mapping[str, tuple[str, str, str | None]] = {
    "running": ("RUNNING", "n1", None),
    "running-on-all": ("RUNNING", "n1 n2 n3 n4", None),
    "prolog": ("RUNNING", "n1", "Prolog"),
    "configuring": ("CONFIGURING", "n4", ""),
    "suspended": ("SUSPENDED", "n1", ""),
    "completing": ("COMPLETING", "n2", ""),
    "pending-resources": ("PENDING", "", "Resources"),
    "pending-priority": ("PENDING", "", "Priority"),
    "pending-dependency": ("PENDING", "", "Dependency"),
    "pending-never": ("PENDING", "", "DependencyNeverSatisfied"),
    "pending-begin": ("PENDING", "", "BeginTime"),
    "pending-held": ("PENDING", "", "JobHeldUser"),
    "pending-closed": ("PENDING", "", "PartitionDown"),
    "pending-inactive": ("PENDING", "", "PartitionInactive"),
    "pending-node-limit": ("PENDING", "", "PartitionNodeLimit"),
    "pending-time-limit": ("PENDING", "", "PartitionTimeLimit"),
    "pending-config": ("PENDING", "", None),
    "pending-licenses": ("PENDING", "", "Licenses"),
    "pending-reservation": ("PENDING", "", "Reservation"),
    "pending-not-available": ("PENDING", "", None),
    "requeued": ("PENDING", "", "BeginTime"),
    "requeue-hold": ("PENDING", "", "job requeued in held state"),
    "special-exit": ("SPECIAL_EXIT", "", "job requeued in held state"),
    "preempted-requeued": ("PENDING", "", "BeginTime"),
    "node-fail-requeued": ("PENDING", "", None),
    "launch-failed-held": ("PENDING", "", "launch failed requeued held"),
    "completed": ("COMPLETED", "n1", ""),
    "failed": ("FAILED", "n1", "NonZeroExitCode"),
    "failed-by-signal": ("FAILED", "n1", None),
    "out-of-memory": ("OUT_OF_MEMORY", "n1", "OutOfMemory"),
    "cancelled-waiting": ("CANCELLED", "", None),
    "cancelled": ("CANCELLED", "n2", ""),
    "preempted": ("PREEMPTED", "n4", ""),
    "node-fail": ("NODE_FAIL", "n3 n4", "NodeDown"),
    "timeout": ("TIMEOUT", "n1", "TimeLimit"),
    "deadline": ("DEADLINE", "", "DeadLine"),
}


def transcript(version: str, command: str) -> dict[str, str]:
    """Return what the command printed in each scenario."""
    _, *parts = re.split(r"^## (\S+)\n", (TRANSCRIPTS / version / f"{command}.txt").read_text(), flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def jobs(version: str, command: str, scenario: str) -> list[SlurmJob]:
    return READERS[command](transcript(version, command)[scenario])


def job(version: str, command: str, scenario: str) -> SlurmJob:
    (only,) = jobs(version, command, scenario)
    return only


@each_version
@each_reader
def test_every_recorded_output_is_parsed(version: str, command: str) -> None:
    """All recorded output is parsed as at least one job with its user, id and time limit."""
    recorded = transcript(version, command)
    assert len(recorded) > len(STATES)
    for scenario in recorded:
        for read in jobs(version, command, scenario):
            assert read.user == "root", scenario
            assert re.fullmatch(r"\d+([+]\d+|_\d+|_\[\d+-\d+%\d+\])?", read.id), scenario
            assert read.time_limit, scenario


@each_version
@both_of_now
@pytest.mark.parametrize("scenario", STATES)
def test_states_reasons_and_nodes(version: str, command: str, scenario: str) -> None:
    """Both commands' output is read as one job, with its state, nodes and reason, in every state."""
    state, nodes, reason = STATES[scenario]
    read = job(version, command, scenario)
    assert (read.state, read.nodes) == (state, tuple(nodes.split()))
    assert reason is None or read.reason == reason


@each_version
@both_of_now
def test_reasons_with_details_read_alike(version: str, command: str) -> None:
    """Details after a reason are kept, and scontrol's underscores become the blanks that they stand for."""
    reason = job(version, command, "pending-not-available").reason
    assert reason in ("ReqNodeNotAvail, UnavailableNodes:n3", "ReqNodeNotAvail, May be reserved for other job")


@each_version
@pytest.mark.parametrize("command", ["scontrol", "sacct"])
@pytest.mark.parametrize(
    "scenario, code, signal",
    [("completed", 0, 0), ("failed", 3, 0), ("failed-by-signal", 0, 9), ("out-of-memory", 0, 125), ("failed-first", 1, 0)],
)
def test_exit_codes_and_signals(version: str, command: str, scenario: str, code: int, signal: int) -> None:
    """Exit codes are distinguished from signals."""
    read = job(version, command, scenario)
    assert (read.exit_code, read.signal) == (code, signal)


@each_version
def test_accounting_has_the_end_of_a_job(version: str) -> None:
    """sacct's output is read without steps, without the reason of an earlier wait, and with the user who cancelled the job."""
    for scenario, state in [("timeout", "TIMEOUT"), ("node-fail", "NODE_FAIL"), ("preempted", "PREEMPTED")]:
        read = job(version, "sacct", scenario)
        assert (read.state, read.reason, read.cancelled_by) == (state, "", None)
    assert job(version, "sacct", "cancelled").state == "CANCELLED"
    assert job(version, "sacct", "cancelled").cancelled_by == "0"
    assert ".batch" in transcript(version, "sacct")["completed"]


@each_version
def test_failed_node_is_named_where_slurm_does(version: str) -> None:
    """The failed node is known from the Slurm version on that reports it; before, no node is named."""
    named = "FailedNode=" in transcript(version, "scontrol")["node-fail"]
    assert job(version, "scontrol", "node-fail").failed_node == ("n4" if named else None)
    assert named == (version == "24.11")


@each_version
@both_of_now
def test_times(version: str, command: str) -> None:
    """A job that runs has a start; one that waits has one only where Slurm estimates it."""
    began = job(version, command, "running").start
    planned = job(version, command, "pending-begin").start
    assert began
    assert planned
    assert 3000 < planned - began < 4200
    assert job(version, command, "pending-held").start is None


@each_version
@both_of_now
def test_text_of_people(version: str, command: str) -> None:
    """Names and comments are read as they were written, blanks, `|`, `=`, quotes, new lines and would-be fields included."""
    plain = job(version, command, "running")
    assert (plain.name, plain.comment) == (NAME, COMMENT)
    lines = job(version, command, "lines")
    assert (lines.name, lines.comment) == ("two\nlines", "two\nlines")
    assert job(version, command, "completed").comment == ""


@each_version
@both_of_now
def test_all_jobs_at_once(version: str, command: str) -> None:
    """Answers about many jobs are read as these jobs, although some have new lines in their names."""
    recorded = transcript(version, command)
    together = READERS[command]("".join(recorded.values()))
    assert together == [read for scenario in recorded for read in jobs(version, command, scenario)]


@each_version
@each_reader
def test_arrays_and_heterogeneous_jobs(version: str, command: str) -> None:
    """Every command's jobs of several parts are called as squeue calls them."""
    many = jobs(version, command, "array")
    number = many[0].id.partition("_")[0]
    assert {read.id for read in many} == {f"{number}_0", f"{number}_1", f"{number}_[2-9%2]"}
    parts = jobs(version, command, "heterogeneous")
    number = parts[0].id.partition("+")[0]
    assert [(read.id, read.nodes) for read in parts] == [
        (f"{number}+0", ("n1",)),
        (f"{number}+1", ("n2",)),
        (f"{number}+2", ("n4",)),
    ]
    if command != "squeue":
        assert sorted(read.exit_code for read in jobs(version, command, "array-failed")) == [1, 2, 3]


@each_version
def test_topology(version: str) -> None:
    """Every node belongs to its leaf switch, not to the one that joins them."""
    text = (TRANSCRIPTS / version / "topology.txt").read_text()
    assert parse.parse_topology(text) == {"n1": "s1", "n2": "s1", "n3": "s2", "n4": "s2"}


def test_no_topology() -> None:
    """Empty topology output gives no switches."""
    assert parse.parse_topology("") == {}


@each_reader
def test_no_jobs(command: str) -> None:
    """No answer is no jobs."""
    assert READERS[command]("") == []
    assert READERS[command]("\n") == []


def test_scontrol_message_of_no_jobs_is_an_empty_list() -> None:
    """scontrol's message that there are no jobs is read as an empty list."""
    assert parse.parse_scontrol("No jobs in the system\n") == []


@each_reader
@pytest.mark.parametrize(
    "text", ["slurm_load_jobs error: Invalid job id specified", "17|root", "JobId=17", "JobId=17 JobName=x"]
)
def test_other_text_is_refused(command: str, text: str) -> None:
    """Text that is no list of jobs is refused, and the error quotes it."""
    with pytest.raises(ParseError, match=re.escape(text)):
        READERS[command](text)


@each_reader
def test_damage_is_refused_or_harmless(command: str) -> None:
    """Output with a part cut out is read as jobs or refused with ParseError, never with another error."""
    chance = random.Random(3)
    for text in transcript("22.05", command).values():
        for _ in range(20):
            first, last = sorted(chance.choices(range(len(text)), k=2))
            with suppress(ParseError):
                READERS[command](text[:first] + text[last:])


@pytest.mark.parametrize(
    "command, whole, broken",
    [
        ("scontrol", "JobState=RUNNING", "JobState=running?"),
        ("scontrol", "ExitCode=0:0", "ExitCode=zero"),
        ("scontrol", " NodeList=n1", " NodeList=n[1-"),
        ("scontrol", "StartTime=", "StartTime=soon"),
        ("squeue", "RUNNING", ""),
        ("squeue", "\x1fn1\x1f", "\x1fn[x]\x1f"),
        ("squeue", "\x1fn1\x1f", "\x1f"),
        ("sacct", "0:0", "0"),
    ],
)
def test_broken_fields_are_refused(command: str, whole: str, broken: str) -> None:
    """A field that makes no sense is refused, and the error shows the line."""
    text = transcript("22.05", command)["running"]
    assert whole in text
    with pytest.raises(ParseError, match=f"cannot read what {command} printed: '"):
        READERS[command](text.replace(whole, broken, 1))


def test_local_times() -> None:
    """Times in Slurm's usual form are local time."""
    text = re.sub(r"StartTime=\d+", "StartTime=2026-03-01T14:05:09", transcript("22.05", "scontrol")["running"])
    assert parse.parse_scontrol(text)[0].start == datetime(2026, 3, 1, 14, 5, 9).timestamp()


@pytest.mark.parametrize(
    "hostlist, hosts",
    [
        ("n1", "n1"),
        ("n[1-3]", "n1 n2 n3"),
        ("n[3,1-2],b1", "n3 n1 n2 b1"),
        ("n[08-11]", "n08 n09 n10 n11"),
        ("n[001,1]", "n001 n1"),
        ("rack[1-2]n[1,4]-ib,login", "rack1n1-ib rack1n4-ib rack2n1-ib rack2n4-ib login"),
        ("", ""),
        ("(null)", ""),
        ("None assigned", ""),
        ("None", ""),
    ],
)
def test_lists_of_hosts(hostlist: str, hosts: str) -> None:
    """Lists are expanded in their order, with the zeros that they have."""
    assert expand_hostlist(hostlist) == tuple(hosts.split())


@pytest.mark.parametrize("hostlist", ["n[1-3", "n1-3]", "n[]", "n[a-b]", "n[3-1]", "n1,,n2", "n[1,]", "n[[1]]", ","])
def test_lists_that_are_none(hostlist: str) -> None:
    """A list that makes no sense is refused and shown."""
    with pytest.raises(ParseError, match=re.escape(hostlist)):
        expand_hostlist(hostlist)


def test_lists_of_hosts_as_slurm_expands_them(site: Site) -> None:
    """Slurm itself expands random lists to the same names in the same order."""
    chance = random.Random(7)
    for _ in range(LISTS):
        hostlist = ",".join(_pattern(chance) for _ in range(chance.randint(1, 4)))
        assert expand_hostlist(hostlist) == tuple(site.run("scontrol", "show", "hostnames", hostlist).split()), hostlist


def _pattern(chance: random.Random) -> str:
    """`n[3,08-11]gpu-[1-2]`, `login2`, ...; without a suffix, which Slurm itself understands only from some version on."""
    parts = "".join(f"{chance.choice(['n', 'gpu-', 'r'])}[{_ranges(chance)}]" for _ in range(chance.randint(0, 2)))
    return parts or f"login{chance.randint(0, 12)}"


def _ranges(chance: random.Random) -> str:
    width = chance.choice([1, 2, 3])
    starts = [chance.randint(0, 90) for _ in range(chance.randint(1, 3))]
    return ",".join(
        f"{start:0{width}}-{start + 5:0{width}}" if chance.random() < 0.6 else f"{start:0{width}}" for start in starts
    )


def sinfo_line(*fields: str) -> str:
    return "\x1f".join(fields) + "\n"


@pytest.mark.parametrize(
    "state, is_available",
    [
        ("idle", True), ("mixed", True), ("allocated", True), ("idle~", True), ("planned", True), ("idle*", False),
        ("down*", False), ("drained", False), ("draining", False), ("drained*", False), ("maint", False), ("reserved", False),
        ("fail", False),
    ],
)  # fmt: skip
def test_unavailable_nodes_are_recognised(state: str, is_available: bool) -> None:
    """Nodes that are drained, down, reserved or silent are unavailable, independent of the mark after their state."""
    (node,) = parse.parse_sinfo(sinfo_line("n1", state, "36", "64000", "gpu:p100:1", "(null)", "main*", "none"))
    assert node.is_available == is_available


def test_nodes_of_sinfo() -> None:
    """A line has a node with its kind, its partition and the administrator's reason, which may contain anything."""
    first, second = parse.parse_sinfo(
        sinfo_line("n1", "down*", "36", "64000", "gpu:p100:1", "mc,ssd", "main*", "no \x1b[2J power")
        + sinfo_line("n2", "idle", "72", "128000", "(null)", "(null)", "fat", "none")
    )
    assert (first.kind, first.partition, first.is_default) == ("36 cores, 64000 MiB, gpu:p100:1, mc,ssd", "main", True)
    assert str(first) == "n1 (down, not responding: no \\x1b[2J power)"
    assert (second.kind, second.partition, second.is_default) == ("72 cores, 128000 MiB", "fat", False)
    assert str(second) == "n2 (idle)"
    with pytest.raises(ParseError, match="sinfo"):
        parse.parse_sinfo("slurm_load_partitions: nothing\n")
