"""Instances that are ended, and the proof that they are."""

import argparse
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pytest_dtfperf.cli.ec2 import where
from pytest_dtfperf.cli.output import print_json, say
from pytest_dtfperf.cli.terms import DONE, FAILED, print_table
from pytest_dtfperf.errors import AllocationError, UsageError
from pytest_dtfperf.formats import counted
from pytest_dtfperf.node.owner import Fate

if TYPE_CHECKING:
    from pytest_dtfperf.clusters.ec2.account import Account
    from pytest_dtfperf.clusters.ec2.reap import OpenRun


def down(args: argparse.Namespace) -> int:
    def is_meant(left: "OpenRun") -> bool:
        if args.runs:
            return left.name in args.runs
        return args.all or left.fate is Fate.GONE

    problems: list[str] = []
    found = where.lefts(args, problems)
    if missing := set(args.runs) - {left.name for _, left in found}:
        told(problems)
        raise AllocationError(
            f"there is no run {', '.join(sorted(missing))}. There are: {', '.join(left.name for _, left in found) or 'none'}"
        )
    busy = [left for _, left in found if left.name in args.runs and left.fate is not Fate.GONE and not left.has_expired]
    if busy and not args.all:
        in_use = "is" if busy[0].fate is Fate.LIVES else "may be"
        raise UsageError(
            f"run {busy[0].name} {in_use} in use ({busy[0].state}): end its pytest, or add --all to end it regardless"
        )
    return _end(found, is_meant, problems, dry_run=False, as_json=args.json)


def reap(args: argparse.Namespace) -> int:
    def is_meant(left: "OpenRun") -> bool:
        return left.is_abandoned or (args.all and left.fate is Fate.ELSEWHERE)

    problems: list[str] = []
    return _end(where.lefts(args, problems), is_meant, problems, dry_run=args.dry_run, as_json=args.json)


def _end(
    found: Sequence[tuple["Account", "OpenRun"]],
    is_meant: "Callable[[OpenRun], bool]",
    problems: list[str],
    *,
    dry_run: bool,
    as_json: bool,
) -> int:
    if not found and not as_json:
        print(f"dtfperf: no run of perf tests is left{' where Amazon answers' if problems else ''}.")
        return told(problems)
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
        print_json({"runs": [_to_json(account, left, words) for (account, left), words in what], "problems": problems})
        return told(problems)
    rows = [
        (left.name, left.cluster, account.region, str(len(left.instances)), left.session, left.state, words)
        for (account, left), words in what
    ]
    print_table(("run", "cluster", "region", "instances", "session", "whose", ""), rows)
    verb = "would be ended" if dry_run else "ended"
    left_alone = [left for (_, left), words in what if words == "left alone"]
    print(f"dtfperf: {done.count(verb)} of {counted(len(found), 'run')} {verb}.{_hint(left_alone)}")
    return told(problems)


def told(problems: Sequence[str]) -> int:
    for problem in problems:
        say(problem)
    return FAILED if problems else DONE


def _to_json(account: "Account", left: "OpenRun", done: str) -> dict[str, Any]:
    return {
        "run": left.name,
        "cluster": left.cluster,
        "region": account.region,
        "instances": len(left.instances),
        "session": left.session,
        "whose": left.state,
        "done": done,
    }


def _end_one(account: "Account", left: "OpenRun", problems: list[str]) -> str:
    from pytest_dtfperf.clusters.ec2 import reap

    try:
        return "ended" if reap.end_run(account, left, on_status=where.print_status) else "taken by a session"
    except AllocationError as error:
        problems.append(str(error))
        return "NOT ENDED"


def _hint(left_alone: Sequence["OpenRun"]) -> str:
    hosts = sorted({left.owner.location for left in left_alone if left.fate is Fate.ELSEWHERE and left.owner})
    if not hosts:
        return ""
    return f" Of those of {', '.join(hosts)} nobody here can tell: run this there, or add --all if you are sure."
