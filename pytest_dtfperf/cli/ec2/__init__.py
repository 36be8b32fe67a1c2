"""`dtfperf ec2`: the instances of perf tests, without pytest. What is done stands in clusters/ec2; here it is called and shown.

launch.py has `up` and `cost`, look.py `status` and `ssh`, end.py `down` and `reap`.
"""

import argparse

from pytest_dtfperf.cli.ec2 import end, launch, running
from pytest_dtfperf.cli.terms import Commands, add_cluster, add_command

UP = """\
Launches the instances of a cluster and keeps them until max_hours are over, for sessions that follow: pytest --cluster=NAME.

The cluster's table must say keep = true, or no session would use them. What they cost at most is shown first; without max_usd
in the table somebody must say yes. `dtfperf ec2 down` ends them.
Exit codes: 0 they are ready; 1 there are none, and nothing is left of the attempt; 2 wrong arguments.
"""
STATUS = """\
Shows the instances that perf tests have launched in the account: whose they are, when they end, and what they have cost so far.

Asks the account: in the region that boto3 finds, and in those that this user's ledgers of the last 90 days name; with --cluster
or --region only there. So runs whose ledger here is closed or damaged are shown, too.
Exit codes: 0 done; 1 Amazon does not answer; 2 wrong arguments.
"""
SSH = """\
Logs in to an instance, with its run's own key, and trusting only the key that the instance has made itself. Only from where it
was launched: the keys are there and nowhere else.

Exit code: ssh's, which is the command's; 255 if there is no connection; 1 if there is no such instance.
"""
DOWN = """\
Ends runs that were launched from here, and waits until Amazon shows nothing of them any more: no instance, security group,
placement group or key pair.

By default all that surely no session is at work with; else those that are named, by run as `dtfperf ec2 status` shows it.
Exit codes: 0 nothing of them is left; 1 that could not be proven of one; 2 wrong arguments.
"""
REAP = """\
Ends the instances that sessions of perf tests have left: whose pytest is gone, or whose time is over. Every session that uses
EC2 does the same when it begins.

Instances are ended by their session, even when it is killed, and end themselves when max_hours are over. They stay only after
an outage. Whether a pytest is gone can be seen only on its own machine, and in its own container: what others have launched
stays until its time is over by Amazon's clock.
Exit codes: 0 done; 1 the end of a run could not be proven, or Amazon does not answer; 2 wrong arguments.
"""
COST = """\
Says what instances of a cluster would cost, and whether the account may run so many. Launches nothing.

Exit codes: 0 done; 1 nobody knows the price, or Amazon does not answer; 2 wrong arguments.
"""


def add(commands: "Commands[argparse.ArgumentParser]") -> None:
    ec2 = commands.add_parser("ec2", help="instances of Amazon EC2").add_subparsers(
        title="commands", required=True, metavar="COMMAND"
    )
    up = add_command(ec2, "up", help="launch instances, and keep them for the sessions that follow", text=UP)
    add_cluster(up, required=True, text="a cluster of backend ec2 in clusters.toml")
    _add_gpus(up)
    up.add_argument("--yes", action="store_true", help="agree to what they cost, where there is no max_usd to do so")
    up.set_defaults(run=launch.up)
    status = add_command(ec2, "status", help="what runs now, until when, and what it has cost so far", text=STATUS)
    _add_where(status)
    status.set_defaults(run=running.status)
    ssh = add_command(ec2, "ssh", help="log in to an instance", text=SSH)
    ssh.add_argument("which", nargs="?", default="0", metavar="N|ID", help="its number or id, as status shows it; 0 by default")
    ssh.add_argument("words", nargs="*", metavar="COMMAND", help="what to run there, after --; a shell by default")
    _add_where(ssh)
    ssh.set_defaults(run=running.ssh)
    down = add_command(ec2, "down", help="end instances, and prove it", text=DOWN)
    down.add_argument("runs", nargs="*", metavar="RUN", help="only these")
    down.add_argument("--all", action="store_true", help="also runs that sessions are at work with, here or elsewhere")
    _add_where(down)
    down.set_defaults(run=end.down)
    reap = add_command(ec2, "reap", help="end instances that sessions of perf tests have left", text=REAP)
    reap.add_argument("--all", action="store_true", help="also runs whose pytest cannot be seen from here")
    reap.add_argument("--dry-run", action="store_true", help="only list them")
    _add_where(reap)
    reap.set_defaults(run=end.reap)
    cost = add_command(ec2, "cost", help="what a cluster would cost; launches nothing", text=COST)
    add_cluster(cost, required=True, text="a cluster of backend ec2 in clusters.toml")
    _add_gpus(cost)
    cost.set_defaults(run=launch.cost)


def _add_gpus(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gpus", type=int, metavar="N", help="devices altogether; by default of all instances the file allows")


def _add_where(parser: argparse.ArgumentParser) -> None:
    add_cluster(parser, required=False, text="only where this cluster is, and only its instances")
    parser.add_argument("--region", metavar="REGION", help="only there")
