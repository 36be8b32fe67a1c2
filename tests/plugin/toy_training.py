"""Training of the standard library alone: it lives a task's whole life, and says of every step that it took as long as told.

The environment says what: TOY_STEP_S, seconds of a step of one device (default 0.01), TOY_NOISE, by which part each run is
slower than the one before it, TOY_LOSS. An injected sleep makes a step longer by as much. So rates are exact, and quick.
TOY_DIVERGES is a file: once it is there, the loss is no number on as many devices as it says.
TOY_PS_STEP_S is such seconds by the number of parameter servers, `{"1": 0.03, "2": 0.01}`; with another one, workers die.
TOY_REPORTS is a folder for `tell`; with TOY_TRACES it sends a trace where it is asked for one.
"""

import fcntl
import hashlib
import json
import math
import os
import signal
import time
from pathlib import Path
from typing import Any

from pytest_dtfperf.measurement import TaskReport
from pytest_dtfperf.node.connection import Connection
from pytest_dtfperf.spec import TaskOrder
from pytest_dtfperf.traces import Operation, Ran, TaskTrace, TracedStep, pack
from tests.node import toy_task


def run(data: dict[str, Any], connection: Connection) -> None:
    if "probe" in data:
        toy_task.probe(data, connection)
        return
    order = TaskOrder.from_json(data)
    report_order(order)
    if order.spec.mode.requires:  # where there is no TensorFlow, there is nothing beside it
        connection.send("missing", what="module", name=order.spec.mode.requires)
        return
    connection.send("ready")
    connection.wait()
    if order.job == "ps":
        assert connection.wait() == "leave"
        connection.send("report", **TaskReport(job="ps", index=order.index).to_json())
        return
    _misbehave(order)
    time.sleep(float(os.environ.get("TOY_WALL_S", "0")))
    step_s = _step_s(order) + _slowest(order) + _input_s(order)
    time.sleep(step_s * order.spec.steps)  # whoever says that it took longer than the whole run did is not believed
    if order.traced_steps and os.environ.get("TOY_TRACES"):
        connection.send("trace", data=pack(_trace(order)))
    report = TaskReport(
        job="worker",
        index=order.index,
        num_devices=order.num_devices,
        step_s=[step_s] * order.spec.steps,
        elapsed_s=step_s * order.spec.steps,
        loss=[_loss(order)] * order.spec.steps,
        startup_s={"build": 0.0},
        graph={"hash": hashlib.sha256(order.spec.key.encode()).hexdigest()[:12], "operations": {"Add": order.spec.gpus}},
    )
    connection.send("report", **report.to_json())


def _trace(order: TaskOrder) -> TaskTrace:
    """Steps in which all is forward."""
    steps = [TracedStep(at, at, at + 1000, 900, [Ran(0, at, at, at + 1000)], []) for at in range(0, 6000, 1000)]
    return TaskTrace(order.name, [Operation("tower0/Relu", "Relu", f"{order.name}/CPU:0", ())], [], steps)


def report_order(order: TaskOrder) -> None:
    """Leave in a file, TASK.json, on which node of a Slurm job the task is, and which GPUs it may see."""
    if folder := os.environ.get("TOY_REPORTS"):
        seen = {"node": os.environ.get("SLURMD_NODENAME"), "gpus": os.environ.get("CUDA_VISIBLE_DEVICES")}
        Path(folder, f"{order.job}-{order.index}.json").write_text(json.dumps(seen))


def _step_s(order: TaskOrder) -> float:
    """Of this run: the counter is a file, because every run is another process."""
    if by_servers := os.environ.get("TOY_PS_STEP_S"):
        return float(json.loads(by_servers)[str(order.spec.num_ps)])
    step_s = float(os.environ.get("TOY_STEP_S", "0.01"))
    noise = float(os.environ.get("TOY_NOISE", "0"))
    if not noise:
        return step_s
    with Path(os.environ["TOY_COUNTER"]).open("a+") as counter:
        fcntl.flock(counter, fcntl.LOCK_EX)  # the workers of a run count at the same time
        counter.seek(0)
        number = int(counter.read() or "0")
        counter.truncate(0)
        counter.write(str(number + 1))
    return step_s * (1 + noise * number)


def _loss(order: TaskOrder) -> float:
    diverges = Path(os.environ.get("TOY_DIVERGES", "nowhere"))
    if diverges.exists() and diverges.read_text() == str(order.spec.gpus):
        return math.nan
    return float(os.environ.get("TOY_LOSS", "1.0"))


def _slowest(order: TaskOrder) -> float:
    """Synchronous training runs at the pace of its slowest worker."""
    injected_slowdowns = os.environ.get("DTFPERF_SLOWDOWN", "")
    return max((float(entry.partition("=")[2]) for entry in injected_slowdowns.split(",") if entry), default=order.sleep_s)


def _input_s(order: TaskOrder) -> float:
    """TOY_INPUT_S: what a step waits for its input, where that is real."""
    return float(os.environ.get("TOY_INPUT_S", "0")) if order.spec.data != "synthetic" else 0.0


def _misbehave(order: TaskOrder) -> None:
    what = os.environ.get("TOY_DO", "")
    if what == f"die {order.job}:{order.index}":
        print("something terrible happened", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "die when traced" and order.traced_steps:
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "die of synthetic input" and order.spec.data == "synthetic":
        os.kill(os.getpid(), signal.SIGKILL)
    if what in ("wait", f"wait with {order.spec.num_ps} servers", f"wait in {order.spec.steps} steps"):
        Path(os.environ["TOY_WAITS"]).touch()
        signal.pause()
    if what == "lose agent":
        agent = int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(agent, signal.SIGKILL)
        signal.pause()
