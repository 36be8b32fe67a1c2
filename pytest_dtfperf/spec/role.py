"""How an external command is told, on a host, which task of the run it is. Pure."""

import json
from collections.abc import Mapping

from pytest_dtfperf.spec.command import ASKED, TF_CONFIG, flags_of, values_of
from pytest_dtfperf.spec.order import TaskOrder


def arguments(order: TaskOrder) -> list[str]:
    """The program and all its words, as this task starts it.

    A lone process is told of no role, and a flag for parameter servers, or a chief, is left out where there are none.
    """
    spec, hosts = order.spec, {job: ",".join(order.cluster.get(job, ())) for job in ("ps", "worker", "chief")}
    own = {
        "job": order.job,
        "index": order.index,
        "ps_hosts": hosts["ps"],
        "worker_hosts": hosts["worker"],
        "chief_hosts": hosts["chief"],
        "workers": order.workers,
        "devices": order.num_devices if order.job != "ps" else -(-spec.gpus // order.workers),
        "threads": order.threads,
    }
    values = {**values_of(spec), **{name: str(value) for name, value in own.items()}}
    flags = [flag for flag in flags_of(spec.role_flags) if order.cluster and not _asks_for_none(flag, hosts)]
    return [
        ASKED.sub(lambda match: f"{{{match[1]}}}" if match[1] else values[match[2]], word) for word in (*spec.command, *flags)
    ]


def _asks_for_none(flag: str, hosts: Mapping[str, str]) -> bool:
    return any(f"{{{job}_hosts}}" in flag and not hosts[job] for job in ("ps", "chief"))


def variables(order: TaskOrder) -> dict[str, str]:
    """What the task's environment is told."""
    told = dict(word.split("=", 1) for word in order.spec.environment)
    if order.spec.role_flags == TF_CONFIG and order.cluster:
        task = {"type": order.job, "index": order.index}
        cluster = {job: list(at) for job, at in order.cluster.items() if job != "evaluator"}  # which nobody trains with
        told[TF_CONFIG] = json.dumps({"cluster": cluster, "task": task})
    return told
