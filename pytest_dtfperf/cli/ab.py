"""`dtfperf ab`: compare software stacks by runs in turn on the same hosts."""

import argparse
import os
import shlex
from collections.abc import Sequence
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
    print_table,
)
from pytest_dtfperf.cli.output import print_json, print_remark
from pytest_dtfperf.cli.run import (
    BEST,
    SWEEP,
    WantedSpec,
    add_steps,
    add_time_limit,
    check_steps,
    get_time_limit_s,
    make_spec,
    open_session,
    parse_specs,
    print_simulated,
)
from pytest_dtfperf.compare.variants import Variant, is_variant, load_variants, make_same, parse_variant
from pytest_dtfperf.errors import DtfPerfError, UsageError
from pytest_dtfperf.formats import format_count, parse_json_value

if TYPE_CHECKING:
    from pytest_dtfperf.session import Session
    from pytest_dtfperf.session.comparison import ABComparison

TEXT = """\
Compare software stacks on the same hosts: an environment, modules, a container image, a variable, or fields of the training.
A variant is a name, a colon and its settings, in one argument. The first one is the reference.

    dtfperf ab "old:" "new: num_intra_threads=2" mnist gpus=2
    dtfperf ab "old: python=/venvs/tf220/bin/python" "new: python=/venvs/tf221/bin/python" resnet50 gpus=8 --cluster=lab
    dtfperf ab "old: setup='module load tensorflow/2.20'" "new: setup='module load tensorflow/2.21'" inception3 --cluster=daint
    dtfperf ab "with:" "without: environment=TF_ENABLE_ONEDNN_OPTS=0" mnist trivial
    dtfperf ab "old: git=v1.4" "new: git=HEAD" --command="python train.py" gpus=2
    dtfperf ab --variants=ab.toml mnist                    # a table for each variant
    dtfperf ab --same mnist gpus=2                         # the smallest difference that can be found here

The agents of all variants run on the same hosts, and one variant trains at a time. Runs are in blocks of four, ABBA or BAAB
at random, so that a steady drift of the machine cancels. Baselines are neither read nor changed (docs/compare-stacks.md).
"""
ENDS = {DONE: "no variant is slower than the reference", FAILED: "a variant is slower, or could not be compared"}
SHAPE: Shape = {
    "id": "of the comparison",
    "spec": "the training of the reference",
    "reference": "its name, settings, images_per_sec and fingerprint",
    "variant": "likewise",
    "verdict": "FASTER, SLOWER, EQUIVALENT, INCONCLUSIVE, ...",
    "reason": "of the verdict",
    "estimate": "ratio of the rates with its interval: ratio, low, high, ...",
    "blocks": "a list of blocks, each with its order and four runs",
    OTHER_KEYS: "see docs/compare-stacks.md",
}
ONLY = "reference"  # name of the cluster's own stack, which --same compares if no variant is given


def add_parser(commands: "Commands[argparse.ArgumentParser]") -> None:
    parser = add_command(commands, "ab", help="compare software stacks on the same hosts", text=TEXT, ends=ENDS)
    text = 'variants as "NAME: KEY=VALUE ...", and trainings, each a model and its fields'
    parser.add_argument("words", metavar="VARIANT|MODEL|FIELD=VALUE", nargs="*", help=text)
    parser.add_argument("--variants", metavar="FILE", type=Path, help="a TOML file with a table for each variant")
    add_command_option(parser)
    text = "list the stacks of commits and packages that were built here, or remove them with --cache=clear; compare nothing"
    parser.add_argument("--cache", nargs="?", const="list", choices=("list", "clear"), help=text)
    parser.add_argument("--same", action="store_true", help="compare one variant with itself, to measure the noise")
    add_cluster(parser)
    text = "largest difference that is EQUIVALENT; by default 0.01, which is 1 %%"
    parser.add_argument("--equivalence", metavar="FRACTION", type=float, help=text)
    text = "largest probability of any wrong verdict in all comparisons together; by default 0.05"
    parser.add_argument("--error", metavar="FRACTION", type=float, help=text)
    parser.add_argument("--max-blocks", metavar="N", type=int, help="most blocks of each comparison; by default 20")
    add_block_options(parser)
    add_results(parser)
    add_json(parser, SHAPE, lines="comparison, as in comparisons.jsonl")
    parser.set_defaults(run=run_compare, cluster="local")


def run_compare(args: argparse.Namespace) -> int:
    from pytest_dtfperf.compare.blocks import ABPolicy

    if args.cache:
        return _show_cache(args)
    variants, trainings = _read_variants(args)
    wanted = parse_trainings(trainings, args.command)
    if not wanted:
        raise UsageError('which training? dtfperf ab "old:" "new: num_intra_threads=2" mnist gpus=2')
    if sought := [each for each in wanted if each.word in (BEST, SWEEP)]:
        raise UsageError(f"{sought[0]}: a comparison needs the number of parameter servers itself: num_ps=2")
    given = {"equivalence": args.equivalence, "error": args.error, "max_blocks": args.max_blocks}
    policy = ABPolicy(**{name: value for name, value in given.items() if value is not None})
    _check_policy(args)
    with open_session(args) as session:
        specs = [make_spec(session, each) for each in wanted]
        comparing = session.prepare_comparison(variants, specs, policy=policy, seed=args.seed, same=args.same)
        try:
            comparing.carry_out(get_time_limit_s(args))
        except (DtfPerfError, KeyboardInterrupt):
            if any(each.blocks for each in comparing.comparisons):
                _print_comparisons(session, comparing.comparisons, args)
            raise
    _print_comparisons(session, comparing.comparisons, args)
    return FAILED if any(each.verdict.is_bad for each in comparing.comparisons) else DONE


def _read_variants(args: argparse.Namespace) -> tuple[list[Variant], list[str]]:
    """Return the variants of the file and the arguments, and the other arguments. Raises `UsageError`."""
    variants = load_variants(args.variants) if args.variants else []
    variants += [parse_variant(word) for word in args.words if is_variant(word)]
    if args.same:
        if len(variants) > 1:
            names = " and ".join(each.name for each in variants)
            raise UsageError(f"--same compares one variant with itself, and there are {names}")
        variants = make_same(variants[0] if variants else Variant(ONLY))
    return variants, [word for word in args.words if not is_variant(word)]


def _check_policy(args: argparse.Namespace) -> None:
    from pytest_dtfperf.compare.blocks import LEAST_BLOCKS

    check_fractions(equivalence=args.equivalence, error=args.error)
    if args.max_blocks is not None and args.max_blocks < LEAST_BLOCKS:
        raise UsageError(f"--max-blocks must be {LEAST_BLOCKS} or more, not {args.max_blocks}")
    check_steps(args)


def add_block_options(parser: argparse.ArgumentParser) -> None:
    """Add --time-limit, --seed and --steps, for commands that train in blocks."""
    add_time_limit(parser, "block")
    parser.add_argument("--seed", metavar="N", type=int, help="seed of the random orders; by default it is drawn, and recorded")
    add_steps(parser)


def add_command_option(parser: argparse.ArgumentParser) -> None:
    text = "train with this program instead of a model (docs/command.md): in the worktree of a commit, and here otherwise"
    parser.add_argument("--command", metavar="COMMAND", help=text)


def check_fractions(**given: float | None) -> None:
    """Raise `UsageError` unless all given options are between 0 and 1."""
    for option, value in given.items():
        if value is not None and not 0 < value < 1:
            raise UsageError(f"--{option} is a fraction, as 0.01 for 1 %, not {value:g}")


def parse_trainings(words: Sequence[str], command: str | None) -> list[WantedSpec]:
    """Return the trainings of models, or the training of a command with its fields. Raises `UsageError`."""
    from pytest_dtfperf.spec.command import program_name

    if command is None:
        return list(parse_specs(words))
    try:
        arguments = shlex.split(command)
    except ValueError as error:
        raise UsageError(f"--command={command} cannot be read: {error}") from error
    if not arguments:
        raise UsageError("--command is empty")
    found = WantedSpec(program_name(arguments), {"command": arguments, "command_dir": os.getcwd()})
    for word in words:
        name, is_field, value = word.partition("=")
        if not is_field:
            raise UsageError(f"{word}: --command already defines the training, and a model would be another one")
        found.fields[name] = parse_json_value(value)
    return [found]


def _show_cache(args: argparse.Namespace) -> int:
    """Print the stacks that were built, or remove them."""
    from pytest_dtfperf.session.builds import BuildCache, stacks_folder

    cache = BuildCache()
    if args.cache == "clear":
        removed = cache.clear()
        print_remark(f"removed: {format_count(removed, 'stack')} of {stacks_folder()}")
        return DONE
    found = cache.list()
    rows = [
        [
            each.folder.name,
            each.recipe.get("repo") or "",
            " ".join([each.recipe.get("commit", "")[:12], *each.recipe.get("packages", ())]).strip() or "incomplete",
            each.built,
            f"{each.bytes / 1e6:.0f} MB",
        ]
        for each in found
    ]
    if args.json:
        raise UsageError("--cache prints a table: there is no --json for it")
    print_table(["stack", "repository", "commit, packages", "built", "size"], rows)
    print(f"{format_count(len(found), 'stack')} in {stacks_folder()}")
    return DONE


def _print_comparisons(session: "Session", comparisons: Sequence["ABComparison"], args: argparse.Namespace) -> None:
    from pytest_dtfperf.compare.record import COMPARISONS_FILE
    from pytest_dtfperf.report import comparisons as text

    records = [each.to_record() for each in comparisons]
    if args.json:
        for each in records:
            print_json(each.to_json())
        return
    hosts = list(dict.fromkeys(host for each in records for host in each.hosts))
    where = f", {format_count(len(hosts), 'host')} ({', '.join(hosts)})" if hosts else ""
    print(f"A/B on {session.config.name}{where}, blocks in random order, seed {records[0].seed}")
    print_simulated(session.config)
    print("\n".join(text.list_variants(records)))
    print_table(text.HEADINGS, [text.make_row(each) for each in records])
    for each in records:
        for line in text.list_reasons(each):
            print(f"  {line}")
    print(f"Blocks and runs: {session.folder.path / COMPARISONS_FILE}")
    for remark in session.remarks:
        print_remark(remark)
