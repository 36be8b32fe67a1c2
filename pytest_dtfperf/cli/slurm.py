"""`dtfperf slurm reap`: cancel the Slurm jobs that sessions of perf tests have left."""

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pytest_dtfperf.cli.options import (
    DONE,
    FAILED,
    Commands,
    Shape,
    add_cluster,
    add_command,
    add_group,
    add_json,
    load_cluster,
    print_table,
)
from pytest_dtfperf.cli.output import format_other_machines, print_json
from pytest_dtfperf.errors import AllocationError, UsageError
from pytest_dtfperf.formats import format_count
from pytest_dtfperf.node.owner import Fate

if TYPE_CHECKING:
    from pytest_dtfperf.clusters.slurm.client import SlurmClient
    from pytest_dtfperf.clusters.slurm.job_keepalive import LeftJob

TEXT = """\
Cancel Slurm jobs that sessions of perf tests left after an outage. A session usually cancels its own jobs.

    dtfperf slurm reap --dry-run
"""
REAP = """\
List your Slurm jobs that sessions of perf tests submitted, and cancel those with a pytest that has ended. On the machine of a
pytest it also ends srun processes that its session left there, even if Slurm does not answer.

A session cancels its jobs itself, even when it is killed. Jobs remain only after an outage of Slurm or of the machine of
pytest, until their time limit. An srun remains if Slurm, pytest and its watchdog ended together. Only the machine of a
pytest, or its container, shows whether it has ended.

    dtfperf slurm reap --dry-run
    dtfperf slurm reap --all                  # if no other sessions run
"""
ENDS = {FAILED: "a job could not be cancelled, an srun could not be ended, or Slurm does not answer"}
STAYS = "not ended by SIGKILL"
SHAPE: Shape = {
    "sruns": [
        {
            "processes": "their ids on this machine",
            "pytest": "the session that started them, which has ended",
            "done": f"ended, would be ended, or {STAYS}",
        }
    ],
    "jobs": [
        {
            "job": "its id",
            "state": "the state in Slurm's terms",
            "nodes": "a list of them",
            "session": "the machine that submitted it",
            "pytest": "the session that submitted it, and whether it runs",
            "done": "cancelled, would be cancelled, left alone, or why it was not cancelled",
        }
    ],
}


def add_parser(commands: "Commands[argparse.ArgumentParser]") -> None:
    slurm = add_group(commands, "slurm", help="cancel jobs that sessions of perf tests left in Slurm", text=TEXT)
    reap = add_command(slurm, "reap", help="cancel jobs that sessions of perf tests left", text=REAP, ends=ENDS)
    reap.add_argument("--all", action="store_true", help="also jobs of sessions on other machines")
    reap.add_argument("--dry-run", action="store_true", help="only list them")
    add_cluster(reap, text="stop if this is no Slurm cluster of clusters.toml")
    add_json(reap, SHAPE)
    reap.set_defaults(run=run_reap)


def run_reap(args: argparse.Namespace) -> int:
    from pytest_dtfperf.clusters.slurm import job_keepalive
    from pytest_dtfperf.clusters.slurm.client import SlurmClient

    if args.cluster and (config := load_cluster(args)).backend != "slurm":
        raise UsageError(f"cluster {config.name!r} is one of backend {config.backend!r}, which has no Slurm jobs")
    sruns = _end_sruns(args.dry_run)  # before questions to Slurm, which may not answer
    if not args.json:
        for row in sruns:
            print(f"dtfperf: {format_count(len(row['processes']), 'srun')} on this machine ({row['pytest']}): {row['done']}.")
    is_left = any(row["done"] == STAYS for row in sruns)
    client = SlurmClient()
    found = job_keepalive.find_left_jobs(client)
    if not found and not args.json:
        print("dtfperf: no job of perf tests is in the queue.")
        return FAILED if is_left else DONE
    doomed = [left for left in found if left.fate is Fate.GONE or (args.all and left.fate is Fate.ELSEWHERE)]
    done = {left.job.id: "would be cancelled" if args.dry_run else _cancel_jobs(client, left.job.id) for left in doomed}
    failures = sum(result.startswith("not cancelled") for result in done.values())
    if args.json:
        print_json({"sruns": sruns, "jobs": [_make_row(left, done) for left in found]})
        return FAILED if failures or is_left else DONE
    _print_jobs(found, done)
    verb = "would be cancelled" if args.dry_run else "cancelled"
    hint = format_other_machines(left.owner for left in found if left.fate is Fate.ELSEWHERE and left.job.id not in done)
    print(f"dtfperf: {len(done) - failures} of {format_count(len(found), 'job')} {verb}.{hint}")
    return FAILED if failures or is_left else DONE


def _end_sruns(dry_run: bool) -> list[dict[str, Any]]:
    from pytest_dtfperf.clusters.slurm import job_keepalive

    found = job_keepalive.find_left_sruns()
    return [
        {
            "processes": processes,
            "pytest": f"{owner} {Fate.GONE.value}",
            "done": "would be ended" if dry_run else "ended" if job_keepalive.end_sruns(owner) else STAYS,
        }
        for owner, processes in found.items()
    ]


def _cancel_jobs(client: "SlurmClient", job_id: str) -> str:
    try:
        client.cancel([job_id])
    except AllocationError as error:
        return f"not cancelled: {error}"
    return "cancelled"


def _print_jobs(found: Iterable["LeftJob"], done: dict[str, str]) -> None:
    rows = [_make_row(left, done) for left in found]
    for row in rows:
        nodes = row["nodes"]
        row["nodes"] = f"{len(nodes)}: {nodes[0]} ..." if len(nodes) > 1 else "".join(nodes)
    print_table(("job", "state", "nodes", "session", "its pytest", ""), [list(row.values()) for row in rows])


def _make_row(left: "LeftJob", done: dict[str, str]) -> dict[str, Any]:
    return {
        "job": left.job.id,
        "state": left.job.state,
        "nodes": list(left.job.nodes),
        "session": left.session,
        "pytest": f"{left.owner} {left.fate.value}",
        "done": done.get(left.job.id, "left alone"),
    }
