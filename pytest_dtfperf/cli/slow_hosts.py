"""`dtfperf isolate` and `dtfperf qualify`: find hosts that slow a training, and slow hosts of a cluster before a job."""

import argparse
import os
import re
import shlex
import socket
import sys
import traceback
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from pytest_dtfperf.cli.history_data import add_history
from pytest_dtfperf.cli.options import (
    DONE,
    FAILED,
    NOT_JUDGED,
    OTHER_KEYS,
    Commands,
    Shape,
    add_cluster,
    add_command,
    add_json,
    add_metrics,
    add_results,
    print_table,
)
from pytest_dtfperf.cli.output import print_json, print_remark
from pytest_dtfperf.cli.project import find_configured_history
from pytest_dtfperf.cli.run import (
    BEST,
    SWEEP,
    add_steps,
    add_time_limit,
    check_steps,
    get_time_limit_s,
    make_spec,
    open_session,
    parse_specs,
    print_simulated,
)
from pytest_dtfperf.errors import DtfPerfError, UsageError, group_reasons
from pytest_dtfperf.formats import NONE, change, duration, format_count, join_some, percent, rate, with_prefix
from pytest_dtfperf.history.where import NEVER, get_requested

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_dtfperf.datamodel.qualification import HostResult, Qualification
    from pytest_dtfperf.history.series import Series
    from pytest_dtfperf.qualify.group_rates import SearchPolicy
    from pytest_dtfperf.qualify.isolation import IsolationResult
    from pytest_dtfperf.qualify.peers import QualifyPolicy
    from pytest_dtfperf.qualify.search import SlowSet
    from pytest_dtfperf.report.metrics_targets import Target
    from pytest_dtfperf.session import Session

ISOLATE_TEXT = """\
Find the hosts and links that slow a training, by the training itself on groups of the hosts of one allocation.

    dtfperf isolate inception3 gpus=32 --cluster=daint
    dtfperf isolate resnet50 gpus=64 steps=50 --cluster=lab --time-limit=30min --json

The training first runs on all hosts. A host for which the others wait there is confirmed in two rounds. Otherwise groups of
hosts train side by side, slow groups in parts, and what is found is confirmed beside fit hosts. The cost is printed before the
search begins. Baselines are neither read nor changed (docs/isolate.md).
"""
ISOLATE_ENDS = {
    DONE: "no host or link is slower than the others",
    FAILED: "slow hosts or links were found, or hosts that cannot be reached",
    NOT_JUDGED: "not judged: the search ended without a result, or the cluster or this program failed",
}
ISOLATE_SHAPE: Shape = {
    "id": "of the session",
    "hosts": "that trained",
    "late": "host to its step timings",
    "lost": "host that ended or did not answer, to the reason",
    "cost": "runs, rounds and seconds, without a slow host and with one",
    "conclusion": "outcome, reason, findings, fit, unknown, runs, rounds, pairs, spread",
    "exclude": "hosts to leave out",
    "failures": "messages of failed trainings",
    OTHER_KEYS: "see docs/isolate.md",
}
QUALIFY_TEXT = """\
Find the hosts of a cluster that are slower than the other hosts of the same hardware, before a job runs on them.

    dtfperf qualify --cluster=daint --hosts=32
    dtfperf qualify --cluster=daint --hosts=nid000[12-43]
    dtfperf qualify --cluster=lab mnist steps=100 --json
    dtfperf qualify --cluster=daint --hosts=8 --no-training --time-limit=2min
    dtfperf qualify --host --json                  # this host alone, by the history: in a Slurm prolog
    dtfperf qualify --host mnist --time-limit=3min     # with a training

In several rounds all hosts are probed side by side (arithmetic of cores or GPUs, memory), stream to each other in pairs, and
train a small model by themselves and in pairs. Hosts of one kind are compared with each other. At most 2 % of qualifications
call any fit host slow. --host only trains if a model is given. Baselines are neither read nor changed. The readings enter the
history: `dtfperf history hosts` (docs/qualify.md).
"""
MOST_LINKS = 4  # that were not measured for one reason, in its line
HOST_LIMIT_S = 45.0  # of a host alone: Slurm ends a HealthCheckProgram after 60 s
QUALIFY_ENDS = {
    DONE: "all hosts are fit",
    FAILED: "slow hosts or links were found",
    NOT_JUDGED: "no host is slow, but some hosts or links could not be judged, or the cluster or this program failed",
}
QUALIFY_SHAPE: Shape = {
    "cluster": "its name",
    "hosts": "host to verdict, kind, capacities (with per_s, peers_per_s, loss, error, readings) and reason",
    "pairs": "slow links of hosts that are fast with others",
    "unknown_links": "link FROM>TO that was not measured, to the reason; of more than 16 hosts only those that failed",
    "false_alarms": "largest fraction of qualifications that call any fit host slow",
    "seconds": "duration",
    "rounds": "rounds of readings",
}

Result_co = TypeVar("Result_co", covariant=True)


class HostMeasurement(Protocol[Result_co]):
    """A qualification or a search, which may have partial results when it is interrupted."""

    @property
    def has_begun(self) -> bool: ...

    def carry_out(self) -> Result_co: ...

    def result(self) -> Result_co: ...


def add_parser(commands: "Commands[argparse.ArgumentParser]") -> None:
    _add_isolate(commands)
    _add_qualify(commands)


def _carry_out(measurement: HostMeasurement[Result_co], show: "Callable[[Result_co], None]") -> Result_co | None:
    """Print the result and return it; at Ctrl-C, print the partial result. None: the cluster failed."""
    try:
        found = measurement.carry_out()
    except UsageError:
        raise
    except KeyboardInterrupt:
        if measurement.has_begun:
            show(measurement.result())
        raise
    except DtfPerfError as error:
        print_remark(str(error))
        return None
    show(found)
    return found


def _run_judging(run: "Callable[[argparse.Namespace], int]", args: argparse.Namespace) -> int:
    """Return the exit code of a command that judges hosts. No failure of this program means that a host is slow."""
    try:
        code = run(args)
        sys.stdout.flush()
    except (UsageError, BrokenPipeError):
        raise
    except Exception as error:
        with suppress(OSError):
            if not isinstance(error, (DtfPerfError, OSError)):  # a defect
                traceback.print_exc()
            print_remark(f"not judged: {type(error).__name__}: {' '.join(str(error).split())}")
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # a full disk is not written to again
        return NOT_JUDGED
    return code


def _publish(targets: "Sequence[Target]", content: bytes, cluster: str, job: str) -> None:
    """Write or send the metrics of the result, and print a line for each target."""
    from pytest_dtfperf.report.metrics_targets import publish_metrics

    for line in publish_metrics(targets, content, cluster, job=job):
        print_remark(line)


def _add_isolate(commands: "Commands[argparse.ArgumentParser]") -> None:
    parser = add_command(
        commands, "isolate", help="find the hosts and links that slow a training", text=ISOLATE_TEXT, ends=ISOLATE_ENDS
    )
    parser.add_argument(
        "specs", metavar="MODEL|FIELD=VALUE", nargs="+", help="the training on all hosts: a model and its fields"
    )
    add_cluster(parser)
    text = "search among these hosts of an SSH or Slurm cluster; by default all"
    parser.add_argument("--hosts", metavar="NAME,..", help=text)
    text = "smallest loss that is searched for; by default 0.05, which is 5 %%"
    parser.add_argument("--smallest", metavar="FRACTION", type=float, help=text)
    text = "largest probability that any fit host or link is named; by default 0.02"
    parser.add_argument("--error", metavar="FRACTION", type=float, help=text)
    text = "ways to divide the hosts into groups, each with other links; by default 2, or all if 16 hosts or fewer are fit"
    parser.add_argument("--layouts", metavar="N", type=int, help=text)
    add_time_limit(parser, "round")
    add_steps(parser)
    add_results(parser)
    add_metrics(parser)
    add_json(parser, ISOLATE_SHAPE)
    parser.set_defaults(run=run_isolate, cluster="local")


def run_isolate(args: argparse.Namespace) -> int:
    return _run_judging(_isolate, args)


def _isolate(args: argparse.Namespace) -> int:
    from pytest_dtfperf.qualify.isolation import HostIsolation
    from pytest_dtfperf.qualify.metrics import ISOLATE_JOB, format_isolation_metrics
    from pytest_dtfperf.report.metrics_targets import list_targets

    targets = list_targets(args.metrics)
    wanted = list(parse_specs(args.specs))
    if len(wanted) != 1 or wanted[0].word in (BEST, SWEEP):
        raise UsageError("isolate searches with one training, and with the number of parameter servers itself: num_ps=2")
    policy = _make_search_policy(args)
    with open_session(args, hosts=args.hosts) as session:
        search = HostIsolation(
            session,
            make_spec(session, wanted[0]),
            policy=policy,
            time_limit_s=get_time_limit_s(args),
            on_status=print_remark,
        )
        result = _carry_out(search, lambda found: _print_isolation(found, session, args))
    if result is None:
        return NOT_JUDGED
    _publish(targets, format_isolation_metrics(result), result.cluster, ISOLATE_JOB)
    return _choose_isolate_code(result)


def _make_search_policy(args: argparse.Namespace) -> "SearchPolicy":
    """Return the policy of the arguments. Raises `UsageError`."""
    from pytest_dtfperf.qualify.group_rates import SearchPolicy

    for option, value in (("--smallest", args.smallest), ("--error", args.error)):
        if value is not None and not 0 < value < 0.5:
            raise UsageError(f"{option} is a fraction below 0.5, as 0.05 for 5 %, not {value:g}")
    if args.layouts is not None and args.layouts < 1:
        raise UsageError(f"--layouts must be 1 or more, not {args.layouts}")
    check_steps(args)
    given = {"smallest": args.smallest, "error": args.error, "layouts": args.layouts}
    return SearchPolicy(**{name: value for name, value in given.items() if value is not None})


def _choose_isolate_code(result: "IsolationResult") -> int:
    from pytest_dtfperf.qualify.search import Outcome

    if result.conclusion.findings or result.lost:
        return FAILED
    return DONE if result.conclusion.outcome is Outcome.EQUAL else NOT_JUDGED


def _print_isolation(result: "IsolationResult", session: "Session", args: argparse.Namespace) -> None:
    from pytest_dtfperf.clusters.named import BACKENDS
    from pytest_dtfperf.qualify.isolation import FILE

    if args.json:
        print_json(result.to_json())
        return
    found = result.conclusion
    whole = f", {rate(result.images_per_sec)} images/sec on all" if result.images_per_sec else ""
    print(f"{result.label} on {result.cluster}: {format_count(len(result.hosts), 'host')}{whole}")
    print_simulated(session.config)
    for text in result.late.values():
        print(f"step timings: {text}")
    if found.findings:
        rows = [[_describe(each), change(-each.slowdown), str(each.runs)] for each in found.findings]
        print_table(["slow", "training with it", "runs that confirm it"], rows)
    fit = f"{len(found.fit)} of {format_count(len(result.hosts), 'host')} fit"
    pairs = f", {percent(found.pairs)} of all pairs of hosts trained together"
    print(f"{found.outcome.capitalize()}: {found.reason}{f' ({fit}{pairs})' if found.fit else ''}")
    if found.unknown and (found.fit or not found.findings):
        print(f"Not known: {', '.join(found.unknown)}")
    if result.exclude:
        print(f"To train without them: --exclude={','.join(result.exclude)}")
    if result.exclude and not BACKENDS[session.config.backend].is_simulated:  # the doctor refuses simulated hosts
        shown = ",".join([*result.exclude, *found.fit[:1]])
        print(f"To see why: dtfperf doctor --cluster={shlex.quote(result.cluster)} --hosts={shlex.quote(shown)}")
    for host, why in result.lost.items():
        print(f"lost {host}: {why}")
    for text in result.failures:
        print_remark(f"a training failed: {text}")
    counts = f"{format_count(found.runs, 'training')} in {format_count(found.rounds, 'round')}"
    print(f"{counts}, {duration(result.seconds)}: {session.folder.path / FILE}")


def _describe(finding: "SlowSet") -> str:
    """Describe what is slow, as in `link nid00017 - nid00031`."""
    if not finding.hosts:
        return "all links between groups"
    if finding.kind == "between":
        return f"links of {', '.join(finding.hosts)} to all others"
    return f"{finding.kind} {' - '.join(finding.hosts)}"


def _add_qualify(commands: "Commands[argparse.ArgumentParser]") -> None:
    parser = add_command(
        commands, "qualify", help="find the slow hosts of a cluster before a job", text=QUALIFY_TEXT, ends=QUALIFY_ENDS
    )
    text = "the training of each host: a model and its fields; by default mnist, and with --host none"
    parser.add_argument("specs", metavar="MODEL|FIELD=VALUE", nargs="*", help=text)
    add_cluster(parser)
    text = "measure this host alone, and compare it with the history: with its own sessions and with hosts of its hardware"
    parser.add_argument("--host", action="store_true", help=text)
    text = "number of hosts, or the names of hosts of an SSH or Slurm cluster; by default all hosts of the cluster"
    parser.add_argument("--hosts", metavar="N|NAME,..", help=text)
    parser.add_argument("--no-training", action="store_true", help="only probe hosts and links")
    text = "smallest loss of a capacity that must be found; by default 0.05, which is 5 %%"
    parser.add_argument("--slow", metavar="FRACTION", type=float, help=text)
    text = "largest fraction of qualifications that call any fit host slow; by default 0.02"
    parser.add_argument("--false-alarms", metavar="FRACTION", type=float, help=text)
    text = "most rounds that confirm a loss, after the first three; by default 96. More find a loss in noisier readings"
    parser.add_argument("--max-rounds", metavar="N", type=int, help=text)
    add_time_limit(parser, "round", f"{HOST_LIMIT_S:g} s with --host, and otherwise none")
    parser.add_argument("--exclude-list", action="store_true", help="print only the slow hosts, for srun --exclude")
    text = "drain slow hosts in Slurm, with the reason; by default the commands are only printed"
    parser.add_argument("--drain", action="store_true", help=text)
    add_history(parser, "FILE|URL|never")
    add_metrics(parser)
    add_json(parser, QUALIFY_SHAPE)
    parser.set_defaults(run=run_qualify, cluster="local")


def run_qualify(args: argparse.Namespace) -> int:
    if args.host and (args.cluster != "local" or args.hosts is not None):
        raise UsageError("--host measures this host alone: leave out --cluster and --hosts")
    return _run_judging(_qualify, args)


def _qualify(args: argparse.Namespace) -> int:
    from pytest_dtfperf.clusters.named import BACKENDS
    from pytest_dtfperf.clusters.slurm.client import SlurmClient
    from pytest_dtfperf.qualify.metrics import QUALIFY_JOB, format_qualification_metrics
    from pytest_dtfperf.qualify.qualification import HostQualification, make_all_hosts_spec
    from pytest_dtfperf.report.metrics_targets import list_targets

    targets = list_targets(args.metrics)
    if args.json and args.exclude_list:
        raise UsageError("--json and --exclude-list are two outputs: give one of them")
    wanted = list(parse_specs(args.specs or ["mnist"]))
    if len(wanted) != 1 or wanted[0].word in (BEST, SWEEP) or "gpus" in wanted[0].fields:
        raise UsageError("qualify trains one model on all devices of each host: leave out gpus, and give num_ps as a number")
    policy = _make_qualify_policy(args)
    names = None if args.hosts is None or _is_number(args.hosts) else args.hosts
    opened = open_session(args, history=get_requested(args.history) or find_configured_history(), hosts=names)
    if BACKENDS[opened.config.backend].is_simulated:
        opened.settings = replace(opened.settings, history=NEVER)
    if args.drain:
        if not args.host and opened.config.backend != "slurm":
            raise UsageError(f"--drain is for nodes of Slurm, and cluster {opened.config.name} has none")
        SlurmClient().check_can_drain()
    with opened as session:
        hosts, devices = _count_hosts(session, None if args.hosts is None or names else int(args.hosts))
        qualification = HostQualification(
            session,
            make_all_hosts_spec(session, make_spec(session, wanted[0]), hosts, devices),
            policy=policy,
            trains=not args.no_training and (bool(args.specs) or not args.host),  # too long for the limit of a host alone
            time_limit_s=HOST_LIMIT_S if args.host and args.time_limit is None else get_time_limit_s(args),
            recorded=_load_recorded(session) if args.host else None,
            names=[_get_node_name()],
            on_status=print_remark,
        )
        found = _carry_out(qualification, lambda result: _print_qualification(result, session, args))
        if found and args.drain:
            _drain_slow_hosts(found, args)
    if found is None:
        return NOT_JUDGED
    _publish(targets, format_qualification_metrics(found), found.cluster, QUALIFY_JOB)
    return choose_qualify_code(found)


def _get_node_name() -> str:
    """Return this host's name as Slurm has it, which sets the variable in prologs."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0]


def _load_recorded(session: "Session") -> "list[Series]":
    """Return the readings of hosts in the history; none if there is no history yet. Raises `HistoryError`."""
    from pytest_dtfperf.history import store
    from pytest_dtfperf.history.database import Database
    from pytest_dtfperf.history.series import make_host_series

    address = session.history()
    if address is None or (address.path and not address.path.exists()):
        return []
    with Database.open(address).reading() as connection:
        return make_host_series(store.read_host_readings(connection))


def _drain_slow_hosts(found: "Qualification", args: argparse.Namespace) -> None:
    """Drain slow hosts. A refusal is reported and changes no result."""
    from pytest_dtfperf.clusters.slurm.client import SlurmClient
    from pytest_dtfperf.datamodel.qualification import HostVerdict

    for host in found.list_hosts(HostVerdict.SLOW):
        node = _get_node_name() if args.host else host
        try:
            SlurmClient().drain(node, found.hosts[host].reason)
        except DtfPerfError as error:
            print_remark(f"{node} is not drained: {error}")
        else:
            print_remark(f"{node} is drained")


def _make_qualify_policy(args: argparse.Namespace) -> "QualifyPolicy":
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


def _is_number(text: str) -> bool:
    return re.fullmatch(r"-?[0-9]{1,9}", text) is not None


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


def choose_qualify_code(found: "Qualification") -> int:
    from pytest_dtfperf.datamodel.qualification import HostVerdict

    if found.list_hosts(HostVerdict.SLOW) or any(each.verdict is HostVerdict.SLOW for each in found.pairs):
        return FAILED
    return NOT_JUDGED if found.list_hosts(HostVerdict.NOT_JUDGED) or found.pairs or found.unknown_links else DONE


def _print_qualification(found: "Qualification", session: "Session", args: argparse.Namespace) -> None:
    from pytest_dtfperf.datamodel.qualification import HostVerdict
    from pytest_dtfperf.qualify.group_training import format_reasons
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
    print_simulated(session.config)
    if shown := [*slow, *unknown]:
        headings = ("host", "arithmetic", "memory", "input", "link in", "link out", "training", "verdict")
        print_table(headings, [_make_row(host, found.hosts[host]) for host in shown])
        for line in (
            *(f"{host}: {found.hosts[host].reason}" for host in slow),
            *format_reasons({host: found.hosts[host].reason for host in unknown}),
        ):
            print(line)
    for pair in found.pairs:
        print(f"link {describe_pair(pair)}")
    for reason, links in group_reasons(found.unknown_links).items():
        print(f"links that were not measured: {join_some(links, MOST_LINKS)}: {reason}")
    if slow:
        print(f"\nTo run without them: --exclude={','.join(slow)}")
        if session.config.backend == "slurm" and not args.drain:
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
    readings = [arithmetic, loss("memory"), loss("input"), link(LINK_IN), link(LINK_OUT), loss("training")]
    return [name, *readings, str(host.verdict)]
