"""This package and tf_cnn_benchmarks over links of a known rate: `python -m benchmarks.side_by_side`

    python -m benchmarks.side_by_side \
        --tf-cnn-benchmarks /tmp/benchmarks/scripts/tf_cnn_benchmarks --python /tmp/tf_cnn/bin/python

Two workers and four parameter servers, each on a machine of its own (`injected.py`) whose link tbf holds to a rate, train the
same turn by turn: tf_cnn_benchmarks, which places variables by its greedy rule, and this package by each placement and wire
precision of `OURS`. Every training is a line of JSON in benchmarks/side_by_side.jsonl, or --out, as soon as it has ended, and
what was cut off, or whose --budget-s was spent, goes on from there. In the end the tables are printed as Markdown: how long a
step took, what part of what the link allows that is, and how many times as fast as tf_cnn_benchmarks (geometric mean of the
steps side by side, with an interval of 95 % by Student's t).

docs/network-study.md has them. It needs root, hours for all of it, and nothing else on the machine where the link is fast.
"""

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.injected import Rig
from benchmarks.ratios import Interval, compare_pairs
from benchmarks.shaped import allowed_s, in_words, load_results, today
from benchmarks.tf_cnn_benchmarks import HOW_TO_GET_IT, SCRIPT, Host, TfCnnBenchmarks
from benchmarks.trainers import TrainingFailed
from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.clusters.placement import HostView, PlacedTask, place
from pytest_dtfperf.errors import DtfPerfError
from pytest_dtfperf.session import signals
from pytest_dtfperf.spec import Spec
from tests.clusters.ssh import lab
from tests.machines.machine import Machine

KEPT = Path(__file__).with_name("side_by_side.jsonl")

WORKERS, SERVERS = 2, 4
BATCH = {"alexnet": 2, "inception3": 2, "vgg16": 1}  # of one core: small, so that its arithmetic is not all that counts
RATES = ("200mbit", "1gbit")
MODES = ("parameter_server", "distributed_replicated")
WARMUP_STEPS = 1
STEPS = {"alexnet": 3, "inception3": 3, "vgg16": 2}  # a training's: a step of VGG16 takes 75 s at the lower rate
ROUNDS = 2
DEADLINE_S = 1800.0  # of a training of the other program

THEIRS = "tf_cnn_benchmarks"
OURS: Mapping[str, Mapping[str, str]] = {
    "greedy": {"variable_placement": "greedy"},
    "split": {"variable_placement": "split"},
    "split, bf16": {"variable_placement": "split", "wire_precision": "bf16"},
}


@dataclass(frozen=True)
class Cell:
    model: str
    rate: str
    variable_update: str

    def spec(self, who: str) -> Spec:
        """What is trained; of the other program, what it makes of it."""
        return Spec(
            model=self.model,
            batch_size=BATCH[self.model],
            gpus=WORKERS,
            num_ps=SERVERS,
            variable_update=self.variable_update,
            warmup_steps=WARMUP_STEPS,
            steps=STEPS[self.model],
            **OURS.get(who, {"variable_placement": "greedy"}),  # type: ignore[arg-type]  # texts, all of them
        )


@dataclass(frozen=True)
class Turn:
    """One training by one of them."""

    cell: Cell
    number: int  # of the round
    who: str


@dataclass(frozen=True)
class Result:
    """Of one turn."""

    turn: Turn
    step_s: Sequence[float] = ()  # as long as the slowest worker needed; of the other program, the chief
    limit_s: float = 0.0  # a step takes at least so long, by its busiest link
    cpu_s: Mapping[str, float] | None = None  # of a step and task; not known of the other program
    why: str = ""  # there are none
    day: str = field(default_factory=today)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> "Result":
        data = json.loads(line)
        turn = Turn(**{**data["turn"], "cell": Cell(**data["turn"]["cell"])})
        return cls(**{**data, "turn": turn})


def turns(rounds: int) -> Iterator[Turn]:
    """Round by round; whoever went first goes last in the next, so that none always meets a warmer machine."""
    for number, rate, model, mode in product(range(rounds), RATES, BATCH, MODES):
        everybody = [THEIRS, *OURS]
        for who in reversed(everybody) if number % 2 else everybody:
            yield Turn(Cell(model, rate, mode), number, who)


@dataclass(frozen=True)
class PinnedMachine:
    """A machine whose tasks keep to some cores, as those do that come over ssh."""

    machine: Machine
    cores: Sequence[int]

    @property
    def address(self) -> str:
        return self.machine.address

    def popen(self, *argv: str, **options: Any) -> Any:
        return self.machine.popen("taskset", "--cpu-list", ",".join(map(str, self.cores)), *argv, **options)


def measure_turns(wanted: Sequence[Turn], theirs: TfCnnBenchmarks, logs: Path, until_s: float) -> Iterator[Result]:
    """The first in any case, the others until the time is over."""
    with Rig(SERVERS, WORKERS, logs) as rig:
        for turn in wanted:
            for machine in rig.machines.values():
                machine.shape(turn.cell.rate)
            yield _measure_turn(rig, turn, theirs)
            if time.monotonic() > until_s:
                return


def _measure_turn(rig: Rig, turn: Turn, theirs: TfCnnBenchmarks) -> Result:
    spec = turn.cell.spec(turn.who)
    limit_s = round(allowed_s(rig, spec, turn.cell.rate), 4)
    try:
        if turn.who == THEIRS:
            hosts: dict[str, Host] = {task: PinnedMachine(rig.machines[task], rig.cores[task]) for task in rig.tasks}
            printed = theirs.train(spec, _tasks(rig, spec), hosts, each_step=True, deadline_s=DEADLINE_S)
            return Result(turn, [round(each, 4) for each in printed.step_s], limit_s)
        run = rig.launcher.run(spec, log_dir=rig.logs)
    except (DtfPerfError, TrainingFailed) as error:
        return Result(turn, limit_s=limit_s, why=str(error))
    slowest = [max(steps) for steps in zip(*run.step_s.values(), strict=True)]
    cpu_s = {task: round(spent_s / len(slowest), 2) for task, spent_s in run.cpu_s.items()}
    return Result(turn, [round(each, 4) for each in slowest], limit_s, cpu_s)


def _tasks(rig: Rig, spec: Spec) -> tuple[PlacedTask, ...]:
    """As this package places them there, so that the other program is given as many threads."""
    views = [HostView(machine.name, machine.address, cpus=tuple(rig.cores[task])) for task, machine in rig.machines.items()]
    config = ClusterConfig(name="lab", device="cpu", devices_per_host=1, ps_on_worker_hosts=False)
    return place(spec, views, config)


def tables(results: Iterable[Result]) -> Iterator[str]:
    """For each rate: seconds of a step, times as fast as the other program, and the part of what the link allows."""
    results_of: dict[tuple[Cell, str], dict[int, Result]] = {}
    for result in results:
        if result.step_s:
            results_of.setdefault((result.turn.cell, result.turn.who), {})[result.turn.number] = result
    for rate in RATES:
        rows = [
            f"| {model}, batch {BATCH[model]} | `{mode}` | {' | '.join(_row(Cell(model, rate, mode), results_of))} |"
            for model, mode in product(BATCH, MODES)
            if any(cell == Cell(model, rate, mode) for cell, _ in results_of)
        ]
        if rows:
            yield f"At {in_words(rate)}:"
            yield ""
            yield f"| Model | Mode | {' | '.join([THEIRS, *OURS])} |"
            yield f"|---|---|{'---:|' * (1 + len(OURS))}"
            yield from rows
            yield ""


def _row(cell: Cell, results_of: Mapping[tuple[Cell, str], Mapping[int, Result]]) -> Iterator[str]:
    theirs = results_of.get((cell, THEIRS), {})
    for who in (THEIRS, *OURS):
        found = results_of.get((cell, who), {})
        if not found:
            yield "-"
            continue
        steps = [step_s for result in found.values() for step_s in result.step_s]
        step_s = statistics.median(steps)
        share = f"{100 * next(iter(found.values())).limit_s / step_s:.0f} %"
        both = sorted(theirs.keys() & found.keys())
        if who == THEIRS or not both:
            yield f"{step_s:.2f} s, {share}"
            continue
        pairs = [
            pair for number in both for pair in zip(theirs[number].step_s, found[number].step_s, strict=True)
        ]  # fmt: skip
        yield f"{step_s:.2f} s, {share}, {_words(compare_pairs(pairs))}"


def _words(ratio: Interval) -> str:
    if not math.isfinite(ratio.high):
        return f"{ratio.centre:.2f} x"
    return f"{ratio.centre:.2f} x ({ratio.low:.2f} to {ratio.high:.2f})"


def main() -> int:
    options = _parser().parse_args()
    known = load_results(options.out, Result.from_json)
    done = {result.turn for result in known if result.step_s}  # what failed is tried again
    words = set(options.only.split())
    wanted = [each for each in turns(options.rounds) if each not in done and words <= set(asdict(each.cell).values())]
    if wanted and options.budget_s > 0:
        if not (options.tf_cnn_benchmarks and (options.tf_cnn_benchmarks / SCRIPT).is_file()):
            print(HOW_TO_GET_IT, file=sys.stderr)
            return 2
        if why_not := lab.why_not(namespaces=True):
            print(why_not, file=sys.stderr)
            return 1
    with ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stack.enter_context(signals.raise_exit())
        file = stack.enter_context(options.out.open("a"))
        theirs = TfCnnBenchmarks(Path(options.tf_cnn_benchmarks or ".").resolve(), options.python)
        until_s = time.monotonic() + options.budget_s
        for result in measure_turns(wanted, theirs, logs, until_s) if wanted and options.budget_s > 0 else ():
            known.append(result)
            print(result.to_json(), file=file, flush=True)
            print(result.turn, list(result.step_s), result.why, file=sys.stderr)
    print("\n".join(tables(known)))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=KEPT, help="lines of JSON: what was measured is not measured again")
    parser.add_argument("--tf-cnn-benchmarks", type=Path, metavar="PATH", help=f"the folder that has its {SCRIPT}")
    parser.add_argument("--python", default=sys.executable, metavar="PY", help="the interpreter that runs it")
    parser.add_argument("--rounds", type=int, default=ROUNDS, metavar="N", help="trainings of each (default %(default)s)")
    parser.add_argument("--budget-s", type=float, default=math.inf, help="begin no training after so many seconds")
    parser.add_argument("--only", default="", help="cells whose words have all of these: --only 'vgg16 1gbit'")
    return parser


if __name__ == "__main__":
    sys.exit(main())
