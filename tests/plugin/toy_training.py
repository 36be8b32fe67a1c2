"""Training of the standard library alone: it lives a task's whole life, and reports that each step took as long as configured.

The environment sets how long: TOY_STEP_S, seconds of a step of one device (default 0.01), TOY_NOISE, by which part each run is
slower than the one before it, TOY_LOSS. An injected sleep makes a step longer by as much. So rates are exact, and quick.
TOY_DIVERGES is a file: once it is there, the loss is no number on as many devices as its text.
TOY_PS_STEP_S is such seconds by the number of parameter servers, `{"1": 0.03, "2": 0.01}`; with another one, workers die.
TOY_SLOW_HOSTS is such seconds by addresses, `{"198.18.7.1+198.18.7.2": 0.02}`, of a training with all hosts of one key.
TOY_HOLD is a folder: while it has a file `hold`, a worker leaves a file with its process's number there, and does not train.
TOY_REPORTS is a folder for `report_order`; with TOY_TRACES it sends a trace where one is requested.

It imports next to nothing that its agent has not: every session of toys would pay for that.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import signal
import time
import zlib

from pytest_dtfperf.node.wire import Connection
from tests.node import toy_task

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from pytest_dtfperf.spec import TaskOrder

REQUIRES = {"horovod": "horovod.tensorflow"}  # where there is no TensorFlow, there is nothing beside it
# Of a spec: what is in no graph.
NOT_IN_GRAPH = {
    "data_dir", "learning_rate", "evaluate", "stop_at_top_1_accuracy", "eval_during_training_every_n_steps", "warmup_steps",
    "steps", "seed",
}  # fmt: skip


class Order:
    """What toys go by of a `TaskOrder`."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.job: str = data["job"]
        self.index: int = data["index"]
        self.name = f"{self.job}:{self.index}"
        self.spec: dict[str, Any] = data["spec"]
        self.gpus: int = self.spec["gpus"]
        self.steps: int = self.spec["steps"]
        self.num_devices: int = data["num_devices"]
        self.sleep_s: float = data["sleep_s"]
        self.traced_steps: int = data.get("traced_steps", 0)
        self.addresses = {task.rpartition(":")[0] for tasks in data.get("cluster", {}).values() for task in tasks}


def run(data: dict[str, Any], connection: Connection) -> None:
    if "probe" in data:
        toy_task.probe(data, connection)
        return
    order = Order(data)
    report_order(order)
    if requires := REQUIRES.get(order.spec["variable_update"]):
        connection.send("missing", what="module", name=requires)
        return
    connection.send("ready")
    connection.wait()
    if order.job == "ps":
        assert connection.wait() == "leave"
        connection.send("report", job="ps", index=order.index)
        return
    _misbehave(order)
    _wait_while_held()
    time.sleep(float(os.environ.get("TOY_WALL_S", "0")))
    step_s = _step_s(order) + _slowest(order) + _input_s(order)
    time.sleep(step_s * order.steps)  # whoever says that it took longer than the whole run did is not believed
    if order.traced_steps and os.environ.get("TOY_TRACES"):
        connection.send("trace", data=_trace(order.name))
    connection.send(
        "report",
        job="worker",
        index=order.index,
        num_devices=order.num_devices,
        step_s=[step_s] * order.steps,
        elapsed_s=step_s * order.steps,
        loss=[_loss(order)] * order.steps,
        startup_s={"build": 0.0},
        graph={"hash": _hash_of(order.spec), "operations": {"Add": order.gpus}},
    )


def _hash_of(spec: dict[str, Any]) -> str:
    silent = NOT_IN_GRAPH if spec["num_ps"] > 1 else {*NOT_IN_GRAPH, "variable_placement"}  # one server has all variables
    kept = {name: value for name, value in spec.items() if name not in silent}
    return f"{zlib.crc32(json.dumps(kept, sort_keys=True).encode()):012x}"


def _trace(name: str) -> str:
    """Steps in which all is forward."""
    from pytest_dtfperf.traces import Operation, OperationRun, TaskTrace, TracedStep, pack_trace

    steps = [TracedStep(at, at, at + 1000, 900, [OperationRun(0, at, at, at + 1000)], []) for at in range(0, 6000, 1000)]
    return pack_trace(TaskTrace(name, [Operation("tower0/Relu", "Relu", f"{name}/CPU:0", ())], [], steps))


def report_order(order: Order | TaskOrder) -> None:
    """Leave in a file, TASK.json, on which node of a Slurm job the task is, and which GPUs it may see."""
    if folder := os.environ.get("TOY_REPORTS"):
        seen = {"node": os.environ.get("SLURMD_NODENAME"), "gpus": os.environ.get("CUDA_VISIBLE_DEVICES")}
        with open(os.path.join(folder, f"{order.job}-{order.index}.json"), "w") as file:
            json.dump(seen, file)


def _step_s(order: Order) -> float:
    """Of this run: the counter is a file, because every run is another process."""
    if by_servers := os.environ.get("TOY_PS_STEP_S"):
        return float(json.loads(by_servers)[str(order.spec["num_ps"])])
    slow: dict[str, float] = json.loads(os.environ.get("TOY_SLOW_HOSTS", "{}"))
    usual_s = float(os.environ.get("TOY_STEP_S", "0.01"))
    step_s = max([usual_s, *(seconds for hosts, seconds in slow.items() if set(hosts.split("+")) <= order.addresses)])
    noise = float(os.environ.get("TOY_NOISE", "0"))
    if not noise:
        return step_s
    with open(os.environ["TOY_COUNTER"], "a+") as counter:
        fcntl.flock(counter, fcntl.LOCK_EX)  # the workers of a run count at the same time
        counter.seek(0)
        number = int(counter.read() or "0")
        counter.truncate(0)
        counter.write(str(number + 1))
    return step_s * (1 + noise * number)


def _wait_while_held() -> None:
    folder = os.environ.get("TOY_HOLD", "")
    while folder and os.path.exists(os.path.join(folder, "hold")):
        with open(os.path.join(folder, str(os.getpid())), "w"):
            time.sleep(0.05)


def _loss(order: Order) -> float:
    diverges = os.environ.get("TOY_DIVERGES", "nowhere")
    if os.path.exists(diverges) and _text_of(diverges) == str(order.gpus):
        return math.nan
    return float(os.environ.get("TOY_LOSS", "1.0"))


def _text_of(path: str) -> str:
    with open(path) as file:
        return file.read()


def _slowest(order: Order) -> float:
    """Synchronous training runs at the pace of its slowest worker."""
    injected_slowdowns = os.environ.get("DTFPERF_SLOWDOWN", "")
    return max((float(entry.partition("=")[2]) for entry in injected_slowdowns.split(",") if entry), default=order.sleep_s)


def _input_s(order: Order) -> float:
    """TOY_INPUT_S: what a step waits for its input, where that is real."""
    return float(os.environ.get("TOY_INPUT_S", "0")) if order.spec["data"] != "synthetic" else 0.0


def _misbehave(order: Order) -> None:
    what = os.environ.get("TOY_DO", "")
    if what == f"die {order.job}:{order.index}":
        print("something terrible happened", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    if what == f"die on {os.uname().nodename}":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == f"stall beside others on {os.uname().nodename}" and order.gpus > 1:
        signal.pause()
    if what == "die when traced" and order.traced_steps:
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "die of synthetic input" and order.spec["data"] == "synthetic":
        os.kill(os.getpid(), signal.SIGKILL)
    if what in ("wait", f"wait with {order.spec['num_ps']} servers", f"wait in {order.steps} steps"):
        open(os.environ["TOY_WAITS"], "a").close()
        signal.pause()
    if what in ("lose agent", f"lose agent on {os.uname().nodename}"):
        agent = int(_text_of(f"/proc/{os.getppid()}/stat").rpartition(")")[2].split()[1])
        os.kill(agent, signal.SIGKILL)
        signal.pause()
