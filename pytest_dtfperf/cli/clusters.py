"""`dtfperf clusters ...`: list, show and check the clusters that clusters.toml describes."""

import argparse
import json
import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_dtfperf.cli.options import (
    DONE,
    FAILED,
    USAGE,
    Commands,
    Shape,
    add_command,
    add_group,
    add_json,
    complete_cluster_names,
    find_clusters_file,
    print_table,
    set_completer,
)
from pytest_dtfperf.cli.output import print_json
from pytest_dtfperf.errors import ClusterFileError, UsageError, describe_unknown_name
from pytest_dtfperf.formats import NONE, format_count

if TYPE_CHECKING:
    from pytest_dtfperf.clusters.named import ClusterConfig

TEXT = """\
List, show and check the clusters of clusters.toml.

    dtfperf clusters list
    dtfperf clusters show daint
    dtfperf clusters check
"""
LIST = """\
List the clusters that tests can train on: those of clusters.toml, and `local`, which needs no file.

    dtfperf clusters list
    dtfperf clusters list --clusters-file=site/clusters.toml --json
"""
SHOW = """\
Show all keys of a cluster: those in clusters.toml, and the defaults of the others, which are marked.

    dtfperf clusters show daint
"""
CHECK = """\
Check clusters without a request for hosts: whether the programs that they need are installed, and their files can be read.
`dtfperf doctor` checks their hosts.

    dtfperf clusters check
    dtfperf clusters check daint lab
"""
NO_SUCH = "wrong arguments, no such cluster, or a file that cannot be read"
FILE = "the path of clusters.toml; null: there is none"
SHAPES: Mapping[str, Shape] = {
    "list": {
        "file": FILE,
        "clusters": [
            {
                "name": "as for --cluster",
                "backend": "local, ssh, slurm, ec2, simulated or another package's",
                "hosts": "their number; null: only the cluster knows it",
                "devices_per_host": "their number; null: only the cluster knows it",
                "allocation": "how long hosts are allocated: session or test",
            }
        ],
    },
    "show": {
        "file": FILE,
        "name": "the cluster's",
        "given": "its table of clusters.toml, as an object",
        "defaults": "the other keys with their defaults",
    },
    "check": {"clusters": [{"name": "the cluster's", "problem": "why it cannot be used; null: it can"}]},
}


def add_parser(commands: "Commands[argparse.ArgumentParser]") -> None:
    group = add_group(commands, "clusters", help="list, show and check the clusters of clusters.toml", text=TEXT)
    listed = add_command(group, "list", help="list all clusters", text=LIST, ends={DONE: "listed"})
    shown = add_command(group, "show", help="show all keys of a cluster", text=SHOW, ends={DONE: "shown", USAGE: NO_SUCH})
    set_completer(shown.add_argument("name", metavar="NAME"), complete_cluster_names)
    ends = {DONE: "all can be used", FAILED: "some cannot", USAGE: NO_SUCH}
    checked = add_command(group, "check", help="check whether clusters can be used", text=CHECK, ends=ends)
    set_completer(checked.add_argument("names", metavar="NAME", nargs="*", help="by default all"), complete_cluster_names)
    for parser, run, name in ((listed, run_list, "list"), (shown, run_show, "show"), (checked, run_check, "check")):
        parser.add_argument("--clusters-file", metavar="FILE", help="by default as pytest finds it")
        add_json(parser, SHAPES[name])
        parser.set_defaults(run=run)


def run_list(args: argparse.Namespace) -> int:
    path, clusters = _load_clusters(args)
    rows = [_make_row(config) for config in clusters.values()]
    if args.json:
        print_json({"file": str(path) if path else None, "clusters": rows})
        return DONE
    print(f"From {path}:" if path else "There is no clusters.toml; without one there is:")
    print_table(
        [name.replace("_", " ") for name in rows[0]],
        ([NONE if cell is None else str(cell) for cell in row.values()] for row in rows),
    )
    return DONE


def _make_row(config: "ClusterConfig") -> dict[str, Any]:
    """Return the properties that distinguish clusters. `hosts`, `devices`: None if only the cluster knows them."""
    from pytest_dtfperf.clusters import capacity

    try:
        hosts, on_each = capacity.count_hosts(config), capacity.predict_devices_per_host(config)
    except ClusterFileError:  # a file that it names cannot be read: `check` reports it
        hosts, on_each = None, None
    return {
        "name": config.name,
        "backend": config.backend,
        "hosts": hosts,
        "devices_per_host": on_each,
        "allocation": config.allocation,
    }


def run_show(args: argparse.Namespace) -> int:
    path, clusters = _load_clusters(args)
    config = _find_cluster(clusters, args.name)
    given, usual = _list_settings(config)
    if args.json:
        found = {"file": str(path) if path else None, "name": config.name, "given": given, "defaults": usual}
        print_json(json.loads(json.dumps(found, default=str)))
        return DONE
    print(f"[{_format_key(config.name)}]" + (f"  # {path}" if path else "  # no clusters.toml was found"))
    for key, value in given.items():
        print(f"{key} = {_format_toml(value)}")
    for key, value in usual.items():
        print(f"# {key} = {_format_toml(value)}")
    return DONE


def _list_settings(config: "ClusterConfig") -> tuple[dict[str, Any], dict[str, Any]]:
    """Return given and default settings. Defaults that depend on the hosts are unknown here."""
    from pytest_dtfperf.clusters.named import BACKENDS, ClusterConfig

    usual = ClusterConfig(name=config.name, limits=BACKENDS[config.backend].limits)
    own = [each.name for each in fields(config) if each.name not in ("name", "file", "backend_keys", "limits")]
    given = {"backend": config.backend, **config.backend_keys}
    given |= {name: value for name in own if (value := getattr(config, name)) != getattr(usual, name)}
    limits = {each.name: getattr(config.limits, each.name) for each in fields(config.limits)}
    given |= {"limits": changed} if (changed := {k: v for k, v in limits.items() if v != getattr(usual.limits, k)}) else {}
    left = {name: value for name in own if name not in given and (value := getattr(usual, name)) not in (None, {}, ())}
    return given, left | {"limits": {k: v for k, v in limits.items() if k not in given.get("limits", {})}}


def _format_key(name: str) -> str:
    """Return a key as in clusters.toml: in quotes if it has dots, blanks or other special characters."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name, ensure_ascii=False)


def _format_toml(value: Any) -> str:
    """Return a value as in clusters.toml."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_format_key(key)} = {_format_toml(each)}" for key, each in value.items()) + " }"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_format_toml, value))}]"
    return json.dumps(value, ensure_ascii=False, default=str)


def run_check(args: argparse.Namespace) -> int:
    from pytest_dtfperf.clusters import named

    _, clusters = _load_clusters(args)
    found: dict[str, str | None] = {}
    for name in args.names or clusters:
        _find_cluster(clusters, name)
        try:
            named.pick(clusters, name)
            found[name] = None
        except ClusterFileError as error:
            found[name] = str(error)
    wrong = [name for name, message in found.items() if message]
    if args.json:
        print_json({"clusters": [{"name": name, "problem": message} for name, message in found.items()]})
    else:
        for name, message in found.items():
            print(f"{name}: {message or 'can be used'}")
        print(f"dtfperf: {format_count(len(found), 'cluster')}, {len(wrong)} cannot be used")
    return FAILED if wrong else DONE


def _load_clusters(args: argparse.Namespace) -> "tuple[Path | None, Mapping[str, ClusterConfig]]":
    from pytest_dtfperf.clusters import file, named

    path = file.find_cluster_file(find_clusters_file(args), ["."])
    return path, named.load(path)


def _find_cluster(clusters: "Mapping[str, ClusterConfig]", name: str) -> "ClusterConfig":
    if name not in clusters:
        raise UsageError(describe_unknown_name("cluster", name, clusters))
    return clusters[name]
