"""How often an explanation names what was really done to a training: `python -m benchmarks.causes [--cases N] [--out FILE]`

In each case one thing is slowed down on machines of their own (`injected.py`): a link, a worker, a parameter server, the graph.
What the step has become longer by is measured, by rates; the explanation is held against what was done, and its seconds against
what was measured. Cases are drawn from a seed, so that a shorter campaign is a part of a longer one. With --out, each case is a
line of JSON as soon as it is known, and a campaign that was cut off goes on from there.

docs/causes.md has the confusion matrix. It needs root, some hundred cases an hour, and nothing else on the machine.
"""

import argparse
import json
import random
import re
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path

from benchmarks.injected import INJECTED, Good, Rig, tasks_of
from pytest_dtfperf.errors import DtfPerfError
from pytest_dtfperf.explain.causes import Explanation, explain
from pytest_dtfperf.measurement import Measurement, Run
from pytest_dtfperf.session import signals
from pytest_dtfperf.session.evidence import of_measurement, with_changes
from pytest_dtfperf.spec import VARIABLE_UPDATES, Spec
from tests.clusters.ssh import lab

SEED = 2017
RUNS = 2  # of each case; the first of a training that was changed brings its own warm-up
STRENGTHS = (0.25, 0.5, 1.0)  # of a step, by which it is to become longer
LAYOUTS = (  # mode, parameter servers, workers
    ("parameter_server", 1, 2),
    ("parameter_server", 2, 2),
    ("parameter_server", 2, 4),
    ("distributed_replicated", 1, 2),
    ("distributed_replicated", 2, 3),
    ("collective_all_reduce", 0, 2),
    ("collective_all_reduce", 0, 3),
    ("distributed_all_reduce", 0, 2),
    ("parameter_server_v2", 1, 2),
)
NOTHING = "nothing"
QUIET = 1 / 5  # of all cases have nothing injected
LEAST_LONGER = 0.1  # of a step: what was to be injected and made less than this says nothing about explanations
WITHIN = 0.2  # of the measured seconds


@dataclass(frozen=True)
class Case:
    mode: str
    num_ps: int
    workers: int
    injected: str
    strength: float

    @property
    def layout(self) -> tuple[str, int, int]:
        return self.mode, self.num_ps, self.workers

    @property
    def only_peer(self) -> set[str] | None:
        """Of worker:1, if there is but one."""
        peers = {f"ps:{i}" for i in range(self.num_ps)} or {f"worker:{i}" for i in range(self.workers)} - {"worker:1"}
        return peers if len(peers) == 1 else None

    @property
    def hosts(self) -> dict[str, str]:
        """Host -> its task."""
        tasks = tasks_of(self.num_ps, self.workers)
        return {f"m{number}": task for number, task in enumerate(tasks, start=1)}

    @property
    def spec(self) -> Spec:
        return Spec(
            model="mnist",
            batch_size=16,
            gpus=self.workers,
            num_ps=self.num_ps,
            variable_update=self.mode,
            cross_replica_sync=VARIABLE_UPDATES[self.mode].synchronous,
            warmup_steps=3,
            steps=15,
            **INJECTED[self.injected].training,
        )


@dataclass(frozen=True)
class Told:
    """One case, and what was said of it."""

    case: Case
    then_s: float  # of a step
    now_s: float
    named: str  # the kind of the top cause; "" if none is claimed
    location: str
    seconds: float  # of that cause
    error: str = ""  # why there was no explanation

    @property
    def longer(self) -> float:
        """As a part of the step."""
        return self.now_s / self.then_s - 1

    @property
    def counts(self) -> bool:
        """Whether what was injected made any difference: else there is nothing to be explained."""
        return self.case.injected == NOTHING or self.longer >= LEAST_LONGER

    @property
    def is_right(self) -> bool:
        """Whether the top cause is of the kind that was injected, or none is claimed where nothing was."""
        kinds = INJECTED[self.case.injected].kinds
        return self.named in kinds if kinds else not self.named

    @property
    def is_there(self) -> bool:
        """Whether it is named where it was injected: by its tasks, or their hosts. A worker that talks to one task alone has
        a link that is its pair with that task."""
        where = INJECTED[self.case.injected].where
        named = {self.case.hosts.get(end, end) for end in re.split("[<>]+", self.location) if end}
        missing, more = set(where) - named, named - set(where)
        return not where or (not missing and (not more or more == self.case.only_peer))

    @property
    def is_within(self) -> bool:
        true_s = self.now_s - self.then_s
        return abs(self.seconds - true_s) <= WITHIN * true_s


def drawn(count: int) -> list[Case]:
    """The first so many of all cases there may be, in the order of a seed: each cause, mode and strength among them."""
    draw = random.Random(SEED)
    causes = [name for name in INJECTED if name != NOTHING]
    cases: list[Case] = []
    while len(cases) < count:
        mode, num_ps, workers = LAYOUTS[len(cases) % len(LAYOUTS)]
        possible = [name for name in causes if num_ps or not INJECTED[name].servers]
        injected = NOTHING if draw.random() < QUIET else possible[draw.randrange(len(possible))]
        cases.append(Case(mode, num_ps, workers, injected, draw.choice(STRENGTHS)))
    return cases


def tried(cases: Iterable[Case]) -> Iterator[Told]:
    """Of each layout all cases on the same machines, one after another."""
    with tempfile.TemporaryDirectory() as logs:
        for (_, num_ps, workers), group in groupby(sorted(cases, key=lambda case: case.layout), key=lambda case: case.layout):
            with Rig(num_ps, workers, Path(logs)) as rig:
                good: dict[Spec, Good] = {}
                for case in group:
                    if case.spec not in good:
                        good[case.spec] = _good(rig, case.spec)
                    yield _tried(rig, good[case.spec], case)


def _good(rig: Rig, spec: Spec) -> Good:
    rig.run(spec)  # the first on new machines has caches to fill
    runs = [rig.run(spec) for _ in range(RUNS + 1)]
    return Good(runs, spec)


def _tried(rig: Rig, good: Good, case: Case) -> Told:
    then = _measurement(rig, case.spec, good.runs)
    try:
        injected = INJECTED[case.injected]
        changes = injected.change(good, case.strength)
        with injected.slow(rig, good, case.strength):
            runs = [rig.run(case.spec, changes) for _ in range(RUNS)]
    except (DtfPerfError, OSError) as error:
        return Told(case, good.step_s, good.step_s, "", "", 0.0, error=str(error))
    spec = case.spec.but(**changes.spec)
    now = _measurement(rig, spec, runs)
    found = explain(of_measurement(then), with_changes(of_measurement(now), then.fingerprint, now.fingerprint))
    return _told(case, good.step_s, _step_s(spec, runs), found)


def _told(case: Case, then_s: float, now_s: float, found: Explanation | None) -> Told:
    if found is None:
        return Told(case, then_s, now_s, "", "", 0.0, error="no explanation")
    if not found.causes:
        return Told(case, then_s, now_s, "", "", 0.0)
    top = found.causes[0]
    return Told(case, then_s, now_s, top.kind, top.location or "", top.seconds)


def _measurement(rig: Rig, spec: Spec, runs: Sequence[Run]) -> Measurement:
    hosts = list(runs[-1].hosts)
    fingerprint = {**rig.launcher.fingerprint_of(hosts), "program": runs[-1].program}
    return Measurement(spec=spec, runs=tuple(runs), hosts=hosts, fingerprint=fingerprint)  # of injected sleeps it says nothing


def _step_s(spec: Spec, runs: Sequence[Run]) -> float:
    return statistics.median(spec.gpus * (spec.batch_size or 0) / run.images_per_sec for run in runs)


# -- what came of it


def matrix(told: Sequence[Told]) -> str:
    """What was injected, line by line, and what was named, as Markdown."""
    counted = [each for each in told if each.counts and not each.error]
    named = sorted({each.named for each in counted})
    lines = [
        "| injected | cases | "
        + " | ".join(name or "no cause" for name in named)
        + " | right kind | and place | seconds within 20 % |",
        "|---|---:|" + "---:|" * (len(named) + 3),
    ]
    for injected in INJECTED:
        of_it = [each for each in counted if each.case.injected == injected]
        if of_it:
            count = Counter(each.named for each in of_it)
            right = [each for each in of_it if each.is_right]
            within = f"{sum(each.is_within for each in right)} of {len(right)}" if INJECTED[injected].kinds else ""
            cells = [str(count[name] or "") for name in named]
            lines.append(
                f"| {injected} | {len(of_it)} | "
                + " | ".join(cells)
                + f" | {len(right)} | {sum(each.is_there for each in right)} | {within} |"
            )
    return "\n".join(lines)


def summary(told: Sequence[Told]) -> Iterator[str]:
    injected = [each for each in told if each.counts and not each.error and INJECTED[each.case.injected].kinds]
    quiet = [each for each in told if not each.error and not INJECTED[each.case.injected].kinds]
    right = [each for each in injected if each.is_right]
    yield f"named rightly: {_share(len(right), len(injected))}"
    yield f"and where it was injected, of those: {_share(sum(each.is_there for each in right), len(right))}"
    yield f"seconds within 20 %, of those: {_share(sum(each.is_within for each in right), len(right))}"
    yield f"nothing injected and nothing claimed: {_share(sum(each.is_right for each in quiet), len(quiet))}"
    weak = sum(not each.counts for each in told)
    broken = sum(bool(each.error) for each in told)
    yield f"left out: {weak} in which the step became less than 10 % longer, {broken} that did not come to an end"


def line_of(told: Told) -> str:
    """One case, as it is known."""
    case, true_s = told.case, told.now_s - told.then_s
    right = "right" if told.is_right and told.is_there else "right, not there" if told.is_right else "WRONG"
    found = f"{told.named} {told.location} {1000 * told.seconds:.0f} of {1000 * true_s:.0f} ms" if told.named else "no cause"
    words = told.error or (f"{found}: {right}" if told.counts else f"{found}: left out")
    return f"{case.injected:18} {case.mode} {case.num_ps}+{case.workers} {told.longer:+.0%}: {words}"


def _share(count: int, of: int) -> str:
    return f"{count} of {of}" + (f" ({count / of:.1%})" if of else "")


def _known(path: Path | None) -> list[Told]:
    if path is None or not path.exists():
        return []
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return [Told(**{**each, "case": Case(**each["case"])}) for each in found]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=250, help="how many; 250")
    parser.add_argument("--out", type=Path, help="a file of what is known, a line of JSON for each case")
    args = parser.parse_args(arguments)
    if reason := lab.why_not(namespaces=True):
        sys.exit(f"no machines: {reason}")
    told = _known(args.out)
    known = Counter(each.case for each in told)
    left = [case for case in drawn(args.cases) if not _taken(known, case)]
    with signals.leaving():  # machines and their control groups go, however it ends
        for each in tried(left):
            told.append(each)
            if args.out:
                with args.out.open("a") as file:
                    file.write(json.dumps(asdict(each)) + "\n")
            print(line_of(each), flush=True)
    print(matrix(told), *summary(told), sep="\n")
    return 0


def _taken(known: Counter[Case], case: Case) -> bool:
    if known[case]:
        known[case] -= 1
        return True
    return False


if __name__ == "__main__":
    sys.exit(main())
