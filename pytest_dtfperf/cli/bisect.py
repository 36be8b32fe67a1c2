"""`dtfperf bisect`: find the commit, the version or the variant that made training slower."""

import argparse
import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_dtfperf.cli.ab import add_block_options, add_command_option, check_fractions, parse_trainings
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
    print_table,
)
from pytest_dtfperf.cli.output import print_json, print_remark
from pytest_dtfperf.cli.run import check_steps, get_time_limit_s, make_spec, open_session
from pytest_dtfperf.compare.variants import Variant, VariantSource, is_variant, load_variants, parse_variant
from pytest_dtfperf.errors import DtfPerfError, UsageError
from pytest_dtfperf.formats import format_count, percent

if TYPE_CHECKING:
    from pytest_dtfperf.session import Session
    from pytest_dtfperf.session.bisection import Candidate, StackBisection

TEXT = """\
Find the change that made training slower, in a series of candidates. The first one is fast, and the last one is slow.
Candidates are commits, versions of a package, or variants as for dtfperf ab.

    dtfperf bisect --good=v1.4 --bad=HEAD --setup="pip install -e ." --command="python train.py"
    dtfperf bisect --good=v1.4 --bad=HEAD --command="python train.py" gpus=2 --cluster=lab
    dtfperf bisect --packages=tensorflow==2.18..2.21 mnist gpus=2
    dtfperf bisect "a: setup='module load tf/2.18'" "b: setup='module load tf/2.19'" "c: setup='module load tf/2.20'" mnist
    dtfperf bisect --variants=series.toml mnist

Each block of runs compares a candidate with the first one on the same hosts. The next candidate is the one that is expected to
show most for each second, with the time of its build. Candidates that cannot be built are skipped. The result is the candidate
that made the difference, its effect, and the reason. Two changes are reported as two.
"""
ENDS = {DONE: "the change was found, or there is none", FAILED: "blocks or time did not decide, or the cluster failed"}
SHAPE: Shape = {
    "id": "of the bisection",
    "spec": "what was trained",
    "candidates": "a list, each with its name, settings and probability",
    "result": "FOUND, SEVERAL, NO_DIFFERENCE or UNDECIDED",
    "reason": "of the result",
    "changes": "a list, each with its candidates, and the ratio of the rates with its interval: ratio, low, high",
    "blocks": "a list of blocks, each with its candidate, order and four runs",
    OTHER_KEYS: "see docs/bisect.md",
}
MOST_FILES = 8  # of a commit, that are shown


@dataclass(frozen=True)
class Series:
    """The candidates, and the repository of which they are commits, if they are."""

    candidates: "Sequence[Candidate]"
    repo: Path | None = None


def add_parser(commands: "Commands[argparse.ArgumentParser]") -> None:
    parser = add_command(commands, "bisect", help="find the change that made training slower", text=TEXT, ends=ENDS)
    text = 'variants as "NAME: KEY=VALUE ...", and one training, a model and its fields'
    parser.add_argument("words", metavar="VARIANT|MODEL|FIELD=VALUE", nargs="*", help=text)
    parser.add_argument("--good", metavar="REF", help="a commit that is fast")
    parser.add_argument("--bad", metavar="REF", help="a later commit that is slow; by default HEAD")
    parser.add_argument("--repo", metavar="FOLDER", type=Path, default=Path(), help="the repository; by default this folder's")
    text = "a shell line that builds a commit, in a worktree and an environment of its own; repeatable"
    parser.add_argument("--setup", metavar="LINE", action="append", default=[], help=text)
    text = "versions of a package, as tensorflow==2.18..2.21 or tensorflow==2.18.1,2.19.1"
    parser.add_argument("--packages", metavar="NAME==VERSIONS", help=text)
    parser.add_argument("--variants", metavar="FILE", type=Path, help="a TOML file with a table for each candidate, in order")
    add_command_option(parser)
    add_cluster(parser)
    text = "probability with which the result is right; by default 0.95"
    parser.add_argument("--confidence", metavar="FRACTION", type=float, help=text)
    text = "largest difference of the first and the last candidate that counts as none; by default 0.01, which is 1 %%"
    parser.add_argument("--equivalence", metavar="FRACTION", type=float, help=text)
    parser.add_argument("--max-blocks", metavar="N", type=int, help="most blocks of all candidates; by default 60")
    add_block_options(parser)
    text = "continue the bisection of a session folder; the other arguments are those of that session"
    parser.add_argument("--resume", metavar="SESSION", type=Path, help=text)
    add_results(parser)
    add_json(parser, SHAPE)
    parser.set_defaults(run=run_bisect, cluster="local")


def run_bisect(args: argparse.Namespace) -> int:
    from pytest_dtfperf.compare.bisection import LEAST_LAST, BisectionEnd, BisectionPolicy
    from pytest_dtfperf.session.bisection import StackBisection

    wanted = parse_trainings([word for word in args.words if not is_variant(word)], args.command)
    if len(wanted) != 1:
        raise UsageError("a bisection is of one training: dtfperf bisect --good=v1.4 --bad=HEAD mnist gpus=2")
    check_fractions(equivalence=args.equivalence, confidence=args.confidence)
    if args.confidence is not None and args.confidence < 0.5:
        raise UsageError(f"--confidence must be 0.5 or more, not {args.confidence:g}")
    if args.max_blocks is not None and args.max_blocks < LEAST_LAST:
        raise UsageError(f"--max-blocks must be {LEAST_LAST} or more, not {args.max_blocks}")
    check_steps(args)
    given = {"equivalence": args.equivalence, "confidence": args.confidence, "max_blocks": args.max_blocks}
    with open_session(args) as session:
        series = _read_series(args, session)
        search = StackBisection(
            session,
            series.candidates,
            make_spec(session, wanted[0]),
            BisectionPolicy(**{name: value for name, value in given.items() if value is not None}),
            secrets.randbits(32) if args.seed is None else args.seed,
            session.progress.show_remark,
        )
        if args.resume:
            search.resume(args.resume)
        try:
            search.carry_out(get_time_limit_s(args))
        except (DtfPerfError, KeyboardInterrupt):
            if search.blocks:
                _print_bisection(session, search, series, args)
                print_remark(f"--resume={session.folder.path} continues from here")
            raise
    _print_bisection(session, search, series, args)
    if search.decision.end is not BisectionEnd.UNDECIDED:
        return DONE
    print_remark(f"--resume={session.folder.path} continues from here, if --max-blocks or --time-limit allow more blocks")
    return FAILED


def _read_series(args: argparse.Namespace, session: "Session") -> Series:
    """Return the candidates of the arguments. Raises `UsageError`."""
    from pytest_dtfperf.session.bisection import Candidate
    from pytest_dtfperf.session.builds import describe_commit, find_repository, list_commits, list_versions

    variants = load_variants(args.variants) if args.variants else []
    variants += [parse_variant(word) for word in args.words if is_variant(word)]
    kinds = {"variants": variants, "--good": args.good, "--packages": args.packages}
    if [bool(each) for each in kinds.values()].count(True) != 1:
        there = " and ".join(name for name, value in kinds.items() if value) or "none"
        raise UsageError(f"candidates are commits (--good, --bad), --packages or variants, and there is {there}")
    if args.good:
        commits = list_commits(args.repo.absolute(), args.good, args.bad or "HEAD")
        root, _ = find_repository(args.repo.absolute())
        source = VariantSource(repo=str(args.repo.absolute()), setup=args.setup or ())
        found = [
            Candidate(Variant(each[:12], source=replace(source, git=each)), describe_commit(Path(root), each))
            for each in commits
        ]
        return Series(found, Path(root))
    if args.bad or (args.setup and not args.packages):
        raise UsageError("--bad and --setup are for commits: name the first one with --good")
    if args.packages:
        import sys

        versions = list_versions(args.packages, session.config.python or sys.executable)
        sources = {each: VariantSource(packages=[each], setup=args.setup or ()) for each in versions}
        return Series([Candidate(Variant(each, source=source)) for each, source in sources.items()])
    return Series([Candidate(each) for each in variants])


def _print_bisection(session: "Session", search: "StackBisection", series: Series, args: argparse.Namespace) -> None:
    from pytest_dtfperf.session.bisection import FILE
    from pytest_dtfperf.session.builds import list_files

    if args.json:
        print_json(search.to_json())
        return
    hosts = list(dict.fromkeys(host for each in search.blocks for host in each.block.runs[0].hosts))
    print(
        f"bisection of {format_count(len(search.candidates), 'candidate')} on {session.config.name}"
        f"{', ' + format_count(len(hosts), 'host') if hosts else ''}: {search.spec.label}, seed {search.seed}"
    )
    if search.is_measured:
        print_table(["candidate", "blocks", "against the first", "probability"], list(_list_rows(search)))
    print(f"{search.decision.end}: {search.decision.reason}, after {format_count(len(search.blocks), 'block')}")
    for each in search.changes:
        print(f"  {search.describe(each)}: {each}")
        if series.repo:
            before, after = (search.candidates[at].variant.source.git for at in (each.first - 1, each.last))
            files = list_files(series.repo, before, after)
            for line in files[:MOST_FILES]:
                print(f"    {line}")
            if len(files) > MOST_FILES:
                print(f"    and {len(files) - MOST_FILES} more")
    if runners := search.runners_up if search.changes else []:
        print(f"  instead of it: {', '.join(f'{search.candidates[at]} {percent(share)}' for at, share in runners)}")
    for number, why in search.broken.items():
        print(f"  skipped: {search.candidates[number]}: {why}")
    for line in _list_reasons(search):
        print(f"  {line}")
    print(f"Blocks and runs: {session.folder.path / FILE}")
    for remark in session.remarks:
        print_remark(remark)


def _list_rows(search: "StackBisection") -> "Sequence[list[str]]":
    """Return a row for each candidate that was measured."""
    from pytest_dtfperf.formats import change

    rows = []
    for at, each in enumerate(search.candidates):
        made = [block.block for block in search.blocks if block.candidate == at and not block.block.disturbances]
        if made:
            ratio = math.expm1(math.fsum(block.sample.log_ratio for block in made) / len(made))
            rows.append([str(each), str(len(made)), change(ratio), percent(float(search.posterior.inclusion[at]))])
    return rows


def _list_reasons(search: "StackBisection") -> list[str]:
    from pytest_dtfperf.report.explanations import describe_explanation

    lines = list(describe_explanation(search.explanation)) if search.explanation else []
    return [*lines, *([search.unexplained] if search.unexplained else [])]
