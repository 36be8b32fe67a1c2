"""The keys of a Slurm cluster. Pure."""

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from pytest_dtfperf.clusters import file
from pytest_dtfperf.clusters.file import COUNT, FLAG, SECONDS, TEXT, TEXTS, HostListError, Validator, one_of
from pytest_dtfperf.errors import show_value
from pytest_dtfperf.formats import format_count

# Minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes, days-hours:minutes:seconds.
_TIME = re.compile(r"\d+|\d+:\d\d|\d+:\d\d:\d\d|\d+-\d+(:\d\d){0,2}")
_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) *([smhd])")
_SECONDS_PER = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_GPUS = re.compile(r"(?:gres[/:])?gpu((?:[:=][\w.+-]+){0,2})")
_IN_PARENTHESES = re.compile(r"\([^()]*\)")  # "(S:0-1)", "(IDX:0,2)": the sockets and indices of the GPUs
_MOST_GPUS = 64  # of a node, parts (MIG) included: a larger number alone is a type's name, as in gpu:4090
_NODE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")

DEFAULT_TIME_LIMIT = (
    "60"  # minutes: more than perf_tests take, less than most partitions allow; a job without a limit may run without end
)
TIME_LIMIT = Validator(
    'a number of minutes or one of Slurm\'s formats ("12", "12:30", "00:12:00", "1-12", "1-12:30", "1-12:30:00"), above zero',
    lambda value: COUNT.accepts(value) or (isinstance(value, str) and _is_time(value)),
)
DURATION = Validator(
    'a number of seconds or text like "90s", "30m", "2h", "1d", above zero',
    lambda value: SECONDS.accepts(value) or (isinstance(value, str) and (parse_seconds(value) or 0) > 0),
)
NODES_PER_GPU_COUNT = Validator(
    "a table of device counts and the nodes for each, like { 8 = 8, 16 = 4 }",
    lambda value: (
        isinstance(value, dict)
        and all(re.fullmatch(r"[1-9][0-9]{0,8}", key) and COUNT.accepts(each) for key, each in value.items())
    ),
)

KEYS: Mapping[str, Validator] = {
    "partition": TEXT,
    "account": TEXT,
    "qos": TEXT,
    "constraint": TEXT,
    "reservation": TEXT,
    "nodes": COUNT,  # at most
    "nodes_per_gpu_count": NODES_PER_GPU_COUNT,
    "include_nodes": TEXT,
    "exclude_nodes": TEXT,
    "switches": COUNT,  # at most so many leaf switches
    "exclusive": FLAG,
    "gpus_per_node": COUNT,
    "gres": TEXT,
    "cpus_per_node": COUNT,
    "memory": TEXT,
    "licenses": TEXT,
    "time_limit": TIME_LIMIT,
    "max_pending": DURATION,
    "options": TEXTS,
    "setup": TEXTS,
    "shared": TEXT,
    "spool": TEXT,
    "network": one_of("trusted"),  # otherwise hosts with public addresses are refused where the firewall is not managed here
}

# Options that may not be in `options`, because a key sets them ...
_KEY_OF = {
    "--partition": "partition", "-p": "partition", "--account": "account", "-A": "account", "--qos": "qos", "-q": "qos",
    "--constraint": "constraint", "-C": "constraint", "--reservation": "reservation", "--nodes": "nodes", "-N": "nodes",
    "--nodelist": "include_nodes", "-w": "include_nodes", "--nodefile": "include_nodes", "-F": "include_nodes",
    "--exclude": "exclude_nodes", "-x": "exclude_nodes", "--switches": "switches", "--exclusive": "exclusive",
    "--oversubscribe": "exclusive", "-s": "exclusive", "--gres": "gres", "--gpus-per-node": "gpus_per_node",
    "--gpus": "gpus_per_node", "-G": "gpus_per_node", "--gpus-per-task": "gpus_per_node", "--gpus-per-socket": "gpus_per_node",
    "--cpus-per-task": "cpus_per_node", "-c": "cpus_per_node", "--mem": "memory", "--mem-per-cpu": "memory",
    "--mem-per-gpu": "memory", "--licenses": "licenses", "-L": "licenses", "--time": "time_limit", "-t": "time_limit",
    "--output": "shared", "-o": "shared", "--error": "shared", "-e": "shared",
}  # fmt: skip
# ... or because the backend needs its values: names to find a job by, one task per node, an answer that is a number.
_SET_ALREADY = (
    "--job-name", "-J", "--comment", "--requeue", "--no-requeue", "--wait", "-W", "--parsable", "--array", "-a", "--ntasks",
    "-n", "--ntasks-per-node", "--ntasks-per-core", "--ntasks-per-socket", "--ntasks-per-gpu", "--wrap", "--test-only",
    "--input", "-i", "--clusters", "--cluster", "-M", "--hold", "-H", "--help", "-h", "--usage", "--version", "-V",
)  # fmt: skip


def validate(table: Mapping[str, Any]) -> str | None:
    """Return the first conflict between keys that are valid on their own; None if there is none."""
    if "gres" in table and "gpus_per_node" in table:
        return 'has gres and gpus_per_node: one of them is enough, gpus_per_node = 4 is gres = "gpu:4"'
    if problem := next(_find_gres_problem(table), None):
        return problem
    if "devices_per_host" not in table and get_gpus_per_node(table) is None:
        return (
            'must set how many devices a node has: gpus_per_node = 4, gres = "gpu:p100:4", or on nodes without GPUs '
            "devices_per_host = 2, each of which is then half of a node's cores"
        )
    problems = *map(_find_option_problem, table.get("options", ())), *_find_count_problem(table), *_find_node_problem(table)
    return next(filter(None, problems), None)


def get_gpus_per_node(backend_keys: Mapping[str, Any]) -> int | None:
    """Return the GPUs of a node from gpus_per_node or the gpu part of gres; None if neither has any."""
    if given := backend_keys.get("gpus_per_node"):
        return int(given)
    return sum(count for _, count in count_gpus(backend_keys.get("gres", ""))) or None


def count_gpus(gres: str) -> list[tuple[str, int]]:
    """Return type ("" where it has none) and count of the GPUs in generic resources, as `--gres` takes and `sinfo` shows them.

    `gpu:2`, `gpu:a100`, `gpu:3090:4`, `gpu:a100_1g.10gb+me:1(S:0-1),shard:8`. A number alone is a count.
    """
    found = []
    for each in _IN_PARENTHESES.sub("", gres).split(","):
        if not (gpus := _GPUS.fullmatch(each.strip())):
            continue
        parts = re.split("[:=]", gpus[1])[1:]
        if len(parts) < 2:
            is_count = bool(parts) and parts[0].isdecimal()
            found.append(("" if is_count or not parts else parts[0], int(parts[0]) if is_count else 1))
        elif parts[1].isdecimal():
            found.append((parts[0], int(parts[1])))
    return found


def list_nodes(hostlist: str) -> tuple[str, ...]:
    """Return the nodes of a host list, in its order. Raises `HostListError`, also for invalid node names."""
    nodes = file.expand_hostlist(hostlist)
    if wrong := next((node for node in nodes if not _NODE.fullmatch(node)), None):
        raise HostListError(f"no node is called {show_value(wrong)}. Write node1,node2 or node[1-4,08], without blanks")
    return nodes


def parse_seconds(duration: str | float) -> float | None:
    """Return a duration in seconds; None for invalid text."""
    if not isinstance(duration, str):
        return float(duration)
    found = _DURATION.fullmatch(duration.strip())
    return float(found[1]) * _SECONDS_PER[found[2]] if found else None


def get_lifetime_s(backend_keys: Mapping[str, Any]) -> float | None:
    """Return the longest duration of a job in seconds, by `time_limit`. None: only Slurm knows that of the current job."""
    if count_nodes_of_job() is not None:
        return None
    days, _, rest = f"{backend_keys.get('time_limit', DEFAULT_TIME_LIMIT)}".rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    if days:  # days-hours, days-hours:minutes, days-hours:minutes:seconds
        hours, minutes, secs = (*parts, 0, 0)[:3]
    else:  # minutes, minutes:seconds, hours:minutes:seconds
        hours, minutes, secs = (0, *parts, 0)[:3] if len(parts) < 3 else parts
    return float(86400 * int(days or 0) + 3600 * hours + 60 * minutes + secs)


def _is_time(text: str) -> bool:
    return bool(_TIME.fullmatch(text)) and any(digit in text for digit in "123456789")  # Slurm takes zero for "no limit"


def _find_option_problem(option: str) -> str | None:
    if option == ":":
        return 'options must not hold ":": jobs of several parts are not supported'
    name = option.partition("=")[0].partition(" ")[0] if option.startswith("--") else option[:2]
    for known in (*_KEY_OF, *_SET_ALREADY):
        # Slurm accepts the beginning of a long option's name for all of it.
        if known == name or (len(name) > 2 and known.startswith(name)):
            use = f"use the key {_KEY_OF[known]}" if known in _KEY_OF else "the backend sets it, or cannot work with it"
            return f"options must not hold {option!r}: {use}"
    return None


def _find_gres_problem(table: Mapping[str, Any]) -> Iterator[str]:
    for each in _IN_PARENTHESES.sub("", table.get("gres", "")).split(","):
        if not re.match(r"(gres[/:])?gpu\b", each.strip()):
            continue
        counts = count_gpus(each)
        if not counts:
            yield (
                f"gres = {show_value(table['gres'])}: {show_value(each.strip())} is no number of GPUs. Write "
                '"gpu:4" or "gpu:a100:4"'
            )
        elif counts[0][1] > _MOST_GPUS:
            kind, count = counts[0]
            kind = kind or str(count)
            yield (
                f"gres = {show_value(table['gres'])} would be {count} GPUs of each node, and {_MOST_GPUS} are the most. "
                f'If {kind} is their type, set how many a node has: "gpu:{kind}:4"'
            )


def _find_count_problem(table: Mapping[str, Any]) -> Iterator[str]:
    on_each = table.get("devices_per_host") or get_gpus_per_node(table) or 1
    for count, nodes in table.get("nodes_per_gpu_count", {}).items():
        if nodes * on_each < int(count):
            yield f"nodes_per_gpu_count sets {format_count(nodes, 'node')} for {count} devices, room for {nodes * on_each}"
        if nodes > table.get("nodes", nodes):
            yield f"nodes_per_gpu_count sets {nodes} nodes for {count} devices, but nodes = {table['nodes']}"


def _find_node_problem(table: Mapping[str, Any]) -> Iterator[str]:
    for key in sorted({"include_nodes", "exclude_nodes"} & table.keys()):
        try:
            list_nodes(table[key])
        except HostListError as exc:
            yield f"{key} = {show_value(table[key])} is no list of hosts: {exc}"


def count_nodes_of_job() -> int | None:
    """Return the number of nodes of the job in which this process runs; None outside of one."""
    given = os.environ.get("SLURM_JOB_NUM_NODES", "")
    return int(given) if re.fullmatch("[1-9][0-9]{0,8}", given) else None
