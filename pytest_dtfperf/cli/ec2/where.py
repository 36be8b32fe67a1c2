"""Where instances may be: what the commands share."""

import argparse
import importlib.util
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytest_dtfperf.cli.terms import cluster_of, clusters_file
from pytest_dtfperf.clusters import file, named
from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.errors import UsageError

if TYPE_CHECKING:
    from pytest_dtfperf.clusters.ec2.amazon.account import Account
    from pytest_dtfperf.clusters.ec2.end.reap import Left
    from pytest_dtfperf.clusters.ec2.observe.overview import Running


def ec2_cluster(args: argparse.Namespace) -> ClusterConfig:
    config = cluster_of(args)
    if config.backend != "ec2":
        raise UsageError(f"cluster {config.name!r} is one of backend {config.backend!r}, not ec2")
    _quiet()
    return config


def running(args: argparse.Namespace) -> list[tuple["Account", "Running"]]:
    accounts = _accounts(args)
    from pytest_dtfperf.clusters.ec2.observe.overview import overview

    given = _given_prices(args)
    found = [(account, each) for account in accounts for each in overview(account, given)]
    return [(account, each) for account, each in found if args.cluster in (None, each.left.cluster)]


def lefts(args: argparse.Namespace) -> list[tuple["Account", "Left"]]:
    accounts = _accounts(args)
    from pytest_dtfperf.clusters.ec2.end import reap

    found = [(account, left) for account in accounts for left in reap.find(account)]
    return [(account, left) for account, left in found if args.cluster in (None, left.cluster)]


def _accounts(args: argparse.Namespace) -> list["Account"]:
    """Where there may be something: where it is said, else wherever a ledger is open, and where boto3 goes by itself."""
    if args.cluster and args.region:
        raise UsageError("--cluster says where it is: leave --region out")
    config = ec2_cluster(args) if args.cluster else None
    if importlib.util.find_spec("boto3") is None:
        raise UsageError('this needs boto3, which is not installed: pip install "pytest-dtfperf[ec2]"')
    _quiet()
    from pytest_dtfperf.clusters.ec2.amazon.account import Account
    from pytest_dtfperf.clusters.ec2.observe import overview

    if config:
        return [Account.open(config)]
    regions = [args.region] if args.region else overview.regions()
    found = [Account.in_region(region) for region in regions]
    _report_damage([account.region for account in found])
    return found


def _report_damage(regions: Sequence[str]) -> None:
    """A ledger that cannot be read may be of a region that nobody looks in."""
    from pytest_dtfperf.clusters.ec2.run import ledger

    for each in ledger.damaged():
        print(
            f"dtfperf: {each.path} cannot be read. What its run has launched is found by its tags, in {', '.join(regions)}; "
            "--region=NAME looks elsewhere",
            file=sys.stderr,
        )


def _given_prices(args: argparse.Namespace) -> dict[str, float]:
    """What clusters.toml says that instances cost, if there is one."""
    clusters = named.load(file.find(clusters_file(args), ["."]))
    return {
        name: config.backend_keys["usd_per_hour"] for name, config in clusters.items() if "usd_per_hour" in config.backend_keys
    }


def print_status(words: str) -> None:
    print(f"dtfperf: {words}", flush=True)


def _quiet() -> None:
    from pytest_dtfperf.clusters.ec2.amazon import quiet

    quiet.install()
