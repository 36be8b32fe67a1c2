"""Trains the same with this package and with tf_cnn_benchmarks, turn by turn on this machine, and prints how they compare.

    python benchmarks/training.py --tf-cnn-benchmarks /tmp/benchmarks/scripts/tf_cnn_benchmarks --python /tmp/tf_cnn/bin/python
    python benchmarks/training.py --bf16          # this package's bf16 against its own fp32
    python benchmarks/training.py --isolation     # tasks in a network of their own against the same in the machine's
    python benchmarks/training.py --placement split   # variables placed so over two servers against greedily

Both get the same model, batch, precision, optimizer and learning rate, as many tasks, and in each task as many intra-op and
inter-op threads. What each makes of it (on which cores threads run, how variables travel) is what is compared. Nothing else
should run on the machine meanwhile. All of it takes hours on two cores: --models and --cells choose, --rounds shortens.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.cells import CELLS, SIZES, WARMUP_STEPS, Cell, explain_missing
from benchmarks.ratios import HEADER, Comparison, Round, conclusion
from benchmarks.tf_cnn_benchmarks import HOW_TO_GET_IT, SCRIPT, TfCnnBenchmarks
from benchmarks.trainers import Trainer, TrainingFailed, in_bf16, in_the_hosts_network, placed_by, this_package
from pytest_dtfperf.errors import DtfPerfError
from pytest_dtfperf.spec import VARIABLE_PLACEMENTS, Spec

GREEDY, SERVERS = "greedy", 2  # of a comparison of placements: what the others are compared with, over how many servers
ROUNDS = 3  # the fewest whose median is not simply the mean of the extremes
EXPLANATION = """\
images/s: of all devices, over the measured steps, on the chief's clock; medians of {rounds} round(s)
ratio: this package's images/s by the other's, round by round; its median and spread
start: seconds from nothing to the first measured step, {warmup} warm-up step(s) included; warm: with the agents there already,
as in every later run of a session; part: of the other's
"""


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    alone = options.bf16 or options.isolation or options.placement
    if not alone and not (options.tf_cnn_benchmarks and (options.tf_cnn_benchmarks / SCRIPT).is_file()):
        print(HOW_TO_GET_IT, file=sys.stderr)
        return 2
    print(f"{len(os.sched_getaffinity(0))} cores: {_title(options)}\n{_explanation(options)}\n{HEADER}", flush=True)
    comparisons = []
    for model in options.models:
        for name in options.cells:
            comparisons.append(_compare(model, name, options))
            print(comparisons[-1].line(), flush=True)
    print(f"\n{conclusion(comparisons)}")
    if options.json:
        options.json.write_text(json.dumps([each.to_json() for each in comparisons], indent=2) + "\n", encoding="utf-8")
    return 1 if any(each.failed for each in comparisons) else 0


def _compare(model: str, name: str, options: argparse.Namespace) -> Comparison:
    """All rounds of one cell. Whoever went first goes second in the next, so that neither always meets a warmer machine."""
    cell = replace(CELLS[name], num_ps=SERVERS) if options.placement and CELLS[name].num_ps else CELLS[name]
    comparison = Comparison(model, name, is_distributed=cell.is_distributed)
    if options.placement and not cell.num_ps:
        comparison.note = "missing: it has no parameter servers"
        return comparison
    if reason := explain_missing(model, cell):
        comparison.note = reason
        return comparison
    spec = _spec(model, cell, options)
    one, other = _trainers(options)
    try:
        for number in range(options.rounds):
            comparison.rounds.append(_round(spec, one, other, one_first=number % 2 == 1))
    except (DtfPerfError, TrainingFailed) as exc:
        comparison.fail(str(exc))
    return comparison


def _round(spec: Spec, one: Trainer, other: Trainer, *, one_first: bool) -> Round:
    if one_first:
        first = one(spec)
        return Round(one=first, other=other(spec))
    first = other(spec)
    return Round(one=one(spec), other=first)


def _trainers(options: argparse.Namespace) -> tuple[Trainer, Trainer]:
    if options.bf16:
        return in_bf16, this_package
    if options.isolation:
        return this_package, in_the_hosts_network
    if options.placement:
        return placed_by(options.placement), this_package
    return this_package, TfCnnBenchmarks(options.tf_cnn_benchmarks.resolve(), options.python)


def _spec(model: str, cell: Cell, options: argparse.Namespace) -> Spec:
    size = SIZES[model]
    return Spec(
        model=model,
        batch_size=options.batch or size.batch_size,
        steps=options.steps or size.steps,
        warmup_steps=options.warmup,
        precision=options.precision,
        gpus=cell.gpus,
        num_ps=cell.num_ps,
        variable_update=cell.variable_update,
        variable_placement=GREEDY,
    )


def _title(options: argparse.Namespace) -> str:
    if options.bf16:
        return "this package in bf16 against itself in fp32"
    if options.isolation:
        return f"tasks in a network of their own against the same in the machine's, in {options.precision}"
    if options.placement:
        return f"variables over {SERVERS} servers placed by {options.placement} against by {GREEDY}, in {options.precision}"
    return f"this package against tf_cnn_benchmarks, both in {options.precision}"


def _explanation(options: argparse.Namespace) -> str:
    return EXPLANATION.format(rounds=options.rounds, warmup=options.warmup)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="This package and tf_cnn_benchmarks train the same, turn by turn, on this machine."
    )
    parser.add_argument("--tf-cnn-benchmarks", type=Path, metavar="PATH", help=f"the folder that has its {SCRIPT}")
    parser.add_argument("--python", default=sys.executable, metavar="PY", help="the interpreter that runs it")
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--bf16", action="store_true", help="compare this package's bf16 with its fp32 instead")
    instead.add_argument("--isolation", action="store_true", help="compare tasks in a network of their own with others instead")
    others = [name for name in VARIABLE_PLACEMENTS if name != GREEDY]
    instead.add_argument("--placement", choices=others, help=f"compare this placement of variables with {GREEDY} instead")
    parser.add_argument("--models", nargs="+", choices=SIZES, default=list(SIZES), metavar="MODEL", help=", ".join(SIZES))
    parser.add_argument("--cells", nargs="+", choices=CELLS, default=list(CELLS), metavar="CELL", help=", ".join(CELLS))
    parser.add_argument("--rounds", type=_count, default=ROUNDS, metavar="N", help="trainings of each (default %(default)s)")
    parser.add_argument("--steps", type=_count, metavar="N", help="measured steps (default: a few seconds' worth)")
    parser.add_argument("--warmup", type=_count, default=WARMUP_STEPS, metavar="N", help="steps before (default %(default)s)")
    parser.add_argument("--batch", type=_count, metavar="N", help="images per device and step (default: by model)")
    parser.add_argument("--precision", choices=("fp32", "fp16"), default="fp32", help="of both (default %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all rounds there")
    return parser


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not {text!r}")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
