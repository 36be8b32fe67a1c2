"""An agent that trains nothing and sends what an honest one would, but for one lie: `python -m tests.hostile.agent LIE [FILE]`.

Of several hosts the first lies. With FILE, only the first agent of all that start lies, from its second probe on, and makes
that file. It uses the standard library alone, and not this package, so that it starts at once.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

Message = dict[str, Any]
Sent = bytes | Message

VERSION = 2
ESCAPE = "\x1b]0;title\x07\x1b[31mred\x9b31m\u202egnp\u2066\x00\ud800"
REAL_TIME = 40  # a signal's number
FINGERPRINT: Message = {
    "hardware": {"cpu": "Abacus", "cpu_kind": None, "cores": 2, "memory_gib": 1, "interconnect": None, "gpus": []},
    "software": {"python": "3.11.2", "tensorflow": None, "cuda": None, "kernel": "6.1", "driver": None},
    "state": {"load": 0.1, "governor": None},
}
STATE: Message = {
    "machine": "abcd",
    "cpus": "0-1",
    "cores": 2,
    "quota": False,
    "window_s": 1.0,
    "cpu": {"busy_s": 0.1, "own_s": 0.1, "controller_s": 0.0, "steal_s": 0.0},
    "load": {"before": 0.1, "after": 0.1},
    "memory": {"available_mib": {"before": 1, "after": 1}, "some_s": 0.0, "full_s": 0.0, "swapped_in_mib": 0},
    "clock_mhz": {"before": None, "after": None, "most": None},
    "throttled_s": None,
}
GPU: Message = {
    "index": "0",
    "before": None,
    "after": None,
    "others": [],
    "during": {
        "samples": 5,
        "reasons": {},
        "sm_mhz": None,
        "memory_mhz": None,
        "temperature_c": None,
        "power_w": [1.0, 2.0],
    },
}


PROBED = ("core.matmul", "core.convolution", "cores.matmul", "cores.convolution", "memory")
READING: Message = {"per_s": 1e9, "spread": 0.0, "repeats": 5, "how": {"threads": 1}, "cpu_share": 1.0}
PARTS = [{"bytes": 10_000_000, "counted_s": 0.1}] * 4
FACTS: Message = {"limits": {}, "clock_hz": None, "most_clock_hz": None, "state": STATE}
TRUSTED_PROBES = 1  # before the first lie of an agent that lies in the middle


class Agent:
    """Stand in for the agent of one host, which sends its messages through `answer_to` if it is the first one."""

    def __init__(self, answer_to: Callable[[Message], Iterator[Sent]], once: str | None = None) -> None:
        self._host = int(os.environ["DTFPERF_HOST_INDEX"])
        self._answer_to = answer_to
        self._lies = self._host == 0 and (once is None or _is_first(once))
        self._trusted_probes = -1 if once is None else TRUSTED_PROBES
        self._run = ""
        self._tasks: list[tuple[str, Message]] = []
        self._probe: Message | None = None

    def serve(self) -> None:
        self._send_event(
            "hello",
            fingerprint=FINGERPRINT,
            pid=os.getpid(),
            cpus=[0, 1],
            gpus=[],
            addresses=["10.0.0.1"],
            interfaces=[{"name": "eth0", "addresses": ["10.0.0.1"], "kind": "Ethernet", "gbps": 10}],
            unguarded="no nft",
            boot="",
        )
        for line in sys.stdin.buffer:
            order = json.loads(line)
            getattr(self, f"obey_{order['order']}")(order)

    def obey_ping(self, order: Message) -> None:
        if self._run:
            tasks = {task: {"pid": 7, "state": "S", "cpu_s": 0.5} for task, _ in self._tasks}
            self._send_event("beat", run=self._run, tasks=tasks, zygote_state="S", load=0.1)

    def obey_reserve(self, order: Message) -> None:
        self._run, self._tasks = order["run"], []
        if wanted := order["hosts"].get(str(self._host)):
            self._send_event("reserved", run=self._run, ports=list(range(2000, 2000 + wanted["count"])))

    def obey_start(self, order: Message) -> None:
        self._run = order["run"]
        self._probe = order["common"].get("probe")
        self._trusted_probes -= bool(self._probe)
        self._steps = 0 if self._probe else order["common"]["spec"]["steps"]
        self._tasks = [(task["task"], task["order"]) for task in order["tasks"] if task["host"] == self._host]
        for task, _ in self._tasks:
            self._send_event("started", run=self._run, task=task, pid=7)
            self._send_event("task", run=self._run, task=task, kind="ready")

    def obey_notify(self, order: Message) -> None:
        for task, own in self._tasks:
            if self._probe:
                if task in order["tasks"]:
                    self._answer_probe(task, order["word"], self._probe)
                continue
            if task not in order["tasks"] or own["job"] == {"go": "ps", "leave": "worker"}[order["word"]]:
                continue
            report: Message = {"job": own["job"], "index": own["index"]}
            if own["job"] == "worker":
                self.obey_ping(order)
                self._send_event(
                    "task", run=self._run, task=task, kind="progress", step=1, total_steps=self._steps, images_per_sec=9.5
                )
                time.sleep(0.01 * self._steps)
                steps = {"step_s": [0.01] * self._steps, "loss": [1.0] * self._steps, "elapsed_s": 0.01 * self._steps}
                report |= {"num_devices": own["num_devices"], **steps}
            self._send_event("task", run=self._run, task=task, kind="report", **report)
            self._send_event("exit", run=self._run, task=task, code=0, signal=None, last_lines=["so long"])

    def obey_stop(self, order: Message) -> None:
        self._send_event("state", run=order["run"], state=STATE)
        self._send_event("stopped", run=order["run"], survivors=[])

    def obey_logs(self, order: Message) -> None:
        for task, _ in self._tasks:
            self._send_event("log", run=order["run"], task=task, text=f"{task} was here\n")

    def _answer_probe(self, task: str, phase: str, probe: Message) -> None:
        """Send equal readings of every capacity and every link."""
        if phase == "compute":
            for name in PROBED:
                self._send_event("task", run=self._run, task=task, kind="reading", name=name, reading=READING, error=None)
            self._send_event("task", run=self._run, task=task, kind="facts", **FACTS)
        elif phase.startswith("round"):
            number = int(phase.split()[1])
            for target in probe["rounds"][number].get(str(self._host), {}):
                stream = {"round": number, "to": int(target), "parts": PARTS, "error": None}
                self._send_event("task", run=self._run, task=task, kind="stream", **stream)
        self._send_event("task", run=self._run, task=task, kind="done", phase=phase)

    def _send_event(self, event: str, **data: Any) -> None:
        message = {"event": event, "host": self._host, **data}
        for output in self._answer_to(message) if self._lies and self._trusted_probes < 0 else [message]:
            line = output if isinstance(output, bytes) else json.dumps({"v": VERSION, **output}).encode() + b"\n"
            while line:
                line = line[os.write(1, line) :]


def _is_first(path: str) -> bool:
    """Return whether no agent has made this file, and make it."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


# Lies. Each is given what an honest agent would say next, and says something else.

Lie = Callable[[Message], Iterator[Sent]]


def send_unchanged(message: Message) -> Iterator[Sent]:
    yield message


def replace_keys(event: str, **changes: Any) -> Lie:
    """Return a lie with other values in each event, or task message, of this kind. `...` removes a key."""

    def lie(message: Message) -> Iterator[Sent]:
        if event in (message["event"], message.get("kind")):
            message = {key: value for key, value in {**message, **changes}.items() if value is not ...}
        yield message

    return lie


def replace_nested(event: str, *path: str, value: Any) -> Lie:
    """Return a lie with another value deeper within the message."""

    def lie(message: Message) -> Iterator[Sent]:
        if event in (message["event"], message.get("kind")):
            message = json.loads(json.dumps(message))
            below: Any = message
            for step in path[:-1]:
                below = below[step]
            below[path[-1]] = value
        yield message

    return lie


def send_twice(event: str) -> Lie:
    def lie(message: Message) -> Iterator[Sent]:
        yield message
        if event in (message["event"], message.get("kind")):
            yield message

    return lie


def send_after(event: str, *output: Sent) -> Lie:
    """Return a lie with more output after each message of this kind."""

    def lie(message: Message) -> Iterator[Sent]:
        yield message
        if event in (message["event"], message.get("kind")):
            yield from ({**message, **each} if isinstance(each, dict) else each for each in output)

    return lie


def send_endlessly(event: str, output: Sent) -> Lie:
    """Return a lie that repeats an output endlessly."""

    def lie(message: Message) -> Iterator[Sent]:
        yield message
        while event in (message["event"], message.get("kind")):
            yield {**message, **output} if isinstance(output, dict) else output

    return lie


def send_other_version(message: Message) -> Iterator[Sent]:
    yield json.dumps({"v": VERSION + 1, **message}).encode() + b"\n"


def end_worker(**how: Any) -> Lie:
    """Return a lie with this end of the worker, without its report and its log."""

    def lie(message: Message) -> Iterator[Sent]:
        if message["event"] == "log":
            yield {**message, "text": ""}
        elif message.get("kind") != "report":
            yield {**message, **how} if message["event"] == "exit" and message["task"] != "ps:0" else message

    return lie


NOT_A_NUMBER = float("nan")
LIES: dict[str, Lie] = {
    # the first word
    "no fingerprint": replace_keys("hello", fingerprint=...),
    "a key too many": replace_keys("hello", password="1234"),
    "no cores": replace_keys("hello", cpus=[]),
    "cores that are text": replace_keys("hello", cpus="0-7"),
    "a core of a large number": replace_keys("hello", cpus=[10**12]),
    "a core twice": replace_keys("hello", cpus=[0, 0]),
    "a GPU that is a command": replace_keys("hello", gpus=["0;reboot"]),
    "an interface that is a command": replace_keys(
        "hello", interfaces=[{"name": "eth0; reboot", "addresses": [], "kind": "Ethernet", "gbps": None}]
    ),
    "an address that is a command": replace_keys("hello", addresses=["10.0.0.1; flush ruleset"]),
    "a GPU that is a list": replace_keys("hello", gpus=[["0"]]),
    "memory that is no number": replace_nested("hello", "fingerprint", "hardware", "memory_gib", value=NOT_A_NUMBER),
    "a part of the fingerprint left out": replace_nested("hello", "fingerprint", "software", value={"python": "3"}),
    "speaks for the other host": replace_keys("hello", host=1),
    "a host that there is not": replace_keys("hello", host=7),
    "another version": send_other_version,
    # whatever it is
    "an unknown event": send_after("started", {"event": "reboot"}),
    "an event that is a list": send_after("started", {"event": ["exit"]}),
    "no event": send_after("started", b'{"v": 2, "host": 0}\n'),
    "brackets within brackets": send_endlessly("started", b"[" * 200_000 + b"\n"),
    "junk without end": send_endlessly("started", b"all work and no play\n"),
    "a line without end": send_endlessly("started", b"x" * (1 << 16)),
    "news without end": send_endlessly("progress", {}),
    # before the training
    "ports that are text": replace_keys("reserved", ports=["2222", "2223"]),
    "too few ports": replace_keys("reserved", ports=[]),
    "a port beyond all": replace_keys("reserved", ports=[70_000, 70_001]),
    "an unknown task": replace_keys("started", task="worker:9"),
    "the other host's task": replace_keys("started", task="worker:1"),
    "a task that is a path": replace_keys("ready", task="../../ready"),
    "ready twice": send_twice("ready"),
    "a process number that is true": replace_keys("started", pid=True),
    "a module that is a path": replace_keys("ready", kind="missing", what="module", name="../" + ESCAPE),
    "an unknown kind": replace_keys("ready", kind="reddy"),
    # in it
    "a step that is text": replace_keys("progress", step="1"),
    "a step below zero": replace_keys("progress", step=-1),
    "a rate without bounds": replace_keys("progress", images_per_sec=float("inf")),
    "a beat of others' tasks": replace_keys("beat", tasks={"worker:1": {"pid": 7, "state": "S", "cpu_s": 1.0}}),
    "a state that is a story": replace_keys("beat", zygote_state="once upon a time"),
    "a report for somebody else": replace_keys("report", index=1),
    "a report with a key too many": replace_keys("report", verdict="IMPROVED"),
    "a step that takes no number of seconds": replace_keys("report", step_s=[NOT_A_NUMBER] * 3),
    "a step that takes no time": replace_keys("report", step_s=[0.0] * 3, elapsed_s=0.0),
    "no steps": replace_keys("report", step_s=[], loss=[]),
    "a loss that is nothing": replace_keys("report", loss=[None] * 3),
    "more devices than there are atoms": replace_keys("report", num_devices=10**80),
    "a device too many": replace_keys("report", num_devices=2),
    "longer than it was": replace_keys("report", step_s=[1000.0] * 3, elapsed_s=3000.0),
    "bytes below zero": replace_keys("report", bytes_sent=-1),
    "a graph that is a picture": replace_keys("report", graph={"hash": "abcdef0123", "operations": {"MatMul": "many"}}),
    "a report twice": send_twice("report"),
    # its end
    "an exit code that is text": replace_keys("exit", code="0"),
    "a signal beyond all": replace_keys("exit", code=None, signal=999),
    "ends without a report": end_worker(),
    "a signal of real time": end_worker(code=None, signal=REAL_TIME),
    "last words that a terminal obeys": end_worker(code=3, last_lines=[ESCAPE]),
    "last words that are a number": replace_keys("exit", last_lines=7),
    # after it
    "no state": replace_keys("state", state={}),
    "all cores of the world": replace_nested("state", "state", "cpus", value="0-99999999999"),
    "cores that are words": replace_nested("state", "state", "cpus", value="all"),
    "more reasons than looks": replace_nested(
        "state", "state", "gpus", value=[{**GPU, "during": {**GPU["during"], "reasons": {"hw_slowdown": 99}, "samples": 0}}]
    ),
    "a survivor that is text": replace_keys("stopped", survivors=["init"]),
    "a log that is a path": replace_keys("log", task="../../log"),
    "a log that is an absolute path": replace_keys("log", task="/tmp/log"),
    "a log that is a number": replace_keys("log", text=7),
    "a log of the other host's task": replace_keys("log", task="worker:1"),
    "a log twice": send_twice("log"),
}
# In a probe, with the reason for which the host is left out.
PROBE_LIES: dict[str, tuple[Lie, str]] = {
    "a rate below zero": (
        replace_nested("reading", "reading", "per_s", value=-1.0),
        "per_s must be a finite number > 0 <= 1e+24, not -1",
    ),
    "a rate beyond all": (replace_nested("reading", "reading", "per_s", value=1e30), "not 1e+30"),
    "a rate that is no number": (replace_nested("reading", "reading", "per_s", value=NOT_A_NUMBER), "not nan"),
    "a rate that no host has": (replace_nested("reading", "reading", "per_s", value=1e20), "impossible"),
    "a link that no host has": (replace_keys("stream", parts=[{"bytes": 1 << 49, "counted_s": 0.1}] * 4), "impossible"),
    "bytes of a stream below zero": (replace_keys("stream", parts=[{"bytes": -1, "counted_s": 0.1}] * 4), "bytes"),
    "a stream without a part": (replace_keys("stream", parts=PARTS[1:]), "3 parts of a stream that has 4"),
    "a stream to itself": (replace_keys("stream", to=0), "was not requested"),
    "a reading that was not requested": (replace_keys("reading", name="input"), "'input' that was not requested"),
    "a reading twice": (send_twice("reading"), "'core.matmul' that was not requested"),
    "facts twice": (send_twice("facts"), "reported its limits twice"),
    "another event": (send_after("done", {"event": "reboot"}), "unknown message"),
    "lines without end": (send_endlessly("done", b"all work and no play\n"), "lines that are not messages"),
}
# What is strange, but does no harm.
HARMLESS: dict[str, Lie] = {
    "nothing": send_unchanged,
    "a second hello": send_twice("hello"),
    "a banner": send_after("hello", b"Welcome!\n", ESCAPE.encode("utf-8", "surrogatepass") + b"\xff\n", b"\n"),
    "names that a terminal obeys": replace_nested("hello", "fingerprint", "hardware", "cpu", value=ESCAPE),
    "a log that a terminal obeys": replace_keys("log", text=f"{ESCAPE}\n\tindented\r\n50 %\r100 %"),
    "a window without length": replace_nested("state", "state", "window_s", value=0.0),
    "news of another run": send_after("started", {"run": "another"}),
}


if __name__ == "__main__":
    probe_lies = {name: lie for name, (lie, _) in PROBE_LIES.items()}
    Agent({**LIES, **HARMLESS, **probe_lies}[sys.argv[1]], *sys.argv[2:3]).serve()
