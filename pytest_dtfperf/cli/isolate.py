"""`dtfperf isolate`: find the hosts and links that slow a training."""

import argparse
import math
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_dtfperf.cli.options import (
    DONE,
    FAILED,
    OTHER_KEYS,
    Commands,
    Shape,
    add_cluster,
    add_command,
    add_json,
    add_results,
    find_clusters_file,
    find_results_folder,
    print_table,
)
from pytest_dtfperf.cli.output import print_json, print_remark
from pytest_dtfperf.cli.run import BEST, SWEEP, make_spec, parse_specs, parse_time
from pytest_dtfperf.errors import DtfPerfError, UsageError
from pytest_dtfperf.formats import change, duration, format_count, percent, rate

if TYPE_CHECKING:
    from pytest_dtfperf.qualify.group_rates import SearchPolicy
    from pytest_dtfperf.qualify.isolation import IsolationResult
    from pytest_dtfperf.qualify.search import SlowSet

NOT_JUDGED = 3
TEXT = """\
Finds the hosts and links that slow a training, by the training itself on groups of the hosts of one allocation.

    dtfperf isolate inception3 gpus=32 --cluster=daint
    dtfperf isolate resnet50 gpus=64 steps=50 --cluster=lab --time-limit=30min --json

The training first runs on all hosts. A host for which the others wait there is confirmed in two rounds. Otherwise groups of
hosts train side by side, slow groups in parts, and what is found is confirmed beside fit hosts. The cost is printed before the
search begins. Baselines are neither read nor changed (docs/isolate.md).
"""
ENDS = {
    DONE: "no host or link is slower than the others",
    FAILED: "slow hosts or links were found",
    NOT_JUDGED: "not judged: the search ended without a result, or the cluster failed",
}
SHAPE: Shape = {
    "id": "of the session",
    "hosts": "that trained",
    "late": "host to what step timings show",
    "cost": "runs, rounds and seconds, without a slow host and with one",
    "conclusion": "outcome, reason, findings, fit, unknown, runs, rounds, pairs, spread",
    "exclude": "hosts to leave out",
    "failures": "messages of failed trainings",
    OTHER_KEYS: "see docs/isolate.md",
}


def add_parser(commands: "Commands[argparse.ArgumentParser]") -> None:
    parser = add_command(commands, "isolate", help="find the hosts and links that slow a training", text=TEXT, ends=ENDS)
    parser.add_argument(
        "specs", metavar="MODEL|FIELD=VALUE", nargs="+", help="the training on all hosts: a model and its fields"
    )
    add_cluster(parser, required=False, text="which cluster of clusters.toml; this machine otherwise")
    text = "smallest loss that is searched for; by default 0.05, which is 5 %%"
    parser.add_argument("--smallest", metavar="FRACTION", type=float, help=text)
    text = "largest probability that any fit host or link is named; by default 0.02"
    parser.add_argument("--error", metavar="FRACTION", type=float, help=text)
    text = "ways to divide the hosts into groups, each with other links; by default 2, or all if 16 hosts or fewer are fit"
    parser.add_argument("--layouts", metavar="N", type=int, help=text)
    text = "no round begins that would end later, as 30min; by default there is no limit"
    parser.add_argument("--time-limit", metavar="TIME", type=parse_time, help=text)
    text = "most steps that each training measures, where the arguments set none"
    parser.add_argument("--steps", metavar="N", type=int, help=text)
    add_results(parser)
    add_json(parser, SHAPE)
    parser.set_defaults(run=run_isolate, cluster="local")


def run_isolate(args: argparse.Namespace) -> int:
    from pytest_dtfperf.qualify.isolation import HostIsolation
    from pytest_dtfperf.session import Session, Settings

    wanted = list(parse_specs(args.specs))
    if len(wanted) != 1 or wanted[0].word in (BEST, SWEEP):
        raise UsageError("isolate searches with one training, and with the number of parameter servers itself: num_ps=2")
    policy = _make_policy(args)
    opened = Session.open(
        args.cluster,
        clusters_file=find_clusters_file(args),
        results=find_results_folder(args),
        settings=Settings(steps=args.steps, history="never"),
    )
    limit_s = args.time_limit if isinstance(args.time_limit, float) else math.inf
    with opened as session:
        spec = make_spec(session, wanted[0])
        search = HostIsolation(session, spec, policy=policy, time_limit_s=limit_s, on_status=print_remark)
        try:
            result = search.carry_out()
        except UsageError:
            raise
        except KeyboardInterrupt:
            if search.has_begun:
                _print_result(search.result(), session.folder.path, args)
            raise
        except DtfPerfError as error:
            print_remark(str(error))
            return NOT_JUDGED
    _print_result(result, session.folder.path, args)
    return _choose_code(result)


def _make_policy(args: argparse.Namespace) -> "SearchPolicy":
    """Return the policy of the arguments. Raises `UsageError`."""
    from pytest_dtfperf.qualify.group_rates import SearchPolicy

    for option, value in (("--smallest", args.smallest), ("--error", args.error)):
        if value is not None and not 0 < value < 0.5:
            raise UsageError(f"{option} is a fraction below 0.5, as 0.05 for 5 %, not {value:g}")
    for option, value in (("--layouts", args.layouts), ("--steps", args.steps)):
        if value is not None and value < 1:
            raise UsageError(f"{option} must be 1 or more, not {value}")
    given = {"smallest": args.smallest, "error": args.error, "layouts": args.layouts}
    return SearchPolicy(**{name: value for name, value in given.items() if value is not None})


def _choose_code(result: "IsolationResult") -> int:
    from pytest_dtfperf.qualify.search import Outcome

    if result.conclusion.findings:
        return FAILED
    return DONE if result.conclusion.outcome is Outcome.EQUAL else NOT_JUDGED


def _print_result(result: "IsolationResult", folder: Path, args: argparse.Namespace) -> None:
    from pytest_dtfperf.qualify.isolation import FILE

    if args.json:
        print_json(result.to_json())
        return
    found = result.conclusion
    whole = f", {rate(result.images_per_sec)} images/sec on all" if result.images_per_sec else ""
    print(f"{result.label} on {result.cluster}: {format_count(len(result.hosts), 'host')}{whole}")
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
        shown = ",".join([*result.exclude, *found.fit[:1]])
        print(f"To see why: dtfperf doctor --cluster={shlex.quote(result.cluster)} --hosts={shlex.quote(shown)}")
    for text in result.failures:
        print_remark(f"a training failed: {text}")
    counts = f"{format_count(found.runs, 'training')} in {format_count(found.rounds, 'round')}"
    print(f"{counts}, {duration(result.seconds)}: {folder / FILE}")


def _describe(finding: "SlowSet") -> str:
    """Describe what is slow, as in `link nid00017 - nid00031`."""
    if not finding.hosts:
        return "all links between groups"
    if finding.kind == "between":
        return f"links of {', '.join(finding.hosts)} to all others"
    return f"{finding.kind} {' - '.join(finding.hosts)}"
