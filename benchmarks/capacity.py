"""How much network a training needs: `python -m benchmarks.capacity [--budget-s N] [--figure docs/capacity.png]`

Two workers and 1, 2, 4, 8 parameter servers, each on a machine of its own (`injected.py`) whose link tbf holds to 0.1, 1 and
10 Gbit/s: InceptionV3, ResNet-50 and VGG16 with every placement of variables and every precision on the wire; ResNet-50 in
bf16 at 0.25 Gbit/s; and at 0.3 and 0.6 Gbit/s two of them with batches whose arithmetic takes as long as their bytes. Each
cell is a line of JSON in benchmarks/capacity.jsonl, or --out, as soon as it is known; what is there is not measured again, so
that a study that was cut off, or whose --budget-s was spent, goes on from there. In the end the tables are printed as Markdown,
each step beside what its link allows, what a worker needs alone, without any parameter server, and for how long the workers'
cores, which servers and links share, were busy; and the figure is drawn.

docs/network-study.md has some of the tables, and the figure. It needs root, hours, and a machine without other load.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.injected import Rig
from benchmarks.shaped import allowed_s, in_words, load_results, processor, today
from pytest_dtfperf.datamodel.measurement import Run
from pytest_dtfperf.errors import DtfPerfError
from pytest_dtfperf.session import signals
from pytest_dtfperf.spec import VARIABLE_PLACEMENTS, Spec
from pytest_dtfperf.spec.tables import WIRE_PRECISIONS
from tests.clusters.ssh import lab
from tests.machines.machine import bit_per_s

KEPT = Path(__file__).with_name("capacity.jsonl")

WORKERS = 2
BATCH = {"inception3": 2, "resnet50": 2, "vgg16": 1}  # of one core: small, so that its arithmetic is not all that counts
RATES = ("1gbit", "10gbit", "100mbit")
# Where a slow processor is to ResNet-50's bytes in bf16 what a fast one is to them at 1 Gbit/s: they take twice as long as it.
SLOWER = ("resnet50", "250mbit", "bf16")
# Batches whose arithmetic takes as long as their bytes at the first rate on such a processor, at the second on one that is
# twice as fast; and as a measure of it, at 10 Gbit/s. Of many steps: what both make varies more than what the link makes.
EQUAL = {"inception3": 8, "resnet50": 8}
EQUAL_RATES = ("300mbit", "600mbit", "10gbit")
EQUAL_STEPS = 8
SERVERS = (1, 2, 4, 8)
STEPS, WARMUP_STEPS = 3, 2
LONG_STEP_S = 10.0  # by its limit: then one step is measured, after one that is not. The link makes it, and the link is even
TELLING = ("greedy", "split")  # placements that are measured first
MOST_STEP_S = 60.0  # what must take longer by its limit is not tried


@dataclass(frozen=True)
class Cell:
    model: str
    rate: str
    num_ps: int
    placement: str
    wire: str
    larger_batch: int | None = None  # than that of `BATCH`

    @property
    def batch_size(self) -> int:
        return self.larger_batch or BATCH[self.model]

    @property
    def spec(self) -> Spec:
        return Spec(
            model=self.model,
            batch_size=self.batch_size,
            gpus=WORKERS,
            num_ps=self.num_ps,
            variable_placement=self.placement,
            wire_precision=self.wire,
            warmup_steps=WARMUP_STEPS,
            steps=EQUAL_STEPS if self.larger_batch else STEPS,
        )

    def as_long(self, limit_s: float) -> Spec:
        """As many steps as it takes where none is shorter than that."""
        return self.spec.replace(warmup_steps=1, steps=1) if limit_s > LONG_STEP_S else self.spec


@dataclass(frozen=True)
class Result:
    """Of one cell. Without `steps_s` it was not trained, and why."""

    cell: Cell
    limit_s: float  # a step takes at least so long
    bound_by: str  # "link", "worker": it computes for so long alone, or "cores": theirs were busy for so long
    steps_s: tuple[float, ...] = ()  # of each measured step, until the last worker had done it
    why: str = ""
    day: str = field(default_factory=today)
    processor: str = field(default_factory=processor)

    @property
    def step_s(self) -> float | None:
        return statistics.median(self.steps_s) if self.steps_s else None

    @property
    def share(self) -> float | None:
        """Of what is allowed."""
        return self.limit_s / self.step_s if self.step_s else None

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> "Result":
        data = json.loads(line)
        return cls(**{**data, "cell": Cell(**data["cell"]), "steps_s": tuple(data["steps_s"])})


def cells() -> Iterator[Cell]:
    """The telling ones first; one server has no choice of placement."""
    others = tuple(name for name in VARIABLE_PLACEMENTS if name not in TELLING)
    every = [
        Cell(model, rate, num_ps, placement, wire)
        for placements, rate, num_ps in product((TELLING, others), RATES, SERVERS)
        for placement, model, wire in product(placements, BATCH, WIRE_PRECISIONS)
    ]
    model, rate, wire = SLOWER
    every += [Cell(model, rate, num_ps, placement, wire) for num_ps, placement in product(SERVERS, VARIABLE_PLACEMENTS)]
    every += [
        Cell(model, rate, num_ps, "split", "fp32", batch_size)
        for num_ps, (model, batch_size), rate in product(SERVERS[1:], EQUAL.items(), EQUAL_RATES)
    ]
    return (cell for cell in every if cell.num_ps > 1 or cell.placement == "greedy")


def measure_cells(wanted: Sequence[Cell], logs: Path, until_s: float) -> Iterator[Result]:
    """Machines are made once for all cells of as many servers that come one after the other."""
    left = list(wanted)
    while left and time.monotonic() < until_s:
        num_ps = left[0].num_ps
        with Rig(num_ps, WORKERS, logs) as rig:
            alone_s: dict[tuple[str, int], float] = {}
            while left and left[0].num_ps == num_ps and time.monotonic() < until_s:
                cell = left.pop(0)
                training = cell.model, cell.batch_size
                if training not in alone_s:
                    alone = cell.spec.replace(gpus=1, num_ps=0, wire_precision="fp32", variable_placement="greedy")
                    alone_s[training] = statistics.median(rig.launcher.run(alone, log_dir=logs).step_s["worker:0"])
                yield _measure_cell(rig, cell, alone_s[training])


def _measure_cell(rig: Rig, cell: Cell, alone_s: float) -> Result:
    link_s = allowed_s(rig, cell.spec, cell.rate)
    allowed = Result(cell, round(max(link_s, alone_s), 4), "link" if link_s > alone_s else "worker")
    if allowed.limit_s > MOST_STEP_S:
        return replace(allowed, why=f"more than {MOST_STEP_S:g} s")
    for machine in rig.machines.values():
        machine.shape(cell.rate)
    try:
        run = rig.launcher.run(cell.as_long(allowed.limit_s), log_dir=rig.logs)
    except DtfPerfError as error:
        return replace(allowed, why=str(error).partition("\n")[0])
    steps_s = tuple(round(max(steps), 4) for steps in zip(*run.step_s.values(), strict=True))
    cores_s = round(busy_s(run), 4)
    if cores_s > allowed.limit_s:
        allowed = replace(allowed, limit_s=cores_s, bound_by="cores")
    return replace(allowed, steps_s=steps_s)


def busy_s(run: Run) -> float:
    """For how much of a step the workers' cores were busy, the mean over them: with their own work, and that of servers and
    links, which here have no others.
    """
    states = [run.state[run.task_hosts[worker]] for worker in run.step_s]
    of_cores = [state.cpu.busy_s / state.cores for state in states]
    return statistics.mean(of_cores) / len(next(iter(run.step_s.values())))


def tables(results: Iterable[Result]) -> Iterator[str]:
    """For each rate and processor: seconds of a step, what part of the limit that is, and whose. One server has no choice."""
    for (rate, named), by_cell in _comparable(results):
        kinds = list(dict.fromkeys((cell.placement, cell.wire) for cell in cells() if cell in by_cell))
        yield f"At {in_words(rate)}, on {named}:"
        yield ""
        yield f"| Model, batch | Servers | {' | '.join(f'{placement}, {wire}' for placement, wire in kinds)} |"
        yield f"|---|---:|{'---:|' * len(kinds)}"
        for (model, larger), num_ps in product([*product(BATCH, [None]), *EQUAL.items()], SERVERS):
            row = [Cell(model, rate, num_ps, placement if num_ps > 1 else "greedy", wire, larger) for placement, wire in kinds]
            found = [by_cell.get(cell) for cell in row]
            if any(found):
                yield f"| {model}, {row[0].batch_size} | {num_ps} | {' | '.join(map(_cell, found))} |"
        yield ""


def _comparable(results: Iterable[Result]) -> list[tuple[tuple[str, str], dict[Cell, Result]]]:
    """Of each rate and processor, slow links first: arithmetic of another processor takes another time."""
    found: dict[tuple[str, str], dict[Cell, Result]] = {}
    for result in results:
        found.setdefault((result.cell.rate, result.processor), {})[result.cell] = result
    return sorted(found.items(), key=lambda each: (bit_per_s(each[0][0]), each[0][1]))


def _cell(result: Result | None) -> str:
    if result is None:
        return "-"
    if result.step_s is None:
        return f"> {result.limit_s:.0f} s"
    return f"{result.step_s:.2f} s, {100 * (result.share or 0):.0f} % {result.bound_by}"


def draw(results: Iterable[Result], path: Path) -> None:
    """images/sec against parameter servers: a panel for each model and rate, a line for each placement and precision."""
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    mpl.rcParams["svg.hashsalt"] = "capacity"  # the same numbers, the same file
    drawn = [result for result in results if result.step_s and result.cell.rate in RATES and not result.cell.larger_batch]
    models = [model for model in BATCH if any(result.cell.model == model for result in drawn)]
    # What has not been measured of all of them is no row.
    rows = [row for row in _comparable(drawn) if all(_lines(model, row[1]) for model in models)]
    figure, axes = plt.subplots(
        len(rows), len(models), figsize=(3 * len(models), 3 * len(rows)), sharex=True, squeeze=False, layout="constrained"
    )
    colours = dict(zip(VARIABLE_PLACEMENTS, ("#0072b2", "#56b4e9", "#e69f00", "#d55e00"), strict=True))
    for (row, ((rate, named), by_cell)), (column, model) in product(enumerate(rows), enumerate(models)):
        axis = axes[row][column]
        for (placement, wire), rates_of in sorted(_lines(model, by_cell).items()):
            counts, values = zip(*sorted(rates_of.items()), strict=True)
            style = "-" if wire == "fp32" else "--"
            axis.plot(counts, values, style, marker="o", ms=3, color=colours[placement], label=f"{placement}, {wire}")
        axis.set_xscale("log", base=2)
        axis.set_xticks(SERVERS, [str(count) for count in SERVERS])
        axis.set_ylim(bottom=0)
        axis.set_title(f"{model}, {in_words(rate)}\n{named}", fontsize=8)
    figure.supxlabel("parameter servers")
    figure.supylabel("images/sec")
    found: dict[str, Any] = {}
    for axis in axes.flat:
        handles, names = axis.get_legend_handles_labels()
        found = {**dict(zip(names, handles, strict=True)), **found}
    figure.legend(list(found.values()), list(found), loc="outside upper center", ncols=4, fontsize=8, frameon=False)
    figure.savefig(path, dpi=110, metadata={"Date": None} if path.suffix == ".svg" else None)


def _lines(model: str, by_cell: Mapping[Cell, Result]) -> dict[tuple[str, str], dict[int, float]]:
    """images/sec by placement and precision, and by parameter servers: one is a point of every placement's line. What was
    measured with one number of servers alone is no line.
    """
    lines: dict[tuple[str, str], dict[int, float]] = {}
    for cell, result in by_cell.items():
        if cell.model == model and result.step_s:
            for placement in [cell.placement] if cell.num_ps > 1 else VARIABLE_PLACEMENTS:
                lines.setdefault((placement, cell.wire), {})[cell.num_ps] = WORKERS * cell.batch_size / result.step_s
    return {kind: rates_of for kind, rates_of in lines.items() if len(rates_of) > 1}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=KEPT, help="lines of JSON: what is there is not measured again")
    parser.add_argument("--figure", type=Path, help="a PNG or SVG")
    parser.add_argument("--budget-s", type=float, default=float("inf"), help="measure no longer than so many seconds")
    parser.add_argument("--only", default="", help="cells whose words have all of these: --only 'vgg16 1gbit'")
    options = parser.parse_args()
    known = load_results(options.out, Result.from_json)
    done = {result.cell for result in known}
    words = options.only.split()
    wanted = [cell for cell in cells() if cell not in done and set(words) <= {str(each) for each in asdict(cell).values()}]
    why_not = lab.why_not(namespaces=True)
    if wanted and options.budget_s > 0 and why_not:
        print(why_not, file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as logs, signals.raise_exit(), options.out.open("a") as file:
        for result in measure_cells(wanted, Path(logs), time.monotonic() + options.budget_s):
            known.append(result)
            print(result.to_json(), file=file, flush=True)
            print(result.cell, _cell(result), result.why, file=sys.stderr)
    print("\n".join(tables(known)))
    if options.figure:
        draw(known, options.figure)
    return 0


if __name__ == "__main__":
    sys.exit(main())
