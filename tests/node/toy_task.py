"""A task of the standard library alone: it behaves as a training task, and misbehaves as ordered.

Its script is in the order itself ("script"), or in `<data_dir>/<task>.json` of the order's spec:

    {"steps": 5, "step_s": 0.01, "at": "start" | "ready" | "step" | "end", "do": <one of ACTIONS>, "what": ...}

If it has a data_dir, it writes its process id there, as `<task>.pid`. It imports next to nothing beyond its agent's modules,
so that the cost of a hundred agents is their own.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping

from pytest_dtfperf.node.wire import Connection

# A task with so many steps trains until a test ends it. Its agent reports each step to the controller.
BRISK_STEPS = 100
RESTFUL_STEP_S = 0.1

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def run(order: dict[str, Any], connection: Connection) -> None:
    if "probe" in order:
        probe(order, connection)
        return
    task = f"{order['job']}-{order['index']}"
    script = _script(order, task)
    _act("start", script, connection)
    connection.send("ready")
    _act("ready", script, connection)
    assert connection.wait() == "go"
    if order["job"] == "worker":
        report = _train(order, script, connection)
    else:
        assert connection.wait() == "leave"
        report = {"job": "ps", "index": order["index"]}
    _act("end", script, connection)
    if script.get("do") != "say nothing":
        connection.send("report", **report)


def probe(order: Mapping[str, Any], connection: Connection) -> None:
    """Report fixed capacities of this host at once."""
    connection.send("ready")
    while (word := connection.wait()) != "leave":
        _act(word.partition(" ")[0], _script_of_probe(), connection)
        if word == "compute":
            reading = {"per_s": 1e9, "spread": 0.0, "repeats": 5, "how": {"threads": 1}, "cpu_share": 1.0}
            connection.send("reading", name="core.matmul", reading=reading)
            connection.send("reading", name="memory", error="this is a toy")
        elif word.startswith("round"):
            for target in order["probe"]["rounds"][int(word.split()[1])][str(order["host"])]:
                parts = [{"bytes": 10_000_000, "counted_s": 0.1}] * order["probe"]["parts"]
                connection.send("stream", round=int(word.split()[1]), to=int(target), parts=parts, error=None)
        connection.send("done", phase=word)


def _script_of_probe() -> dict[str, Any]:
    """Return the script in the environment of the starter of agents: TOY_PROBE='{"at": "compute", "do": "exit", "what": 3}'."""
    found: dict[str, Any] = json.loads(os.environ.get("TOY_PROBE", "{}"))
    return found


def _script(order: Mapping[str, Any], task: str) -> dict[str, Any]:
    script: dict[str, Any] = order.get("script", {})
    if folder := order.get("spec", {}).get("data_dir"):
        with open(os.path.join(folder, f"{task}.new"), "w") as new:
            new.write(str(os.getpid()))
        os.rename(new.name, os.path.join(folder, f"{task}.pid"))  # whoever sees it, sees all of it
        if os.path.exists(path := os.path.join(folder, f"{task}.json")):
            with open(path) as file:
                script = json.load(file)
    return script


def _train(order: Mapping[str, Any], script: Mapping[str, Any], connection: Connection) -> dict[str, Any]:
    steps = script.get("steps", order.get("spec", {}).get("steps", 5))
    step_s = script.get("step_s", 0.005) + order.get("sleep_s", 0.0)
    later_s = step_s if "step_s" in script else max(step_s, RESTFUL_STEP_S)
    for step in range(1, steps + 1):
        time.sleep(step_s if step <= BRISK_STEPS else later_s)
        _act("step", script, connection)
        connection.send("progress", step=step, total_steps=steps)
    # By a clock that never errs: toys do not wait for each other, and on a busy machine their real times would differ.
    return {
        "job": "worker",
        "index": order["index"],
        "num_devices": order.get("num_devices", 1),
        "step_s": [step_s] * steps,
        "elapsed_s": step_s * steps,
        "loss": [1.0] * steps,
    }


def _act(moment: str, script: Mapping[str, Any], connection: Connection) -> None:
    if script.get("at") == moment:
        ACTIONS[script["do"]](script.get("what"), connection)


def _exit(code: Any, _: Connection) -> None:
    print("leaving early", file=sys.stderr)
    sys.exit(code)


def _raise(text: Any, _: Connection) -> None:
    raise RuntimeError(text)


def _explain(lines: Any, connection: Connection) -> None:
    connection.send("failed", reason=lines)
    raise RuntimeError("somewhere deep within")


def _signal_self(number: Any, _: Connection) -> None:
    os.kill(os.getpid(), number)


def _hang(_: Any, connection: Connection) -> None:
    time.sleep(3600)


def _daemonise(then: Any, connection: Connection) -> None:
    from pytest_dtfperf.testing.parrot import DAEMONISE  # which is not among what travels to hosts

    os.waitpid(os.posix_spawn(DAEMONISE[0], DAEMONISE, os.environ), 0)
    if then is not None:
        ACTIONS[then](None, connection)


def _echo(variable: Any, _: Connection) -> None:
    """Serve one connection after the other at the socket that a variable names."""
    import socket

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.environ[variable])
        listener.listen()
        while True:
            with listener.accept()[0] as sock:
                while data := sock.recv(1 << 16):
                    sock.sendall(data)


def _ignore_term(_: Any, connection: Connection) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    connection.send("progress", step=1, total_steps=1)  # from now on it takes no notice of SIGTERM
    _hang(None, connection)


def _show(_: Any, connection: Connection) -> None:
    """Report what was set up for this task."""
    connection.send(
        "shown",
        pid=os.getpid(),
        group=os.getpgid(0),
        parent=os.getppid(),
        cpus=sorted(os.sched_getaffinity(0)),
        env=dict(os.environ),
        stdin=os.readlink("/proc/self/fd/0"),
        threads=len(os.listdir("/proc/self/task")),
    )


def _print(text: Any, _: Connection) -> None:
    print(text)


def _print_and_die(text: Any, _: Connection) -> None:
    print(text, end="")
    os.kill(os.getpid(), signal.SIGKILL)


def _print_much(size: Any, _: Connection) -> None:
    print("first" + "x" * size + "last")


def _lie(_: Any, connection: Connection) -> None:
    connection.send("reading", name="core.matmul", error="said before")


ACTIONS: Mapping[str, Callable[[Any, Connection], None]] = {
    "exit": _exit,
    "raise": _raise,
    "explain": _explain,
    "signal": _signal_self,
    "hang": _hang,
    "daemonise": _daemonise,
    "echo": _echo,
    "ignore SIGTERM": _ignore_term,
    "show": _show,
    "print": _print,
    "print and die": _print_and_die,
    "print much": _print_much,
    "lie": _lie,
    "say nothing": lambda *_: None,
}
