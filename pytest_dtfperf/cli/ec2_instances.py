"""`dtfperf ec2 status`, `ssh`, `down` and `reap`: find the instances of perf tests, show them, log in to them and end them."""

import argparse
import importlib.util
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from pytest_dtfperf.cli.options import DONE, FAILED, find_clusters_file, load_cluster, print_table
from pytest_dtfperf.cli.output import format_other_machines, print_json, print_remark
from pytest_dtfperf.clusters import file, named
from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.errors import AllocationError, UsageError
from pytest_dtfperf.formats import format_count, format_minutes
from pytest_dtfperf.node.owner import Fate

if TYPE_CHECKING:
    from pytest_dtfperf.clusters.ec2.account import Account
    from pytest_dtfperf.clusters.ec2.reap import OpenRun, RunningInstance


T = TypeVar("T")


def load_ec2_cluster(args: argparse.Namespace) -> ClusterConfig:
    """Return the cluster of --cluster. Raises `UsageError` if its backend is not ec2."""
    config = load_cluster(args)
    if config.backend != "ec2":
        raise UsageError(f"cluster {config.name!r} is one of backend {config.backend!r}, not ec2")
    _hide_credentials()
    return config


def find_running(args: argparse.Namespace, problems: list[str]) -> list[tuple["Account", "RunningInstance"]]:
    """Return all instances. Regions that do not answer are reported in `problems`, unless none answers."""
    given = _load_given_prices(args)

    def inspect(account: "Account") -> "list[RunningInstance]":
        from pytest_dtfperf.clusters.ec2.reap import list_running

        return list_running(account, given)

    return [
        (account, each)
        for account, each in _inspect_regions(args, inspect, problems)
        if args.cluster in (None, each.open_run.cluster)
    ]


def find_left(args: argparse.Namespace, problems: list[str]) -> list[tuple["Account", "OpenRun"]]:
    """Return all runs. Regions that do not answer are reported in `problems`, unless none answers."""

    def inspect(account: "Account") -> "list[OpenRun]":
        from pytest_dtfperf.clusters.ec2 import reap

        return reap.find_runs(account)

    return [
        (account, left) for account, left in _inspect_regions(args, inspect, problems) if args.cluster in (None, left.cluster)
    ]


def _inspect_regions(
    args: argparse.Namespace, inspect: "Callable[[Account], list[T]]", problems: list[str]
) -> list[tuple["Account", T]]:
    """Return the results of the given region, or of those that ledgers name and of boto3's default.

    An error in one region, such as a disabled one, does not prevent the results of the others.
    """
    if args.cluster and args.region:
        raise UsageError("--cluster defines the region: leave --region out")
    config = load_ec2_cluster(args) if args.cluster else None
    if importlib.util.find_spec("boto3") is None:
        raise UsageError('this needs boto3, which is not installed: pip install "pytest-dtfperf[ec2]"')
    _hide_credentials()
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
            account = Account.open_region(region)
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
    """Report ledgers that cannot be read, as their runs may be in another region."""
    from pytest_dtfperf.clusters.ec2 import ledger

    for each in ledger.list_damaged_ledgers():
        print(
            f"dtfperf: {each.path} cannot be read. What its run has launched is found by its tags, in {', '.join(regions)}; "
            "--region=NAME selects another region",
            file=sys.stderr,
        )


def _load_given_prices(args: argparse.Namespace) -> dict[str, float]:
    """Return the prices of instances in clusters.toml, if there is one."""
    clusters = named.load(file.find_cluster_file(find_clusters_file(args), ["."]))
    return {
        name: config.backend_keys["usd_per_hour"] for name, config in clusters.items() if "usd_per_hour" in config.backend_keys
    }


def print_status(status: str) -> None:
    print(f"dtfperf: {status}", flush=True)


def _hide_credentials() -> None:
    from pytest_dtfperf.clusters.ec2 import log_redaction

    log_redaction.hide_credentials()


def run_down(args: argparse.Namespace) -> int:
    def is_meant(left: "OpenRun") -> bool:
        if args.runs:
            return left.name in args.runs
        return args.all or left.fate is Fate.GONE

    problems: list[str] = []
    found = find_left(args, problems)
    if missing := set(args.runs) - {left.name for _, left in found}:
        report_problems(problems)
        raise AllocationError(
            f"there is no run {', '.join(sorted(missing))}. There are: {', '.join(left.name for _, left in found) or 'none'}"
        )
    busy = [left for _, left in found if left.name in args.runs and left.fate is not Fate.GONE and not left.has_expired]
    if busy and not args.all:
        in_use = "is" if busy[0].fate is Fate.LIVES else "may be"
        raise UsageError(
            f"run {busy[0].name} {in_use} in use ({busy[0].state}): end its pytest, or add --all to end it regardless"
        )
    return _end_runs(found, is_meant, problems, dry_run=False, as_json=args.json)


def run_reap(args: argparse.Namespace) -> int:
    def is_meant(left: "OpenRun") -> bool:
        return left.is_abandoned or (args.all and left.fate is Fate.ELSEWHERE)

    problems: list[str] = []
    return _end_runs(find_left(args, problems), is_meant, problems, dry_run=args.dry_run, as_json=args.json)


def _end_runs(
    found: Sequence[tuple["Account", "OpenRun"]],
    is_meant: "Callable[[OpenRun], bool]",
    problems: list[str],
    *,
    dry_run: bool,
    as_json: bool,
) -> int:
    if not found and not as_json:
        print(f"dtfperf: no run of perf tests is left{' where Amazon answers' if problems else ''}.")
        return report_problems(problems)
    done = list[str]()
    for account, left in found:
        if not is_meant(left):
            done.append("left alone")
        elif dry_run:
            done.append("would be ended")
        else:
            done.append(_end_one(account, left, problems))
    what = list(zip(found, done, strict=True))
    if as_json:
        print_json(
            {"runs": [_make_run_json(account, left, message) for (account, left), message in what], "problems": problems}
        )
        return report_problems(problems)
    rows = [
        (left.name, left.cluster, account.region, str(len(left.instances)), left.session, left.state, message)
        for (account, left), message in what
    ]
    print_table(("run", "cluster", "region", "instances", "session", "owner", ""), rows)
    verb = "would be ended" if dry_run else "ended"
    left_alone = [left for (_, left), message in what if message == "left alone"]
    hint = format_other_machines(left.owner for left in left_alone if left.fate is Fate.ELSEWHERE and left.owner)
    print(f"dtfperf: {done.count(verb)} of {format_count(len(found), 'run')} {verb}.{hint}")
    return report_problems(problems)


def report_problems(problems: Sequence[str]) -> int:
    for problem in problems:
        print_remark(problem)
    return FAILED if problems else DONE


def _make_run_json(account: "Account", left: "OpenRun", done: str) -> dict[str, Any]:
    return {
        "run": left.name,
        "cluster": left.cluster,
        "region": account.region,
        "instances": len(left.instances),
        "session": left.session,
        "owner": left.state,
        "done": done,
    }


def _end_one(account: "Account", left: "OpenRun", problems: list[str]) -> str:
    from pytest_dtfperf.clusters.ec2 import reap

    try:
        return "ended" if reap.end_run(account, left, on_status=print_status) else "taken by a session"
    except AllocationError as error:
        problems.append(str(error))
        return "NOT ENDED"


def run_status(args: argparse.Namespace) -> int:
    problems: list[str] = []
    found = find_running(args, problems)
    if not found and not args.json:
        print(f"dtfperf: no instance of perf tests runs{' where Amazon answers' if problems else ''}.")
        return report_problems(problems)
    from pytest_dtfperf.clusters.ec2 import reap
    from pytest_dtfperf.clusters.ec2.costs import format_usd

    now = (found[0][1].open_run.checked_at if found else None) or time.time()
    if args.json:
        total = reap.sum_usd([each for _, each in found], now)
        print_json({"instances": [_make_instance_json(account, each, now) for account, each in found], "usd_so_far": total})
        return report_problems(problems)
    headings = ("", "run", "cluster", "instance", "type", "zone", "state", "address", "ends in", "so far", "owner")
    print_table(headings, [_make_row(number, each, now) for number, (_, each) in enumerate(found)])
    for line in dict.fromkeys(f"{each.instance.kind}: {each.price}" for _, each in found if each.instance and each.price):
        print(f"dtfperf: {line}")
    rows = [each for _, each in found]
    unknown = "" if all(each.price for each in rows if each.instance) else ", and instances of unknown price"
    print(f"dtfperf: {format_usd(reap.sum_usd(rows, now))} so far, without volumes and traffic{unknown}.")
    return report_problems(problems)


def _make_row(number: int, row: "RunningInstance", now: float) -> Sequence[str]:
    from pytest_dtfperf.clusters.ec2.costs import format_usd

    left, instance, so_far = row.open_run, row.instance, row.usd_so_far(now)
    shown = (
        (instance.id, instance.kind, instance.zone, instance.state, instance.public or instance.private or "-")
        if instance
        else ("-", "-", "-", "not shown", "-")
    )
    costs = "?" if so_far is None else format_usd(so_far)
    return str(number), left.run or "-", left.cluster, *shown, _format_duration(left.expires - now), costs, left.state


def _make_instance_json(account: "Account", row: "RunningInstance", now: float) -> dict[str, Any]:
    left, instance = row.open_run, row.instance
    ends_in_s = left.expires - now
    return {
        "run": left.run or None,
        "cluster": left.cluster,
        "region": account.region,
        "instance": instance.id if instance else None,
        "type": instance.kind if instance else None,
        "zone": instance.zone if instance else None,
        "state": instance.state if instance else None,
        "address": (instance.public or instance.private) if instance else None,
        "ends_in_s": ends_in_s if math.isfinite(ends_in_s) else None,
        "usd_per_hour": row.price.usd if row.price else None,
        "usd_so_far": row.usd_so_far(now),
        "owner": left.state,
    }


def _format_duration(seconds: float) -> str:
    return "?" if seconds == float("inf") else format_minutes(max(0, int(seconds // 60)))


def run_ssh(args: argparse.Namespace) -> int:
    problems: list[str] = []
    found = [each for _, each in find_running(args, problems)]
    report_problems(problems)
    ids = [each.instance.id if each.instance else "-" for each in found]
    if args.which not in ids and not (args.which.isdecimal() and int(args.which) < len(found)):
        known = ", ".join(f"{number} {instance_id}" for number, instance_id in enumerate(ids)) or "none"
        raise AllocationError(f"there is no instance {args.which!r}. There are: {known}")
    chosen = found[ids.index(args.which) if args.which in ids else int(args.which)]
    os.execvp("ssh", _make_ssh_argv(chosen, args.remote_command))


def _make_ssh_argv(chosen: "RunningInstance", command: Sequence[str]) -> list[str]:
    from pytest_dtfperf.clusters.ec2 import contact

    instance, ledger, plan = chosen.instance, chosen.open_run.ledger, chosen.plan
    if instance is None or instance.state != "running":
        raise AllocationError(
            f"run {chosen.open_run.run} has no running instance there: {instance.state if instance else 'not shown'}"
        )
    if ledger is None or plan is None:
        raise AllocationError(
            f"instance {instance.id} was launched from another machine ({chosen.open_run.owner or 'not known'}), and only "
            "that machine has the key"
            if not chosen.open_run.reason
            else f"run {chosen.open_run.run}: {chosen.open_run.reason}, so the login of instance {instance.id} is not known"
        )
    endpoint = contact.make_endpoint(plan, ledger.folder, instance)
    return ["ssh", "-o", "StrictHostKeyChecking=yes", *endpoint.options, "--", endpoint.target, *command]
