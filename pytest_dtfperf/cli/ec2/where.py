"""Where instances may be: what the commands share."""

import argparse
import importlib.util
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from pytest_dtfperf.cli.terms import cluster_of, clusters_file
from pytest_dtfperf.clusters import file, named
from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.errors import AllocationError, UsageError

if TYPE_CHECKING:
    from pytest_dtfperf.clusters.ec2.account import Account
    from pytest_dtfperf.clusters.ec2.reap import OpenRun, RunningInstance

T = TypeVar("T")


def ec2_cluster(args: argparse.Namespace) -> ClusterConfig:
    config = cluster_of(args)
    if config.backend != "ec2":
        raise UsageError(f"cluster {config.name!r} is one of backend {config.backend!r}, not ec2")
    _quiet()
    return config


def running(args: argparse.Namespace, problems: list[str]) -> list[tuple["Account", "RunningInstance"]]:
    """All instances. To `problems` come words about regions that do not answer, where others do."""
    given = _given_prices(args)

    def inspect(account: "Account") -> "list[RunningInstance]":
        from pytest_dtfperf.clusters.ec2.reap import list_running

        return list_running(account, given)

    return [
        (account, each) for account, each in _everywhere(args, inspect, problems) if args.cluster in (None, each.left.cluster)
    ]


def lefts(args: argparse.Namespace, problems: list[str]) -> list[tuple["Account", "OpenRun"]]:
    """All runs. Likewise."""

    def inspect(account: "Account") -> "list[OpenRun]":
        from pytest_dtfperf.clusters.ec2 import reap

        return reap.find_runs(account)

    return [(account, left) for account, left in _everywhere(args, inspect, problems) if args.cluster in (None, left.cluster)]


def _everywhere(
    args: argparse.Namespace, inspect: "Callable[[Account], list[T]]", problems: list[str]
) -> list[tuple["Account", T]]:
    """Where there may be something: where it is said, else wherever a ledger knows of a run, and where boto3 goes by itself.

    What one region does not tell, an account that may not use it any more for one, keeps nobody from ending what others have.
    """
    if args.cluster and args.region:
        raise UsageError("--cluster says where it is: leave --region out")
    config = ec2_cluster(args) if args.cluster else None
    if importlib.util.find_spec("boto3") is None:
        raise UsageError('this needs boto3, which is not installed: pip install "pytest-dtfperf[ec2]"')
    _quiet()
    from pytest_dtfperf.clusters.ec2 import reap
    from pytest_dtfperf.clusters.ec2.account import Account

    if config:
        account = Account.open(config)
        return [(account, each) for each in inspect(account)]
    regions = [args.region] if args.region else reap.list_regions()
    found: list[tuple[Account, T]] = []
    answering: list[str] = []
    for region in regions:
        try:
            account = Account.in_region(region)
            found += [(account, each) for each in inspect(account)]
            answering.append(account.region)
        except AllocationError as error:
            if len(regions) == 1:
                raise
            problems.append(f"region {region}: {error}")
    if not answering:
        raise AllocationError("\n".join(problems))
    _report_damage(answering)
    return found


def _report_damage(regions: Sequence[str]) -> None:
    """A ledger that cannot be read may be of a region that nobody looks in."""
    from pytest_dtfperf.clusters.ec2 import ledger

    for each in ledger.list_damaged_ledgers():
        print(
            f"dtfperf: {each.path} cannot be read. What its run has launched is found by its tags, in {', '.join(regions)}; "
            "--region=NAME looks elsewhere",
            file=sys.stderr,
        )


def _given_prices(args: argparse.Namespace) -> dict[str, float]:
    """What clusters.toml says that instances cost, if there is one."""
    clusters = named.load(file.find_cluster_file(clusters_file(args), ["."]))
    return {
        name: config.backend_keys["usd_per_hour"] for name, config in clusters.items() if "usd_per_hour" in config.backend_keys
    }


def print_status(words: str) -> None:
    print(f"dtfperf: {words}", flush=True)


def _quiet() -> None:
    from pytest_dtfperf.clusters.ec2 import log_redaction

    log_redaction.hide_credentials()
