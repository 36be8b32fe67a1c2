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
    """The agent of one host, which sends its messages through `answer_to` if it is the first one."""

    def __init__(self, answer_to: Callable[[Message], Iterator[Sent]], once: str | None = None) -> None:
        self._host = int(os.environ["DTFPERF_HOST_INDEX"])
        self._answer_to = answer_to
        self._lies = self._host == 0 and (once is None or _is_first(once))
        self._trusted_probes = -1 if once is None else TRUSTED_PROBES
        self._run = ""
        self._tasks: list[tuple[str, Message]] = []
        self._probe: Message | None = None

    def serve(self) -> None:
        self._say(
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
            self._say("beat", run=self._run, tasks=tasks, zygote_state="S", load=0.1)

    def obey_reserve(self, order: Message) -> None:
        self._run, self._tasks = order["run"], []
        if wanted := order["hosts"].get(str(self._host)):
            self._say("reserved", run=self._run, ports=list(range(2000, 2000 + wanted["count"])))

    def obey_start(self, order: Message) -> None:
        self._run = order["run"]
        self._probe = order["common"].get("probe")
        self._trusted_probes -= bool(self._probe)
        self._steps = 0 if self._probe else order["common"]["spec"]["steps"]
        self._tasks = [(task["task"], task["order"]) for task in order["tasks"] if task["host"] == self._host]
        for task, _ in self._tasks:
            self._say("started", run=self._run, task=task, pid=7)
            self._say("task", run=self._run, task=task, kind="ready")

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
                self._say("task", run=self._run, task=task, kind="progress", step=1, of=self._steps, images_per_sec=9.5)
                time.sleep(0.01 * self._steps)
                steps = {"step_s": [0.01] * self._steps, "loss": [1.0] * self._steps, "elapsed_s": 0.01 * self._steps}
                report |= {"num_devices": own["num_devices"], **steps}
            self._say("task", run=self._run, task=task, kind="report", **report)
            self._say("exit", run=self._run, task=task, code=0, signal=None, last_lines=["so long"])

    def obey_stop(self, order: Message) -> None:
        self._say("state", run=order["run"], state=STATE)
        self._say("stopped", run=order["run"], survivors=[])

    def obey_logs(self, order: Message) -> None:
        for task, _ in self._tasks:
            self._say("log", run=order["run"], task=task, text=f"{task} was here\n")

    def _answer_probe(self, task: str, phase: str, probe: Message) -> None:
        """Send equal readings of every capacity and every link."""
        if phase == "compute":
            for name in PROBED:
                self._say("task", run=self._run, task=task, kind="reading", name=name, reading=READING, error=None)
            self._say("task", run=self._run, task=task, kind="facts", **FACTS)
        elif phase.startswith("round"):
            number = int(phase.split()[1])
            for target in probe["rounds"][number].get(str(self._host), {}):
                stream = {"round": number, "to": int(target), "parts": PARTS, "error": None}
                self._say("task", run=self._run, task=task, kind="stream", **stream)
        self._say("task", run=self._run, task=task, kind="done", phase=phase)

    def _say(self, event: str, **data: Any) -> None:
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


def honest(message: Message) -> Iterator[Sent]:
    yield message


def instead(event: str, **changes: Any) -> Lie:
    """Other values, wherever an event (or a task's kind of it) is said. `...` leaves a key out."""

    def lie(message: Message) -> Iterator[Sent]:
        if event in (message["event"], message.get("kind")):
            message = {key: value for key, value in {**message, **changes}.items() if value is not ...}
        yield message

    return lie


def within(event: str, *path: str, value: Any) -> Lie:
    """Another value, deeper within."""

    def lie(message: Message) -> Iterator[Sent]:
        if event in (message["event"], message.get("kind")):
            message = json.loads(json.dumps(message))
            below: Any = message
            for step in path[:-1]:
                below = below[step]
            below[path[-1]] = value
        yield message

    return lie


def twice(event: str) -> Lie:
    def lie(message: Message) -> Iterator[Sent]:
        yield message
        if event in (message["event"], message.get("kind")):
            yield message

    return lie


def after(event: str, *output: Sent) -> Lie:
    """Something more."""

    def lie(message: Message) -> Iterator[Sent]:
        yield message
        if event in (message["event"], message.get("kind")):
            yield from ({**message, **each} if isinstance(each, dict) else each for each in output)

    return lie


def without_end(event: str, output: Sent) -> Lie:
    """The same for ever."""

    def lie(message: Message) -> Iterator[Sent]:
        yield message
        while event in (message["event"], message.get("kind")):
            yield {**message, **output} if isinstance(output, dict) else output

    return lie


def only_junk(message: Message) -> Iterator[Sent]:
    yield json.dumps({"v": VERSION + 1, **message}).encode() + b"\n"


def dies(**how: Any) -> Lie:
    """The worker's end, of which there was no report, and no log."""

    def lie(message: Message) -> Iterator[Sent]:
        if message["event"] == "log":
            yield {**message, "text": ""}
        elif message.get("kind") != "report":
            yield {**message, **how} if message["event"] == "exit" and message["task"] != "ps:0" else message

    return lie


NOT_A_NUMBER = float("nan")
LIES: dict[str, Lie] = {
    # the first word
    "no fingerprint": instead("hello", fingerprint=...),
    "a key too many": instead("hello", password="1234"),
    "no cores": instead("hello", cpus=[]),
    "cores that are text": instead("hello", cpus="0-7"),
    "a core of a large number": instead("hello", cpus=[10**12]),
    "a core twice": instead("hello", cpus=[0, 0]),
    "a GPU that is a command": instead("hello", gpus=["0;reboot"]),
    "an interface that is a command": instead(
        "hello", interfaces=[{"name": "eth0; reboot", "addresses": [], "kind": "Ethernet", "gbps": None}]
    ),
    "an address that is a command": instead("hello", addresses=["10.0.0.1; flush ruleset"]),
    "a GPU that is a list": instead("hello", gpus=[["0"]]),
    "memory that is no number": within("hello", "fingerprint", "hardware", "memory_gib", value=NOT_A_NUMBER),
    "a part of the fingerprint left out": within("hello", "fingerprint", "software", value={"python": "3"}),
    "speaks for the other host": instead("hello", host=1),
    "a host that there is not": instead("hello", host=7),
    "another version": only_junk,
    # whatever it is
    "an event nobody knows": after("started", {"event": "reboot"}),
    "an event that is a list": after("started", {"event": ["exit"]}),
    "no event": after("started", b'{"v": 2, "host": 0}\n'),
    "brackets within brackets": without_end("started", b"[" * 200_000 + b"\n"),
    "junk without end": without_end("started", b"all work and no play\n"),
    "a line without end": without_end("started", b"x" * (1 << 16)),
    "news without end": without_end("progress", {}),
    # before the training
    "ports that are text": instead("reserved", ports=["2222", "2223"]),
    "too few ports": instead("reserved", ports=[]),
    "a port beyond all": instead("reserved", ports=[70_000, 70_001]),
    "a task of nobody": instead("started", task="worker:9"),
    "the other host's task": instead("started", task="worker:1"),
    "a task that is a path": instead("ready", task="../../ready"),
    "ready twice": twice("ready"),
    "a process number that is true": instead("started", pid=True),
    "a module that is a path": instead("ready", kind="missing", what="module", name="../" + ESCAPE),
    "a kind nobody knows": instead("ready", kind="reddy"),
    # in it
    "a step that is text": instead("progress", step="1"),
    "a step below zero": instead("progress", step=-1),
    "a rate without bounds": instead("progress", images_per_sec=float("inf")),
    "a beat of others' tasks": instead("beat", tasks={"worker:1": {"pid": 7, "state": "S", "cpu_s": 1.0}}),
    "a state that is a story": instead("beat", zygote_state="once upon a time"),
    "a report for somebody else": instead("report", index=1),
    "a report with a key too many": instead("report", verdict="IMPROVED"),
    "a step that takes no number of seconds": instead("report", step_s=[NOT_A_NUMBER] * 3),
    "a step that takes no time": instead("report", step_s=[0.0] * 3, elapsed_s=0.0),
    "no steps": instead("report", step_s=[], loss=[]),
    "a loss that is nothing": instead("report", loss=[None] * 3),
    "more devices than there are atoms": instead("report", num_devices=10**80),
    "a device too many": instead("report", num_devices=2),
    "longer than it was": instead("report", step_s=[1000.0] * 3, elapsed_s=3000.0),
    "bytes below zero": instead("report", bytes_sent=-1),
    "a graph that is a picture": instead("report", graph={"hash": "abcdef0123", "operations": {"MatMul": "many"}}),
    "a report twice": twice("report"),
    # its end
    "an exit code that is text": instead("exit", code="0"),
    "a signal beyond all": instead("exit", code=None, signal=999),
    "ends without a report": dies(),
    "a signal of real time": dies(code=None, signal=REAL_TIME),
    "last words that a terminal obeys": dies(code=3, last_lines=[ESCAPE]),
    "last words that are a number": instead("exit", last_lines=7),
    # after it
    "no state": instead("state", state={}),
    "all cores of the world": within("state", "state", "cpus", value="0-99999999999"),
    "cores that are words": within("state", "state", "cpus", value="all"),
    "more reasons than looks": within(
        "state", "state", "gpus", value=[{**GPU, "during": {**GPU["during"], "reasons": {"hw_slowdown": 99}, "samples": 0}}]
    ),
    "a survivor that is text": instead("stopped", survivors=["init"]),
    "a log that is a path": instead("log", task="../../log"),
    "a log that is an absolute path": instead("log", task="/tmp/log"),
    "a log that is a number": instead("log", text=7),
    "a log of the other host's task": instead("log", task="worker:1"),
    "a log twice": twice("log"),
}
# In a probe, with the reason for which the host is left out.
PROBE_LIES: dict[str, tuple[Lie, str]] = {
    "a rate below zero": (
        within("reading", "reading", "per_s", value=-1.0),
        "per_s must be a finite number > 0 <= 1e+24, not -1",
    ),
    "a rate beyond all": (within("reading", "reading", "per_s", value=1e30), "not 1e+30"),
    "a rate that is no number": (within("reading", "reading", "per_s", value=NOT_A_NUMBER), "not nan"),
    "a rate that no host has": (within("reading", "reading", "per_s", value=1e20), "impossible"),
    "a link that no host has": (instead("stream", parts=[{"bytes": 1 << 49, "counted_s": 0.1}] * 4), "impossible"),
    "bytes of a stream below zero": (instead("stream", parts=[{"bytes": -1, "counted_s": 0.1}] * 4), "bytes"),
    "a stream without a part": (instead("stream", parts=PARTS[1:]), "3 parts of a stream that has 4"),
    "a stream to itself": (instead("stream", to=0), "was not requested"),
    "a reading that was not requested": (instead("reading", name="input"), "'input' that was not requested"),
    "a reading twice": (twice("reading"), "'core.matmul' that was not requested"),
    "facts twice": (twice("facts"), "reported its limits twice"),
    "another event": (after("done", {"event": "reboot"}), "unknown message"),
    "lines without end": (without_end("done", b"all work and no play\n"), "lines that are not messages"),
}
# What is strange, but does no harm.
HARMLESS: dict[str, Lie] = {
    "nothing": honest,
    "a second hello": twice("hello"),
    "a banner": after("hello", b"Welcome!\n", ESCAPE.encode("utf-8", "surrogatepass") + b"\xff\n", b"\n"),
    "names that a terminal obeys": within("hello", "fingerprint", "hardware", "cpu", value=ESCAPE),
    "a log that a terminal obeys": instead("log", text=f"{ESCAPE}\n\tindented\r\n50 %\r100 %"),
    "a window without length": within("state", "state", "window_s", value=0.0),
    "news of another run": after("started", {"run": "another"}),
}


if __name__ == "__main__":
    probe_lies = {name: lie for name, (lie, _) in PROBE_LIES.items()}
    Agent({**LIES, **HARMLESS, **probe_lies}[sys.argv[1]], *sys.argv[2:3]).serve()
