"""Instances that run: shown, and logged in to."""

import argparse
import math
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pytest_dtfperf.cli.ec2 import where
from pytest_dtfperf.cli.ec2.end import told
from pytest_dtfperf.cli.output import print_json
from pytest_dtfperf.cli.terms import print_table
from pytest_dtfperf.errors import AllocationError
from pytest_dtfperf.formats import in_minutes

if TYPE_CHECKING:
    from pytest_dtfperf.clusters.ec2.account import Account
    from pytest_dtfperf.clusters.ec2.reap import RunningInstance


def status(args: argparse.Namespace) -> int:
    problems: list[str] = []
    found = where.running(args, problems)
    if not found and not args.json:
        print(f"dtfperf: no instance of perf tests runs{' where Amazon answers' if problems else ''}.")
        return told(problems)
    from pytest_dtfperf.clusters.ec2 import reap
    from pytest_dtfperf.clusters.ec2.costs import format_usd

    now = (found[0][1].left.now if found else None) or time.time()
    if args.json:
        total = reap.sum_usd([each for _, each in found], now)
        print_json({"instances": [_to_json(account, each, now) for account, each in found], "usd_so_far": total})
        return told(problems)
    headings = ("", "run", "cluster", "instance", "type", "zone", "state", "address", "ends in", "so far", "whose")
    print_table(headings, [_row(number, each, now) for number, (_, each) in enumerate(found)])
    for line in dict.fromkeys(f"{each.instance.kind}: {each.price}" for _, each in found if each.instance and each.price):
        print(f"dtfperf: {line}")
    rows = [each for _, each in found]
    unknown = "" if all(each.price for each in rows if each.instance) else ", and what nobody knows the price of"
    print(f"dtfperf: {format_usd(reap.sum_usd(rows, now))} so far, without volumes and traffic{unknown}.")
    return told(problems)


def _row(number: int, running: "RunningInstance", now: float) -> Sequence[str]:
    from pytest_dtfperf.clusters.ec2.costs import format_usd

    left, instance, so_far = running.left, running.instance, running.usd_so_far(now)
    shown = (
        (instance.id, instance.kind, instance.zone, instance.state, instance.public or instance.private or "-")
        if instance
        else ("-", "-", "-", "not shown", "-")
    )
    costs = "?" if so_far is None else format_usd(so_far)
    return str(number), left.run or "-", left.cluster, *shown, _duration(left.expires - now), costs, left.state


def _to_json(account: "Account", running: "RunningInstance", now: float) -> dict[str, Any]:
    left, instance = running.left, running.instance
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
        "usd_per_hour": running.price.usd if running.price else None,
        "usd_so_far": running.usd_so_far(now),
        "whose": left.state,
    }


def _duration(seconds: float) -> str:
    return "?" if seconds == float("inf") else in_minutes(max(0, int(seconds // 60)))


def ssh(args: argparse.Namespace) -> int:
    problems: list[str] = []
    found = [each for _, each in where.running(args, problems)]
    told(problems)
    ids = [each.instance.id if each.instance else "-" for each in found]
    if args.which not in ids and not (args.which.isdecimal() and int(args.which) < len(found)):
        known = ", ".join(f"{number} {instance_id}" for number, instance_id in enumerate(ids)) or "none"
        raise AllocationError(f"there is no instance {args.which!r}. There are: {known}")
    chosen = found[ids.index(args.which) if args.which in ids else int(args.which)]
    os.execvp("ssh", _ssh_argv(chosen, args.words))


def _ssh_argv(chosen: "RunningInstance", words: Sequence[str]) -> list[str]:
    from pytest_dtfperf.clusters.ec2 import contact

    instance, ledger, plan = chosen.instance, chosen.left.ledger, chosen.plan
    if instance is None or instance.state != "running":
        raise AllocationError(
            f"run {chosen.left.run} has no running instance there: {instance.state if instance else 'not shown'}"
        )
    if ledger is None or plan is None:
        raise AllocationError(
            f"instance {instance.id} was launched from elsewhere ({chosen.left.owner or 'nobody knows where'}), and only there "
            "is the key that it lets in"
            if not chosen.left.why
            else f"run {chosen.left.run}: {chosen.left.why}, so nobody knows how instance {instance.id} is logged in to"
        )
    endpoint = contact.make_endpoint(plan, ledger.folder, instance)
    return ["ssh", "-o", "StrictHostKeyChecking=yes", *endpoint.options, "--", endpoint.target, *words]
