"""`dtfperf qualify`: find the slow hosts of a cluster before a job."""

import argparse
import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_dtfperf.cli.history_data import add_history
from pytest_dtfperf.cli.options import (
    DONE,
    FAILED,
    Commands,
    Shape,
    add_cluster,
    add_command,
    add_json,
    find_clusters_file,
    find_results_folder,
    print_table,
)
from pytest_dtfperf.cli.output import print_json, print_remark
from pytest_dtfperf.cli.project import find_configured_history
from pytest_dtfperf.cli.run import BEST, SWEEP, make_spec, parse_specs, parse_time
from pytest_dtfperf.errors import DtfPerfError, UsageError
from pytest_dtfperf.formats import NONE, change, duration, format_count, percent, with_prefix
from pytest_dtfperf.history.where import NEVER, get_requested

if TYPE_CHECKING:
    from pytest_dtfperf.datamodel.qualification import HostResult, Qualification
    from pytest_dtfperf.qualify.peers import QualifyPolicy
    from pytest_dtfperf.session import Session

NOT_JUDGED = 3
TEXT = """\
Find the hosts of a cluster that are slower than the other hosts of the same hardware, before a job runs on them.

    dtfperf qualify --cluster=daint --hosts=32
    dtfperf qualify --cluster=lab mnist steps=100 --json
    dtfperf qualify --cluster=daint --hosts=8 --no-training --time-limit=2min

In several rounds all hosts are probed side by side (arithmetic of cores or GPUs, memory), stream to each other in pairs, and
train a small model by themselves. Hosts of one kind are compared with each other. At most 2 % of qualifications call any fit
host slow. Baselines are neither read nor changed. The readings enter the history: `dtfperf history hosts` (docs/qualify.md).
"""
ENDS = {
    DONE: "all hosts are fit",
    FAILED: "slow hosts or links were found",
    NOT_JUDGED: "no host is slow, but some could not be judged, or the cluster failed",
}
SHAPE: Shape = {
    "cluster": "its name",
    "hosts": "host to verdict, kind, capacities (with per_s, peers_per_s, loss, error, readings) and reason",
    "pairs": "slow links of hosts that are fast with others",
    "false_alarms": "largest fraction of qualifications that call any fit host slow",
    "seconds": "duration",
    "rounds": "rounds of readings",
}


def add_parser(commands: "Commands[argparse.ArgumentParser]") -> None:
    parser = add_command(commands, "qualify", help="find the slow hosts of a cluster before a job", text=TEXT, ends=ENDS)
    text = "the training of each host: a model and its fields; by default mnist"
    parser.add_argument("specs", metavar="MODEL|FIELD=VALUE", nargs="*", help=text)
    add_cluster(parser, required=False, text="a cluster of clusters.toml; by default this machine")
    text = "number of hosts; by default all hosts of the cluster"
    parser.add_argument("--hosts", metavar="N", type=int, help=text)
    parser.add_argument("--no-training", action="store_true", help="only probe hosts and links")
    text = "smallest loss of a capacity that must be found; by default 0.05, which is 5 %%"
    parser.add_argument("--slow", metavar="FRACTION", type=float, help=text)
    text = "largest fraction of qualifications that call any fit host slow; by default 0.02"
    parser.add_argument("--false-alarms", metavar="FRACTION", type=float, help=text)
    text = "most rounds that confirm a loss, after the first three; by default 24. More find a loss in noisier readings"
    parser.add_argument("--max-rounds", metavar="N", type=int, help=text)
    text = "no round begins that would end later, as 5min; by default there is no limit"
    parser.add_argument("--time-limit", metavar="TIME", type=parse_time, help=text)
    parser.add_argument("--exclude-list", action="store_true", help="print only the slow hosts, for srun --exclude")
    add_history(parser)
    add_json(parser, SHAPE)
    parser.set_defaults(run=run_qualify, cluster="local")


def run_qualify(args: argparse.Namespace) -> int:
    from pytest_dtfperf.clusters.named import BACKENDS
    from pytest_dtfperf.qualify.qualification import HostQualification, make_all_hosts_spec
    from pytest_dtfperf.session import Session, Settings

    if args.json and args.exclude_list:
        raise UsageError("--json and --exclude-list are two outputs: give one of them")
    wanted = list(parse_specs(args.specs or ["mnist"]))
    if len(wanted) != 1 or wanted[0].word in (BEST, SWEEP) or "gpus" in wanted[0].fields:
        raise UsageError("qualify trains one model on all devices of each host: leave out gpus, and give num_ps as a number")
    opened = Session.open(
        args.cluster,
        clusters_file=find_clusters_file(args),
        results=find_results_folder(args),
        settings=Settings(history=get_requested(args.history) or find_configured_history()),
    )
    if BACKENDS[opened.config.backend].is_simulated:
        opened.settings = replace(opened.settings, history=NEVER)
    policy = _make_policy(args)
    limit_s = args.time_limit if isinstance(args.time_limit, float) else math.inf
    with opened as session:
        hosts, devices = _count_hosts(session, args.hosts)
        spec = make_all_hosts_spec(session, make_spec(session, wanted[0]), hosts, devices)
        qualification = HostQualification(
            session, spec, policy=policy, trains=not args.no_training, time_limit_s=limit_s, on_status=print_remark
        )
        try:
            found = qualification.carry_out()
        except UsageError:
            raise
        except KeyboardInterrupt:
            if qualification.has_begun:
                _print_result(qualification.result(), session, args)
            raise
        except DtfPerfError as error:
            print_remark(str(error))
            return NOT_JUDGED
        _print_result(found, session, args)
    return _choose_code(found)


def _make_policy(args: argparse.Namespace) -> "QualifyPolicy":
    """Return the policy of the arguments. Raises `UsageError`."""
    from pytest_dtfperf.qualify.peers import MOST_ROUNDS, QualifyPolicy

    given = {"slow": args.slow, "false_alarms": args.false_alarms}
    for name, value in given.items():
        if value is not None and not 0 < value < 1:
            raise UsageError(f"--{name.replace('_', '-')} is a fraction between 0 and 1, as 0.05 for 5 %, not {value:g}")
    if args.max_rounds is not None and not 1 <= args.max_rounds <= MOST_ROUNDS:
        raise UsageError(f"--max-rounds must be from 1 to {MOST_ROUNDS}, not {args.max_rounds}")
    policy = QualifyPolicy(**{name: value for name, value in given.items() if value is not None})
    policy = replace(policy, confirming=args.max_rounds or policy.confirming)
    if policy.slow <= policy.tolerance:
        raise UsageError(f"--slow must be more than {policy.tolerance:g}, by which equal hosts may differ, not {policy.slow:g}")
    return policy


def _count_hosts(session: "Session", wanted: int | None) -> tuple[int, int]:
    """Return the number of hosts, and the devices of each. Raises `UsageError`."""
    from pytest_dtfperf.clusters.capacity import count_hosts, predict_devices_per_host

    config = session.config
    devices = predict_devices_per_host(config)
    if wanted is not None and wanted < 1:
        raise UsageError(f"--hosts must be 1 or more, not {wanted}")
    hosts = wanted or count_hosts(config)
    if not hosts or not devices:
        missing = "--hosts" if not hosts else "devices_per_host in clusters.toml"
        raise UsageError(f"cluster {config.name} does not define how many hosts and devices it has: give {missing}")
    return hosts, devices


def _choose_code(found: "Qualification") -> int:
    from pytest_dtfperf.datamodel.qualification import HostVerdict

    if found.list_hosts(HostVerdict.SLOW) or any(each.verdict is HostVerdict.SLOW for each in found.pairs):
        return FAILED
    return NOT_JUDGED if found.list_hosts(HostVerdict.NOT_JUDGED) else DONE


def _print_result(found: "Qualification", session: "Session", args: argparse.Namespace) -> None:
    from pytest_dtfperf.datamodel.qualification import HostVerdict
    from pytest_dtfperf.qualify.qualification import FILE, describe_pair, list_drain_commands

    if args.json:
        print_json(found.to_json())
        return
    slow, unknown = found.list_hosts(HostVerdict.SLOW), found.list_hosts(HostVerdict.NOT_JUDGED)
    if args.exclude_list:
        print(",".join(slow))
        return
    fit = len(found.list_hosts(HostVerdict.FIT))
    counts = f"{fit} fit, {len(slow)} slow, {len(unknown)} not judged"
    promise = f"at most {percent(found.false_alarms)} of qualifications call any fit host slow"
    print(f"{format_count(len(found.hosts), 'host')}, {duration(found.seconds)}: {counts} ({promise})")
    if shown := [*slow, *unknown]:
        headings = ("host", "arithmetic", "memory", "link in", "link out", "training", "verdict")
        print_table(headings, [_make_row(host, found.hosts[host]) for host in shown])
        for host in shown:
            print(f"{host}: {found.hosts[host].reason}")
    for pair in found.pairs:
        print(f"link {describe_pair(pair)}")
    if slow:
        print(f"\nTo run without them: --exclude={','.join(slow)}")
        if session.config.backend == "slurm":
            print("To drain them:", *list_drain_commands(found), sep="\n  ")
    print(f"{format_count(found.rounds, 'round')}: {session.folder.path / Path(FILE)}")


def _make_row(name: str, host: "HostResult") -> list[str]:
    from pytest_dtfperf.qualify.pairs import LINK_IN, LINK_OUT

    def loss(*prefixes: str) -> str:
        found = [each.loss for key, each in host.capacities.items() if key.startswith(prefixes) and each.loss is not None]
        return change(-max(found)) if found else NONE

    def link(key: str) -> str:
        found = host.capacities.get(key)
        return with_prefix(8 * found.per_s, "bit/s") if found and found.per_s else NONE

    arithmetic = loss("core.", "cores.", "gpu.")
    return [name, arithmetic, loss("memory"), link(LINK_IN), link(LINK_OUT), loss("training"), str(host.verdict)]
