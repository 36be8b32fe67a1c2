"""The orders of a run, as the agents are sent them. Pure: tasks go in, one order for all hosts comes out.

A channel carries every line to every host. So nothing is said twice: what all tasks have in common (the training, everybody's
address) stands in an order once, and each agent picks what is for its own host.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pytest_dtfperf.errors import SpecError
from pytest_dtfperf.launch.placement import HostView, PlacedTask
from pytest_dtfperf.launch.roles import WORKERS_LEAD, Roles
from pytest_dtfperf.spec import Spec, own
from pytest_dtfperf.spec.numerics import ZMQ_PRODUCER

CHIEF = "worker:0"
# GPU 0 is the one that nvidia-smi, and so the agent, calls 0, whatever the host's own environment says.
GPU_ORDER = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def by_host(tasks: Sequence[PlacedTask]) -> dict[int, list[PlacedTask]]:
    """The tasks of each host that has some, in the order in which they are told their ports."""
    found: dict[int, list[PlacedTask]] = {}
    for task in tasks:
        found.setdefault(task.host, []).append(task)
    return found


def reserve(tasks: Sequence[PlacedTask], *, fixed_ports: bool, isolated: bool, peers: Sequence[str] | None) -> dict[str, Any]:
    """What each host shall hold ready: so many ports, or these; and who may reach them where that can be enforced."""
    return {
        "hosts": {
            str(host): {"ports": [task.fixed_port for task in on_host]} if fixed_ports else {"count": len(on_host)}
            for host, on_host in by_host(tasks).items()
        },
        "isolated": isolated,
        "peers": peers,
    }


def addresses(
    tasks: Sequence[PlacedTask], hosts: Sequence[HostView], ports: Mapping[int, Sequence[int]]
) -> dict[str, list[str]]:
    """Job -> "address:port" of each of its tasks, by their index."""
    reserved = {
        task.name: f"{_before_port(hosts[host].address)}:{port}"
        for host, on_host in by_host(tasks).items()
        for task, port in zip(on_host, ports[host], strict=True)
    }
    jobs = dict.fromkeys(task.job for task in tasks)
    return {job: [reserved[task.name] for task in tasks if task.job == job] for job in jobs}


def _before_port(address: str) -> str:
    """As it stands before a colon and a port (RFC 3986): one of IPv6, which has colons itself, in brackets."""
    return f"[{address}]" if ":" in address else address


def start(
    tasks: Sequence[PlacedTask],
    hosts: Sequence[HostView],
    *,
    run: str,
    spec: Spec,
    cluster: Mapping[str, Sequence[str]],
    injected_slowdowns: Mapping[str, float],
    checkpoint: str | None,
    cold: bool,
    isolated: bool,
    traced_steps: int = 0,
    stamped: Sequence[bool] = (True,),
    streams: bool = False,
    roles: Roles = WORKERS_LEAD,
    tunnel: int | None = None,
) -> dict[str, Any]:
    """Every task of the run. What a task is told (a `TaskOrder`) is the common part with its own.

    `tunnel` is the host to whose tasks there is one.
    """
    return {
        "tunnel": tunnel,
        "cold": cold or _must_start_cold(spec),
        "isolated": isolated,
        "free_ports": bool(spec.command),  # so that whoever binds them need not say SO_REUSEPORT
        "common": {
            "run": run,
            "spec": spec.to_json(),
            **_own_model(spec),
            "cluster": cluster,
            "traced_steps": traced_steps,
            "stamped": list(stamped),
            "streams": streams,
            "grace_s": roles.grace_s,
        },
        "env": {**_environment(spec), **GPU_ORDER},
        "tasks": [
            {
                "host": task.host,
                "task": task.name,
                "order": {
                    **_own_order(task, injected_slowdowns.get(task.name, 0.0), checkpoint if task.name == CHIEF else None),
                    "stays": roles.stays(task),
                },
                "env": {"CUDA_VISIBLE_DEVICES": ",".join(task.gpus)},  # empty, not absent: absent means all of them
                # Where a task may use all cores nothing need be said, and they can be hundreds.
                "cpus": [] if task.cpus == hosts[task.host].cpus or not spec.cpu_affinity else list(task.cpus),
            }
            for task in tasks
        ],
    }


def task_order(task: PlacedTask, run: str, spec: Spec) -> dict[str, Any]:
    """What such a task would be told if it were alone."""
    return {"run": run, "spec": spec.to_json(), **_own_model(spec), "cluster": {}, **_own_order(task, 0.0, None)}


def _own_model(spec: Spec) -> dict[str, Any]:
    """What it is and its code, where the spec's model is in no table. Raises `SpecError` where nobody here has it."""
    if not spec.own_model:
        return {}
    if (found := own.find(spec.model)) is None:
        raise SpecError(f"{spec.model} is a model of whoever measured it: give train() the model itself")
    return {"own": found.to_json()}


def _environment(spec: Spec) -> dict[str, str]:
    """What every task finds in its environment. An external command is given its own by its task."""
    if spec.command:
        return {}
    variables = dict(assignment.split("=", 1) for assignment in spec.environment)
    if spec.onednn is not None:
        variables["TF_ENABLE_ONEDNN_OPTS"] = str(int(spec.onednn))
    return variables


def _must_start_cold(spec: Spec) -> bool:
    """Whether a task's environment is read while TensorFlow is imported: then no zygote that has done so can be forked.

    So it is of TF_ENABLE_ONEDNN_OPTS, and nobody has a list of all the others. NCCL reads its own when it is first used, and
    we ours when a producer is started.
    """
    return any(not name.startswith(("NCCL_", ZMQ_PRODUCER)) for name in _environment(spec))


def _own_order(task: PlacedTask, sleep_s: float, checkpoint: str | None) -> dict[str, Any]:
    return {
        "job": task.job,
        "index": task.index,
        "device": task.device,
        "num_devices": task.num_devices,
        "threads": task.threads,
        "sleep_s": sleep_s,
        "checkpoint": checkpoint,
    }
