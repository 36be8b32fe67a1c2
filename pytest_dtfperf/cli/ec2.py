"""`dtfperf ec2 ...`: the commands for instances of perf tests, with `up` and `cost`; ec2_instances.py has the others."""

import argparse
from typing import TYPE_CHECKING

from pytest_dtfperf.cli import ec2_instances
from pytest_dtfperf.cli.options import (
    DONE,
    FAILED,
    Commands,
    ExitCodes,
    Shape,
    add_cluster,
    add_command,
    add_group,
    add_json,
)
from pytest_dtfperf.cli.output import print_json
from pytest_dtfperf.clusters import capacity
from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.clusters.protocol import Resources
from pytest_dtfperf.errors import ClusterFileError, UsageError

if TYPE_CHECKING:
    from pytest_dtfperf.clusters.ec2.account import Account


def run_up(args: argparse.Namespace) -> int:
    from pytest_dtfperf.records.session import new_session_id

    config = ec2_instances.load_ec2_cluster(args)
    if not config.backend_keys.get("keep"):
        raise UsageError(
            f"sessions of cluster {config.name!r} would not use these instances: set keep = true in its table, or let "
            f"`pytest --cluster={config.name}` launch and end its own"
        )
    from pytest_dtfperf.clusters.ec2 import costs
    from pytest_dtfperf.clusters.ec2.account import Account
    from pytest_dtfperf.clusters.ec2.cluster import Ec2

    config, count = _compute_size(config, Account.open(config), args.gpus)
    devices = count * (config.devices_per_host or 1)
    cluster = Ec2(config, ask=(lambda question: True) if args.yes else costs.ask_at_terminal)
    with cluster.allocate(Resources(devices, session=new_session_id(), on_status=ec2_instances.print_status)) as allocation:
        hosts = [{"name": host.name, "address": host.address} for host in allocation.hosts]
    if args.json:
        print_json({"cluster": config.name, "hosts": hosts})
    return DONE


def run_cost(args: argparse.Namespace) -> int:
    config = ec2_instances.load_ec2_cluster(args)
    from pytest_dtfperf.clusters.ec2 import costs, instance_types
    from pytest_dtfperf.clusters.ec2.account import Account
    from pytest_dtfperf.clusters.ec2.costs import CostEstimate
    from pytest_dtfperf.clusters.ec2.keys import DEFAULT_MAX_HOURS

    backend_keys = config.backend_keys
    account = Account.open(config)
    config, count = _compute_size(config, account, args.gpus)
    offer = instance_types.get_offer(account, backend_keys["instance_type"])
    if problem := instance_types.find_problem(offer, backend_keys):
        raise ClusterFileError(f"cluster {config.name!r}: {problem}")
    spot = bool(backend_keys.get("spot"))
    price = costs.get_price(account, offer, spot, given=backend_keys.get("usd_per_hour"))
    max_hours, limit = backend_keys.get("max_hours", DEFAULT_MAX_HOURS), backend_keys.get("max_usd")
    estimate = CostEstimate(str(account), offer.instance_type, count, max_hours, price, spot)
    counts = instance_types.find_quota(offer.instance_type, spot=spot)
    most = instance_types.get_quota_vcpus(account, counts) if counts else None
    if args.json:
        of_type = {name: getattr(offer, name) for name in ("gpus", "vcpus", "baseline_gbps", "peak_gbps")}
        of_price = {"spot": spot, "usd_per_hour": price.usd, "source": f"{price.source}, {price.date}"}
        of_limits = {"max_hours": max_hours, "worst_usd": estimate.worst_usd, "max_usd": limit, "quota_vcpus": most}
        print_json({"instance_type": offer.instance_type, "count": count, **of_type, **of_price, **of_limits})
        return DONE
    print(offer)
    if offer.bursts:
        print(f"The network bursts to {offer.peak_gbps:g} Gbit/s while credits last: how fast depends on what ran before.")
    print(estimate)
    if limit:
        print(f"max_usd = {limit:g} in clusters.toml")
    if counts and most is not None:
        enough = "enough, if nothing else runs" if most >= count * offer.vcpus else "too few"
        print(f"{count * offer.vcpus} vCPUs of {most:g} in quota {counts.name!r} ({counts.code}): {enough}")
    return DONE


def _compute_size(config: ClusterConfig, account: "Account", gpus: int | None) -> tuple[ClusterConfig, int]:
    """Return the cluster with the devices per host of its instance type, and the number of instances."""
    from pytest_dtfperf.clusters.ec2 import instance_types

    offer = instance_types.get_offer(account, config.backend_keys["instance_type"])
    config = instance_types.set_devices(config, offer)
    if gpus is None:
        return config, config.max_hosts or 1
    if gpus < 1:
        raise UsageError(f"--gpus must be at least 1, not {gpus}")
    return config, capacity.require_hosts(config, Resources(gpus), "count")


TEXT = """\
Launch, list and end the EC2 instances of perf tests, and show their cost.

    dtfperf ec2 cost --cluster=p3 --gpus=16
    dtfperf ec2 status
    dtfperf ec2 down
"""
UP = """\
Launch the instances of a cluster, and keep them for later sessions (pytest --cluster=NAME) until max_hours are over.

The cluster's table must have keep = true: otherwise no session would use them. The maximum cost is shown first. Without
max_usd in the table, you must confirm it. `dtfperf ec2 down` ends the instances.

    dtfperf ec2 up --cluster=p3 --gpus=16
    dtfperf ec2 up --cluster=p3 --yes         # without a confirmation
"""
UP_ENDS = {DONE: "they are ready", FAILED: "they could not be launched, and nothing is left of the attempt"}
UP_SHAPE: Shape = {"cluster": "its name", "hosts": [{"name": "of an instance", "address": "that tasks use"}]}
STATUS = """\
Show the instances that perf tests launched in the account, with their session, their end, and their cost so far.

The account is asked for the region of boto3, and for the regions in this user's ledgers of the last 90 days; with --cluster
or --region only for that one. So runs with a closed or damaged ledger are shown, too.

    dtfperf ec2 status
    dtfperf ec2 status --region=us-east-2 --json
"""
STATUS_ENDS = {DONE: "shown", FAILED: "Amazon does not answer"}
STATUS_SHAPE: Shape = {
    "instances": [
        {
            "run": "the run that launched it; null: its tag is missing",
            "cluster": "of clusters.toml",
            "region": "that it is in",
            "instance": "its id; null, as the next fields: Amazon shows no instance of the run",
            "type": "as g4dn.xlarge",
            "zone": "within the region",
            "state": "its state in Amazon's terms",
            "address": "its public address, if it has one",
            "ends_in_s": "seconds until the run ends; null: unknown",
            "usd_per_hour": "null: not known",
            "usd_so_far": "without volumes and traffic; null: not known",
            "owner": "the session, and whether it runs",
        }
    ],
    "usd_so_far": "of all instances with a known price",
}
SSH = """\
Log in to an instance with the key of its run. Only the host key that the instance generated is trusted. This works only on
the machine that launched the instance, because only it has the keys.

    dtfperf ec2 ssh                           # the first one
    dtfperf ec2 ssh 1 -- nvidia-smi
"""
SSH_ENDS: ExitCodes = {
    DONE: "the command's",
    FAILED: "there is no such instance, or the command's",
    "any other": "that of ssh, which is that of the command; 255: there is no connection",
}
DOWN = """\
End runs that were launched from here, and wait until Amazon shows no instance, security group, placement group or key pair of
them.

By default these are all runs that no session uses. Arguments select runs as `dtfperf ec2 status` shows them, or instances by
their ids if the tag of their run is missing.

    dtfperf ec2 down
    dtfperf ec2 down 20260131T021503Z-9f3c1a-4b1d07 --json
"""
DOWN_ENDS = {DONE: "nothing of them is left", FAILED: "this could not be verified for one, or Amazon does not answer"}
REAP = """\
End the instances that sessions of perf tests left: their pytest has ended, or their time is over. Every session on EC2 does
the same at its start.

A session ends its instances, even when it is killed, and they end themselves after max_hours. They remain only after an
outage. Only the machine of a pytest, or its container, shows whether it has ended: instances of other machines remain until
their time is over by Amazon's clock.

    dtfperf ec2 reap --dry-run
    dtfperf ec2 reap --region=us-east-2
"""
REAP_ENDS = {FAILED: "the end of a run could not be verified, or Amazon does not answer"}
ENDED: Shape = {
    "runs": [
        {
            "run": "its name; the id of an instance without the tag of its run",
            "cluster": "of clusters.toml",
            "region": "that it is in",
            "instances": "number of its instances",
            "session": "that launched it",
            "owner": "the session, and whether it runs",
            "done": "ended, would be ended, left alone, taken by a session or NOT ENDED",
        }
    ],
    "problems": "a list of ends that could not be verified, with the reason",
}
COST = """\
Show the cost of a cluster's instances, and whether the account may run so many. Nothing is launched.

    dtfperf ec2 cost --cluster=p3
    dtfperf ec2 cost --cluster=p3 --gpus=16 --json
"""
COST_ENDS = {DONE: "the cost is shown", FAILED: "the price is unknown, or Amazon does not answer"}
COST_SHAPE: Shape = {
    "instance_type": "as g4dn.xlarge",
    "count": "number of instances",
    "gpus": "of each",
    "vcpus": "of each",
    "baseline_gbps": "sustained bandwidth of its network; null: unknown",
    "peak_gbps": "bandwidth until its credits are used; null: unknown",
    "spot": "whether they are spot instances",
    "usd_per_hour": "of each, without volumes and traffic",
    "source": "source of the price, with its date",
    "max_hours": "hours that they may run",
    "worst_usd": "cost if all of them run so long",
    "max_usd": "of clusters.toml; null: not set",
    "quota_vcpus": "limit of the account; null: unknown",
}


def add_parser(commands: "Commands[argparse.ArgumentParser]") -> None:
    ec2 = add_group(commands, "ec2", help="launch, list and end EC2 instances, and show their cost", text=TEXT)
    up = add_command(ec2, "up", help="launch instances, and keep them for the sessions that follow", text=UP, ends=UP_ENDS)
    add_cluster(up, required=True, text="a cluster of backend ec2 in clusters.toml")
    _add_gpus(up)
    up.add_argument("--yes", action="store_true", help="confirm the cost if there is no max_usd")
    add_json(up, UP_SHAPE)
    up.set_defaults(run=run_up)
    status = add_command(
        ec2, "status", help="show running instances, their end and their cost so far", text=STATUS, ends=STATUS_ENDS
    )
    _add_where(status)
    add_json(status, STATUS_SHAPE)
    status.set_defaults(run=ec2_instances.run_status)
    ssh = add_command(ec2, "ssh", help="log in to an instance", text=SSH, ends=SSH_ENDS)
    ssh.add_argument("which", nargs="?", default="0", metavar="N|ID", help="its number or id, as status shows it; 0 by default")
    ssh.add_argument("remote_command", nargs="*", metavar="COMMAND", help="command to run there, after --; default: a shell")
    _add_where(ssh)
    ssh.set_defaults(run=ec2_instances.run_ssh)
    down = add_command(ec2, "down", help="end instances, and verify it", text=DOWN, ends=DOWN_ENDS)
    down.add_argument("runs", nargs="*", metavar="RUN", help="only these")
    down.add_argument("--all", action="store_true", help="also runs that sessions use, here or elsewhere")
    _add_where(down)
    add_json(down, ENDED)
    down.set_defaults(run=ec2_instances.run_down)
    reap = add_command(ec2, "reap", help="end instances that sessions of perf tests left", text=REAP, ends=REAP_ENDS)
    reap.add_argument("--all", action="store_true", help="also runs of sessions on other machines")
    reap.add_argument("--dry-run", action="store_true", help="only list them")
    _add_where(reap)
    add_json(reap, ENDED)
    reap.set_defaults(run=ec2_instances.run_reap)
    cost = add_command(ec2, "cost", help="show the cost of a cluster; nothing is launched", text=COST, ends=COST_ENDS)
    add_cluster(cost, required=True, text="a cluster of backend ec2 in clusters.toml")
    _add_gpus(cost)
    add_json(cost, COST_SHAPE)
    cost.set_defaults(run=run_cost)


def _add_gpus(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--gpus", type=int, metavar="N", help="number of devices; by default those of all instances that the file allows"
    )


def _add_where(parser: argparse.ArgumentParser) -> None:
    add_cluster(parser, text="only the region and the instances of this cluster")
    parser.add_argument("--region", metavar="REGION", help="only there")
