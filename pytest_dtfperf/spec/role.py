"""How an external command is told, on a host, which task of the run it is. Pure."""

import json
from collections.abc import Mapping

from pytest_dtfperf.spec.command import ASKED, TF_CONFIG, flags_of, names_in, values_of
from pytest_dtfperf.spec.order import TaskOrder


def arguments(order: TaskOrder) -> list[str]:
    """Return the program and all its words, as this task starts it.

    A lone process is told of no role, and a flag for parameter servers, or a chief, is left out where there are none.
    """
    spec, values = order.spec, _values(order)
    flags = [] if _is_alone(order) else [flag for flag in flags_of(spec.role_flags) if not _asks_for_none(flag, values)]
    return [_filled(word, values) for word in (*spec.command, *flags)]


def variables(order: TaskOrder) -> dict[str, str]:
    """Return what the task's environment is told. A variable for tasks that there are none of is left out."""
    values = _values(order)
    told = {
        name: _filled(value, values)
        for name, _, value in (word.partition("=") for word in order.spec.environment)
        if not _asks_for_none(value, values)
    }
    if order.spec.role_flags == TF_CONFIG and not _is_alone(order):
        task = {"type": order.job, "index": order.index}
        cluster = {job: list(at) for job, at in order.cluster.items() if job != "evaluator"}  # which nobody trains with
        told[TF_CONFIG] = json.dumps({"cluster": cluster, "task": task})
    return told


def _is_alone(order: TaskOrder) -> bool:
    return sum(map(len, order.cluster.values())) <= 1


def _values(order: TaskOrder) -> Mapping[str, str]:
    """Return what each name in braces stands for in this task."""
    addresses = {job: order.cluster.get(job, ()) for job in ("chief", "worker", "ps", "evaluator")}
    chief = next((at for job in ("chief", "worker") for at in addresses[job]), ":")
    own = {
        "job": order.job,
        "index": order.index,
        **{f"{job}_hosts": ",".join(addresses[job]) for job in ("ps", "worker", "chief")},
        "chief_host": _host(chief),
        "chief_port": chief.rpartition(":")[2],
        "hosts": ",".join(dict.fromkeys(_host(at) for each in addresses.values() for at in each)),
        "workers": order.workers,
        "devices": order.num_devices if order.job != "ps" else -(-order.spec.gpus // order.workers),
        "threads": order.threads,
    }
    return {**values_of(order.spec), **{name: str(value) for name, value in own.items()}}


def _host(address: str) -> str:
    """As programs take it beside a port of its own: IPv6 without brackets."""
    return address.rpartition(":")[0].removeprefix("[").removesuffix("]")


def _filled(word: str, values: Mapping[str, str]) -> str:
    return ASKED.sub(lambda match: f"{{{match[1]}}}" if match[1] else values[match[2]], word)


def _asks_for_none(word: str, values: Mapping[str, str]) -> bool:
    return any(name.endswith("_hosts") and not values[name] for name in names_in([word]))
