"""Tests of messages of hosts that are changed at random: they are valid, or refused with a printable message.

DTFPERF_FUZZ=20000 tries so many changes; a failure names the one, which is the same in every run.
"""

import json
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from pytest_dtfperf.baselines.files import validate
from pytest_dtfperf.clusters import placement
from pytest_dtfperf.clusters.named import Limits
from pytest_dtfperf.clusters.protocol import LossReason, Lost
from pytest_dtfperf.codec import ValidationError
from pytest_dtfperf.datamodel.probes import Probes
from pytest_dtfperf.doctor.diagnosis import Diagnosis, HostDiagnosis
from pytest_dtfperf.doctor.examination import Examination
from pytest_dtfperf.doctor.findings import ExpectedHardware, list_findings
from pytest_dtfperf.doctor.table import format_report
from pytest_dtfperf.errors import DtfPerfError, HostLost
from pytest_dtfperf.launch import link_rounds
from pytest_dtfperf.launch.disturbance import find_disturbances
from pytest_dtfperf.launch.probing import PARTS as PARTS_OF_A_STREAM
from pytest_dtfperf.launch.probing import Answers
from pytest_dtfperf.launch.summary import summarise
from pytest_dtfperf.launch.watch import Watch
from pytest_dtfperf.messages import JUNK_BYTES, MESSAGES, MessageError, MessageReceiver
from pytest_dtfperf.messages.agent import (
    AGENT,
    ExitMessage,
    ForwardedMessage,
    HelloMessage,
    LogMessage,
    RefusedMessage,
    StartedMessage,
    StateMessage,
)
from pytest_dtfperf.messages.programs import CHECKUP, FETCH, parse_supervisor_message
from pytest_dtfperf.node import wire
from pytest_dtfperf.spec import Spec
from tests.baselines.examples import entry_of
from tests.hostile.agent import ESCAPE, FINGERPRINT, GPU, STATE
from tests.records.host_states import make_state

MANY = int(os.environ.get("DTFPERF_FUZZ", "300"))
PARTS = 10  # tests that share them, so that several can run side by side
TASKS = {"ps:0": 0, "worker:0": 0, "worker:1": 1}
SPEC = Spec(model="trivial", batch_size=8, gpus=2, num_ps=1, warmup_steps=0, steps=3)
READING = {
    "index": "0", "uuid": "GPU-1", "sm_mhz": 1.0, "sm_max_mhz": 1.0, "memory_mhz": 1.0, "memory_max_mhz": 1.0,
    "reasons": ["gpu_idle"], "ecc_uncorrected": 0, "temperature_c": 30, "power_w": 100.0, "utilisation": 50,
}  # fmt: skip
INTERFACES = [{"name": "eth0", "addresses": ["10.0.0.1"], "kind": "Ethernet", "gbps": None}]
WHERE = {"addresses": ["10.0.0.1"], "interfaces": INTERFACES, "unguarded": None}
WITH_GPU = {**GPU, "before": READING, "after": READING, "others": [{"pid": 7, "name": "/bin/other", "memory_mib": 5}]}
STRANGE: Sequence[Any] = (
    None, True, False, -1, 0, 1, 3, 2**31, 2**63, 10**300, -0.5, 1e-300, 1e18, 1e308, float("nan"), float("inf"), "", "0",
    "worker:0", "ps:0", "../../x", "/etc/passwd", ESCAPE, "x" * 5000, "0-99999999999", "reboot",
    [], [[]], [None], [0], ["0"], [1.0], [1.0] * 3,
    [-1] * 3, {}, {"a": 1}, {"worker:0": {}}, {"pid": 1}, [{}], [{"to": 9, "port": 1, "error": None}],
)  # fmt: skip

Message = dict[str, Any]


def make_run_messages() -> list[Message]:
    """Return all messages of two honest agents in one run."""
    output: list[Message] = [
        {
            "event": "hello",
            "host": host,
            "fingerprint": FINGERPRINT,
            "pid": 7,
            "cpus": [0, 1],
            "gpus": ["0"],
            "boot": "",
            **WHERE,
        }
        for host in (0, 1)
    ]
    of_run = {"run": "r"}
    output += [
        {"event": "reserved", "host": host, **of_run, "ports": ports} for host, ports in ((0, [2000, 2001]), (1, [2000]))
    ]
    for task, host in TASKS.items():
        output.append({"event": "started", "host": host, **of_run, "task": task, "pid": 7})
        output.append({"event": "task", "host": host, **of_run, "task": task, "kind": "ready"})
    for host in (0, 1):
        tasks = {task: {"pid": 7, "state": "S", "cpu_s": 0.5} for task, where in TASKS.items() if where == host}
        output.append({"event": "beat", "host": host, **of_run, "tasks": tasks, "zygote_state": "S", "load": 0.1})
    for task, host in reversed(TASKS.items()):
        job, _, index = task.partition(":")
        report: Message = {"job": job, "index": int(index)}
        if job == "worker":
            report |= {
                "num_devices": 1,
                "step_s": [0.01] * 3,
                "loss": [1.0] * 3,
                "elapsed_s": 0.03,
                "startup_s": {"build": 0.5},
            }
            report |= {"bytes_sent": 5, "bytes_received": 5, "cpu_s": 0.1, "peak_rss_bytes": 9, "devices": ["/cpu:0"]}
            report |= {
                "graph": {"hash": "0123abcd", "operations": {"MatMul": 3}},
                "settings": {"TF_X": "1"},
                "reported_rate": None,
            }
            score = {"images": 10, "loss": 1.0, "total_loss": 1.5, "top_1": 0.5, "top_5": 0.9}
            report["evaluations"] = [{"step": 3, "trained_s": 0.03, "score": score}]
            progress = {"step": 1, "total_steps": 3, "images_per_sec": 9.5}
            output.append({"event": "task", "host": host, **of_run, "task": task, "kind": "progress", **progress})
            printed = {"lines": ["step 1", "step 2"], "left_out": 3}
            output.append({"event": "task", "host": host, **of_run, "task": task, "kind": "output", **printed})
        output.append({"event": "task", "host": host, **of_run, "task": task, "kind": "report", **report})
        output.append(
            {"event": "exit", "host": host, **of_run, "task": task, "code": 0, "signal": None, "last_lines": ["so long"]}
        )
    for host in (0, 1):
        output.append({"event": "state", "host": host, **of_run, "state": {**STATE, "gpus": [WITH_GPU]}})
        output.append({"event": "stopped", "host": host, **of_run, "survivors": []})
    output += [{"event": "log", "host": host, **of_run, "task": task, "text": "so\nlong"} for task, host in TASKS.items()]
    return output


def change_message(message: Any, dice: random.Random) -> Any:
    """Return the message with one value replaced, removed or repeated."""
    copy = json.loads(json.dumps(message))
    positions = list(_list_positions(copy))
    where, key = dice.choice(positions)
    match dice.randrange(5):
        case 0:
            del where[key]
        case 1 if isinstance(where, dict):
            where[dice.choice(["event", "task", "host", ESCAPE, "x"])] = dice.choice(STRANGE)
        case 2 if isinstance(where, list):
            where.extend([where[key]] * dice.choice([1, 100]))
        case _:
            where[key] = dice.choice(STRANGE)
    return copy


def _list_positions(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each container in the message with each of its keys."""
    pairs = list(value.items() if isinstance(value, dict) else enumerate(value))
    for key, below in pairs:
        yield value, key
        if isinstance(below, (dict, list)):
            yield from _list_positions(below)


def damage_line(line: bytes, dice: random.Random) -> bytes:
    """Return the line with a few bytes replaced."""
    found = bytearray(line)
    for _ in range(dice.randint(1, 4)):
        at = dice.randrange(len(found))
        found[at : at + dice.choice([0, 1, 9])] = dice.choice([b"", b"\x00", b"\xff", b"9" * 20, b"[", b"{", b'"', b"\\ud800"])
    return bytes(found)


def lead_run(lines: Sequence[tuple[int, bytes]]) -> None:
    """Do with the messages what the controller does. Raises `DtfPerfError`."""
    receiver = MessageReceiver(AGENT, 2)
    receiver.expect("r", TASKS)
    watch = Watch(TASKS, ["anna", "bert"], Limits(silence_s=1000), now=0.0, staying=["ps:0"])
    state: dict[str, Any] = {}
    for now, (host, line) in enumerate(lines):
        try:
            event = receiver.receive(host, line)
        except MessageError as exc:
            raise HostLost(str(exc)) from exc
        if event is None:
            continue
        if isinstance(event, HelloMessage):
            placement.HostView("anna", "127.0.0.1", tuple(event.cpus), tuple(event.gpus), None)
            continue
        if isinstance(event, StartedMessage):
            watch.enter("start", now)
        if isinstance(event, ExitMessage):
            watch.enter("leave", now)
        watch.receive(event, now)
        watch.check(now + 0.25)
        watch.check(now + 5.0)
        if isinstance(event, StateMessage):
            state["anna" if host == 0 else "bert"] = event.state
        if isinstance(event, LogMessage):
            event.text.encode()
    if not watch.all_done:
        raise HostLost("somebody has not come to an end")
    hosts = dict(sorted(((task, "anna" if host == 0 else "bert") for task, host in TASKS.items()), key=lambda each: each[1]))
    found = summarise(
        SPEC, watch.reports, hosts=hosts, launch_s={}, wall_s=1.0, state=state, disturbances=find_disturbances(state)
    )
    assert found.images_per_sec > 0
    json.dumps(found.to_json(), allow_nan=False).encode()


def is_visible(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))


def encode_messages(messages: Sequence[Message]) -> list[tuple[int, bytes]]:
    return [(message["host"], wire.encode(message)) for message in messages]


def test_unchanged_run_ends_well() -> None:
    """A run with unchanged messages has a rate."""
    lead_run(encode_messages(make_run_messages()))


@pytest.mark.campaign
@pytest.mark.parametrize("part", range(PARTS))
def test_changed_run_ends_or_is_refused(part: int) -> None:
    """A run with one changed message ends well, or with a short, printable error."""
    honest = make_run_messages()
    words = []
    for number in range(part, MANY, PARTS):
        dice = random.Random(number)
        at = dice.randrange(len(honest))
        lines = encode_messages(honest)
        host, line = lines[at]
        line = damage_line(line, dice) if dice.random() < 0.2 else wire.encode(change_message(honest[at], dice))
        try:
            lead_run([*lines[:at], (host, line), *lines[at + 1 :]])
        except DtfPerfError as exc:
            words.append((number, str(exc)))
        except Exception as exc:
            raise AssertionError(f"change {number}: {line[:300]!r}") from exc
    assert [number for number, output in words if not is_visible(output) or len(output) > 20_000] == []
    assert len(words) > MANY / PARTS / 3


# A probe's


def make_probe_messages() -> list[Message]:
    """Return all messages of two honest tasks in one probe: each computes, and one link between them is measured both ways."""
    measured = {"per_s": 4e10, "spread": 0.02, "repeats": 5, "how": {"threads": 1, "data": "mnist"}, "cpu_share": 0.98}
    facts = {"limits": {"cores": 2, "governor": "powersave"}, "clock_hz": 2e9, "most_clock_hz": None, "state": STATE}
    parts = {"parts": [{"bytes": 10**7, "counted_s": 0.1}] * PARTS_OF_A_STREAM, "error": None}
    output: list[Message] = []
    for host in (0, 1):
        of_task = {"event": "task", "host": host, "run": "r", "task": f"probe:{host}"}
        output.append({**of_task, "kind": "ready"})
        output += [
            {**of_task, "kind": "reading", "name": name, "reading": measured} for name in ("core.matmul", "gpu.0.matmul")
        ]
        output.append({**of_task, "kind": "reading", "name": "memory", "reading": None, "error": "too little of it"})
        output.append({**of_task, "kind": "facts", **facts})
        output.append({**of_task, "kind": "stream", "round": host, "to": 1 - host, **parts})
        output.append({**of_task, "kind": "done", "phase": "compute"})
    return output


def lead_probe(lines: Sequence[tuple[int, bytes]]) -> Probes:
    """Do with the messages what the controller does. Raises `MessageError`."""
    receiver = MessageReceiver(AGENT, 2)
    receiver.expect("r", {"probe:0": 0, "probe:1": 1})
    hosts = [placement.HostView(name, name, (0, 1), gpus=("0",)) for name in ("anna", "bert")]
    ring = link_rounds.plan_fans([placement.PlacedTask("worker", host, host, 0, (), 1) for host in (0, 1)])
    answers = Answers(hosts, ring)
    for host, line in lines:
        event = receiver.receive(host, line)
        if isinstance(event, ForwardedMessage):
            answers.receive(event)
    return answers.collect_probes(1.0)


def test_unchanged_probe_is_complete() -> None:
    """A probe with unchanged messages has both hosts and both directions of their link."""
    found = lead_probe(encode_messages(make_probe_messages()))
    assert found.hosts.keys() == {"anna", "bert"}
    assert found.links.keys() == {"anna>bert", "bert>anna"}
    assert found.unknown == {}


@pytest.mark.campaign
@pytest.mark.parametrize("part", range(PARTS))
def test_changed_probe_is_stored_or_refused(part: int) -> None:
    """A probe with one changed message is valid in a baseline file, or refused with a printable error."""
    honest, entry = make_probe_messages(), entry_of([1.0])
    words = []
    for number in range(part, MANY, PARTS):
        dice = random.Random(number)
        at = dice.randrange(len(honest))
        lines = encode_messages(honest)
        lines[at] = (honest[at]["host"], wire.encode(change_message(honest[at], dice)))
        try:
            probes = lead_probe(lines).to_json()
            stored = {"schema": 1, "system": "x", "entries": {entry.key: [{**entry.to_file_json(), "probes": probes}]}}
            validate("baseline", json.loads(json.dumps(stored, allow_nan=False)), f"change {number}")
        except MessageError as exc:
            words.append(str(exc))
    assert [output for output in words if not is_visible(output)] == []
    assert len(words) > MANY / PARTS / 3


# The doctor's


def answer_order(order: Mapping[str, Any], host: int) -> Message | None:
    """Return the answer of an honest checkup."""
    others = [1 - host]
    facts = {
        "hostname": "anna", "addresses": ["10.0.0.1"], "interfaces": INTERFACES,
        "python": "3.11.2", "executable": "/usr/bin/python3",
        "tensorflow": "2.21.0", "cores": 2, "machine_cores": 2, "load": 0.1,
        "memory_bytes": 1 << 30, "gpus": [{"name": "P100", "memory_mib": 16384}],
        "gpus_error": None, "unisolated": None, "unguarded": "no nft",
        "disks": [{"what": "cache", "folder": "/root/.cache", "free_bytes": 1 << 30, "total_bytes": 1 << 31}],
    }  # fmt: skip
    match order["order"]:
        case "clock":
            return {"round": order["round"], "arrived_s": 1e9, "left_s": 1e9}
        case "facts":
            return facts
        case "write" | "remove":
            return {}
        case "list_files":
            return {"sees": order["hosts"]}
        case "listen":
            return {"ports": [2000 + host, 3000 + host], "taken": [], "has_address": True}
        case "reach":
            there = [each for each in order["targets"] if each["host"] in others]
            return {"reached": [{"to": each["host"], "port": port, "error": None} for each in there for port in each["ports"]]}
        case "trial":
            return {"version": "2.21.0", "gpus": 1, "import_s": 2.0}
        case "measure":
            to = order["pairs"][str(host)]["host"]
            return {"to": to, "round_trip_s": 1e-4, "echoes": 100, "bytes": 10**9, "counted_s": 1.0}
    return None


LOST = Lost(LossReason.ENDED, "the agent left with exit code 1")


class TwoHosts:
    """Stand in for a channel to two checkups, with one changed message."""

    def __init__(self, change: Callable[[Message], bytes], at: int) -> None:
        self._change, self._at = change, at
        self._sent: list[tuple[int, bytes | Lost]] = []
        self._count = 0
        self._add_message("hello", 0, {})
        self._add_message("hello", 1, {})

    def send(self, line: bytes) -> None:
        order = wire.decode(line)
        for host in order.get("only", (0, 1)):
            if (output := answer_order(order, host)) is not None:
                self._add_message(order["order"], host, output)

    def receive(self, timeout_s: float) -> tuple[int, bytes | Lost] | None:
        return self._sent.pop(0) if self._sent else None

    def explain_silence(self, host: int) -> Lost | None:
        return None

    def close(self) -> None: ...

    def _add_message(self, event: str, host: int, data: Message) -> None:
        message = {"event": event, "host": host, **data}
        self._sent.append((host, self._change(message) if self._count == self._at else wire.encode(message)))
        self._sent += [(host, LOST)] if self._count == self._at else []  # or an answer that does not come is waited for
        self._count += 1


@pytest.mark.campaign
@pytest.mark.parametrize("part", range(PARTS))
def test_changed_checkup_is_shown(part: int) -> None:
    """The report of a checkup with one changed answer is printable text."""
    for number in range(part, MANY // 5, PARTS):
        dice = random.Random(number)
        hosts = [HostDiagnosis("anna", "10.0.0.1"), HostDiagnosis("bert", "10.0.0.2")]
        seen = Diagnosis(cluster="lab", hosts=hosts)
        channel = TwoHosts(lambda message, dice=dice: wire.encode(change_message(message, dice)), dice.randrange(40))  # type: ignore[misc]
        try:
            Examination(channel, seen, Limits(), ports=[0, 0], on_status=lambda words: None).run()
            shown = format_report(
                seen, list_findings(seen, ExpectedHardware(gpus=1, shares=None, shared_folder=False)), width=200
            )
        except Exception as exc:
            raise AssertionError(f"change {number}") from exc
        assert is_visible(shown), number


# What is smaller


@pytest.mark.campaign
def test_changed_fetch_or_supervisor_message_is_refused() -> None:
    """Changed messages of fetch programs and supervisors are valid, or refused with a printable error."""
    fetches: list[Message] = [
        {"event": "hello", "host": 0},
        {"event": "progress", "host": 0, "bytes": 5, "moved": 6, "waiting": False},
        {"event": "staged", "host": 0, "folder": "/root/.cache/dtfperf/data/x", "fetched": 1, "bytes": 5},
        {"event": "failed", "host": 0, "reason": "no room"},
    ]
    survey = {"hostname": "n1", "addresses": ["10.0.0.1", "fd00::1"], "reached_at": "10.0.0.1", "left": {"abc 1 2": ["s"]}}
    supervisors: list[Message] = [
        {"at": "python"}, {"at": "setup", "line": 1}, {"at": "environment", "doing": "waiting"}, {"at": "ready", **survey},
        {"at": "ready"}, {"at": "swept", "survivors": []}, {"failed": "setup", "line": 1, "code": 3}, {"failed": "python"},
        {"failed": "folder", "folder": "/scratch", "why": "it is not there"},
        {"failed": "environment", "why": "it failed", "hint": "fix it"}, {"ended": 0, "survivors": [7]},
    ]  # fmt: skip
    for message in fetches:
        assert {"event": message["event"], **FETCH.parse(message).to_json()} == message
    for message in supervisors:
        fields = parse_supervisor_message(message).to_json()
        assert fields == {key: value for key, value in message.items() if key not in ("at", "failed")}
    words = []
    for number in range(MANY):
        dice = random.Random(number)
        for of_which, check in (
            (fetches, FETCH.parse),
            (supervisors, parse_supervisor_message),
        ):
            message = change_message(dice.choice(of_which), dice)
            try:
                check(message)
            except MessageError as exc:
                words.append(str(exc))
    assert [output for output in words if not is_visible(output)] == []
    assert len(words) > MANY / 3


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"v":2,"event":"beat"}', "sent an invalid 'beat': must be an object with the key 'host', not []"),
        (b'{"v":2,"event":"hello","host":true}', "sent an invalid 'hello': host must be a whole number"),
        (b'{"v":2,"event":{"a":1},"host":0}', "sent an unknown message: event is {'a': 1}"),
        (b'{"v":2,"event":"facts","host":0,"error":5}', "sent an invalid 'facts': error must be text"),
        (b'{"v":2,"event":"hello","host":0,"\\u001b[2J":1}', r"must be one of the keys host, not '\x1b[2J'"),
    ],
)
def test_refusal_has_the_key_and_its_type(line: bytes, words: str) -> None:
    """A refusal names the message, the key and the allowed type in printable text."""
    with pytest.raises(MessageError) as raised:
        MessageReceiver(CHECKUP, 1).receive(0, line)
    assert words in str(raised.value)
    assert is_visible(str(raised.value))


EXIT = {"event": "exit", "host": 0, "run": "r", "task": "worker:0", "code": 0, "signal": None, "last_lines": []}
TASK = {"event": "task", "host": 0, "run": "r", "task": "worker:0"}
HELLO = {"event": "hello", "host": 0, "fingerprint": FINGERPRINT, "pid": 7, "cpus": [0], "gpus": [], "boot": "", **WHERE}
TOO_LONG = "x" * 16_385


def nest(levels: int) -> list[Any]:
    """Return a list in a list, and so on."""
    nested: list[Any] = []
    for _ in range(levels):
        nested = [nested]
    return nested


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({**EXIT, "code": None}, "code must be a number if signal is null"),
        ({**EXIT, "signal": 9}, "code must be a number if signal is null"),
        ({**EXIT, "last_lines": [""] * 101}, "last_lines must be a list of at most 100"),
        ({**EXIT, "last_lines": [TOO_LONG]}, "last_lines.0 must be text of at most 16384 characters"),
        ({**TASK, "kind": "output", "lines": ["", TOO_LONG], "left_out": 0}, "lines.1 must be text of at most 16384"),
        ({**TASK, "kind": "ready", "of": 1}, "must be one of the keys host, run, task, not 'of'"),
        ({**HELLO, "interfaces": [{**INTERFACES[0], "addresses": ["::1", "1"]}]}, "interfaces.0.addresses.1 must be an"),
        ({**HELLO, "cpus": [1, 1]}, "cpus must be a list without duplicates"),
        ({**HELLO, "fingerprint": {"hardware": nest(900)}}, "must be less deeply nested"),
    ],
    ids=[
        "no end",
        "two ends",
        "many lines",
        "a long line",
        "long output",
        "a key too many",
        "no address",
        "a core twice",
        "nesting",
    ],
)
def test_message_outside_its_declaration_is_refused(message: Message, words: str) -> None:
    """A message is refused for sizes, keys and values that its type does not declare, with the path of the value."""
    with pytest.raises(MessageError) as raised:
        AGENT.parse(message)
    assert words in str(raised.value)


def test_text_is_limited_before_it_is_escaped() -> None:
    """A text of the largest size is accepted although its escaped form is longer."""
    reason = "\x1b" * 16_384
    message = AGENT.parse({"event": "refused", "host": 0, "run": "r", "reason": reason, "ports": []})
    assert isinstance(message, RefusedMessage)
    assert message.reason == "\\x1b" * 16_384


@pytest.mark.parametrize("ranges", ["", "0-3,8", "0-65535", "7,3"])
def test_ranges_of_cores_are_accepted(ranges: str) -> None:
    """Ranges of as many cores as a machine can have are accepted."""
    assert make_state(cpus=ranges).cpus == ranges


@pytest.mark.parametrize("ranges", [",".join(["0-65535"] * 32768), "0-65536", "0-60000,0-60000", "3-1", "0-"])
def test_too_many_cores_are_refused(ranges: str) -> None:
    """Ranges of more cores than a machine can have, and invalid ranges, are refused."""
    with pytest.raises(ValidationError, match=r'^cpus: must be ranges of cores such as "0-3,8"'):
        make_state(cpus=ranges)


def test_junk_is_limited_and_its_end_is_kept() -> None:
    """The last twenty lines that are no messages are kept, and more than 1 MiB of them is refused."""
    receiver = MessageReceiver(AGENT, 1)
    for number in range(50):
        assert receiver.receive(0, b"line %d \x1b[31m" % number) is None
    assert receiver.last_lines(0) == [f"line {number} \\x1b[31m" for number in range(30, 50)]
    with pytest.raises(MessageError, match="more than 1 MiB of lines that are not messages"):
        receiver.receive(0, b"x" * JUNK_BYTES)
    assert len(receiver.last_lines(0)[-1]) < 3000


def test_rate_of_messages_is_limited() -> None:
    """A host may send many messages at once and then 1,000 per second, and more are refused."""
    now = [0.0]
    receiver = MessageReceiver(CHECKUP, 1, clock=lambda: now[0])
    beat = wire.encode({"event": "beat", "host": 0})
    for _ in range(MESSAGES):
        receiver.receive(0, beat)
    now[0] = 1.0
    for _ in range(1000):
        receiver.receive(0, beat)
    with pytest.raises(MessageError, match="sent 20000 messages faster than 1000 per second"):
        receiver.receive(0, beat)
