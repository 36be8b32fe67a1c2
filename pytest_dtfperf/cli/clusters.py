"""`dtfperf clusters ...`: what clusters.toml describes, and whether that can be used."""

import argparse
import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_dtfperf.cli.terms import (
    DONE,
    FAILED,
    Commands,
    add_command,
    cluster_names,
    clusters_file,
    completed_by,
    print_table,
)
from pytest_dtfperf.errors import ClusterFileError, UsageError, unknown_name
from pytest_dtfperf.formats import NONE, counted

if TYPE_CHECKING:
    from pytest_dtfperf.clusters.named import ClusterConfig

LIST = """\
Lists the clusters that tests can train on: those of clusters.toml, and `local`, which is there without a file.

    dtfperf clusters list
    dtfperf clusters list --clusters-file=site/clusters.toml --json

Exit codes: 0 listed; 2 wrong arguments, or a file that cannot be read.
"""
SHOW = """\
Shows what holds for one cluster: what clusters.toml says of it, and what it leaves to the defaults, which are marked so.

    dtfperf clusters show daint

Exit codes: 0 shown; 2 wrong arguments, no such cluster, or a file that cannot be read.
"""
CHECK = """\
Checks clusters without asking anybody for a host: whether what they need is installed, and the files that they name can be
read. Whether their hosts are fit to be measured is what `dtfperf doctor` finds out.

    dtfperf clusters check
    dtfperf clusters check daint lab

Exit codes: 0 all can be used; 1 some cannot; 2 wrong arguments, no such cluster, or a file that cannot be read.
"""


def add(commands: "Commands[argparse.ArgumentParser]") -> None:
    group = commands.add_parser("clusters", help="what clusters.toml describes").add_subparsers(
        title="commands", required=True, metavar="COMMAND"
    )
    listed = add_command(group, "list", help="all of them", text=LIST)
    shown = add_command(group, "show", help="what holds for one of them", text=SHOW)
    completed_by(shown.add_argument("name", metavar="NAME"), cluster_names)
    checked = add_command(group, "check", help="whether they can be used", text=CHECK)
    completed_by(checked.add_argument("names", metavar="NAME", nargs="*", help="by default all"), cluster_names)
    for parser, run in ((listed, _list), (shown, _show), (checked, _check)):
        parser.add_argument("--clusters-file", metavar="FILE", help="by default as pytest finds it")
        parser.add_argument("--json", action="store_true", help="print JSON")
        parser.set_defaults(run=run)


def _list(args: argparse.Namespace) -> int:
    path, clusters = _clusters(args)
    rows = [_row(config) for config in clusters.values()]
    if args.json:
        print(json.dumps(rows, ensure_ascii=False))
        return DONE
    print(f"From {path}:" if path else "There is no clusters.toml; without one there is:")
    print_table(tuple(rows[0]), ([NONE if cell is None else str(cell) for cell in row.values()] for row in rows))
    return DONE


def _row(config: "ClusterConfig") -> dict[str, Any]:
    """What tells clusters apart. `hosts`, `devices`: None where only the cluster itself knows."""
    from pytest_dtfperf.clusters import capacity

    try:
        hosts, on_each = capacity.hosts(config), capacity.devices_per_host(config)
    except ClusterFileError:  # a file that it names cannot be read: `check` says so
        hosts, on_each = None, None
    return {
        "name": config.name,
        "backend": config.backend,
        "hosts": hosts,
        "devices on each": on_each,
        "allocation": config.allocation,
    }


def _show(args: argparse.Namespace) -> int:
    path, clusters = _clusters(args)
    config = _named(clusters, args.name)
    given, usual = _settings(config)
    if args.json:
        print(json.dumps({"file": str(path) if path else None, "name": config.name, **given, "defaults": usual}, default=str))
        return DONE
    print(f"[{config.name}]" + (f"  # {path}" if path else "  # no clusters.toml was found"))
    for key, value in given.items():
        print(f"{key} = {_toml(value)}")
    for key, value in usual.items():
        print(f"# {key} = {_toml(value)}")
    return DONE


def _settings(config: "ClusterConfig") -> tuple[dict[str, Any], dict[str, Any]]:
    """What is given, and what is as usual. A default that depends on the hosts is not known before they are."""
    from pytest_dtfperf.clusters.named import ClusterConfig

    usual = ClusterConfig(name=config.name)
    own = [each.name for each in fields(config) if each.name not in ("name", "folder", "backend_keys", "limits")]
    given = {"backend": config.backend, **config.backend_keys}
    given |= {name: value for name in own if (value := getattr(config, name)) != getattr(usual, name)}
    limits = {each.name: getattr(config.limits, each.name) for each in fields(config.limits)}
    given |= {"limits": changed} if (changed := {k: v for k, v in limits.items() if v != getattr(usual.limits, k)}) else {}
    left = {name: value for name in own if name not in given and (value := getattr(usual, name)) not in (None, {}, ())}
    return given, left | {"limits": {k: v for k, v in limits.items() if k not in given.get("limits", {})}}


def _toml(value: Any) -> str:
    """As clusters.toml has it."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_toml(each)}" for key, each in value.items()) + " }"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value, ensure_ascii=False, default=str)


def _check(args: argparse.Namespace) -> int:
    from pytest_dtfperf.clusters import named

    _, clusters = _clusters(args)
    found: dict[str, str | None] = {}
    for name in args.names or clusters:
        _named(clusters, name)
        try:
            named.pick(clusters, name)
            found[name] = None
        except ClusterFileError as error:
            found[name] = str(error)
    wrong = [name for name, words in found.items() if words]
    if args.json:
        print(json.dumps(found, ensure_ascii=False))
    else:
        for name, words in found.items():
            print(f"{name}: {words or 'can be used'}")
        print(f"dtfperf: {counted(len(found), 'cluster')}, {len(wrong)} cannot be used")
    return FAILED if wrong else DONE


def _clusters(args: argparse.Namespace) -> "tuple[Path | None, Mapping[str, ClusterConfig]]":
    from pytest_dtfperf.clusters import file, named

    path = file.find(clusters_file(args), ["."])
    return path, named.load(path)


def _named(clusters: "Mapping[str, ClusterConfig]", name: str) -> "ClusterConfig":
    if name not in clusters:
        raise UsageError(unknown_name("cluster", name, clusters))
    return clusters[name]
